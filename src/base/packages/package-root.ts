/** The folder of the package. Its code runs from `src`, or bundled from `dist`, where a file's own place says nothing about the
 *  source file that it comes from: all lookups in the package start here. */
import { existsSync } from 'node:fs';
import { dirname, join, sep } from 'node:path';
import { fileURLToPath } from 'node:url';
import { ShoalError } from '../errors.ts';

const self = fileURLToPath(import.meta.url);
const root = packageOf(dirname(self));

/** Folder of the package's own code: `/…/shoal/dist/`. */
export const codeFolder = self.slice(0, self.indexOf(sep, root.length + 1) + 1);

/** Path of a file of the package: `packageFile('package.json')`. */
export function packageFile(path: string): string {
  return join(root, path);
}

/** The built file of an entry: `builtEntry('comm/thread/comm-entry.js')`. Threads and processes are always started from built
 *  JavaScript, which needs no loader. @throws ShoalError `config` when the package is not built. */
export function builtEntry(path: string): string {
  const built = packageFile(join('dist', path));
  if (existsSync(built)) return built;
  throw new ShoalError('config', `${built} is not built; run npm run build`);
}

function packageOf(folder: string): string {
  return existsSync(join(folder, 'package.json')) || folder === dirname(folder) ? folder : packageOf(dirname(folder));
}
