/** Mistakes of callers, and the edges of what is allowed: mistakes are refused by name before anything is sent, and the group is as
 *  good as before. What takes real processes is in test/group/bad-input-processes.test.ts. */
import { describe, expect, it } from 'vitest';
import { isShoalError, type ErrorCode } from '../base/errors.ts';
import { dtypes, type DType } from '../memory/dtype.ts';
import { ReduceOp, reduceOps } from '../memory/reduce-op.ts';
import type { Tensor } from '../memory/tensor.ts';
import type { CommGroup } from './api/process-group.ts';
import { startRanks } from './testing/in-process-world.ts';
import type { TensorLike, UserReduceOp, Work } from './caller/types.ts';

interface Thrown {
  readonly code: ErrorCode;
  readonly message: string;
}

/** The error of a call that must not even start. */
function refused(call: () => unknown): Thrown {
  try {
    call();
  } catch (error) {
    if (isShoalError(error)) return { code: error.code, message: error.message };
    throw error;
  }
  throw new Error('the call was not refused');
}

/** A sum that comes out right shows that nothing of what was refused has reached the other ranks. */
async function stillWorks(groups: readonly CommGroup[]): Promise<void> {
  const data = groups.map((group) => Int32Array.of(group.rank + 1));
  await Promise.all(groups.map((group, rank) => group.allReduce(data[rank])));
  expect(data.map(([value]) => value)).toEqual(groups.map(() => (groups.length * (groups.length + 1)) / 2));
}

const allDtypes = dtypes.map(({ name }) => name);
const floats: readonly DType[] = ['float64', 'float32', 'float16', 'bfloat16'];
const bitwise: readonly string[] = [ReduceOp.BitAnd, ReduceOp.BitOr, ReduceOp.BitXor];

describe('reductions that are not defined', () => {
  it('every pair of dtype and op that makes no sense is unsupported, on every reduction', async () => {
    await using world = await startRanks(2);
    const [group] = world.groups;
    let pairs = 0;
    for (const dtype of allDtypes) {
      for (const op of reduceOps) {
        const float = floats.includes(dtype);
        const senseless = float ? bitwise.includes(op) : op === ReduceOp.Avg || op === ReduceOp.Premul;
        if (!senseless) continue;
        pairs++;
        const x = group.tensor(dtype, [4]);
        const half = group.tensor(dtype, [2]);
        const options = op === ReduceOp.Premul ? { op, factor: 2 } : { op };
        const calls = [() => group.allReduce(x, options), () => group.reduce(x, options), () => group.reduceScatter(half, x, options)];
        for (const call of calls) {
          const error = refused(call);
          expect(error).toMatchObject({ code: 'unsupported' });
          expect(error.message).toContain(`'${op}' is not defined on ${dtype}`);
        }
      }
    }
    expect(pairs).toBe(4 * 3 + (allDtypes.length - 4) * 2);
    await stillWorks(world.groups);
  });

  it('an op that does not exist, and a factor without premul or the other way round', async () => {
    await using world = await startRanks(2);
    const [group] = world.groups;
    const x = new Float32Array(2);
    expect(refused(() => group.allReduce(x, { op: 'mean' as ReduceOp })).message).toMatch(/'mean' is not supported; use one of sum, /);
    expect(refused(() => group.allReduce(x, { op: ReduceOp.Premul })).code).toBe('usage');
    expect(refused(() => group.allReduce(x, { factor: 2 })).code).toBe('usage');
    await stillWorks(world.groups);
  });
});

describe('calls that are made of others', () => {
  it('refuse what they cannot take, and give back what they took', async () => {
    await using world = await startRanks(2);
    const [group] = world.groups;
    const [x, whole, part] = [new Float32Array(2), new Float32Array(4), new Float32Array(2)];
    const op = { name: 'first', reduce: () => undefined };
    for (const [code, call] of [
      ['unsupported', () => group.scan(x, { op: ReduceOp.Avg })],
      ['unsupported', () => group.exscan(x, { op: ReduceOp.Premul })],
      ['unsupported', () => group.scan(x, { op: ReduceOp.BitAnd })],
      ['unsupported', () => group.batch([{ call: 'allReduce', data: x, op: 'land' as ReduceOp }])],
      ['unsupported', () => group.batch([{ call: 'allReduce', data: x, op: op as unknown as ReduceOp }])],
      ['unsupported', () => group.batch([{ call: 'allReduce', data: x, postscale: 2 }])],
      ['unsupported', () => group.allReduce(new Int32Array(2), { postscale: 2 })],
      ['usage', () => group.allReduce(x, { postscale: NaN })],
      ['usage', () => group.reduce(x, { postscale: 2, root: 2 })],
      ['usage', () => group.scan(x, { op, factor: 2 })],
      ['usage', () => group.allReduce(x, { op: { name: 'none' } as unknown as UserReduceOp })],
      ['usage', () => group.allReduce(x, { op, root: 1 } as object)],
      ['usage', () => group.reduce(x, { op, root: 2 })],
      ['usage', () => group.reduceScatter(whole, part, { op })],
      ['usage', () => group.reduceScatter(whole, part, { op: 'land' })],
      ['usage', () => group.maxLoc(x, new Int32Array(1))],
      ['usage', () => group.minLoc(x, new Float32Array(2))],
      ['usage', () => group.gather(whole, null, { counts: [1, 2] })],
      ['usage', () => group.gather(null, null)],
      ['usage', () => group.gather(new Float32Array(3), null)],
      ['usage', () => group.gather(null, null, { root: 1 })],
      ['usage', () => group.gather(whole, whole.subarray(1, 3))],
      ['usage', () => group.scatter(null, null)],
    ] as const) {
      expect(refused(call).code, String(call)).toBe(code);
    }
    await stillWorks(world.groups);
  });

  it('do not match others, nor those with another operator', async () => {
    for (const other of [
      (group: CommGroup) => group.allGather(new Float32Array(4), new Float32Array(2)),
      (group: CommGroup) => group.exscan(new Float32Array(2)),
      (group: CommGroup) => group.scan(new Float32Array(2), { op: ReduceOp.Max }),
      (group: CommGroup) => group.scan(new Float32Array(2), { op: { name: 'mine', reduce: () => undefined } }),
    ]) {
      await using world = await startRanks(2);
      const outcomes = await Promise.allSettled(
        world.groups.map((group) => (group.rank === 0 ? group.scan(new Float32Array(2)) : other(group))),
      );
      for (const outcome of outcomes) expect(outcome).toMatchObject({ status: 'rejected', reason: { code: 'mismatch' } });
    }
  });
});

describe('empty tensors', () => {
  it.each(allDtypes)('of %s go through every operation', async (dtype) => {
    await using world = await startRanks(3);
    await world.each(async (group) => {
      const empty = (): Tensor => group.tensor(dtype, [0, 7]);
      const whole = group.rank === 1 ? empty() : null;
      await group.allReduce(empty(), { op: ReduceOp.Max });
      await group.broadcast(empty(), { root: 2 });
      await group.reduce(empty(), { op: ReduceOp.Min });
      await group.allGather(empty(), empty());
      await group.gather(whole, empty(), { root: 1 });
      await group.scatter(empty(), whole, { root: 1 });
      await group.reduceScatter(empty(), empty(), { op: ReduceOp.Max });
      await group.allToAll(empty(), empty());
      const op = { name: 'first', reduce: () => undefined };
      for (const work of [group.scan(empty()), group.exscan(empty(), { op }), group.allReduce(empty(), { op: 'lxor' })]) await work;
      await group.maxLoc(empty(), new Int32Array(0));
      await group.gather(whole, group.rank === 1 ? null : empty(), { root: 1 });
      const next = (group.rank + 1) % group.size;
      await Promise.all([group.send(empty(), next), group.recv(empty(), (group.rank + 2) % group.size)]);
    });
    await stillWorks(world.groups);
  });

  it('one part may be empty, and an empty typed array is one too', async () => {
    await using world = await startRanks(2);
    const outputs = await world.each(async (group) => {
      const output = new Float64Array(3);
      await group.allGather(output, new Float64Array(group.rank === 0 ? 0 : 3).fill(5), { counts: [0, 3] });
      await group.allReduce(new Float32Array(0));
      return [...output];
    });
    expect(outputs).toEqual([
      [5, 5, 5],
      [5, 5, 5],
    ]);
  });
});

describe('tensors too large for one buffer', () => {
  it('are refused with the limit, in no time and at no cost', async () => {
    await using world = await startRanks(1);
    const [group] = world.groups;
    // 8 TiB: above what Node 20 can address, above what any test machine has.
    const error = refused(() => group.tensor('float64', [2 ** 20, 2 ** 20]));
    expect(['unsupported', 'out-of-memory']).toContain(error.code);
    expect(error.message).toContain(`${2 ** 43} bytes`);
    expect(refused(() => group.tensor('float32', [2 ** 40, 2 ** 40])).code).toBe('usage');
    await stillWorks(world.groups);
  });

  it.skipIf(Number(process.versions.node.split('.')[0]) > 20)(
    '4 GiB on Node 20: the limit and the way out (skipped: newer Node)',
    async () => {
      await using world = await startRanks(1);
      const error = refused(() => world.groups[0].tensor('float32', [2 ** 30 + 1]));
      expect(error).toMatchObject({ code: 'unsupported' });
      expect(error.message).toMatch(/too large: one ArrayBuffer has at most \d+ bytes on Node v20.*split the tensor or use a newer Node/);
    },
  );
});

describe('shapes and arguments', () => {
  it('are checked before anything is sent', async () => {
    await using world = await startRanks(2);
    const [group] = world.groups;
    const x = group.tensor('float32', [4]);
    const y = group.tensor('int32', [4]);
    const calls: Record<string, () => unknown> = {
      'a negative dimension': () => group.tensor('float32', [-1]),
      'half a dimension': () => group.tensor('float32', [1.5]),
      'no number': () => group.tensor('float32', [NaN]),
      'a root outside': () => group.broadcast(x, { root: 2 }),
      'a root that is no rank': () => group.reduce(x, { root: 0.5 }),
      'no time at all': () => group.allReduce(x, { timeoutMs: 0 }),
      'no time limit': () => group.allReduce(x, { timeoutMs: NaN }),
      'a whole of the wrong size': () => group.allGather(group.tensor('float32', [7]), x),
      'input and output that differ in dtype': () => group.allGather(group.tensor('float32', [8]), y),
      'an exchange of two dtypes': () => group.allToAll(x, y),
      'too few counts': () => group.allGather(group.tensor('float32', [4]), x, { counts: [4] }),
      'counts that deny this part': () => group.allGather(group.tensor('float32', [4]), x, { counts: [3, 1] }),
      'negative counts': () => group.reduceScatter(group.tensor('float32', [5]), x, { counts: [5, -1] }),
      'an output away from the root': () => world.groups[1].gather(group.tensor('float32', [8]), x),
      'a root without output': () => group.gather(null, x),
      'an uneven all-to-all without splits': () => group.allToAll(group.tensor('float32', [3]), group.tensor('float32', [3])),
      'splits that do not add up': () => group.allToAll(group.tensor('float32', [4]), x, { inputSplits: [1, 2] }),
      'a message to itself': () => group.send(x, 0),
      'a message to nobody': () => group.recv(x, 2),
      'a tag out of range': () => group.send(x, 1, { tag: 0x10000 }),
      'something that is no array': () => group.allReduce('gradients' as unknown as TensorLike),
      nothing: () => group.allReduce(null as unknown as TensorLike),
      'a DataView': () => group.allReduce(new DataView(new ArrayBuffer(4)) as unknown as TensorLike),
    };
    for (const [what, call] of Object.entries(calls)) expect(refused(call).code, what).toBe('usage');
    expect(refused(() => group.tensor('complex64' as DType, [1])).code).toBe('unsupported');
    await expect(group.newGroup([0, 0])).rejects.toMatchObject({ code: 'usage' });
    await expect(group.newGroup([2])).rejects.toMatchObject({ code: 'usage' });
    await expect(group.split(0.5)).rejects.toMatchObject({ code: 'usage' });
    await expect(group.split(2 ** 64)).rejects.toMatchObject({ code: 'usage' });
    for (const key of [0.5, NaN, 2 ** 64]) {
      await expect(group.split(0, { key }), `key ${key}`).rejects.toMatchObject({ code: 'usage', message: expect.stringContaining('key') });
    }
    await stillWorks(world.groups);
  });

  it('outputs and wholes that are one element or one part too large or too small are refused on every rank', async () => {
    await using world = await startRanks(2);
    const counts = [3, 1];
    for (const group of world.groups) {
      const { rank } = group;
      const array = (count: number): Float32Array => new Float32Array(count);
      const own = array(counts[rank]);
      for (const count of [0, 2, 3, 5, 6, 12]) {
        const isRoot = rank === 0;
        const calls: Record<string, (() => unknown) | false> = {
          allToAll: () => group.allToAll(array(count), array(4)),
          'allToAll of a larger input': () => group.allToAll(array(4), array(count)),
          'allToAll with splits': () => group.allToAll(array(count), array(4), { inputSplits: [2, 2], outputSplits: [2, 2] }),
          'allToAll with splits of the input': () => group.allToAll(array(4), array(count), { inputSplits: [2, 2] }),
          allGather: () => group.allGather(array(count), array(2), {}),
          'allGather with counts': () => group.allGather(array(count), own, { counts }),
          reduceScatter: () => group.reduceScatter(array(2), array(count)),
          'reduceScatter with counts': () => group.reduceScatter(own, array(count), { counts }),
          gather: isRoot && (() => group.gather(array(count), array(2))),
          'gather with counts': isRoot && (() => group.gather(array(count), own, { counts })),
          scatter: isRoot && (() => group.scatter(array(2), array(count))),
          'scatter with counts': isRoot && (() => group.scatter(own, array(count), { counts })),
        };
        for (const [what, call] of Object.entries(calls))
          if (call) expect(refused(call), `${what}, ${count}`).toMatchObject({ code: 'usage' });
      }
    }
    await stillWorks(world.groups);
  });

  it('plain arrays that lie over each other are refused as tensors are, and inputs may', async () => {
    await using world = await startRanks(2);
    const [group] = world.groups;
    const x = new Float32Array(8);
    const over: Record<string, () => unknown> = {
      'an output that is the input': () => group.allToAll(x, x),
      'a part of the output as input': () => group.allGather(x, x.subarray(4)),
      'a part of the input as output': () => group.reduceScatter(x.subarray(0, 4), x),
      'a tensor and its own data': () => {
        const tensor = group.tensor('float32', [8]);
        return group.allToAll(tensor, tensor.data);
      },
    };
    for (const [what, call] of Object.entries(over)) {
      expect(refused(call), what).toMatchObject({ code: 'usage', message: expect.stringContaining('lie over each other') });
    }
    await world.each((each) => each.allGather(new Float32Array(8), x.subarray(4)));
    await stillWorks(world.groups);
  });

  it('one tensor as input and output is refused where results would run over inputs', async () => {
    await using world = await startRanks(2);
    for (const group of world.groups) {
      const x = group.tensor('float32', [8]);
      expect(refused(() => group.allToAll(x, x))).toMatchObject({ code: 'usage' });
    }
    await stillWorks(world.groups);
  });
});

/** Node has them; the library that we compile against does not know them yet. */
interface Resizable extends ArrayBuffer {
  resize(bytes: number): void;
}

function resizable(bytes: number): Resizable {
  return Reflect.construct(ArrayBuffer, [bytes, { maxByteLength: 64 }]) as Resizable;
}

describe('buffers that go away', () => {
  const detached = (): Float32Array => {
    const array = new Float32Array(8);
    structuredClone(array.buffer, { transfer: [array.buffer] });
    return array;
  };

  it('a detached buffer is refused', async () => {
    await using world = await startRanks(2);
    const error = refused(() => world.groups[0].allReduce(detached()));
    expect(error.code).toBe('usage');
    expect(error.message).toContain('detached');
    await stillWorks(world.groups);
  });

  it('a view that its buffer shrank away from is refused, not taken for an empty one', async () => {
    await using world = await startRanks(2);
    const buffer = resizable(32);
    const view = new Float32Array(buffer, 16, 4);
    buffer.resize(16);
    const error = refused(() => world.groups[0].allReduce(view));
    expect(error.code).toBe('usage');
    expect(error.message).toContain('shrank');
    await stillWorks(world.groups);
  });

  it('a buffer detached while the operation runs: its work fails, the other ranks have their results', async () => {
    await using world = await startRanks(2);
    const arrays = world.groups.map(() => Float32Array.of(1, 2));
    const works = world.groups.map((group, rank) => group.allReduce(arrays[rank]));
    structuredClone(arrays[0].buffer, { transfer: [arrays[0].buffer] });
    await expect(works[0]).rejects.toMatchObject({ code: 'usage', message: expect.stringContaining('detached') });
    await works[1];
    expect([...arrays[1]]).toEqual([2, 4]);
    await stillWorks(world.groups);
  });

  it.each([
    { what: 'grown', bytes: 64 },
    { what: 'shrunk', bytes: 8 },
  ])('a buffer $what while the operation runs: its work fails and nothing is written beyond it', async ({ bytes }) => {
    await using world = await startRanks(2);
    const buffer = resizable(32);
    const view = new Float32Array(buffer).fill(3);
    const other = new Float32Array(8).fill(4);
    const works: Work[] = [world.groups[0].allReduce(view), world.groups[1].allReduce(other)];
    buffer.resize(bytes);
    await expect(works[0]).rejects.toMatchObject({ code: 'usage', message: expect.stringContaining('resized') });
    await works[1];
    expect([...other]).toEqual(new Array(8).fill(7));
    expect([...new Float32Array(buffer)]).toEqual([
      ...new Array(Math.min(8, bytes / 4)).fill(3),
      ...new Array(Math.max(0, bytes / 4 - 8)).fill(0),
    ]);
    await stillWorks(world.groups);
  });
});

describe('tensors after their time', () => {
  it('a released tensor is refused everywhere, and released once only', async () => {
    await using world = await startRanks(2);
    const [group] = world.groups;
    const x = group.tensor('float32', [4]);
    group.release(x);
    expect(refused(() => group.release(x)).message).toContain('released before');
    const calls = [
      () => group.allReduce(x),
      () => group.broadcast(x),
      () => group.allGather(group.tensor('float32', [8]), x),
      () => group.allGather(x, group.tensor('float32', [2])),
      () => group.gather(x, group.tensor('float32', [2])),
      () => group.send(x, 1),
      () => group.recv(x, 1),
    ];
    for (const call of calls) {
      const error = refused(call);
      expect(error.code).toBe('usage');
      expect(error.message).toContain('released');
    }
    await stillWorks(world.groups);
  });

  it("another group's tensor cannot be released here, but communicated", async () => {
    await using world = await startRanks(2);
    const halves = await world.each((group) => group.newGroup([0, 1]));
    const [group] = world.groups;
    const x = group.tensor('int32', [1]);
    expect(refused(() => halves[0]?.release(x)).message).toMatch(/not made by group/);
    const other = world.groups[1].tensor('int32', [1]);
    [x.data[0], other.data[0]] = [3, 4];
    await Promise.all([halves[0]?.allReduce(x), halves[1]?.allReduce(other)]);
    expect([x.data[0], other.data[0]]).toEqual([7, 7]);
  });

  it('data stays readable after destroy', async () => {
    const world = await startRanks(2);
    const tensors = world.groups.map((group) => group.tensor('float64', [3]));
    await Promise.all(world.groups.map((group, rank) => (tensors[rank].data.fill(rank + 1), group.allReduce(tensors[rank]))));
    await world[Symbol.asyncDispose]();
    for (const tensor of tensors) expect([...tensor.data]).toEqual([3, 3, 3]);
  });
});

describe('after destroy', () => {
  it('every call is closed, and a second destroy is the first', async () => {
    const world = await startRanks(2);
    const [group] = world.groups;
    const x = group.tensor('float32', [4]);
    const first = group.destroy();
    expect(group.destroy({ timeoutMs: 1 })).toBe(first);
    await Promise.all([first, world.groups[1].destroy()]);
    await group.destroy();
    const calls = [
      () => group.allReduce(x),
      () => group.barrier(),
      () => group.send(x, 1),
      () => group.tensor('float32', [1]),
      () => group.monitoredBarrier(),
    ];
    for (const call of calls) expect(['closed', 'usage']).toContain(refused(call).code);
    expect(refused(() => group.barrier())).toMatchObject({ code: 'closed' });
    await expect(group.newGroup([0])).rejects.toMatchObject({ code: 'closed' });
    await expect(group.split(0)).rejects.toMatchObject({ code: 'closed' });
  });

  it('the other groups of a world live on when a subgroup is destroyed', async () => {
    await using world = await startRanks(3);
    const pairs = await world.each((group) => group.newGroup([0, 2]));
    await Promise.all([pairs[0]?.destroy(), pairs[2]?.destroy()]);
    expect(refused(() => pairs[0]?.barrier()).code).toBe('closed');
    await stillWorks(world.groups);
  });

  it('what was in flight when a rank destroys its group ends, well or with an error', async () => {
    const world = await startRanks(2);
    const work = world.groups[0].allReduce(new Float32Array(4), { timeoutMs: 60_000 });
    // Rank 1 never makes the call: it leaves.
    const left = world.groups[1].destroy();
    await expect(work).rejects.toMatchObject({ code: 'mismatch' });
    await left;
    await world[Symbol.asyncDispose]();
    expect(work.done).toBe(true);
  });
});

describe('waitSync', () => {
  it('says that it cannot block where communication runs inline, and does not hang', async () => {
    await using world = await startRanks(2);
    const works = world.groups.map((group) => group.barrier());
    expect(refused(() => works[0].waitSync())).toMatchObject({ code: 'usage', message: expect.stringContaining('await the work') });
    await Promise.all(works);
    works[0].waitSync();
    expect(works[0].done).toBe(true);
  });
});

it('an all-gather whose ranks have different counts fails on all of them', async () => {
  await using world = await startRanks(2);
  const errors = await world.each((group) => {
    const counts = group.rank === 0 ? [7, 993] : [125, 875];
    return Promise.resolve(group.allGather(new Float32Array(1000), new Float32Array(counts[group.rank]), { counts })).catch(
      (error: unknown) => error,
    );
  });
  for (const error of errors) {
    expect(error).toMatchObject({ code: 'mismatch', message: expect.stringMatching(/counts \[7, 993\].*\n.*counts \[125, 875\]/) });
  }
});
