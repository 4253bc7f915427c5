/** Mistakes in a batch are found before any of its calls begins; ranks whose batches differ find out. */
import { describe, expect, it } from 'vitest';
import type { BatchCall } from '../caller/types.ts';
import { ReduceOp } from '../../memory/reduce-op.ts';
import { startRanks } from '../testing/in-process-world.ts';
import type { CommGroup } from './process-group.ts';

async function stillWorks(groups: readonly CommGroup[]): Promise<void> {
  const sums = await Promise.all(
    groups.map(async (group) => {
      const x = Int32Array.of(1);
      await group.allReduce(x);
      return x[0];
    }),
  );
  expect(sums).toEqual(groups.map(() => groups.length));
}

describe('a batch that cannot be', () => {
  const x = new Float32Array(8);
  const wrong: readonly (readonly [what: string, calls: unknown, message: RegExp])[] = [
    ['no list', { call: 'barrier' }, /calls must be a list/],
    ['a call that is no object', [new Float32Array(1)], /call 0: an object with call/],
    ['a call that is not there', new Array<unknown>(1), /call 0: an object with call/],
    ['a list of names of calls', [{ call: ['allReduce'], data: x }], /call 0: call must be one of send, recv, allReduce/],
    ['an unknown call', [{ call: 'toString', data: x }], /call 0: call must be one of send, recv, allReduce/],
    ['a limit of one call', [{ call: 'allReduce', data: x, timeoutMs: 5 }], /timeoutMs is an option of the whole batch/],
    ["another call's argument", [{ call: 'allReduce', data: x, peer: 1 }], /allReduce has no argument 'peer'/],
    ['an option that is misspelt', [{ call: 'allReduce', data: x, opp: 'sum' }], /did you mean 'op'/],
    [
      'a send to itself',
      [
        { call: 'allReduce', data: x },
        { call: 'send', data: x, peer: 0 },
      ],
      /call 1: send needs another rank/,
    ],
    ['a send to anyone', [{ call: 'send', data: x, peer: 'any' }], /send needs another rank of 0…1, not any/],
    [
      'data that two calls write',
      [
        { call: 'allReduce', data: x },
        { call: 'allReduce', data: x.subarray(7) },
      ],
      /\(call 0 and 1\)/,
    ],
    ['an output over its input', [{ call: 'allGather', output: x, input: x.subarray(2, 6) }], /\(call 0\)/],
    [
      'data that is sent and written',
      [
        { call: 'send', data: x.subarray(0, 2), peer: 1 },
        { call: 'broadcast', data: x, root: 1 },
      ],
      /\(call 0 and 1\)/,
    ],
  ];
  it.each(wrong)('%s is refused, and nothing has begun', async (_, calls, message) => {
    await using world = await startRanks(2);
    const [group] = world.groups;
    expect(() => group.batch(calls as BatchCall[])).toThrow(
      expect.objectContaining({ code: 'usage', message: expect.stringMatching(message) }),
    );
    await stillWorks(world.groups);
  });

  it('sums have the bits of those of single calls', async () => {
    await using world = await startRanks(3);
    await world.each(async (group) => {
      const make = (): Float32Array[] =>
        [3, 1, 1000, 0, 20_000].map((count, k) => Float32Array.from({ length: count }, (_, i) => Math.sin(i * (group.rank + 1) + k) * 1e3));
      const [single, batched] = [make(), make()];
      for (const data of single) await group.allReduce(data, { op: ReduceOp.Avg });
      await group.batch(batched.map((data) => ({ call: 'allReduce', data, op: ReduceOp.Avg })));
      expect(batched).toEqual(single);
    });
  });

  it('the same memory may be read by several calls', async () => {
    await using world = await startRanks(2);
    await world.each(async (group) => {
      const data = Float32Array.of(group.rank, 1);
      const [a, b] = [new Float32Array(4), new Float32Array(4)];
      await group.batch([
        { call: 'allGather', output: a, input: data },
        { call: 'allGather', output: b, input: data },
      ]);
      expect([...a, ...b]).toEqual([0, 1, 1, 1, 0, 1, 1, 1]);
    });
  });
});

describe('batches of ranks that differ', () => {
  it('in the sizes of their parts, though not in all, are a mismatch', async () => {
    await using world = await startRanks(2);
    const batchOf = (sizes: readonly number[]): BatchCall[] => sizes.map((size) => ({ call: 'allReduce', data: new Float32Array(size) }));
    const works = world.groups.map((group) => group.batch(batchOf(group.rank === 0 ? [2, 3] : [3, 2])));
    for (const work of works)
      await expect(work).rejects.toMatchObject({ code: 'mismatch', message: expect.stringContaining('batch of 2: 2,3') as string });
    for (const work of works) expect(work.error).toMatchObject({ code: 'mismatch' });
  });

  it('a batch whose results nobody awaits raises no unhandled rejection; destroy gives its memory back', async () => {
    const world = await startRanks(2);
    const pair = [new Float32Array(2), new Float32Array(2)];
    const work = world.groups[0].batch(pair.map((data) => ({ call: 'allReduce', data }) as const));
    await world[Symbol.asyncDispose]();
    expect(work.done).toBe(true);
    expect(work.error).toBeDefined();
  });
});

describe('receives from anyone', () => {
  it('fail when all others have left, and not before', async () => {
    await using world = await startRanks(3);
    const [first, second, third] = world.groups;
    const parts = await world.each((group) => group.newGroup([0, 1, 2]));
    const [data, more] = [new Int32Array(1), new Int32Array(1)];
    const works = [parts[0]!.recv(data, 'any'), parts[0]!.recv(more, 'any', { tag: 2 })];
    await parts[1]!.destroy();
    await parts[2]!.send(Int32Array.of(7), 0);
    await works[0];
    expect([data[0], works[0].source]).toEqual([7, 2]);
    expect(works[1].done).toBe(false);
    await parts[2]!.destroy();
    await expect(works[1]).rejects.toMatchObject({ code: 'peer-lost' });
    expect(works[1].source).toBeUndefined();
    await stillWorks([first, second, third]);
  });

  it('name what they wait for when their time is over', async () => {
    await using world = await startRanks(2);
    await expect(world.groups[0].recv(new Int32Array(1), 'any', { tag: 5, timeoutMs: 50 })).rejects.toMatchObject({
      code: 'timeout',
      message: expect.stringMatching(/recv int32\[1\] from any rank with tag 5 timed out after 50 ms: no rank sent/) as string,
    });
  });
});
