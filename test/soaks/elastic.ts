/** Kills and stops processes of elastic jobs at random, through the launcher: members, newcomers that wait, newcomers that are taken in.
 *
 *    npx tsx test/soaks/elastic.ts [--kills 100] [--seed 1]
 *
 *  Each job has 2 to 8 ranks, in shared memory or over TCP. It must end well, with every step counted once on every rank, and leave no
 *  process and no shared memory. */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { sleep, systemClock } from '../../src/base/clock.ts';
import { seededRandom, type Random } from '../../src/base/random.ts';
import { allGone, isRunning, shoal } from '../fixtures/launch-harness.ts';
import { filesLeftBy } from '../support/shared-memory-files.ts';
import buildFixtures, { fixtureScript } from '../support/fixtures.ts';

const killsPerJob = 6;
/** Longest pause between two kills. */
const pauseMsMax = 2000;
const stopMsMax = 300;
const jobLimitMs = 180_000;

interface Count {
  jobs: number;
  kills: number;
  /** Kills of processes that had not joined. */
  ofNewcomers: number;
  stops: number;
  joined: number;
  steps: number;
  readonly problems: string[];
}

/** The processes that a launcher has started, and the size of the world, as it says. */
function processesOf(stderr: string): { pids: Map<number, number>; size: number | undefined; joined: Set<number> } {
  const pids = new Map([...stderr.matchAll(/rank (\d+) started \(pid (\d+)\)/g)].map(([, rank, pid]) => [Number(rank), Number(pid)]));
  const size = [...stderr.matchAll(/world \d+ → (\d+)/g)].at(-1)?.[1];
  const joined = new Set([...stderr.matchAll(/rank (\d+) \(started again for rank \d+\) joined/g)].map(([, rank]) => Number(rank)));
  return { pids, size: size === undefined ? undefined : Number(size), joined };
}

async function runJob(random: Random, kills: number, count: Count): Promise<void> {
  const ranks = 2 + random.integer(7);
  const min = 1 + random.integer(Math.max(1, ranks - 2));
  const fabrics = random.integer(2) === 0 ? '' : 'tcp';
  const folder = mkdtempSync(join(tmpdir(), 'shoal-elastic-'));
  const file = join(folder, 'end');
  const flags = ['-n', String(ranks), '--min', String(min), '--max-restarts', '20'];
  const name = `job ${count.jobs++}: ${ranks} ranks, min ${min}, fabrics '${fabrics}'`;
  await using job = shoal(['run', ...flags, fixtureScript('elastic-rank'), '1', '2', `file:${file}`], { env: { SHOAL_FABRICS: fabrics } });
  let stderr = '';
  job.child.stderr!.on('data', (chunk: Buffer) => (stderr += chunk.toString()));
  // A rank that is killed before ends the job.
  await job.output(/has joined/, ranks);
  for (let made = 0; made < kills && job.child.exitCode === null;) {
    await sleep(systemClock, random.next() * pauseMsMax);
    const { pids, size = ranks, joined } = processesOf(stderr);
    const running = [...pids].filter(([, pid]) => isRunning(pid));
    if (running.length === 0) break;
    const [rank, pid] = running[random.integer(running.length)];
    const isNewcomer = rank >= ranks && !joined.has(rank);
    if (random.integer(4) === 0) {
      process.kill(pid, 'SIGSTOP');
      await sleep(systemClock, random.next() * stopMsMax);
      if (isRunning(pid)) process.kill(pid, 'SIGCONT');
      count.stops++;
    } else if (isNewcomer || size > min) {
      process.kill(pid, 'SIGKILL');
      made++;
      count.kills++;
      if (isNewcomer) count.ofNewcomers++;
      // The launcher has to say so before another one is chosen.
      const told = new RegExp(`rank ${rank} was killed by SIGKILL`);
      while (!told.test(stderr) && job.child.exitCode === null) await sleep(systemClock, 5);
    }
  }
  writeFileSync(file, '');
  const limit = systemClock.setTimer(jobLimitMs, () => {
    count.problems.push(`${name}: it has not ended\n${stderr}`);
    job.child.kill('SIGTERM');
  });
  const { code, stdout } = await job.ended;
  limit.cancel();
  const said = [...stdout.matchAll(/^\[rank +\d+\] (\{.*\})$/gm)].map(([, text]) => text);
  const { pids, joined } = processesOf(stderr);
  count.joined += joined.size;
  const end = JSON.parse(said[0] ?? '{"steps":0,"total":-1,"ranks":[]}') as { steps: number; total: number; ranks: number[] };
  count.steps += end.steps;
  const isRight =
    code === 0 && end.total === (end.steps * (end.steps + 1)) / 2 && said.length === end.ranks.length && new Set(said).size === 1;
  // Enough ranks were there all the time.
  if (stderr.includes('starting all ranks again')) count.problems.push(`${name}: it has begun again as a whole\n${stderr}`);
  if (!isRight) count.problems.push(`${name}: exit code ${code}\n${stdout}\n${stderr}`);
  rmSync(folder, { recursive: true });
  await allGone([...pids.values()]);
  const left = filesLeftBy([...pids.values()]);
  if (left.length > 0) count.problems.push(`${name}: left ${left.join(', ')}`);
}

async function main(kills: number, seed: number): Promise<void> {
  await buildFixtures();
  const random = seededRandom(seed);
  const count: Count = { jobs: 0, kills: 0, ofNewcomers: 0, stops: 0, joined: 0, steps: 0, problems: [] };
  let told = 0;
  while (count.kills < kills && count.problems.length < 3) {
    await runJob(random, Math.min(killsPerJob, kills - count.kills), count);
    const { problems, ...counts } = count;
    for (const problem of problems.slice(told)) console.log(problem);
    told = problems.length;
    console.log(`${JSON.stringify(counts)}, ${told} problems`);
  }
  process.exitCode = count.problems.length === 0 ? 0 : 1;
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const { values } = parseArgs({ options: { kills: { type: 'string', default: '100' }, seed: { type: 'string', default: '1' } } });
  await main(Number(values.kills), Number(values.seed));
}
