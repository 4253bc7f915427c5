import { expect, it } from 'vitest';
import { ShoalError } from '../base/errors.ts';
import { seededRandom } from '../base/random.ts';
import { InProcessSite } from '../group/testing/in-process-world.ts';
import { startRanks } from '../group/testing/in-process-world.ts';
import { elastic, type ElasticState } from './elastic.ts';
import { DistributedSampler, type SamplerState } from './sampler.ts';

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
  for (let k = 0; k < 2; k++) {
    await turns(random.integer(12));
    const victim = random.integer(ranks);
    lost.add(victim);
    site.crash(victim);
  }
  const left = [0, 1, 2, 3].filter((rank) => !lost.has(rank));
  const ends = await Promise.all(left.map((rank) => results[rank]));
  for (const result of results) result.catch(() => undefined);
  for (const { seen, step } of ends) {
    expect(step).toBe(ends[0].step);
    // The last of the items that are dealt to all are repeated, as in torch's sampler.
    expect([...seen].every((times) => times >= 1)).toBe(true);
    expect(seen.reduce((sum, times) => sum + times, 0)).toBeLessThan(items + 3 * ranks);
  }
  await Promise.all(left.map((rank) => groups[rank].destroy({ timeoutMs: 100 })));
});

it('other errors end it, and so does bad input', async () => {
  await using world = await startRanks(1);
  const [group] = world.groups;
  const state = { step: 0, tensors: [] };
  const own = new Error('mine');
  await expect(elastic.run(group, state, () => Promise.reject(own))).rejects.toBe(own);
  const usage = new ShoalError('usage', 'no');
  await expect(elastic.run(group, state, () => Promise.reject(usage))).rejects.toBe(usage);
  await expect(elastic.run(group, { step: -1, tensors: [] }, async () => {})).rejects.toMatchObject({ code: 'usage' });
  await expect(elastic.run(group, state, undefined as never)).rejects.toMatchObject({ code: 'usage' });
});
