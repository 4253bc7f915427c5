/** Kills and stops processes of jobs that go on without them at random, through the launcher: members, newcomers that wait, newcomers that are taken in;
 *  and workers and servers of jobs with a parameter server, which begin again as a whole.
 *
 *    npx tsx test/soaks/elastic.ts [--kills 100] [--seed n] [--only 'zero']
 *
 *  Each job has 2 to 8 ranks on one of the paths, and makes its steps in one of the ways. It must end well, with every step counted once on every
 *  rank, begin again as a whole only where the last rank that had the state is lost, and leave no process, shared memory, file or socket. Exit
 *  code 1 after three problems at most. */
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { sleep, systemClock } from '../../src/base/clock.ts';
import { messageOf } from '../../src/base/errors.ts';
import { seededRandom, systemRandom, type Random } from '../../src/base/random.ts';
import { isRunning, shoal, type Running } from '../fixtures/launch-harness.ts';
import { watchLeftovers } from '../support/leftovers.ts';
import buildFixtures, { fixtureScript } from '../support/fixtures.ts';

const killsPerJob = 6;
/** Longest pause between two kills. */
const pauseMsMax = 1500;
const stopMsMax = 300;
/** Longest time of a job from its last kill to its end, and from a kill to what follows. */
const patienceMs = 240_000;

const paths: readonly (readonly [string, Readonly<Record<string, string>>])[] = [
  ['shared memory', {}],
  ['TCP', { SHOAL_FABRICS: 'tcp' }],
  ['two hosts', { HOSTS: 'ab' }],
  ['two hosts of two', { HOSTS: 'aabb' }],
  ['without fast paths', { SHOAL_SYNC_BYTES: '0' }],
  ['without the addon', { SHOAL_NATIVE: '0' }],
];
const works = ['plain', 'scheduled', 'zero', 'servers'] as const;

interface Count {
  jobs: number;
  kills: number;
  /** Kills of processes that had not joined. */
  ofNewcomers: number;
  stops: number;
  joined: number;
  restarts: number;
  steps: number;
}

interface Trial {
  readonly random: Random;
  readonly env: Readonly<Record<string, string>>;
  readonly kills: number;
  /** The file whose existence ends the job. */
  readonly file: string;
  readonly count: Count;
}

/** A job with all that it has written to stderr. */
interface Watched {
  readonly job: Running;
  readonly stderr: () => string;
  /** @throws when the job ends, or it takes too long. */
  until(what: string, holds: (stderr: string) => boolean): Promise<void>;
  /** The job ends. @throws when it takes too long. */
  finish(file: string): Promise<{ readonly code: number | null; readonly said: readonly string[] }>;
}

function watch(args: readonly string[], env: Readonly<Record<string, string>>): Watched {
  const job = shoal(['run', ...args], { env });
  let stderr = '';
  job.child.stderr!.on('data', (chunk: Buffer) => (stderr += chunk.toString()));
  return {
    job,
    stderr: () => stderr,
    until: async (what, holds) => {
      for (const endMs = systemClock.now() + patienceMs; !holds(stderr); await sleep(systemClock, 5)) {
        if (job.child.exitCode !== null) throw new Error(`the job has ended before this: ${what}\n${stderr}`);
        if (systemClock.now() > endMs) throw new Error(`this has not happened: ${what}\n${stderr}`);
      }
    },
    finish: async (file) => {
      writeFileSync(file, '');
      const late = systemClock.setTimer(patienceMs, () => {
        stderr += '\nthe job has not ended\n';
        job.child.kill('SIGTERM');
      });
      const { code, stdout } = await job.ended;
      late.cancel();
      return { code, said: stdout.split('\n') };
    },
  };
}

/** The processes that a launcher has started, by their names: the last one of each. */
function startedIn(stderr: string): Map<string, number> {
  return new Map([...stderr.matchAll(/((?:rank|server) \d+) started \(pid (\d+)\)/g)].map(([, name, pid]) => [name, Number(pid)]));
}

function pidsIn(stderr: string): number[] {
  return [...stderr.matchAll(/started \(pid (\d+)\)/g)].map(([, pid]) => Number(pid));
}

/** The size of the world, and the newcomers that have joined, as the launcher says. */
function worldIn(stderr: string): { size: number | undefined; joined: Set<string> } {
  const size = [...stderr.matchAll(/world \d+ → (\d+)/g)].at(-1)?.[1];
  const joined = new Set([...stderr.matchAll(/(rank \d+) \(started again for rank \d+\) joined/g)].map(([, rank]) => rank));
  return { size: size === undefined ? undefined : Number(size), joined };
}

/** Stops a process for a while. */
async function pause(pid: number, random: Random): Promise<void> {
  process.kill(pid, 'SIGSTOP');
  await sleep(systemClock, random.next() * stopMsMax);
  if (isRunning(pid)) process.kill(pid, 'SIGCONT');
}

/** One of the processes that run; undefined when the job has ended. */
function choose(stderr: string, random: Random): [string, number] | undefined {
  const running = [...startedIn(stderr)].filter(([, pid]) => isRunning(pid));
  return running[random.integer(Math.max(1, running.length))];
}

/** A job that goes on without the ranks that are killed. @returns its processes. */
async function goesOn(work: string, { random, env, kills, file, count }: Trial): Promise<number[]> {
  const ranks = 2 + random.integer(7);
  const min = 1 + random.integer(Math.max(1, ranks - 2));
  const flags = ['-n', String(ranks), '--min', String(min), '--max-restarts', '20'];
  const { job, stderr, until, finish } = watch([...flags, fixtureScript('elastic-rank'), '1', '2', `file:${file}`, `work:${work}`], env);
  await using _ = job;
  // A rank that is killed before ends the job.
  await job.output(/has joined/, ranks);
  const hasBegunAgain = (): boolean => stderr().includes('starting all ranks again');
  for (let made = 0; made < kills && job.child.exitCode === null && !hasBegunAgain();) {
    await sleep(systemClock, random.next() * pauseMsMax);
    const { size = ranks, joined } = worldIn(stderr());
    const [name, pid] = choose(stderr(), random) ?? [];
    if (name === undefined || pid === undefined) break;
    const isNewcomer = Number(name.slice('rank '.length)) >= ranks && !joined.has(name);
    if (random.integer(4) === 0) {
      await pause(pid, random);
      count.stops++;
    } else if (isNewcomer || size > min) {
      process.kill(pid, 'SIGKILL');
      made++;
      count.kills++;
      if (isNewcomer) count.ofNewcomers++;
      // The launcher has to say so before another one is chosen.
      await until(`the launcher knows of ${name}`, (text) => text.includes(`${name} was killed by SIGKILL`));
    }
  }
  const { code, said } = await finish(file);
  const ends = said.flatMap((line) => /^\[rank +\d+\] (\{.*\})$/.exec(line)?.[1] ?? []);
  const end = JSON.parse(ends[0] ?? '{"steps":0,"total":-1,"ranks":[]}') as { steps: number; total: number; ranks: number[] };
  count.joined += worldIn(stderr()).joined.size;
  count.steps += end.steps;
  const isRight =
    code === 0 && end.total === (end.steps * (end.steps + 1)) / 2 && ends.length === end.ranks.length && new Set(ends).size === 1;
  // Enough ranks were there all the time. The only one that had the state may have been killed while it handed that on to a newcomer.
  const isExplained = !hasBegunAgain() || stderr().includes('was given half of the state when all that had it were lost');
  if (!isRight || !isExplained) throw new Error(`${ranks} ranks, min ${min}: exit code ${code}\n${said.join('\n')}\n${stderr()}`);
  return pidsIn(stderr());
}

/** A job with servers, which begins again as a whole when a process is killed. @returns its processes. */
async function beginsAgain({ random, env, kills, file, count }: Trial): Promise<number[]> {
  const workers = 2 + random.integer(3);
  const store = random.integer(2) === 0 ? 'dist_sync' : 'dist_async';
  const flags = ['--workers', String(workers), '--servers', String(1 + random.integer(2)), '--max-restarts', '1000'];
  const { job, stderr, until, finish } = watch([...flags, fixtureScript('kvstore-ledger')], { ...env, STOP: file, STORE: store });
  await using _ = job;
  for (let made = 0; made < kills;) {
    await job.output(/worker \d+ pushes/, (made + 1) * workers);
    await sleep(systemClock, random.next() * pauseMsMax);
    const [name, pid] = choose(stderr(), random) ?? [];
    if (name === undefined || pid === undefined) break;
    if (random.integer(4) === 0) {
      await pause(pid, random);
      count.stops++;
      continue;
    }
    process.kill(pid, 'SIGKILL');
    made++;
    count.kills++;
    await until(`restart ${made}`, (text) => text.includes(`starting all ranks again, restart ${made} of`));
    count.restarts++;
  }
  const { code, said } = await finish(file);
  const exact = said.flatMap((line) => /worker \d+: (\d+) pushes, exact/.exec(line)?.[1] ?? []);
  count.steps += Number(exact[0] ?? 0);
  if (code !== 0 || exact.length !== workers)
    throw new Error(`${workers} workers, ${store}: exit code ${code}\n${said.join('\n')}\n${stderr()}`);
  return pidsIn(stderr());
}

async function main(kills: number, seed: number, only: readonly string[]): Promise<void> {
  console.log(`--kills ${kills} --seed ${seed}`);
  await buildFixtures();
  const random = seededRandom(seed);
  const count: Count = { jobs: 0, kills: 0, ofNewcomers: 0, stops: 0, joined: 0, restarts: 0, steps: 0 };
  let problems = 0;
  await watchLeftovers(`ELASTIC_SOAK=${process.pid}-${seed}`, async (leftovers, temporary) => {
    while (count.kills < kills && problems < 3) {
      const [path, env] = paths[random.integer(paths.length)];
      const work = only[random.integer(only.length)];
      const name = `job ${count.jobs++}, ${work}, ${path}`;
      const file = join(temporary, `end-${count.jobs}`);
      const trial = { random, env, kills: Math.min(killsPerJob, kills - count.kills), file, count };
      try {
        await leftovers.expectNone(await (work === 'servers' ? beginsAgain(trial) : goesOn(work, trial)));
      } catch (error) {
        problems++;
        console.log(`${name}: ${messageOf(error)}`);
      }
      console.log(`${name}: ${JSON.stringify(count)}, ${problems} problems`);
    }
  });
  process.exitCode = problems === 0 ? 0 : 1;
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const { values } = parseArgs({
    options: { kills: { type: 'string', default: '100' }, seed: { type: 'string' }, only: { type: 'string' } },
  });
  const only = works.filter((work) => values.only === undefined || values.only.split(',').includes(work));
  await main(Number(values.kills), Number(values.seed ?? systemRandom.integer(2 ** 31)), only);
}
