/** Jobs of all systems in random order, with faults: `npx tsx test/soaks/mixed.ts [--minutes 10] [--seed n] [--only name]`. Results are verified by
 *  the soaks and fixtures that each job is taken from. After each job none of its processes runs, and nothing of it is left in the shared
 *  memory, in the temporary folder or open in this process. Exit code 1 at the first job that goes wrong. */
import { mkdirSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { sleep, systemClock } from '../../src/base/clock.ts';
import { seededRandom, systemRandom, type Random } from '../../src/base/random.ts';
import { shoal, shoalRun, type Ended } from '../fixtures/launch-harness.ts';
import { runServerKills } from '../kvstore/server-kills.ts';
import buildFixtures, { fixtureScript } from '../support/fixtures.ts';
import { watchLeftovers } from '../support/leftovers.ts';
import { soak as messagingSoak } from '../support/messaging-soak.ts';
import { killRanks, killServers } from './checkpoint-kills.ts';
import * as failsInFlight from './fails-in-flight.ts';
import * as randomPrograms from './random-programs.ts';
import * as startStop from './start-stop.ts';
import * as stoppedRank from './stopped-rank.ts';

/** Runs one job, or a few. @throws when a result is wrong. */
type Job = (random: Random, folder: string) => Promise<void>;

const seedOf = (random: Random): number => 1 + random.integer(1_000_000);
const callsMost = 60;

function expectNone(wrong: readonly string[], ended?: Ended): void {
  if (wrong.length > 0) throw new Error(`${wrong.join('; ')}\n${ended?.stdout ?? ''}${ended?.stderr ?? ''}`);
}

/** Collectives, subgroups, transfers and batches; a rank may be killed, throw, or be stopped and resumed. */
const collectives: Job = async (random) => {
  const trial = randomPrograms.trialOf(seedOf(random), callsMost);
  const { ended, wrong } = await randomPrograms.runTrial(trial);
  expectNone(
    wrong.map((each) => `${JSON.stringify(trial)}: ${each}`),
    ended,
  );
};

const flights: Job = async (random) => {
  const { name, ended, wrong } = await failsInFlight.runTrial(random.integer(1000), random.next() * 50);
  expectNone(
    wrong.map((each) => `${name}: ${each}`),
    ended,
  );
};

const ends: Job = async (random) => {
  const { name, ended, wrong } = await startStop.runTrial(random.integer(startStop.trialKinds));
  expectNone(
    wrong.map((each) => `${name}: ${each}`),
    ended,
  );
};

const stops: Job = async (random) => {
  const { name, wrong } = await stoppedRank.runTrial(random.integer(1000), random.next() * 1000);
  expectNone(wrong.map((each) => `${name}: ${each}`));
};

/** Servers with standbys that are killed and stopped while workers push. */
const servers: Job = async (random) => {
  await runServerKills({ kills: 2, seed: seedOf(random), store: random.integer(2) === 0 ? 'dist_sync' : 'dist_async' });
};

const checkpoints: Job = async (random, folder) => killServers({ kills: 2, random, folder });

const trainings: Job = async (random, folder) => killRanks({ kills: 2, random, folder });

/** Scheduled all-reduces and pushes under one credit, beside the calls of a group. */
const scheduled: Job = async (random) => {
  const script = fixtureScript('scheduled-mix');
  const stopped = random.integer(2) === 0 ? String(random.integer(3)) : '';
  await using job = shoalRun('-q', '-n', '3', script, String(seedOf(random)), stopped);
  if (stopped !== '') await pause(job.output(new RegExp(`rank ${stopped} of pid (\\d+)`), 1), random);
  const ended = await job.ended;
  const right = ended.stdout.match(/all right/g)?.length;
  expectNone(ended.code === 0 && right === 3 ? [] : [`scheduled: code ${ended.code}, ${right} ranks are right`], ended);
};

/** Steps of a graph on workers and parameter servers, whose tensors travel by rendezvous; a server may be killed, a worker stopped and resumed. */
const graphs: Job = async (random) => {
  const script = fixtureScript('graph-worker');
  const fault = (['none', 'stop', 'kill'] as const)[random.integer(3)];
  const env = { FUSE: String(random.integer(2)), FOREVER: fault === 'kill' ? '1' : '0' };
  await using job = shoal(['run', '--ps', '2', '--workers', '2', '--grace', '60s', script], { env });
  if (fault === 'stop') await pause(job.output(/job:worker\/task:1 pid (\d+)/, 1), random);
  if (fault === 'kill') {
    const [[, pid]] = await job.output(/job:ps\/task:1 pid (\d+)/, 1);
    await job.output(/job:worker\/task:\d runs/, 2);
    await sleep(systemClock, random.next() * 100);
    process.kill(Number(pid), 'SIGKILL');
  }
  const ended = await job.ended;
  const isRight = fault === 'kill' ? /rank 3 failed first: .*SIGKILL/.test(ended.stderr) : ended.code === 0;
  expectNone(isRight ? [] : [`graph, ${fault}: code ${ended.code}`], ended);
};

/** Tensors between two processes by name. */
const rendezvous: Job = async () => {
  const ended = await shoalRun('-q', fileURLToPath(new URL('../../examples/send-tensors.ts', import.meta.url))).ended;
  expectNone(ended.code === 0 ? [] : [`send-tensors: code ${ended.code}`], ended);
};

const messages: Job = async (random) => {
  await messagingSoak({ url: 'tcp://127.0.0.1:*', seed: seedOf(random), faults: 0, seconds: 4 });
};

const jobs: Readonly<Record<string, Job>> = {
  collectives,
  flights,
  ends,
  stops,
  servers,
  checkpoints,
  trainings,
  scheduled,
  graphs,
  rendezvous,
  messages,
};

/** Stops a process for a while. @param named the output that has its number. */
async function pause(named: Promise<RegExpMatchArray[]>, random: Random): Promise<void> {
  const [[, pid]] = await named;
  process.kill(Number(pid), 'SIGSTOP');
  await sleep(systemClock, random.next() * 1500);
  process.kill(Number(pid), 'SIGCONT');
}

export interface MixedOptions {
  readonly seed: number;
  /** When no further job is begun. */
  readonly isOver: (done: number) => boolean;
  /** Jobs among which is chosen. Default: all. */
  readonly names?: readonly string[];
  readonly report: (line: string) => void;
}

/** @returns how often each job was run. @throws when one goes wrong or leaves something. */
export async function runMixed({ seed, isOver, names = Object.keys(jobs), report }: MixedOptions): Promise<Record<string, number>> {
  const random = seededRandom(seed);
  const done: Record<string, number> = {};
  await watchLeftovers(`MIXED_SOAK=${process.pid}-${seed}`, async (leftovers, temporary) => {
    const ours = join(temporary, 'ours');
    for (let count = 0; !isOver(count); count++) {
      const name = names[random.integer(names.length)];
      const startMs = systemClock.now();
      mkdirSync(ours);
      try {
        await jobs[name](random, ours);
        await leftovers.expectNone();
      } catch (error) {
        throw new Error(`job ${count} of seed ${seed}, ${name}: ${error instanceof Error ? error.stack : String(error)}`, { cause: error });
      }
      rmSync(ours, { recursive: true });
      done[name] = (done[name] ?? 0) + 1;
      report(`${count}: ${name}, ${((systemClock.now() - startMs) / 1000).toFixed(1)} s`);
    }
  });
  return done;
}

async function main(): Promise<void> {
  const { values } = parseArgs({
    options: { minutes: { type: 'string', default: '10' }, seed: { type: 'string' }, only: { type: 'string' } },
  });
  const seed = Number(values.seed ?? systemRandom.integer(2 ** 31));
  console.log(`--minutes ${values.minutes} --seed ${seed}`);
  await buildFixtures();
  const endMs = systemClock.now() + Number(values.minutes) * 60_000;
  const names = values.only === undefined ? {} : { names: [values.only] };
  const report = (line: string): void => console.log(line);
  const done = await runMixed({ seed, ...names, isOver: () => systemClock.now() >= endMs, report });
  console.log(JSON.stringify(done));
}

if (process.argv[1] === fileURLToPath(import.meta.url)) await main();
