/** The command line that runs a user's script: TypeScript through tsx, JavaScript by Node.js itself. */
import { statSync } from 'node:fs';
import { createRequire } from 'node:module';
import { extname, resolve } from 'node:path';
import { pathToFileURL } from 'node:url';
import { ShoalError } from '../base/errors.ts';

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

/** Program and arguments. @throws ShoalError `usage` when there is no such script or it is of no known kind. */
export function scriptCommand(options: ScriptOptions): string[] {
  const { script, args, directory, nodeArgs = [] } = options;
  if (options.kind === 'program') return [script, ...args];
  const path = resolve(directory, script);
  if (!isFile(path)) throw new ShoalError('usage', `there is no script ${path}; use --no-node to start another program`);
  const extension = extname(path);
  if (javascript.has(extension)) return [process.execPath, ...nodeArgs, path, ...args];
  if (typescript.has(extension)) return [process.execPath, ...nodeArgs, '--import', typescriptLoader(), path, ...args];
  throw new ShoalError('usage', `${path} is neither JavaScript nor TypeScript; use --no-node to start another program`);
}

/** URL of tsx's loader: our own dependency, so that it is found from any directory. */
export function typescriptLoader(): string {
  return pathToFileURL(createRequire(import.meta.url).resolve('tsx')).href;
}

function isFile(path: string): boolean {
  return statSync(path, { throwIfNoEntry: false })?.isFile() ?? false;
}
