/** One of five ranks fails while an all-gather of 16 MiB is in flight: `npx tsx test/soaks/fails-in-flight.ts [trials]`. Exit code 1 and the
 *  output of every trial whose launcher did not end, or named another rank. */
import { fileURLToPath } from 'node:url';
import { systemClock, within } from '../../src/base/clock.ts';
import { systemRandom } from '../../src/base/random.ts';
import { type Ended, shoal } from '../fixtures/launch-harness.ts';

const script = fileURLToPath(new URL('../fixtures/fails-in-flight.mjs', import.meta.url));
const size = 5;
const failures = [
  { what: 'throw', exitCode: 1 },
  { what: 'exit', exitCode: 3 },
] as const;
const fabricLists = ['', 'tcp'] as const;
const delayMsMax = 50;
/** Limit that catches hangs. */
const endMs = 120_000;

export interface Trial {
  readonly name: string;
  readonly ended: Ended | undefined;
  /** Faults of the trial; empty: all is well. */
  readonly wrong: readonly string[];
}

/** The trial number `index` of an endless list; the rank fails `delayMs` after the first all-gather has begun. */
export async function runTrial(index: number, delayMs: number): Promise<Trial> {
  const { what, exitCode } = failures[index % failures.length];
  const fabrics = fabricLists[Math.floor(index / failures.length) % fabricLists.length];
  const culprit = Math.floor(index / failures.length / fabricLists.length) % size;
  const name = `rank ${culprit}: ${what} after ${delayMs.toFixed(1)} ms, fabrics '${fabrics}'`;
  await using job = shoal(['run', '-n', String(size), script, what, String(culprit), String(delayMs)], { env: { SHOAL_FABRICS: fabrics } });
  const ended = await within<Ended | undefined>(systemClock, endMs, job.ended, () => undefined);
  return { name, ended, wrong: ended === undefined ? ['the launcher did not end'] : faultsOf(ended, culprit, exitCode) };
}

function faultsOf({ code, signal, stderr }: Ended, culprit: number, exitCode: number): string[] {
  const wrong: string[] = [];
  if (code !== exitCode) wrong.push(`the launcher ended with ${code ?? signal}, not ${exitCode}`);
  const first = /rank (\d+) failed first/.exec(stderr)?.[1];
  if (first !== String(culprit)) wrong.push(`rank ${first ?? 'none'} is said to have failed first, not rank ${culprit}`);
  return wrong;
}

async function main(trials: number): Promise<void> {
  let failed = 0;
  for (let index = 0; index < trials; index++) {
    const { name, ended, wrong } = await runTrial(index, systemRandom.next() * delayMsMax);
    if (wrong.length === 0) continue;
    failed++;
    console.log(`trial ${index}: ${name}: ${wrong.join('; ')}\n${ended?.stdout ?? ''}${ended?.stderr ?? ''}`);
  }
  console.log(`${trials} ranks failed in flight, ${failed} of them not named, or their launcher did not end`);
  process.exitCode = failed === 0 ? 0 : 1;
}

if (process.argv[1] === fileURLToPath(import.meta.url)) await main(Number(process.argv[2] ?? 200));
