/** The subcommands, in the order of the help text. A new one is its own file and one line here. */
import type { Command } from 'commander';
import { benchCommand } from './commands/bench.ts';
import { compileCommand } from './commands/compile.ts';
import { completionCommand } from './commands/completion.ts';
import { graphCommand } from './commands/graph.ts';
import { infoCommand } from './commands/info.ts';
import { planCommand } from './commands/plan.ts';
import { reportCommand } from './commands/report.ts';
import { runCommand } from './commands/run.ts';
import { simulateCommand } from './commands/simulate.ts';
import { traceCommand } from './commands/trace.ts';
import { tuneCommand } from './commands/tune.ts';

/** Declares a command; its action reports an exit code other than 0 through `setExitCode`. */
export type CommandFactory = (setExitCode: (code: number) => void) => Command;

export const commands: readonly CommandFactory[] = [
  runCommand,
  benchCommand,
  tuneCommand,
  planCommand,
  simulateCommand,
  graphCommand,
  infoCommand,
  reportCommand,
  traceCommand,
  compileCommand,
  completionCommand,
];
