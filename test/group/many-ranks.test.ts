/** The cost of joining, by the number of ranks of a host. `npx tsx test/soaks/many-ranks.ts 64 128` tries more of them. */
import { expect, it } from 'vitest';
import { startRanks } from '../support/ranks.ts';

interface Taken {
  /** Requests of each rank to the store, until it has left. */
  readonly requests: number;
  /** Most descriptors and mappings of a process. */
  readonly descriptors: number;
  readonly mappings: number;
}

async function taken(n: number): Promise<Taken> {
  await using world = await startRanks({ fixture: 'many-ranks', n });
  const outcomes = await world.outcomes();
  const held = outcomes.map(({ lines, stderr }) => {
    expect(stderr).toBe('');
    expect(lines).toEqual([expect.objectContaining({ hosts: 1, small: n, large: (n * (n - 1)) / 2 })]);
    return lines[0] as Taken;
  });
  const most = (what: 'descriptors' | 'mappings'): number => Math.max(...held.map((each) => each[what]));
  return { requests: world.server.requests / n, descriptors: most('descriptors'), mappings: most('mappings') };
}

it(
  'a rank asks the store as often among many as among few, and holds a fixed amount more for each of the others',
  { timeout: 240_000 },
  async () => {
    const [few, many] = [await taken(4), await taken(16)];
    expect(many.requests).toBeLessThan(few.requests + 1);
    // Each further rank costs a connection, and a socket that is just being closed; and the control block and a tensor, in each
    // of two threads.
    expect(many.descriptors - few.descriptors).toBeLessThanOrEqual(12 * 1.5);
    expect(many.mappings - few.mappings).toBeLessThanOrEqual(12 * 6);
  },
);
