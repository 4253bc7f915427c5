/** Where the program is that a launcher starts as a server: always built JavaScript, which needs no loader. */
import { existsSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { ShoalError } from '../../base/errors.ts';

/** Path of the server's entry. @throws ShoalError `config` when the package is not built. */
export function serverProgram(): string {
  return builtEntry('server/server-entry.js');
}

/** A file of `dist/kvstore`, seen from the sources and from the build alike. */
export function builtEntry(name: string): string {
  const built = fileURLToPath(new URL(import.meta.url.endsWith('.ts') ? `../../../dist/kvstore/${name}` : `../${name}`, import.meta.url));
  if (existsSync(built)) return built;
  throw new ShoalError('config', `${built} is not built; run npm run build`);
}
