/** Sums have the same bits whatever canonical algorithm computes them. */
import { describe, expect, it } from 'vitest';
import { seededRandom } from '../base/random.ts';
import { algorithms } from '../collectives/registry.ts';
import { oneHost } from '../plan/topology.ts';
import { startRanks } from './testing/in-process-world.ts';

const count = 1013;

/** Element i of a rank's input: magnitudes over 24 binary orders, so that the order of additions shows. */
function inputOf(rank: number): Float32Array {
  const random = seededRandom(1000 + rank);
  return Float32Array.from({ length: count }, () => (random.next() - 0.5) * 2 ** (random.integer(24) - 12));
}

async function sumOver(n: number, kind: 'host' | 'network', algorithm: string, dtype: 'float32' | 'bfloat16'): Promise<string> {
  await using world = await startRanks(n, { kind, settings: { algorithms: `all-reduce:${algorithm}` } });
  const results = await world.each(async (group) => {
    const x = group.tensor(dtype, [count]);
    const values = inputOf(group.rank);
    if (dtype === 'float32') x.data.set(values);
    else x.data.set(new Uint16Array(values.buffer).filter((_, i) => i % 2 === 1));
    await group.allReduce(x);
    return Buffer.from(x.data.buffer, x.data.byteOffset, x.bytes).toString('hex');
  });
  expect(new Set(results).size, 'all ranks have the same bits').toBe(1);
  return results[0];
}

const canonical = algorithms.filter((each) => each.association === 'canonical' && each.build['all-reduce']);

describe.each(['float32', 'bfloat16'] as const)('%s', (dtype) => {
  for (const n of [2, 3, 4, 5, 6, 7, 8]) {
    it(`${n} ranks: one result from ${canonical.map((each) => each.name).join(', ')}`, async () => {
      const sums = new Map<string, string>();
      for (const { name, supports } of canonical) {
        const needsHost =
          supports?.({
            collective: 'all-reduce',
            topology: { hosts: oneHost(n).hosts.flatMap((host) => host.map((rank) => [rank])) },
            count,
          }) !== undefined;
        sums.set(name, await sumOver(n, 'host', name, dtype));
        if (!needsHost) sums.set(`${name} over the network`, await sumOver(n, 'network', name, dtype));
      }
      expect(new Set(sums.values()).size, [...sums.keys()].join(', ')).toBe(1);
    });
  }

  it('ring, which is relaxed, differs: the inputs do tell orders apart', async () => {
    if (dtype === 'bfloat16') return;
    expect(await sumOver(5, 'host', 'ring', dtype)).not.toBe(await sumOver(5, 'host', 'direct', dtype));
  });
});
