/** `shoal plan`: shows what an operation does before anything runs: its steps, their proof, cost and picture; and which
 *  algorithm is chosen when. */
import { Command, InvalidArgumentError } from 'commander';

export function planCommand(setExitCode: (code: number) => void): Command {
  return new Command('plan')
    .summary('print, prove, cost and draw the plan of a collective')
    .description('Builds the plan of a collective as ranks would. Without another option: one line of facts and its cost.')
    .argument('[collective]', 'all-reduce, broadcast, reduce, all-gather, gather, scatter, reduce-scatter, all-to-all, barrier')
    .option('-a, --algorithm <name>', 'algorithm, or auto for what is chosen without being asked', 'auto')
    .option('--hosts <count>', 'number of hosts', positive, 1)
    .option('--ranks-per-host <count>', 'ranks on each', positive, 2)
    .option('--bytes <size>', 'of the whole operation, such as 25MiB', '1MiB')
    .option('--dtype <type>', 'element type', 'float32')
    .option('--root <rank>', 'root of broadcast, reduce, gather, scatter', natural)
    .option('--piece <size>', 'largest transfer')
    .option('--window <pieces>', 'most pieces under way to a receiver', positive)
    .option('--slice <size>', 'largest slice')
    .option('--staging <size>', 'scratch per rank')
    .option('--shard <size>', 'smallest shard')
    .option('--print', 'prints every step')
    .option('--rank <rank>', 'with --print: only this rank', natural)
    .option('--verify', 'proves that every schedule gives the promised result')
    .option('--cost', 'prints the cost per rank')
    .option('--draw <file>', 'writes ranks × time as SVG')
    .option('--table', 'prints which algorithm is chosen when, with the times that are expected on --hosts × --ranks-per-host')
    .option('--algorithms <rules>', 'rules that stand before the table; default: SHOAL_ALGORITHMS')
    .action(async (collective: string | undefined, flags: PlanFlags) => {
      const { runPlan } = await import('../plan/run-plan.ts');
      const { readSettings } = await import('../../base/settings.ts');
      const settings = readSettings(process.env);
      const { text, ok } = await runPlan(collective, flags, settings);
      process.stdout.write(text);
      setExitCode(ok ? 0 : 1);
    });
}

/** As commander gives them. */
export interface PlanFlags {
  readonly algorithm: string;
  readonly hosts: number;
  readonly ranksPerHost: number;
  readonly bytes: string;
  readonly dtype: string;
  readonly root?: number;
  readonly piece?: string;
  readonly window?: number;
  readonly slice?: string;
  readonly staging?: string;
  readonly shard?: string;
  readonly print?: true;
  readonly rank?: number;
  readonly verify?: true;
  readonly cost?: true;
  readonly draw?: string;
  readonly table?: true;
  readonly algorithms?: string;
}

function positive(text: string): number {
  if (!/^[1-9]\d{0,6}$/.test(text)) throw new InvalidArgumentError('Expected a whole number of at least 1.');
  return Number(text);
}

function natural(text: string): number {
  if (!/^\d{1,7}$/.test(text)) throw new InvalidArgumentError('Expected a whole number of at least 0.');
  return Number(text);
}
