/** Finds the place in the user's source from which a call came: the first stack frame outside the package. Cheap enough for every
 *  call that may leave the thread: the stack is noted at once and searched only when somebody asks (3 µs and 3 more; ten times as
 *  much with cold caches), source maps are applied once per place. */
import { findSourceMap } from 'node:module';
import { basename } from 'node:path';
import { fileURLToPath } from 'node:url';
import { getOrMake } from './collections/lists.ts';
import { codeFolder } from './packages/package-root.ts';

const framesMax = 16;

/** A file on the stack, outside the package. */
interface ForeignFile {
  readonly path: string;
  /** Places in the original source, by position in the file. */
  readonly sites: Map<number, string>;
}

/** The place of a call, `train.ts:12`; undefined: not known. It may be asked for later than the call, or never. */
export type CallSite = () => string | undefined;

/** Finds call sites; keeps what it has mapped. One per thread or group. */
export class CallSites {
  /** Files by their name on the stack; undefined: the package's own. */
  readonly #files = new Map<string, ForeignFile | undefined>();

  /** The nearest caller outside the package. */
  current(): CallSite {
    const { stackTraceLimit } = Error;
    const holder: { stack?: unknown } = {};
    Error.stackTraceLimit = framesMax;
    Error.captureStackTrace(holder, CallSites.prototype.current);
    Error.stackTraceLimit = stackTraceLimit;
    return () => this.#firstForeign(framesOf(holder));
  }

  #firstForeign(frames: readonly NodeJS.CallSite[]): string | undefined {
    for (const frame of frames) {
      const name = frame.getFileName() ?? '';
      const file = name === '' ? undefined : this.#file(name);
      if (file) return siteOf(frame, name, file);
    }
    return undefined;
  }

  #file(name: string): ForeignFile | undefined {
    if (this.#files.has(name)) return this.#files.get(name);
    const path = name.startsWith('file:') ? fileURLToPath(name) : name;
    const isOwn = name.startsWith('node:') || (path.startsWith(codeFolder) && !path.endsWith('.test.ts'));
    const file = isOwn ? undefined : { path, sites: new Map<number, string>() };
    this.#files.set(name, file);
    return file;
  }
}

/** Frames of the noted stack. Node.js makes them when the stack is first read, by the `prepareStackTrace` that is in force then. */
function framesOf(holder: { readonly stack?: unknown }): readonly NodeJS.CallSite[] {
  const { prepareStackTrace } = Error;
  Error.prepareStackTrace = (_, frames) => frames;
  try {
    return holder.stack as NodeJS.CallSite[];
  } finally {
    Error.prepareStackTrace = prepareStackTrace;
  }
}

function siteOf(frame: NodeJS.CallSite, name: string, { path, sites }: ForeignFile): string {
  return getOrMake(sites, frame.getPosition(), () => {
    const [line, column] = [frame.getLineNumber() ?? 0, frame.getColumnNumber() ?? 0];
    // Positions count from 1 on a stack, from 0 in a source map.
    const entry = findSourceMap(name)?.findEntry(line - 1, column - 1);
    const mapped = entry !== undefined && 'originalLine' in entry;
    return mapped ? `${basename(entry.originalSource)}:${entry.originalLine + 1}` : `${basename(path)}:${line}`;
  });
}
