/** Elastic training with a sampler and with a sharded optimiser. */
import { expect, it } from 'vitest';
import { seededRandom } from '../base/random.ts';
import { elastic, type ElasticState } from '../elastic/elastic.ts';
import { InProcessSite } from '../group/testing/in-process-world.ts';
import { SGD } from './optimizers.ts';
import { DistributedSampler, type SamplerState } from './sampler.ts';
import { ZeroRedundancyOptimizer } from './sharding/zero-redundancy-optimizer.ts';

async function turns(count: number): Promise<void> {
  for (let turn = 0; turn < count; turn++) await new Promise(setImmediate);
}

it.each([1, 2, 3, 4, 5, 6, 7, 8])('every item counts once, whenever ranks are lost: seed %i', async (seed) => {
  const random = seededRandom(seed);
  const [ranks, items] = [4, 96];
  const site = new InProcessSite(ranks, { kind: seed % 2 === 0 ? 'host' : 'network', fastPath: seed % 4 < 2 });
  const groups = await Promise.all(Array.from({ length: ranks }, (_, rank) => site.start(rank)));
  const lost = new Set<number>();
  const results = groups.map(async (group, rank) => {
    const seen = new Float64Array(items);
    const state: ElasticState = { step: 0, tensors: [seen], extra: new DistributedSampler(items, { seed }).stateDict() };
    const last = await elastic.run(group, state, async (current) => {
      const sampler = new DistributedSampler(items, { group: current, seed });
      sampler.loadStateDict(state.extra as SamplerState);
      for (const batch of sampler.batches(2)) {
        if (lost.has(rank)) return new Promise(() => undefined);
        const mine = new Float64Array(items);
        for (const item of batch) mine[item] = 1;
        await current.allReduce(mine);
        mine.forEach((times, item) => (seen[item] += times));
        state.extra = sampler.stateDict();
        state.step++;
      }
    });
    return { ranks: last.globalRanks, seen, step: state.step };
  });
  for (const result of results) result.catch(() => undefined);
  for (let k = 0; k < 2; k++) {
    await turns(random.integer(12));
    const victim = random.integer(ranks);
    lost.add(victim);
    site.crash(victim);
  }
  const left = [0, 1, 2, 3].filter((rank) => !lost.has(rank));
  const ends = await Promise.all(left.map((rank) => results[rank]));
  for (const { seen, step } of ends) {
    expect(step).toBe(ends[0].step);
    // The last of the items that are dealt to all are repeated, as in torch's sampler.
    expect([...seen].every((times) => times >= 1)).toBe(true);
    expect(seen.reduce((sum, times) => sum + times, 0)).toBeLessThan(items + 3 * ranks);
  }
  await Promise.all(left.map((rank) => groups[rank].destroy({ timeoutMs: 100 })));
});

it.each([1, 2, 3, 4, 5, 6])('a step of a sharded optimiser counts once or not at all: seed %i', async (seed) => {
  const random = seededRandom(seed);
  const site = new InProcessSite(3, { kind: seed % 2 === 0 ? 'host' : 'network', fastPath: seed % 4 < 2 });
  const groups = await Promise.all([0, 1, 2].map((rank) => site.start(rank)));
  let isLost = false;
  const results = groups.map(async (group, rank) => {
    const parts = [1000, 900, 800, 700].map((count) => new Float32Array(count));
    const state: ElasticState = { step: 0, tensors: parts };
    const last = await elastic.run(group, state, async (current) => {
      const parameters = parts.map((data, k) => ({ name: `p${k}`, data }));
      const optimizer = new ZeroRedundancyOptimizer(current, parameters, SGD, { lr: 1 });
      while (state.step < 30) {
        if (isLost && rank === 2) await new Promise(() => undefined);
        await optimizer.step(parts.map((data) => data.slice().fill(-1)));
        state.step++;
      }
    });
    return { last, parts };
  });
  for (const result of results) result.catch(() => undefined);
  await turns(random.integer(90));
  isLost = true;
  site.crash(2);
  for (const { last, parts } of await Promise.all([results[0], results[1]])) {
    for (const data of parts) expect(data).toEqual(data.slice().fill(30));
    await last.destroy({ timeoutMs: 100 });
  }
});
