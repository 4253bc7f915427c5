/** Many operations, subgroups and worlds one after another, and what a process holds at the end that it did not hold early on. */
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { within, type Held, type SoakCounts } from './held.ts';
import { startRanks } from './ranks.ts';

export interface SoakResult {
  readonly rank: number;
  readonly what: string;
  readonly count: number;
  /** The first hundredth. */
  readonly after: Held;
  readonly end: Held;
}

/** @param hosts one letter per rank: equal ones share memory. */
export async function soak(counts: SoakCounts, hosts: string): Promise<SoakResult[]> {
  const folder = await mkdtemp(join(tmpdir(), 'shoal-soak-'));
  try {
    await using world = await startRanks({
      fixture: 'soak',
      n: hosts.length,
      // A heap that has room grows into it before it is cleaned; what is looked for is what it cannot give back.
      env: { NODE_OPTIONS: '--max-semi-space-size=1', SOAK: JSON.stringify(counts), MEETING: join(folder, 'meeting') },
      envOf: (rank) => ({ SHOAL_HOST_ID: hosts[rank] }),
    });
    const outcomes = await world.outcomes();
    return outcomes.flatMap(({ code, signal, lines, stderr }, rank) => {
      if (code !== 0 || stderr !== '') throw new Error(`rank ${rank} ended with ${code ?? signal}:\n${stderr}`);
      return (lines as Omit<SoakResult, 'rank'>[]).map((line) => ({ rank, ...line }));
    });
  } finally {
    await rm(folder, { recursive: true });
  }
}

/** What a process has kept, a line each. */
export function kept({ rank, what, count, after, end }: SoakResult): string[] {
  if (within(end, after)) return [];
  const text = ({ descriptors, mappings, megabytes }: Held): string => `${descriptors} descriptors, ${mappings} mappings, ${megabytes} MiB`;
  return [`rank ${rank}, ${count} ${what}: ${text(after)}; at the end ${text(end)}`];
}
