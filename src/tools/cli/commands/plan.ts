/** `shoal plan`: shows what an operation does before anything runs: its steps, their proof, cost and picture; and which
 *  algorithm is chosen when. */
import { Command } from 'commander';
import { natural, positive } from '../option-values.ts';
import { addRequestOptions, withRanksPerHost } from '../plan/request-options.ts';
import type { PlanFlags } from '../plan/run-plan.ts';

export function planCommand(setExitCode: (code: number) => void): Command {
  const plan = new Command('plan')
    .summary('print, prove, cost and draw the plan of a collective')
    .description('Builds the plan of a collective as ranks would. Without another option: one line of facts and its cost.')
    .argument('[collective]', 'all-reduce, broadcast, reduce, all-gather, gather, scatter, reduce-scatter, all-to-all, barrier')
    .option('-a, --algorithm <name>', 'algorithm, or auto for what is chosen without being asked', 'auto');
  return addRequestOptions(plan, { hosts: 1, ranksPerHost: 2, bytes: { about: 'of the whole operation, such as 25MiB', value: '1MiB' } })
    .option('--layout <counts>', 'instead of --hosts and --ranks-per-host: ranks of every host, such as 4,4,2', counts)
    .option('--print', 'prints every step')
    .option('--rank <rank>', 'with --print: only this rank', natural)
    .option('--verify', 'proves that every schedule gives the promised result')
    .option('--cost', 'prints the cost per rank')
    .option('--draw <file>', 'writes ranks × time: .svg, or .html for a page')
    .option(
      '--table',
      'prints which algorithm is chosen when, for all collectives or the named one, with the times that are expected on --hosts × --ranks-per-host',
    )
    .option('--algorithms <rules>', 'rules that stand before the table; default: SHOAL_ALGORITHMS')
    .option('--json', 'as JSON, for programs; --cost is always among it')
    .action(async (collective: string | undefined, flags: PlanFlags) => {
      const { runPlan } = await import('../plan/run-plan.ts');
      const { readSettings } = await import('../../../base/settings/settings.ts');
      const settings = readSettings(process.env);
      const { text, ok } = await runPlan(collective, withRanksPerHost(flags), settings);
      process.stdout.write(text);
      setExitCode(ok ? 0 : 1);
    });
}

function counts(text: string): number[] {
  return text.split(',').map(positive);
}
