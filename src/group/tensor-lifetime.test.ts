/** The life of a tensor's memory, from `tensor` to its last use: its owner, those who may still reach it, and when it is given out again. */
import { describe, expect, it } from 'vitest';
import type { Tensor } from '../memory/tensor.ts';
import { Tensor as TensorOf } from '../memory/tensor.ts';
import { startRanks, type InProcessOptions } from './testing/in-process-world.ts';
import type { ProcessGroup } from './caller/types.ts';

const kinds: readonly NonNullable<InProcessOptions['kind']>[] = ['host', 'network', 'tcp'];
/** In a slab with others, and in a region of its own. */
const sizes = [16, 2 ** 18] as const;

/** Everything that has been sent has arrived. */
async function delivered(): Promise<void> {
  for (let turn = 0; turn < 40; turn++) await new Promise(setImmediate);
}

/** Makes so many tensors of this size that they would take a freed block again, if there were one. */
function refill(group: ProcessGroup, count: number, value: number): Tensor<'float32'>[] {
  return Array.from({ length: 4 }, () => {
    const tensor = group.tensor('float32', [count]);
    tensor.data.fill(value);
    return tensor;
  });
}

function expectAll(tensors: readonly Tensor<'float32'>[], value: number): void {
  for (const { data } of tensors) expect(data.every((each) => each === value)).toBe(true);
}

async function subgroup(group: ProcessGroup): Promise<ProcessGroup> {
  const made = await group.newGroup(group.globalRanks.map((_, rank) => rank));
  if (made === null) throw new Error('all ranks are in it');
  return made;
}

describe('a released tensor', () => {
  it('is refused by every group of its world, by other worlds, and as a view of the same memory', async () => {
    await using world = await startRanks(2, {});
    await using other = await startRanks(1, {});
    await world.each(async (group) => {
      const sub = await subgroup(group);
      const [x, kept] = [group.tensor('float32', [8]), group.tensor('float32', [8])];
      const view = new TensorOf('float32', [4], x.region, x.byteOffset);
      await Promise.all([group.allReduce(x), sub.allReduce(x)]);
      group.release(x);
      const released = { code: 'usage', message: expect.stringMatching(/has been released/) };
      for (const each of [group, sub, other.groups[0]]) {
        expect(() => each.allReduce(x)).toThrow(expect.objectContaining(released));
        expect(() => each.allReduce(view)).toThrow(expect.objectContaining(released));
        expect(() => each.allGather(new Float32Array(each.size * 8), x)).toThrow(expect.objectContaining(released));
      }
      for (const each of [group, sub]) {
        expect(() => each.send(x, 1 - each.rank)).toThrow(expect.objectContaining(released));
        expect(() => each.recv(x, 1 - each.rank)).toThrow(expect.objectContaining(released));
      }
      expect(() => group.release(x)).toThrow(/released before/);
      await sub.allReduce(kept);
    });
  });

  it.each(sizes)('of %i elements gives its memory to the next one', async (count) => {
    await using world = await startRanks(1, {});
    const [group] = world.groups;
    const first = group.tensor('float32', [count]);
    group.release(first);
    const next = group.tensor('float32', [count]);
    expect([next.region.id, next.byteOffset]).toEqual([first.region.id, first.byteOffset]);
  });
});

describe.each(kinds)('over %s, of an operation that runs, memory is not given out again', (kind) => {
  it.each(sizes)('after release of %i elements', async (count) => {
    await using world = await startRanks(2, { kind });
    const [group, late] = world.groups;
    const x = group.tensor('float32', [count]);
    x.data.fill(1);
    const work = group.allReduce(x);
    await delivered();
    group.release(x);
    const others = refill(group, count, 7);
    await Promise.all([work, late.allReduce(new Float32Array(count).fill(2))]);
    expectAll(others, 7);
    await delivered();
    expect(refill(group, count, 8).map(({ region }) => region.id)).toContain(x.region.id);
  });

  it.each(sizes)('after release of what %i elements are received into', async (count) => {
    await using world = await startRanks(2, { kind });
    const [group, late] = world.groups;
    const x = group.tensor('float32', [count]);
    const work = group.recv(x, 1);
    await delivered();
    group.release(x);
    const others = refill(group, count, 7);
    await Promise.all([work, late.send(new Float32Array(count).fill(2), 0)]);
    expectAll(others, 7);
  });

  it.each(sizes)('after release of a tensor whose array of %i elements was passed', async (count) => {
    await using world = await startRanks(2, { kind });
    const [group, late] = world.groups;
    const x = group.tensor('float32', [count]);
    const work = group.allReduce(x.data);
    await delivered();
    group.release(x);
    const others = refill(group, count, 7);
    await Promise.all([work, late.allReduce(new Float32Array(count).fill(2))]);
    expectAll(others, 7);
  });

  it.each(sizes)('when the subgroup ends that %i elements are of', async (count) => {
    await using world = await startRanks(2, { kind });
    const [[group, sub], [late, lateSub]] = await world.each(async (each) => [each, await subgroup(each)] as const);
    const x = sub.tensor('float32', [count]);
    x.data.fill(1);
    const work = group.allReduce(x);
    await delivered();
    await Promise.all([sub.destroy(), lateSub.destroy()]);
    const others = refill(group, count, 7);
    await Promise.all([work, late.allReduce(new Float32Array(count).fill(2))]);
    expectAll(others, 7);
    expect(x.data.every((value) => value === 3)).toBe(true);
  });

  it.each(sizes)('after a failure: others may still write to %i elements', async (count) => {
    await using world = await startRanks(2, { kind });
    const [[group, sub]] = await world.each(async (each) => [each, await subgroup(each)] as const);
    const x = group.tensor('float32', [count]);
    const work = sub.allReduce(x);
    await delivered();
    await sub.destroy({ timeoutMs: 1 });
    await expect(Promise.resolve(work)).rejects.toMatchObject({ code: 'closed' });
    group.release(x);
    const places = refill(group, count, 7).map(({ region, byteOffset }) => `${region.id} ${byteOffset}`);
    expect(places).not.toContain(`${x.region.id} ${x.byteOffset}`);
  });
});

describe('a call that was refused', () => {
  it.each(sizes)('leaves no block of %i elements behind', async (count) => {
    await using world = await startRanks(1, {});
    const [group] = world.groups;
    const sub = await subgroup(group);
    const places = new Set<string>();
    for (let call = 0; call < 8; call++) {
      const x = group.tensor('float32', [count]);
      places.add(`${x.region.id} ${x.byteOffset}`);
      // Nothing runs this: it has no plan.
      await Promise.resolve(sub.reduceScatter(new Float32Array(count), x)).catch(() => undefined);
      group.release(x);
    }
    expect(places.size).toBe(1);
  });
});

describe('what a destroyed subgroup leaves', () => {
  it.each(sizes)('%i elements stay readable, whoever makes tensors afterwards, and can be passed as any array', async (count) => {
    await using world = await startRanks(2, {});
    await world.each(async (group) => {
      for (let round = 0; round < 3; round++) {
        const sub = await subgroup(group);
        const x = sub.tensor('float32', [count]);
        x.data.fill(group.rank + 1);
        await Promise.all([sub.allReduce(x), group.allReduce(sub.tensor('float32', [count]))]);
        await sub.destroy();
        const others = refill(group, count, 7);
        expectAll([x], 3);
        await group.allReduce(x);
        await group.allReduce(x);
        expectAll([x], 12);
        expectAll(others, 7);
        for (const other of others) group.release(other);
        expect(() => sub.release(x)).toThrow(expect.objectContaining({ code: 'usage' }));
      }
    });
  });
});
