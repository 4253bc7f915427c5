/** Runs many operations, subgroups and worlds one after another, and compares the resources of a process at the end with those early on. */
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { heldBy, least, within, type Held, type SoakCounts, type SoakMoment } from './held.ts';
import { startRanks, type Ranks } from './ranks.ts';

export interface SoakResult {
  readonly rank: number;
  readonly what: string;
  readonly count: number;
  readonly early: Held;
  readonly end: Held;
}

export interface SoakOptions extends SoakCounts {
  /** One letter per rank: equal ones share memory. */
  readonly hosts: string;
  /** Tolerated difference of resident memory. After a few steps it says nothing: threads clean their heaps when these are full. */
  readonly residentMegabytes: number;
}

/** Number of inspections, of which the least counts, as garbage disappears; more of them while it is too much. */
const looks = 5;
const looksMax = 400;

/** @throws when a rank fails. */
export async function soak({ hosts, residentMegabytes, ...counts }: SoakOptions): Promise<SoakResult[]> {
  const folder = await mkdtemp(join(tmpdir(), 'shoal-soak-'));
  try {
    await using world = await startRanks({
      fixture: 'soak',
      n: hosts.length,
      // A heap that has room grows into it before it is cleaned; this limit leaves only memory that it cannot give back.
      env: { NODE_OPTIONS: '--max-semi-space-size=1', SOAK: JSON.stringify(counts), MEETING: join(folder, 'meeting') },
      envOf: (rank) => ({ SHOAL_HOST_ID: hosts[rank] }),
    });
    const results: SoakResult[] = [];
    for (const [what, count] of Object.entries({ 'all-reduces': counts.allReduces, subgroups: counts.subgroups, worlds: counts.worlds })) {
      if (count === 0) continue;
      const early = await look(world, what, 'early', (_, tried) => tried < looks);
      const tooMuch = (held: readonly Held[]): boolean =>
        !held.every((each, rank) => within(each, early[rank], { steps: count, residentMegabytes }));
      const end = await look(world, what, 'end', (held, tried) => tried < looksMax && tooMuch(held));
      results.push(...hosts.split('').map((_, rank) => ({ rank, what, count, early: early[rank], end: end[rank] })));
    }
    for (const [rank, { code, signal, stderr }] of (await world.outcomes()).entries()) {
      if (code !== 0 || stderr !== '') throw new Error(`rank ${rank} ended with ${code ?? signal}:\n${stderr}`);
    }
    return results;
  } finally {
    await rm(folder, { recursive: true });
  }
}

interface Line {
  readonly what: string;
  readonly moment: SoakMoment;
  readonly look?: number;
  readonly heapMegabytes: number;
}

/** Inspects ranks that stand still, and lets them go on. */
async function look(
  { ranks }: Ranks,
  what: string,
  moment: SoakMoment,
  again: (held: readonly Held[], tried: number) => boolean,
): Promise<readonly Held[]> {
  const lines = (tried?: number): Promise<Line[]> =>
    Promise.all(ranks.map((rank) => rank.line<Line>((line) => line.what === what && line.moment === moment && line.look === tried)));
  await lines();
  let held: readonly Held[] | undefined;
  for (let tried = 0; held === undefined || again(held, tried); tried++) {
    for (const rank of ranks) rank.tell('look');
    const heaps = (await lines(tried)).map(({ heapMegabytes }) => heapMegabytes);
    const now = heldBy(
      ranks.map(({ child }) => child.pid ?? 0),
      heaps,
    );
    held = held?.map((each, rank) => least(each, now[rank])) ?? now;
  }
  for (const rank of ranks) rank.tell();
  return held;
}

/** Resources that a process has kept, a line each. */
export function kept({ rank, what, count, early, end }: SoakResult, residentMegabytes: number): string[] {
  if (within(end, early, { steps: count, residentMegabytes })) return [];
  return [`rank ${rank}, ${count} ${what}: ${JSON.stringify(early)}; at the end ${JSON.stringify(end)}`];
}
