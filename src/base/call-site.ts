/** Where in the user's source a call came from: the first stack frame outside the package. Cheap enough for every call
 *  that leaves the thread (a few microseconds, source maps applied once per place). */
import { findSourceMap } from 'node:module';
import { basename, dirname } from 'node:path';
import { fileURLToPath } from 'node:url';

/** The package's own code, whether it runs from `src` or from `dist`. */
const ownFolder = dirname(dirname(fileURLToPath(import.meta.url)));

const framesMax = 16;

/** Finds call sites; keeps what it has mapped. One per thread or group. */
export class CallSites {
  readonly #mapped = new Map<string, string>();

  /** `train.ts:12` of the nearest caller outside the package, or undefined. */
  current(): string | undefined {
    const { stackTraceLimit, prepareStackTrace } = Error;
    const holder: { stack?: unknown } = {};
    Error.stackTraceLimit = framesMax;
    Error.prepareStackTrace = (_, frames) => frames;
    try {
      Error.captureStackTrace(holder, CallSites.prototype.current);
      return this.#firstForeign(holder.stack as NodeJS.CallSite[]);
    } finally {
      Error.stackTraceLimit = stackTraceLimit;
      Error.prepareStackTrace = prepareStackTrace;
    }
  }

  #firstForeign(frames: readonly NodeJS.CallSite[]): string | undefined {
    for (const frame of frames) {
      const name = frame.getFileName();
      if (!name || name.startsWith('node:')) continue;
      const path = name.startsWith('file:') ? fileURLToPath(name) : name;
      if (path.startsWith(ownFolder) && !path.endsWith('.test.ts')) continue;
      return this.#map(name, path, frame.getLineNumber() ?? 0, frame.getColumnNumber() ?? 0);
    }
    return undefined;
  }

  #map(name: string, path: string, line: number, column: number): string {
    const key = `${path}:${line}:${column}`;
    const known = this.#mapped.get(key);
    if (known !== undefined) return known;
    // Positions count from 1 on a stack, from 0 in a source map.
    const origin = findSourceMap(name)?.findEntry(line - 1, column - 1);
    const original = origin && 'originalLine' in origin ? origin.originalLine + 1 : line;
    const site = `${basename(path)}:${original}`;
    this.#mapped.set(key, site);
    return site;
  }
}
