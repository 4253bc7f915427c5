/** `shoal compile`: the native addon, from the sources in the package. */
import { spawnSync } from 'node:child_process';
import { Command } from 'commander';
import { packageFile } from '../../../base/packages/package-root.ts';

const notes = `
The package has the addon for Linux on x64 and arm64 with glibc 2.28 or later, and uses it without this command. Compile where it is
missing or does not load (musl, other processors: shoal info says), or to use this machine's compiler. Needs g++, make, python3
and node-gyp, which npm has; takes about a minute; writes into the folder build of the package, which an update removes.`;

export function compileCommand(setExitCode: (code: number) => void): Command {
  return new Command('compile')
    .summary('compile the native addon on this machine')
    .description('Compiles the native addon and the program shoal-rank, and says what is missing when it cannot.')
    .addHelpText('after', notes)
    .action(() => {
      const { status } = spawnSync(process.execPath, [packageFile('scripts/install-native.mjs'), '--required'], { stdio: 'inherit' });
      setExitCode(status ?? 1);
    });
}
