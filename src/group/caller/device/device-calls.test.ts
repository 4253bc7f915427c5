/** Collectives on tensors of devices, between ranks of this thread. Drivers are tested in test/group/device-processes.test.ts. */
import { describe, expect, it } from 'vitest';
import { DeviceCopies, devicePieceBytes } from '../../../memory/device/device-copies.ts';
import { DeviceTensor } from '../../../memory/device/device-tensor.ts';
import { bufferOf, FakeDevice } from '../../../memory/device/testing/fake-device.ts';
import { ReduceOp } from '../../../memory/reduce-op.ts';
import type { CommGroup } from '../../api/process-group.ts';
import type { CollectiveData } from '../types.ts';
import { startRanks } from '../../testing/in-process-world.ts';

/** A piece and a bit. */
const large = devicePieceBytes / 4 + 8;

function onDevice(values: Float32Array, device = new FakeDevice()): DeviceTensor<'float32'> {
  return new DeviceTensor({ device, buffer: bufferOf(device, values), dtype: 'float32', shape: [values.length] });
}

async function dataOf(tensor: DeviceTensor<'float32'>): Promise<Float32Array> {
  const bytes = new Uint8Array(tensor.bytes);
  await new DeviceCopies(tensor.device).read(tensor, bytes);
  return new Float32Array(bytes.buffer);
}

/** Sums of these depend on their order. */
function valuesOf(rank: number, count: number): Float32Array {
  const values = new Float32Array(count);
  for (let at = 0, state = 7919 * (rank + 1); at < count; at++) {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) | 0;
    values[at] = state * 2 ** ((state & 31) - 40);
  }
  return values;
}

/** Calls with data in a place; gives what it has then. */
type Program = (group: CommGroup, make: (values: Float32Array) => CollectiveData) => [PromiseLike<void>, CollectiveData];

const part = 30_000;
const programs: Readonly<Record<string, Program>> = {
  allReduce: (group, make) => {
    const data = make(valuesOf(group.rank, part));
    return [group.allReduce(data), data];
  },
  'allReduce of several pieces': (group, make) => {
    const data = make(valuesOf(group.rank, large));
    return [group.allReduce(data), data];
  },
  'allReduce with premul': (group, make) => {
    const data = make(valuesOf(group.rank, part));
    return [group.allReduce(data, { op: ReduceOp.Premul, factor: group.rank + 0.5 }), data];
  },
  broadcast: (group, make) => {
    const data = make(valuesOf(group.rank, part));
    return [group.broadcast(data, { root: 1 }), data];
  },
  reduce: (group, make) => {
    const data = make(valuesOf(group.rank, part));
    return [group.reduce(data, { op: ReduceOp.Max, root: 2 }), data];
  },
  allGather: (group, make) => {
    const output = make(new Float32Array(part * group.size));
    return [group.allGather(output, make(valuesOf(group.rank, part))), output];
  },
  'allGather of uneven parts': (group, make) => {
    const counts = [5, 0, 17];
    const output = make(new Float32Array(22));
    return [group.allGather(output, make(valuesOf(group.rank, counts[group.rank])), { counts }), output];
  },
  gather: (group, make) => {
    const own = make(valuesOf(group.rank, part));
    const output = group.rank === 1 ? make(new Float32Array(part * group.size)) : null;
    return [group.gather(output, own, { root: 1 }), output ?? own];
  },
  scatter: (group, make) => {
    const output = make(new Float32Array(part));
    return [group.scatter(output, group.rank === 0 ? make(valuesOf(7, part * group.size)) : null), output];
  },
  reduceScatter: (group, make) => {
    // The elements of three ranks: a piece and a bit.
    const own = 1_400_000;
    const output = make(new Float32Array(own));
    return [group.reduceScatter(output, make(valuesOf(group.rank, own * group.size))), output];
  },
  allToAll: (group, make) => {
    const output = make(new Float32Array(part));
    return [group.allToAll(output, make(valuesOf(group.rank, part))), output];
  },
  'allReduce of nothing': (group, make) => {
    const data = make(new Float32Array(0));
    return [group.allReduce(data), data];
  },
};

describe('collectives on tensors of devices', () => {
  it.each(Object.entries(programs))('%s has the bits that it has on the host', async (_, program) => {
    await using world = await startRanks(3);
    const host = await world.each(async (group) => {
      const [work, data] = program(group, (values) => values);
      await work;
      return data as Float32Array;
    });
    const device = await world.each(async (group) => {
      const [work, data] = program(group, (values) => onDevice(values));
      await work;
      return dataOf(data as DeviceTensor<'float32'>);
    });
    device.forEach((data, rank) => expect(Buffer.compare(Buffer.from(data.buffer), Buffer.from(host[rank].buffer))).toBe(0));
  });

  it('takes one argument on a device and another on the host', async () => {
    await using world = await startRanks(2);
    const outputs = await world.each(async (group) => {
      const output = group.tensor('float32', [8]);
      await group.allGather(output, onDevice(valuesOf(group.rank, 4)));
      return [...output.data];
    });
    for (const output of outputs) expect(output).toEqual([...valuesOf(0, 4), ...valuesOf(1, 4)]);
  });

  it('runs several at once, beside calls on host memory, in any order of completion', async () => {
    await using world = await startRanks(2);
    const results = await world.each(async (group) => {
      const tensors = Array.from({ length: 12 }, (_, k) => onDevice(new Float32Array(1000).fill(k + group.rank)));
      const host = new Float32Array(10).fill(group.rank + 1);
      const works = tensors.map((tensor) => group.allReduce(tensor));
      // It waits for none of them.
      await group.allReduce(host);
      expect(works.every((work) => work.done)).toBe(false);
      await Promise.all(works);
      return [host[0], ...(await Promise.all(tensors.map(async (tensor) => (await dataOf(tensor))[999])))];
    });
    for (const result of results) expect(result).toEqual([3, ...Array.from({ length: 12 }, (_, k) => 2 * k + 1)]);
  });

  it('tells all ranks when one of them has its data elsewhere', async () => {
    await using world = await startRanks(2);
    const outcomes = await Promise.allSettled(
      world.groups.map((group) => group.allReduce(group.rank === 0 ? onDevice(new Float32Array(64)) : new Float32Array(64))),
    );
    for (const outcome of outcomes)
      expect(outcome).toMatchObject({
        status: 'rejected',
        reason: { code: 'mismatch', message: expect.stringContaining('all-reduce of 64 float32 on a device') },
      });
  });

  it('tells all ranks when they call different things on devices', async () => {
    await using world = await startRanks(2);
    const outcomes = await Promise.allSettled(
      world.groups.map((group) =>
        group.rank === 0 ? group.allReduce(onDevice(new Float32Array(64))) : group.broadcast(onDevice(new Float32Array(64))),
      ),
    );
    for (const outcome of outcomes) expect(outcome).toMatchObject({ status: 'rejected', reason: { code: 'mismatch' } });
  });

  it('fails on all ranks, by name, when the device of one is lost, and later calls as well', async () => {
    await using world = await startRanks(3);
    const device = new FakeDevice();
    const works = world.groups.map((group) =>
      group.allReduce(onDevice(valuesOf(group.rank, large), group.rank === 1 ? device : undefined)),
    );
    device.lose('unknown', 'the GPU hung');
    const outcomes = await Promise.allSettled(works);
    expect(outcomes[1]).toMatchObject({
      status: 'rejected',
      reason: { code: 'system', rank: 1, message: expect.stringContaining('rank 1: all-reduce of group') },
    });
    for (const outcome of outcomes)
      expect(outcome).toMatchObject({ status: 'rejected', reason: { message: expect.stringContaining('the GPU hung') } });
    for (const group of world.groups)
      await expect((async () => group.allReduce(new Float32Array(4)))()).rejects.toMatchObject({
        message: expect.stringContaining('the GPU hung'),
      });
  });

  it('fails on all ranks when a device has no room for proxies', async () => {
    await using world = await startRanks(2);
    const outcomes = await Promise.allSettled(
      world.groups.map((group) => {
        const device = new FakeDevice();
        const data = onDevice(new Float32Array(64), device);
        if (group.rank === 0) device.room = 0;
        return group.allReduce(data);
      }),
    );
    expect(outcomes[0]).toMatchObject({ status: 'rejected', reason: { code: 'out-of-memory', resource: 'device memory', rank: 0 } });
    expect(outcomes[1]).toMatchObject({ status: 'rejected', reason: { message: expect.stringContaining('no room for a proxy buffer') } });
  });

  it('ends on all ranks when the signal of one is aborted', async () => {
    await using world = await startRanks(2);
    const controller = new AbortController();
    // Rank 1 never calls.
    const work = world.groups[0].allReduce(onDevice(new Float32Array(64)), { signal: controller.signal });
    controller.abort(new Error('enough'));
    await expect(work).rejects.toMatchObject({ code: 'aborted', message: expect.stringContaining('enough') });
  });

  it('cannot be waited for without the event loop', async () => {
    await using world = await startRanks(2);
    await world.each(async (group) => {
      const work = group.allReduce(onDevice(new Float32Array(64)));
      expect(() => work.waitSync()).toThrow(expect.objectContaining({ code: 'usage', message: expect.stringContaining('await the work') }));
      await work;
      expect(work.done).toBe(true);
      work.waitSync();
    });
  });

  it('is refused where it cannot be, before anything is done', async () => {
    await using world = await startRanks(2);
    await world.each(async (group) => {
      const data = onDevice(new Float32Array(4));
      const unsupported = expect.objectContaining({ code: 'unsupported' }) as Error;
      expect(() => group.send(data as never, 1 - group.rank)).toThrow(unsupported);
      expect(() => group.recv(data as never, 1 - group.rank)).toThrow(unsupported);
      expect(() => group.batch([{ call: 'allReduce', data: data as never }])).toThrow(unsupported);
      expect(() => group.allToAll(onDevice(new Float32Array(4)), data, { inputSplits: [1, 3], outputSplits: [1, 3] })).toThrow(unsupported);
      expect(() => group.allToAll(data, data)).toThrow(expect.objectContaining({ code: 'usage' }) as Error);
      expect(() => group.allReduce(data, { op: ReduceOp.BitAnd })).toThrow(expect.objectContaining({ code: 'unsupported' }) as Error);
      const device = new FakeDevice();
      const bytes = (count: number): DeviceTensor =>
        new DeviceTensor({ device, buffer: bufferOf(device, new Uint8Array(count)), dtype: 'uint8' });
      expect(() => group.allGather(bytes(12), new Uint8Array(6))).toThrow(unsupported);
      await group.allReduce(data);
    });
  });

  it('goes on in subgroups, and until they are destroyed', async () => {
    await using world = await startRanks(3);
    await world.each(async (group) => {
      const pair = await group.newGroup([2, 0]);
      const data = onDevice(new Float32Array(4).fill(group.rank));
      if (pair) {
        const work = pair.allReduce(data);
        await pair.destroy();
        await work;
        expect([...(await dataOf(data))]).toEqual([2, 2, 2, 2]);
      }
      await group.allReduce(data);
    });
  });
});
