/** The command line that runs a user's script: JavaScript by Node.js itself, TypeScript through tsx where that is installed, else by
 *  Node.js, which strips types from 22.18 on.
 *
 *  TypeScript is taken for ES modules unless its package.json says `"type": "commonjs"`: scripts begin with
 *  `await initProcessGroup()`, which CommonJS does not have, and many folders have no package.json at all. tsx decides
 *  otherwise when `type` is missing, so such files are given their format by a hook that resolves before tsx does. Node.js by itself
 *  looks at their syntax. */
import { constants } from 'node:buffer';
import { statSync } from 'node:fs';
import nodeModule, { createRequire } from 'node:module';
import { basename, dirname, extname, join, resolve } from 'node:path';
import { pathToFileURL } from 'node:url';
import { Script } from 'node:vm';
import type * as Esbuild from 'esbuild';
import { messageOf, ShoalError } from '../base/errors.ts';
import { readRegularFileSync } from '../base/files/read-file.ts';
import { installCommand } from '../base/settings/install-commands.ts';
import { uncaughtMarker } from './output/uncaught-error.ts';

export interface ScriptOptions {
  readonly script: string;
  readonly args: readonly string[];
  /** Directory against which the script is resolved. */
  readonly directory: string;
  /** `node` (default): a script for Node.js; `program`: any executable, found on PATH. */
  readonly kind?: 'node' | 'program';
  /** Flags for Node.js itself. */
  readonly nodeArgs?: readonly string[];
}

const typescript = new Set(['.ts', '.mts', '.cts', '.tsx']);
const javascript = new Set(['.js', '.mjs', '.cjs']);

/** Node.js queues what a full socket does not take, and throws the queue away when the process ends: the error that ended it
 *  would be lost just where many lines came before. Output that blocks loses nothing, and slows down who writes too fast. */
const blockingOutput = 'for(const stream of[process.stdout,process.stderr])stream._handle?.setBlocking?.(true);';

/** Program and arguments. @throws ShoalError `usage` when there is no such script, it is of no known kind, or it is CommonJS and awaits
 *  at its top level; `unsupported` for TypeScript when nothing here runs it. */
export function scriptCommand(options: ScriptOptions): string[] {
  const { script, args, directory, nodeArgs = [] } = options;
  if (options.kind === 'program') return [script, ...args];
  const path = resolve(directory, script);
  if (!isFile(path)) throw new ShoalError('usage', `there is no script file ${path}; use --no-node to start another program`);
  const extension = extname(path);
  if (isCommonJs(path) && awaitsAtTop(path)) throw commonJsError(path);
  const node = [process.execPath, ...nodeArgs, '--import', dataUrl(blockingOutput + uncaughtMarker(process.pid))];
  if (javascript.has(extension)) return [...node, path, ...args];
  if (typescript.has(extension)) return [...node, ...typescriptFlags(path), path, ...args];
  throw new ShoalError('usage', `${path} is neither JavaScript nor TypeScript; use --no-node to start another program`);
}

/** Flags with which Node.js runs this TypeScript. */
function typescriptFlags(script: string): string[] {
  const loader = tsxOf(script);
  if (loader !== undefined) return [...moduleHook(script), '--import', pathToFileURL(loader).href];
  if (stripTypes !== undefined) return [];
  const install = installCommand(process.env, 'tsx', { dev: true });
  const message = `${script} is TypeScript, which Node.js ${process.versions.node} runs through the package tsx; run ${install} (Node.js 22.18 and later need nothing)`;
  throw new ShoalError('unsupported', message);
}

/** tsx's loader: of the project that the script belongs to, or what is installed beside us. */
function tsxOf(script: string): string | undefined {
  for (const from of [script, import.meta.url]) {
    try {
      return createRequire(from).resolve('tsx');
    } catch {
      // Not there.
    }
  }
  return undefined;
}

/** Flags that make TypeScript of the script's package ES modules; none where package.json decides. */
function moduleHook(script: string): string[] {
  const { folder, type } = packageOf(script);
  if (type !== undefined) return [];
  const root = JSON.stringify(pathToFileURL(join(folder, '/')).href);
  const hook = `export async function resolve(name,context,next){const found=await next(name,context);
return found.format==null&&found.url.startsWith(${root})&&!found.url.includes("/node_modules/")&&/\\.tsx?$/.test(found.url)?{...found,format:"module"}:found}`;
  return ['--import', dataUrl(`import{register}from"node:module";register(${JSON.stringify(dataUrl(hook))})`)];
}

/** Whether Node.js and tsx will take the script for a CommonJS module. */
function isCommonJs(script: string): boolean {
  const extension = extname(script);
  if (extension === '.cjs' || extension === '.cts') return true;
  if (extension === '.mjs' || extension === '.mts') return false;
  const { type } = packageOf(script);
  if (type === undefined) return extension === '.js' && !detectsModules;
  return type === 'commonjs';
}

/** The type stripper of a Node.js that runs TypeScript by itself. */
const stripTypes =
  'typescript' in process.features && process.features.typescript !== false
    ? (nodeModule as { stripTypeScriptTypes?: (source: string) => string }).stripTypeScriptTypes
    : undefined;

/** Node.js looks at the syntax of a `.js` file whose package.json says nothing. */
const detectsModules = 'require_module' in process.features;

/** Every rank would fail with the same syntax error. */
function awaitsAtTop(script: string): boolean {
  const source = textOf(script).replace(/^#!.*/, '');
  return typescript.has(extname(script)) ? awaitsInTypescript(source, script) : awaitsInJavascript(source);
}

function awaitsInJavascript(source: string): boolean {
  return !compiles('', source) && compiles('async ', source);
}

function compiles(kind: string, body: string): boolean {
  try {
    // The script is compiled, not run.
    void new Script(`(${kind}function (exports, require, module, __filename, __dirname) {${body}\n})`);
    return true;
  } catch {
    return false;
  }
}

/** Whether a TypeScript script awaits at its top level, according to the compiler that will run it. */
function awaitsInTypescript(source: string, script: string): boolean {
  const tsx = tsxOf(script);
  if (tsx === undefined) return stripTypes !== undefined && awaitsWithoutTypes(source, stripTypes);
  const { transformSync } = createRequire(tsx)('esbuild') as Pick<typeof Esbuild, 'transformSync'>;
  const loader = extname(script) === '.tsx' ? 'tsx' : 'ts';
  try {
    transformSync(source, { loader, format: 'cjs', logLevel: 'silent' });
    return false;
  } catch (error) {
    return /top-level await/i.test(messageOf(error));
  }
}

function awaitsWithoutTypes(source: string, strip: (source: string) => string): boolean {
  try {
    // A CommonJS module has no `import` and `export`: about a script that has them, Node.js says so itself.
    return awaitsInJavascript(strip(source));
  } catch {
    return false;
  }
}

function commonJsError(script: string): ShoalError {
  const module = script.replace(/\.c?(js|tsx?)$/, '.m$1').replace('.mtsx', '.mts');
  const message = `${script} awaits at its top level, which CommonJS does not have; name it ${basename(module)}, or write "type": "module" into its package.json`;
  return new ShoalError('usage', message);
}

function dataUrl(source: string): string {
  return `data:text/javascript,${encodeURIComponent(source)}`;
}

/** The package that a file belongs to, and its `type`; the file's own folder when there is no package.json above it. */
function packageOf(file: string): { folder: string; type: string | undefined } {
  for (let folder = dirname(file); ; folder = dirname(folder)) {
    const manifest = join(folder, 'package.json');
    if (isFile(manifest)) return { folder, type: typeOf(manifest) };
    if (folder === dirname(folder)) return { folder: dirname(file), type: undefined };
  }
}

function typeOf(manifest: string): string | undefined {
  try {
    const { type } = JSON.parse(textOf(manifest)) as { type?: unknown };
    return typeof type === 'string' ? type : undefined;
  } catch {
    // Node.js will say what is wrong with it.
    return undefined;
  }
}

function textOf(path: string): string {
  return readRegularFileSync(path, { bytesMax: constants.MAX_STRING_LENGTH }).toString();
}

function isFile(path: string): boolean {
  return statSync(path, { throwIfNoEntry: false })?.isFile() ?? false;
}
