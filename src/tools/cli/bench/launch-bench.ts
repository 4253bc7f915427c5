/** Starts the ranks of a benchmark or a comparison on this machine and hands on what rank 0 tells. */
import { StringDecoder } from 'node:string_decoder';
import { Writable } from 'node:stream';
import { systemClock } from '../../../base/clock.ts';
import { builtEntry } from '../../../base/packages/package-root.ts';
import { systemRandom } from '../../../base/random.ts';
import { ShoalError } from '../../../base/errors.ts';
import type { Environment } from '../../../base/settings/settings.ts';
import { EventLines } from '../../timing/event-lines.ts';
import { isRooted } from '../../timing/collective.ts';
import type { RankEvent, RankJob } from '../../timing/job.ts';
import { detectWorld } from '../../../store/environment.ts';
import { launch } from '../../../launch/launch.ts';
import { scriptCommand } from '../../../launch/script-command.ts';

/** `E`: what rank 0 tells of such a job. */
export interface LaunchBenchOptions<E> {
  readonly ranks: number;
  readonly job: RankJob;
  readonly environment: Environment;
  readonly onEvent: (event: E) => void;
}

/** Runs the job on ranks that are started here, by default 2, or, in a process that is a rank of a job already, as that rank.
 *  @returns the exit code. @throws ShoalError `usage`. */
export async function runOnRanks<E extends RankEvent>(
  options: Omit<LaunchBenchOptions<E>, 'ranks'> & { readonly ranks: number | undefined },
): Promise<number> {
  const { ranks, job, environment, onEvent } = options;
  if (detectWorld(environment, { parentPid: process.ppid }).source === 'none') return launchBench({ ...options, ranks: ranks ?? 2 });
  if (ranks !== undefined) throw new ShoalError('usage', '-n starts ranks, but this process was started as a rank already; leave it out');
  const { runAsRank } = await import('../../timing/run-job.ts');
  await runAsRank(job, environment, (event) => onEvent(event as E));
  return 0;
}

/** Resolves with the exit code of the job; failing ranks have said why on stderr. */
export async function launchBench<E extends RankEvent>(options: LaunchBenchOptions<E>): Promise<number> {
  const { ranks, job: rankJob, environment, onEvent } = options;
  checkHosts(rankJob.hosts, ranks);
  if (rankJob.kind === 'bench' && isRooted(rankJob.options.collective) && rankJob.options.root >= ranks)
    throw new ShoalError('usage', `--root ${rankJob.options.root} is not a rank; use 0…${ranks - 1}`);
  const directory = process.cwd();
  const job = launch({
    clock: systemClock,
    random: systemRandom,
    command: scriptCommand({ script: builtEntry('tools/timing/rank.js'), args: [JSON.stringify(rankJob)], directory }),
    directory,
    environment,
    localSize: ranks,
    stdout: eventLines((event) => onEvent(event as E)),
    stderr: process.stderr,
    events: 'failures',
  });
  for (const name of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.on(name, () => job.signal(name));
  const { exitCode } = await job.result;
  return exitCode;
}

/** @throws ShoalError `usage` unless that many ranks can play that many hosts. */
export function checkHosts(hosts: number, ranks: number): void {
  if (hosts <= ranks) return;
  throw new ShoalError('usage', `--hosts ${hosts} needs as many ranks; ${ranks} are started (-n)`);
}

/** Takes what the launcher writes, the events of rank 0. Anything else that a rank says is passed on. */
function eventLines(onEvent: (event: unknown) => void): Writable {
  const decoder = new StringDecoder('utf8');
  const events = new EventLines();
  let rest = '';
  return new Writable({
    write(chunk: Buffer | string, _, done) {
      const lines = (rest + (typeof chunk === 'string' ? chunk : decoder.write(chunk))).split('\n');
      rest = lines.pop() ?? '';
      for (const line of lines) {
        const said = /^\[rank +0\] (.*)$/.exec(line)?.[1];
        const taken = said === undefined ? 'other' : events.take(said);
        if (taken === 'other') process.stdout.write(`${line}\n`);
        else if (taken !== undefined) onEvent(taken.event);
      }
      done();
    },
  });
}
