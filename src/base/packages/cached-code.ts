/** Loads a bundle with its code compiled already: the first thread that has run it for a while keeps what V8 has compiled of it beside it,
 *  for one version of Node.js. The first thread that has lost a rank does so again: code that runs seldom is compiled then, too. V8 refuses
 *  what does not fit, and compiles as without.
 *
 *      x.js         its imports and exports, as an ES module: an ES module has no cache of code in Node.js 20
 *      x.cjs        its code                          x.cjs-<hash of the code>-<version>.cache    written where the folder may be
 *                                                     … .seldom.cache                             after a loss; read instead of the other
 *
 *  scripts/cached-bundles.mjs makes the pair out of a bundle. */
import { channel } from 'node:diagnostics_channel';
import { closeSync, existsSync, openSync, readFileSync, renameSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { Module } from 'node:module';
import { fileURLToPath } from 'node:url';
import { Script } from 'node:vm';

/** Time after which compiled code is written: a rank has joined by then, and a launcher has started its ranks. After a loss, the ranks that
 *  are left have gone on. */
const keepMs = 1000;
/** Bundles have a copy of this module each. */
const seldom = channel('shoal:seldom');

/** Keeps what the bundles of this thread have run, once more: code that runs seldom has run. */
export const keepSeldomCode = (): void => seldom.publish(undefined);

export interface CachedBundle {
  readonly require: NodeRequire;
  /** The module that takes its place. */
  readonly url: string;
  readonly hash: string;
  /** Namespaces of the bundles that it imports, by the name in its code. */
  readonly imports: Readonly<Record<string, unknown>>;
  /** Runs the bundle's dynamic imports: V8 does not know where cached code comes from, and Node.js not how to import for it. */
  readonly importLater: (name: string) => Promise<unknown>;
}

type Compiled = (exports: object, require: (name: string) => unknown, module: Module) => void;
type CommonJs = Module & { _compile(source: string, file: string): void };

/** Runs the code. @returns what it exports. */
export function loadBundle({ require, url, hash, imports, importLater }: CachedBundle): object {
  const file = fileURLToPath(url).replace(/\.js$/, '.cjs');
  // Bundles are of ASCII.
  const source = readFileSync(file, 'latin1');
  const requireOf = (name: string): unknown => imports[name] ?? require(name);
  const module = Object.assign(new Module(file) as CommonJs, { filename: file, url, importLater, require: requireOf });
  // Node.js knows the source maps of modules alone.
  if ((process as { sourceMapsEnabled?: boolean }).sourceMapsEnabled === true) module._compile(source, file);
  else compiled(source, file, `${file}-${hash}-${process.version}-${process.arch}`)(module.exports as object, requireOf, module);
  return module.exports as object;
}

function compiled(source: string, filename: string, cache: string): Compiled {
  const [first, later] = [`${cache}.cache`, `${cache}.seldom.cache`];
  const all = readIfThere(later);
  const cachedData = all ?? readIfThere(first);
  const script = new Script(`(function(exports,require,module){${source}\n})`, { filename, ...(cachedData && { cachedData }) });
  const keepSoon = (path: string): unknown => setTimeout(() => keep(path, script), keepMs).unref();
  if (cachedData === undefined) keepSoon(first);
  if (all === undefined) seldom.subscribe(() => keepSoon(later));
  return script.runInThisContext() as Compiled;
}

function readIfThere(path: string): Buffer | undefined {
  try {
    return readFileSync(path);
  } catch {
    return undefined;
  }
}

/** Whole or not at all: by one process, and by none where the folder may not be written. */
function keep(path: string, script: Script, part = `${path}.part`): void {
  if (existsSync(path)) return;
  try {
    // A process that was killed while it wrote keeps no other from it for more than a minute.
    if (Date.now() - (statSync(part, { throwIfNoEntry: false })?.mtimeMs ?? Infinity) > 60_000) rmSync(part);
    const descriptor = openSync(part, 'wx');
    try {
      writeFileSync(descriptor, script.createCachedData(), { flush: true });
      renameSync(part, path);
    } catch {
      rmSync(part, { force: true });
    } finally {
      closeSync(descriptor);
    }
  } catch {
    // Another process does it, or nobody can.
  }
}
