/** Random programs of real ranks through the launcher: threads and processes meet in ways that no world in one process has. One rank may be killed,
 *  throw, or be stopped and resumed. `npx tsx test/soaks/random-programs.ts --seeds 300 --from 1 --calls 60 --jobs 4`, of which the last
 *  run at once and keep the machine busy. Exit code 1, and the output of every one that went wrong. */
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { sleep, systemClock } from '../../src/base/clock.ts';
import { seededRandom } from '../../src/base/random.ts';
import type { ProgramPlan } from '../fixtures/random-programs.ts';
import { shoal, type Ended } from '../fixtures/launch-harness.ts';
import buildFixtures, { fixtureScript } from '../support/fixtures.ts';

/** Longest run: these programs wait for a rank for less, even on a busy machine, and hangs are reported by then. */
const timeoutMs = 120_000;

export interface Trial {
  readonly plan: ProgramPlan;
  readonly fabrics: string;
}

export function trialOf(seed: number, calls: number): Trial {
  const random = seededRandom(seed);
  const pick = <T>(all: readonly T[]): T => all[random.integer(all.length)];
  const hosts = pick(['aa', 'aa', 'aaa', 'aaaa', 'ab', 'abc', 'aab', 'aabb']);
  const inline = random.integer(8) === 0;
  const how = pick(['kill', 'throw', 'stop', undefined, undefined, undefined, undefined, undefined] as const);
  const fault = how && { rank: random.integer(hosts.length), at: random.integer(calls), how };
  return { plan: { seed, calls, hosts, inline, ...(fault && { fault }) }, fabrics: pick(['', '', '', 'tcp']) };
}

/** Runs a trial. @returns its faults; empty: all is well. */
export async function runTrial({ plan, fabrics }: Trial): Promise<{ readonly ended: Ended; readonly wrong: readonly string[] }> {
  const script = fixtureScript('random-programs');
  const env = { SHOAL_FABRICS: fabrics, SHOAL_COMM_THREAD: plan.inline ? 'inline' : undefined, SHOAL_TIMEOUT_MS: String(timeoutMs) };
  await using job = shoal(['run', '-n', String(plan.hosts.length), script, JSON.stringify(plan)], { env });
  if (plan.fault?.how === 'stop') void resume(job, plan.fault.rank);
  const ended = await job.ended;
  return { ended, wrong: faultsOf(plan, ended) };
}

/** Resumes a rank that stops itself, sooner or later; it is told again and again, as it may not have stopped yet. */
async function resume(job: ReturnType<typeof shoal>, rank: number): Promise<void> {
  const [[, pid]] = await job.output(new RegExp(`rank ${rank} started \\(pid (\\d+)\\)`), 1);
  let over = false;
  void job.ended.then(() => (over = true));
  while (!over) {
    await sleep(systemClock, 700);
    try {
      process.kill(Number(pid), 'SIGCONT');
    } catch {
      return;
    }
  }
}

function faultsOf({ hosts, calls, fault }: ProgramPlan, { code, signal, stdout, stderr }: Ended): string[] {
  const wrong: string[] = [];
  const fails = fault !== undefined && fault.how !== 'stop';
  const expected = !fails ? 0 : fault.how === 'kill' ? 137 : 1;
  if (code !== expected) wrong.push(`the launcher ended with ${code ?? signal}, not ${expected}`);
  const said = [...stdout.matchAll(/^\[rank (\d+)\] (\{.*\})$/gm)];
  const first = /rank (\d+) failed first/.exec(stderr)?.[1];
  if (first !== (fails ? String(fault.rank) : undefined)) wrong.push(`rank ${first ?? 'none'} is said to have failed first`);
  for (const [, rank, text] of said) {
    const { right, code: error, peer } = JSON.parse(text) as { right?: number; code?: string; peer?: number };
    // A rank that needs nothing more from the failed one ends well.
    if (right !== undefined ? right !== calls : !fails || error !== 'peer-lost' || peer !== fault.rank)
      wrong.push(`rank ${rank} said ${text}`);
  }
  const silent = hosts.length - said.length - (fails ? 1 : 0);
  if (silent !== 0) wrong.push(`${silent} ranks said nothing`);
  if (!fails && stderr.replaceAll(/^shoal: (?:rank .* started \(pid .*|rank .* exited with code 0)\n/gm, '') !== '')
    wrong.push('there is something on stderr');
  return wrong;
}

async function main(): Promise<void> {
  const text = (value: string) => ({ type: 'string', default: value }) as const;
  const { values } = parseArgs({ options: { seeds: text('300'), from: text('1'), calls: text('60'), jobs: text('4') } });
  const [seeds, from, calls, jobs] = [values.seeds, values.from, values.calls, values.jobs].map(Number);
  await buildFixtures();
  let [next, failed] = [from, 0];
  const work = async (): Promise<void> => {
    while (next < from + seeds) {
      const seed = next++;
      const trial = trialOf(seed, calls);
      const { ended, wrong } = await runTrial(trial);
      if (wrong.length === 0) continue;
      failed++;
      console.log(`seed ${seed}: ${JSON.stringify(trial)}: ${wrong.join('; ')}\n${ended.stdout}${ended.stderr}`);
    }
  };
  await Promise.all(Array.from({ length: jobs }, work));
  console.log(`${seeds} programs, ${failed} of them wrong`);
  process.exitCode = failed === 0 ? 0 : 1;
}

if (process.argv[1] === fileURLToPath(import.meta.url)) await main();
