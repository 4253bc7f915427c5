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
import { statusCommand } from './commands/status.ts';
import { traceCommand } from './commands/trace.ts';
import { tuneCommand } from './commands/tune.ts';

/** Declares a command; its action reports an exit code other than 0 through `setExitCode`. */
export type CommandFactory = (setExitCode: (code: number) => void) => Command;

const factories = {
  run: runCommand,
  bench: benchCommand,
  tune: tuneCommand,
  plan: planCommand,
  simulate: simulateCommand,
  graph: graphCommand,
  info: infoCommand,
  status: statusCommand,
  report: reportCommand,
  trace: traceCommand,
  compile: compileCommand,
  completion: completionCommand,
} satisfies Readonly<Record<string, CommandFactory>>;

export const commands: readonly CommandFactory[] = Object.values(factories);

/** The one that is called, alone, where it is one of ours: `shoal run` need not know what other commands take. `completion` must. */
export function commandsFor(name: string | undefined): readonly CommandFactory[] {
  const wanted = Object.entries(factories).find(([each]) => each === name && each !== 'completion');
  return wanted === undefined ? commands : [wanted[1]];
}
