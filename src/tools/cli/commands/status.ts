/** `shoal status`: how the ranks of a job of this machine are, and who holds the others up. */
import { Command } from 'commander';
import { ShoalError } from '../../../base/errors.ts';
import type { ToldStatus } from '../status/format-status.ts';
import { numberOf } from '../option-values.ts';

interface StatusFlags {
  readonly job?: string;
  readonly json?: true;
  readonly watch?: number | true;
}

/** Seconds between two looks. */
const watchInterval = numberOf('seconds, from 0.1', /^[\d.]+$/, [0.1, 86_400]);
const clearScreen = '\u001b[H\u001b[2J';

export function statusCommand(setExitCode: (code: number) => void): Command {
  return new Command('status')
    .summary('how the ranks of a running job are')
    .description(
      'Asks a job of this user on this machine: what each rank does, in which call it waits, and who holds the others up; also while ranks hang or are stopped.',
    )
    .option('--job <name>', "the job's name, or the pid that is printed beside it; needed where several run")
    .option('--json', 'as JSON, for programs; with --watch, one line each time')
    .option('--watch [seconds]', 'again and again, until the job ends; default 2', watchInterval)
    .action(async (flags: StatusFlags) => setExitCode(await status(flags)));
}

async function status({ job, json, watch }: StatusFlags): Promise<number> {
  const [{ formatStatus }, { sleep, systemClock }] = await Promise.all([
    import('../status/format-status.ts'),
    import('../../../base/clock.ts'),
  ]);
  const { stdout } = process;
  const show = (told: ToldStatus): void => {
    if (json === true) stdout.write(`${watch === undefined ? JSON.stringify(told, null, 2) : JSON.stringify(told)}\n`);
    else stdout.write(`${watch !== undefined && stdout.isTTY ? clearScreen : ''}${formatStatus(told)}`);
  };
  const first = await find(job);
  show(first.told);
  if (watch === undefined) return 0;
  for (;;) {
    await sleep(systemClock, (watch === true ? 2 : watch) * 1000);
    try {
      show(await first.again());
    } catch (thrown) {
      if (ShoalError.from(thrown).code === 'timeout') throw thrown;
      process.stderr.write(`shoal: job ${first.told.job} has ended\n`);
      return 0;
    }
  }
}

/** @throws ShoalError `usage` where no such job runs, or several do. */
async function find(job: string | undefined): Promise<{ told: ToldStatus; again(): Promise<ToldStatus> }> {
  const { findTellers, readStatus } = await import('../../../metrics/status-socket.ts');
  const tellers = await findTellers(process.env);
  const asked = await Promise.allSettled(tellers.map(async (teller) => ({ teller, told: (await readStatus(teller)) as ToldStatus })));
  const all = asked.flatMap((each) => (each.status === 'fulfilled' ? [each.value] : []));
  const found = all.filter(({ teller, told }) => job === undefined || told.job === job || String(teller.pid) === job);
  const [first] = found;
  // All that tell of one job tell the same.
  if (found.length > 0 && found.every(({ told }) => told.job === first.told.job))
    return { told: first.told, again: async () => (await readStatus(first.teller)) as ToldStatus };
  const list = all.map(({ told, teller }) => `${told.job} (pid ${teller.pid}: ${told.command.join(' ')})`).join('; ');
  if (found.length > 1) throw new ShoalError('usage', `several jobs run here; name one with --job: ${list}`);
  const refused = asked.find((each) => each.status === 'rejected');
  if (refused !== undefined && job === undefined) throw ShoalError.from(refused.reason);
  if (job === undefined) throw new ShoalError('usage', 'no job of this user runs on this machine; start one with: shoal run -n 2 train.ts');
  throw new ShoalError('usage', `no job '${job}' runs here; ${all.length === 0 ? 'none does' : `there is ${list}`}`);
}
