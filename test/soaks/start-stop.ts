/** Starts and stops whole jobs through the launcher, again and again, in all ways that a job can end right after its ranks have
 *  joined: `npx tsx test/soaks/start-stop.ts [trials]`. Exit code 1 and the output of every trial that went wrong. */
import { fileURLToPath } from 'node:url';
import { type Ended, shoal } from '../fixtures/launch-harness.ts';

const script = fileURLToPath(new URL('../fixtures/start-stop.mjs', import.meta.url));

/** One way in which the ranks of a job stop, with the expected outcome of the launcher and the other ranks. */
interface Ending {
  readonly name: string;
  readonly args: readonly string[];
  readonly exitCode: number;
  /** The rank that fails first; undefined: none fails. */
  readonly culprit?: number;
}

const endings: readonly Ending[] = [
  { name: 'destroy at once', args: ['destroy'], exitCode: 0 },
  { name: 'rank 1 throws', args: ['throw', '1'], exitCode: 1, culprit: 1 },
  { name: 'end without destroy', args: ['end'], exitCode: 0 },
  { name: 'rank 1 calls process.exit(3)', args: ['exit', '1', '3'], exitCode: 3, culprit: 1 },
  { name: 'rank 0 throws', args: ['throw', '0'], exitCode: 1, culprit: 0 },
  { name: 'rank 0 calls process.exit(4)', args: ['exit', '0', '4'], exitCode: 4, culprit: 0 },
];
const sizes = [2, 3] as const;
const fabricLists = ['', 'tcp'] as const;

/** Number of different trials. */
export const trialKinds = endings.length * sizes.length * fabricLists.length;

export interface Trial {
  readonly name: string;
  readonly ended: Ended;
  /** Faults of the trial; empty: all is well. */
  readonly wrong: readonly string[];
}

/** The trial number `index` of an endless list that begins with one of every ending. */
export async function runTrial(index: number): Promise<Trial> {
  const ending = endings[index % endings.length];
  const size = sizes[Math.floor(index / endings.length) % sizes.length];
  const fabrics = fabricLists[Math.floor(index / endings.length / sizes.length) % fabricLists.length];
  const job = shoal(['run', '-n', String(size), script, ...ending.args], { env: { SHOAL_FABRICS: fabrics } });
  const ended = await job.ended;
  return { name: `${ending.name}, ${size} ranks, fabrics '${fabrics}'`, ended, wrong: faultsOf(ending, size, ended) };
}

function faultsOf({ exitCode, culprit }: Ending, size: number, { code, signal, stdout, stderr }: Ended): string[] {
  const wrong: string[] = [];
  if (code !== exitCode) wrong.push(`the launcher ended with ${code ?? signal}, not ${exitCode}`);
  const reports = [...stdout.matchAll(/^\[rank (\d+)\] (\{.*\})$/gm)];
  if (culprit === undefined) {
    if (reports.length > 0 || /failed first/.test(stderr)) wrong.push('a rank failed');
    return wrong;
  }
  const first = /rank (\d+) failed first/.exec(stderr)?.[1];
  if (first !== String(culprit)) wrong.push(`rank ${first ?? 'none'} is said to have failed first, not rank ${culprit}`);
  for (const [, rank, text] of reports) {
    const { code: error, peer } = JSON.parse(text) as { code: string; peer?: number };
    if (error !== 'peer-lost' || peer !== culprit) wrong.push(`rank ${rank} was told ${error} of peer ${peer}`);
  }
  if (reports.length !== size - 1) wrong.push(`${reports.length} of ${size - 1} ranks were told of it`);
  return wrong;
}

async function main(trials: number): Promise<void> {
  let failed = 0;
  for (let index = 0; index < trials; index++) {
    const { name, ended, wrong } = await runTrial(index);
    if (wrong.length === 0) continue;
    failed++;
    console.log(`trial ${index}: ${name}: ${wrong.join('; ')}\n${ended.stdout}${ended.stderr}`);
  }
  console.log(`${trials} starts and stops, ${failed} of them wrong`);
  process.exitCode = failed === 0 ? 0 : 1;
}

if (process.argv[1] === fileURLToPath(import.meta.url)) await main(Number(process.argv[2] ?? 200));
