#!/usr/bin/env node
/** The `shoal` command. Each subcommand is declared in its own file, and what it needs is loaded only when it runs, so that
 *  `shoal --help` is fast. Exit codes: 0, 2 for a command that was used wrongly, the failing rank's, 1 otherwise. */
import { Command, CommanderError } from 'commander';
import { isShoalError, messageOf } from '../../base/errors.ts';
import { packageVersion } from '../../base/packages/version.ts';
import { commandsFor } from './commands.ts';
import { inOurSpelling } from './habits.ts';

const usageExitCode = 2;

// A program whose reader has gone (`shoal help | head`) ends without an error. `shoal run` sees to its ranks first.
process.stdout.on('error', (error: NodeJS.ErrnoException) => {
  if (process.argv[2] === 'run') return;
  if (error.code !== 'EPIPE') throw error;
  process.exit(0);
});
// The code of Node.js for a program that ends before it knows how.
process.exitCode = 13;
void main(process.argv.slice(2)).then((exitCode) => (process.exitCode = exitCode));

async function main(args: readonly string[]): Promise<number> {
  let exitCode = 0;
  const program = new Command('shoal')
    .description('Trains models on more than one process: starts ranks, and shows what they run on.')
    .version(packageVersion, '-V, --version')
    .enablePositionalOptions()
    .showHelpAfterError('(shoal --help lists what there is)')
    .exitOverride();
  for (const add of commandsFor(args[0])) {
    const command = add((code) => (exitCode = code));
    program.addCommand(command.exitOverride().showHelpAfterError(`(shoal ${command.name()} --help lists what there is)`));
  }
  try {
    await program.parseAsync(inOurSpelling(args, program.commands), { from: 'user' });
    return exitCode;
  } catch (error) {
    return exitCodeAfter(error);
  }
}

/** Tells the user, unless commander already has. */
function exitCodeAfter(error: unknown): number {
  if (error instanceof CommanderError) return error.exitCode === 0 ? 0 : usageExitCode;
  if (!isShoalError(error)) {
    process.stderr.write(`shoal: ${error instanceof Error ? (error.stack ?? messageOf(error)) : messageOf(error)}\n`);
    return 1;
  }
  process.stderr.write(`shoal: ${error.message}\n`);
  return error.code === 'usage' || error.code === 'config' ? usageExitCode : 1;
}
