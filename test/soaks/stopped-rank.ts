/** Stops or kills one of three ranks while they join, or while they make groups: `npx tsx test/soaks/stopped-rank.ts [trials]`. Exit code
 *  1 where the others do not name it. */
import { fileURLToPath } from 'node:url';
import { sleep, systemClock } from '../../src/base/clock.ts';
import { systemRandom } from '../../src/base/random.ts';
import { startRanks } from '../support/ranks.ts';
import buildFixtures from '../support/fixtures.ts';

const size = 3;
const faultWithinMs = 4000;
const signals = ['SIGSTOP', 'SIGKILL'] as const;
const fabricLists = ['', 'tcp'] as const;

export interface Trial {
  readonly name: string;
  /** Wrong errors of the other ranks; empty: all named the victim. */
  readonly wrong: readonly string[];
}

/** The trial number `index` of an endless list; the fault comes after `delayMs`. */
export async function runTrial(index: number, delayMs: number): Promise<Trial> {
  const signal = signals[index % signals.length];
  const fabrics = fabricLists[Math.floor(index / 2) % fabricLists.length];
  const victim = Math.floor(index / 4) % size;
  const name = `${signal} of rank ${victim} after ${Math.round(delayMs)} ms, fabrics '${fabrics}'`;
  await using world = await startRanks({ fixture: 'victim', n: size, env: { SHOAL_FABRICS: fabrics } });
  await sleep(systemClock, delayMs);
  world.ranks[victim].kill(signal);
  const others = world.ranks.filter(({ rank }) => rank !== victim);
  const outcomes = await Promise.all(others.map(({ exited }) => exited));
  const wrong = outcomes.flatMap(({ lines, stderr, code }, index) => {
    const [told] = lines as { peer?: number }[];
    return told?.peer === victim ? [] : [`rank ${others[index].rank} (exit code ${code}): ${JSON.stringify(told)} ${stderr}`];
  });
  return { name, wrong };
}

async function main(trials: number): Promise<void> {
  await buildFixtures();
  let failed = 0;
  for (let index = 0; index < trials; index++) {
    const { name, wrong } = await runTrial(index, systemRandom.next() * faultWithinMs);
    if (wrong.length === 0) continue;
    failed++;
    console.log(`trial ${index}: ${name}\n  ${wrong.join('\n  ')}`);
  }
  console.log(`${trials} ranks stopped or killed, ${failed} of them not named by all`);
  process.exitCode = failed === 0 ? 0 : 1;
}

if (process.argv[1] === fileURLToPath(import.meta.url)) await main(Number(process.argv[2] ?? 60));
