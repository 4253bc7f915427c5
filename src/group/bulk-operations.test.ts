/** Many operations between hosts in flight: the staging budget alone decides how many, in the order of the calls, and small ones do
 *  not wait for large ones. */
import { afterEach, describe, expect, it, vi } from 'vitest';
import { systemClock } from '../base/clock.ts';
import { seededRandom } from '../base/random.ts';
import type { Settings } from '../base/settings/settings.ts';
import type { FlightRecorder } from '../trace/flight-recorder.ts';
import { ScratchPool, type ScratchBlock } from './comm/links/scratch-pool.ts';
import { startRanks, type InProcessWorld } from './testing/in-process-world.ts';

const KiB = 1024;
const hostIds = ['a', 'b', 'c'];
afterEach(() => void vi.restoreAllMocks());

/** Most operations of so many elements that ran at once on a rank, and in which order they started and ended. */
function observed(flight: FlightRecorder, count: number): { underWay: number; startOrder: number[]; endOrder: number[] } {
  const spans = flight
    .dump()
    .entries.filter(({ input_sizes: [sizes] }) => sizes?.[0] === count)
    .map(({ time_discovered_started_ns: from, time_discovered_completed_ns: to }) => ({ from: from ?? Number.NaN, to: to ?? Number.NaN }));
  const order = (key: 'from' | 'to'): number[] => [...spans.keys()].sort((a, b) => spans[a][key] - spans[b][key]);
  const underWay = spans.map(({ from }) => spans.filter((other) => other.from <= from && other.to > from).length);
  return { underWay: Math.max(...underWay), startOrder: order('from'), endOrder: order('to') };
}

/** Scratch that every rank holds, in bytes as asked for: the most at a time, and what the largest operation takes. */
function watchScratch(): { most: () => number; largest: () => number } {
  const held = new Map<ScratchPool, number>();
  const asked = new WeakMap<ScratchBlock, number>();
  let [most, largest] = [0, 0];
  const { take, give } = ScratchPool.prototype;
  vi.spyOn(ScratchPool.prototype, 'take').mockImplementation(function (this: ScratchPool, bytes) {
    const block = take.call(this, bytes);
    asked.set(block, bytes);
    const now = (held.get(this) ?? 0) + bytes;
    held.set(this, now);
    [most, largest] = [Math.max(most, now), Math.max(largest, bytes)];
    return block;
  });
  vi.spyOn(ScratchPool.prototype, 'give').mockImplementation(function (this: ScratchPool, block) {
    held.set(this, (held.get(this) ?? 0) - (asked.get(block) ?? Number.NaN));
    give.call(this, block);
  });
  return { most: () => most, largest: () => largest };
}

const startHosts = (settings: Partial<Settings>): Promise<InProcessWorld> =>
  startRanks(hostIds.length, { kind: 'host', hostIds, clock: systemClock, settings: { calibration: 'assume', ...settings } });

/** Sums of `counts` elements each, called at once; the positions of the calls in the order in which they ended, by rank. */
async function sumAll(world: InProcessWorld, counts: readonly number[]): Promise<number[][]> {
  return world.each(async (group) => {
    const tensors = counts.map((count) => group.tensor('float32', [count]));
    tensors.forEach((x, k) => x.data.fill(10 ** group.rank * (k + 1)));
    const ended: number[] = [];
    await Promise.all(tensors.map(async (x, k) => ended.push((await group.allReduce(x), k))));
    tensors.forEach((x, k) => expect([x.data[0], x.data.at(-1)], `call ${k}`).toEqual([111 * (k + 1), 111 * (k + 1)]));
    return ended;
  });
}

describe('large operations between hosts', () => {
  const count = 96 * KiB;

  /** Bytes that one of them stages on a rank. */
  async function stagedByOne(settings: Partial<Settings>): Promise<number> {
    const scratch = watchScratch();
    await using world = await startHosts(settings);
    await sumAll(world, [count]);
    vi.restoreAllMocks();
    return scratch.largest();
  }

  it.each(['fairring', 'direct', 'halving-doubling'])(
    '%s: as many are under way as the budget holds, in the order of the calls',
    async (algorithm) => {
      const chosen = { algorithms: `all-reduce:${algorithm}` };
      const each = await stagedByOne(chosen);
      for (const holds of [1, 2, 3, 5, 8, 12]) {
        for (const stagingBytes of [holds * each, (holds + 1) * each - 8]) {
          const scratch = watchScratch();
          await using world = await startHosts({ ...chosen, stagingBytes });
          await sumAll(
            world,
            Array.from({ length: 12 }, () => count),
          );
          for (const flight of world.flights) {
            const { underWay, startOrder, endOrder } = observed(flight, count);
            expect(underWay, `of ${stagingBytes} bytes ${each} each`).toBe(holds);
            expect(startOrder).toEqual([...startOrder.keys()]);
            for (let k = holds; k < 12; k++) expect(endOrder.indexOf(k)).toBeGreaterThanOrEqual(endOrder.indexOf(k - holds));
          }
          expect(scratch.most()).toBeLessThanOrEqual(stagingBytes);
          vi.restoreAllMocks();
        }
      }
    },
  );

  it('one always runs, also when it stages more than the budget', async () => {
    await using world = await startHosts({ algorithms: 'all-reduce:halving-doubling', stagingBytes: 4096 });
    await sumAll(world, [count, count, 1000, count]);
    for (const flight of world.flights) expect(observed(flight, count).underWay).toBe(1);
  });

  it('a small one behind them does not wait for them', async () => {
    const chosen = { algorithms: 'all-reduce:16k-inf=fairring' };
    const stagingBytes = 2 * (await stagedByOne(chosen));
    await using world = await startHosts({ ...chosen, stagingBytes });
    const large = 10;
    const orders = await sumAll(world, [...Array.from({ length: large }, () => count), 3]);
    for (const ended of orders) expect(ended.indexOf(large), `order ${ended.join(' ')}`).toBeLessThan(4);
  });

  it('ranks that hold different amounts, and call at different times, never wait for each other', async () => {
    for (const seed of [1, 2, 3, 4]) {
      const random = seededRandom(seed);
      const calls = Array.from({ length: 30 }, () => [1, 700, 9000, 40_000, count][Math.floor(random.next() * 5)]);
      const stagingBytes = 4096 * (1 + Math.floor(random.next() * 200));
      // With a tree the ranks stage nothing, one, or two times the tensor.
      const algorithms = `all-reduce:0-4k=direct,4k-100k=tree,100k-inf=${random.next() < 0.5 ? 'tree' : 'fairring'}`;
      const pauses = hostIds.map(() => calls.map(() => random.next() < 0.3));
      await using world = await startHosts({ algorithms, stagingBytes, inFlightMax: 1 + Math.floor(random.next() * 16) });
      await world.each(async (group) => {
        const works = [];
        for (const [k, size] of calls.entries()) {
          const x = group.tensor('float32', [size]);
          x.data.fill(10 ** group.rank);
          works.push(group.allReduce(x).then(() => expect([x.data[0], x.data.at(-1)], `seed ${seed}, call ${k}`).toEqual([111, 111])));
          if (pauses[group.rank][k]) await new Promise((resolve) => setImmediate(resolve));
        }
        await Promise.all(works);
      });
    }
  });
});
