/** Calls that repeat an earlier one are not prepared anew: they do the same as others, and what is not the same is seen. */
import { describe, expect, it } from 'vitest';
import type { Tensor } from '../memory/tensor.ts';
import type { CommGroup } from './api/process-group.ts';
import type { TensorLike } from './caller/types.ts';
import { startRanks } from './testing/in-process-world.ts';

const n = 3;

/** The arrays that a rank passes to collectives: `part` for each rank in `whole`. */
interface Arrays {
  readonly part: TensorLike;
  readonly whole: TensorLike;
  readonly other: TensorLike;
}

function arraysOf(group: CommGroup, memory: 'tensors' | 'plain arrays'): Arrays {
  const make = (count: number): TensorLike => (memory === 'tensors' ? group.tensor('int32', [count]) : new Int32Array(count));
  return { part: make(2), whole: make(2 * n), other: make(2 * n) };
}

function dataOf(value: TensorLike): Int32Array {
  return value instanceof Int32Array ? value : (value as Tensor<'int32'>).data;
}

/** Calls every collective and gives what it wrote. */
async function round(group: CommGroup, { part, whole, other }: Arrays, k: number): Promise<number[][]> {
  const results: number[][] = [];
  const keep = (value: TensorLike): void => void results.push([...dataOf(value)]);
  const fill = (value: TensorLike): void => dataOf(value).set(dataOf(value).map((_, i) => 100 * k + 10 * group.rank + i));
  const root = k % n;
  const isRoot = group.rank === root;
  fill(part);
  await group.allReduce(part);
  keep(part);
  await group.allReduce(part, { op: k % 2 === 0 ? 'max' : 'sum' });
  keep(part);
  fill(whole);
  await group.broadcast(whole, { root });
  keep(whole);
  await group.broadcast(whole);
  fill(part);
  await group.reduce(part, { root });
  keep(part);
  await group.reduce(part, { root, op: 'min' });
  keep(part);
  fill(part);
  await group.allGather(whole, part);
  keep(whole);
  await group.allGather(other, part);
  keep(other);
  await group.gather(isRoot ? whole : null, part, { root });
  await group.gather(group.rank === 0 ? other : null, part);
  keep(other);
  fill(whole);
  await group.scatter(part, isRoot ? whole : null, { root });
  keep(part);
  await group.scatter(part, group.rank === 0 ? other : null);
  keep(part);
  await group.reduceScatter(part, whole);
  keep(part);
  await group.allToAll(other, whole);
  keep(other);
  await group.barrier();
  return results;
}

describe('repeated calls', () => {
  it.each(['tensors', 'plain arrays'] as const)('give what first calls give: %s', async (memory) => {
    await using repeating = await startRanks(n, { fastPath: true });
    await using plain = await startRanks(n);
    const arrays = repeating.groups.map((group) => arraysOf(group, memory));
    for (let k = 0; k < 6; k++) {
      const again = await repeating.each((group) => round(group, arrays[group.rank], k));
      const anew = await plain.each((group) => round(group, arraysOf(group, memory), k));
      expect(again).toEqual(anew);
    }
  });
});

describe('what has changed since', () => {
  it('a released tensor is refused, in every place', async () => {
    await using world = await startRanks(2, { fastPath: true });
    const [group] = world.groups;
    const made = await world.each(async (each) => {
      const tensors = { part: each.tensor('int32', [2]), whole: each.tensor('int32', [4]), second: each.tensor('int32', [4]) };
      for (let k = 0; k < 3; k++) {
        await each.allGather(tensors.whole, tensors.part);
        await each.reduceScatter(tensors.part, tensors.second);
        await each.broadcast(tensors.second);
      }
      return tensors;
    });
    const { part, whole, second } = made[group.rank];
    group.release(whole);
    group.release(second);
    const refused = { code: 'usage', message: expect.stringContaining('released') };
    expect(() => group.allGather(whole, part)).toThrow(expect.objectContaining(refused));
    expect(() => group.reduceScatter(part, second)).toThrow(expect.objectContaining(refused));
    expect(() => group.broadcast(second)).toThrow(expect.objectContaining(refused));
  });

  it('a detached array is refused, in every place', async () => {
    await using world = await startRanks(2, { fastPath: true });
    const arrays = world.groups.map(() => ({ input: new Int32Array(2), output: new Int32Array(4) }));
    for (let k = 0; k < 3; k++) await world.each((each) => each.allGather(arrays[each.rank].output, arrays[each.rank].input));
    const [group] = world.groups;
    const { input, output } = arrays[group.rank];
    structuredClone(null, { transfer: [output.buffer] });
    expect(() => group.allGather(output, input)).toThrow(expect.objectContaining({ code: 'usage' }));
    structuredClone(null, { transfer: [input.buffer] });
    expect(() => group.allGather(new Int32Array(4), input)).toThrow(expect.objectContaining({ code: 'usage' }));
  });

  it('options that are not those of the call before are checked', async () => {
    await using world = await startRanks(2, { fastPath: true });
    const x = world.groups.map(() => new Int32Array(2));
    for (let k = 0; k < 3; k++) await world.each((each) => each.broadcast(x[each.rank], { root: 1 }));
    for (let k = 0; k < 3; k++) await world.each((each) => each.barrier());
    const [group] = world.groups;
    const wrong: readonly unknown[] = [{ root: 2 }, { root: 1, op: 'sum' }, { root: 1, timeoutMs: -1 }, null, 1, []];
    for (const options of wrong) {
      expect(() => group.broadcast(x[0], options as never), String(options)).toThrow(expect.objectContaining({ code: 'usage' }));
    }
    expect(() => group.barrier({ root: 0 } as never)).toThrow(expect.objectContaining({ code: 'usage' }));
    const missing = group.gather.bind(group);
    expect(() => missing(null, x[0])).toThrow(expect.objectContaining({ code: 'usage' }));
  });
});

describe('persistent calls', () => {
  it.each([true, false])(
    'give what single calls give, on the values that the data has at each start; with a fast path: %s',
    async (fastPath) => {
      await using world = await startRanks(2, { fastPath });
      const results = await world.each(async (group) => {
        const other = 1 - group.rank;
        const sum = group.tensor('int32', [2]);
        const [all, part] = [new Int32Array(2), new Int32Array(1)];
        const root: { root: number } = { root: 1 };
        const calls = [
          group.allReduceInit(sum, { op: 'max' }),
          group.broadcastInit(part, root),
          group.allGatherInit(all, part),
          group.barrierInit(),
          group.allReduceInit(all, { op: { name: 'first', reduce: () => undefined } }),
        ];
        // They are those of the moment at which the call was bound.
        root.root = 0;
        const seen: number[][] = [];
        for (let k = 1; k <= 4; k++) {
          sum.data.set([k * group.rank, k * other]);
          part[0] = 100 * k + group.rank;
          for (const call of calls) await call.start();
          seen.push([...sum.data, ...part, ...all]);
        }
        await group.destroy();
        expect(() => calls[0].start()).toThrow(expect.objectContaining({ code: 'closed' }));
        expect(() => group.barrierInit()).toThrow(expect.objectContaining({ code: 'closed' }));
        return seen;
      });
      for (const seen of results) expect(seen).toEqual([1, 2, 3, 4].map((k) => [k, k, 100 * k + 1, 100 * k + 1, 100 * k + 1]));
    },
  );

  it('are refused when they are made, where the call would be', async () => {
    await using world = await startRanks(2);
    const [group] = world.groups;
    expect(() => group.broadcastInit(new Int32Array(1), { root: 2 })).toThrow(expect.objectContaining({ code: 'usage' }));
    expect(() => group.allGatherInit(new Int32Array(1), new Int32Array(1))).toThrow(expect.objectContaining({ code: 'usage' }));
    const late = { name: 'late', reduce: () => undefined, commutative: true };
    expect(() => group.allReduceInit(new Int32Array(1), { op: late, root: 1 } as never)).toThrow(
      expect.objectContaining({ code: 'usage' }),
    );
  });
});

it('an operator that throws is named', async () => {
  await using world = await startRanks(2);
  const reduce = (): void => {
    throw new RangeError('too large');
  };
  const errors = await world.each((group) =>
    group.allReduce(Int32Array.of(1), { op: { name: 'odd', reduce } }).catch((error: unknown) => error),
  );
  for (const [rank, error] of errors.entries()) {
    expect(error).toMatchObject({ code: 'usage', message: `rank ${rank}, allReduce odd: the operator has thrown: too large` });
  }
});
