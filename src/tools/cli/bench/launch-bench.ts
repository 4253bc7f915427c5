/** Starts the ranks of a benchmark or a comparison on this machine and hands on what rank 0 tells. */
import { StringDecoder } from 'node:string_decoder';
import { Writable } from 'node:stream';
import { systemClock } from '../../../base/clock.ts';
import { builtEntry } from '../../../base/packages/package-root.ts';
import { systemRandom } from '../../../base/random.ts';
import { ShoalError } from '../../../base/errors.ts';
import type { Environment } from '../../../base/settings/settings.ts';
import { EventLines } from '../../timing/event-lines.ts';
import type { RankJob } from '../../timing/job.ts';
import { launch } from '../../../launch/launch.ts';
import { scriptCommand } from '../../../launch/script-command.ts';

/** `E`: what rank 0 tells of such a job. */
export interface LaunchBenchOptions<E> {
  readonly ranks: number;
  readonly job: RankJob;
  readonly environment: Environment;
  readonly onEvent: (event: E) => void;
}

/** Resolves with the exit code of the job; failing ranks have said why on stderr. */
export async function launchBench<E>({ ranks, job: rankJob, environment, onEvent }: LaunchBenchOptions<E>): Promise<number> {
  checkHosts(rankJob.hosts, ranks);
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
