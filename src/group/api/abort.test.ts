/** Calls with a signal, and groups: what is aborted ends on every rank, by name; what is done is not touched. */
import { describe, expect, it } from 'vitest';
import { must } from '../../base/assert.ts';
import { messageOf } from '../../base/errors.ts';
import { seededRandom } from '../../base/random.ts';
import { SeededWorld } from '../../base/testing/seeded-world.ts';
import { DeviceTensor } from '../../memory/device/device-tensor.ts';
import { bufferOf, FakeDevice } from '../../memory/device/testing/fake-device.ts';
import type { Tensor } from '../../memory/tensor.ts';
import type { ProcessGroup } from '../caller/types.ts';
import { InProcessSite, startRanks, type InProcessOptions } from '../testing/in-process-world.ts';

const aborted = expect.objectContaining({
  code: 'aborted',
  rank: 1,
  message: expect.stringMatching(/^rank 1 aborted (all-reduce|batch|recv) of group '.*' by its signal \(enough\)/) as string,
}) as Error;

describe('a signal', () => {
  it('that is aborted while others are awaited ends the group on every rank', async () => {
    await using world = await startRanks(3);
    const controller = new AbortController();
    const late = world.groups[1].allReduce(new Float32Array(4), { signal: controller.signal });
    const other = world.groups[0].allReduce(new Float32Array(4));
    controller.abort(new Error('enough'));
    await expect(late).rejects.toEqual(aborted);
    await expect(other).rejects.toMatchObject({ code: 'aborted', peer: 1 });
    await expect(world.groups[2].allReduce(new Float32Array(4))).rejects.toMatchObject({ code: 'aborted', peer: 1 });
  });

  it('that was aborted before the call refuses it, and those that wait for this rank hear of it', async () => {
    await using world = await startRanks(2);
    const waiting = world.groups[0].allReduce(new Float32Array(4));
    const signal = AbortSignal.abort(new Error('enough'));
    expect(() => world.groups[1].allReduce(new Float32Array(4), { signal })).toThrow(aborted);
    await expect(waiting).rejects.toMatchObject({ code: 'aborted', peer: 1 });
  });

  it('ends a batch and a receive', async () => {
    for (const start of ['batch', 'recv'] as const) {
      await using world = await startRanks(2);
      const controller = new AbortController();
      const options = { signal: controller.signal };
      const [group, data] = [world.groups[1], new Float32Array(2)];
      const work = start === 'recv' ? group.recv(data, 'any', options) : group.batch([{ call: 'allReduce', data }], options);
      controller.abort(new Error('enough'));
      await expect(work).rejects.toEqual(aborted);
    }
  });

  it('means nothing once the operation is done, and leaves no listener; a subgroup ends alone', async () => {
    await using world = await startRanks(2);
    const controller = new AbortController();
    const parts = await world.each((group) => group.newGroup([0, 1]));
    for (let k = 0; k < 20; k++)
      await Promise.all(parts.map((group) => group!.allReduce(new Float32Array(2), { signal: controller.signal })));
    controller.abort();
    await Promise.all(parts.map((group) => group!.barrier()));
    expect(() => parts[0]!.barrier({ signal: controller.signal })).toThrow(expect.objectContaining({ code: 'aborted' }));
    await expect(parts[1]!.barrier()).rejects.toMatchObject({ code: 'aborted' });
    await Promise.all(world.groups.map((group) => group.barrier()));
  });

  it('ends a scheduled group, and leaves the one that it was made of', async () => {
    await using world = await startRanks(2);
    const scheduled = await world.each((group) => group.scheduled());
    const controller = new AbortController();
    const late = scheduled[1].allReduce(new Float32Array(4), { name: 'x', signal: controller.signal });
    const other = scheduled[0].allReduce(new Float32Array(4), { name: 'y' });
    controller.abort(new Error('enough'));
    await expect(late).rejects.toMatchObject({
      code: 'aborted',
      rank: 1,
      message: expect.stringMatching(/'x'' failed: rank 1 aborted all-reduce .*enough/) as string,
    });
    await expect(other).rejects.toMatchObject({ code: 'aborted', peer: 1 });
    await world.each((group) => group.barrier());
  });

  it('ends object collectives and scheduled all-reduces, before their calls and after', async () => {
    type Start = (group: ProcessGroup, signal: AbortSignal) => PromiseLike<unknown>;
    const objects: Start[] = [
      (group, signal) => group.allGatherObject(1, { signal }),
      (group, signal) => group.gatherObject(1, { signal }),
      (group, signal) => group.broadcastObject(1, { signal, root: 1 }),
      (group, signal) => group.scatterObject(group.rank === 1 ? [0, 1, 2] : null, { signal, root: 1 }),
    ];
    const starts = [...objects, ((group, signal) => group.allReduce(new Float32Array(2), { name: 'w', signal })) satisfies Start];
    for (const [index, start] of starts.entries()) {
      for (const isBefore of [true, false]) {
        await using world = await startRanks(3);
        const groups = index < objects.length ? world.groups : await world.each((group) => group.scheduled());
        const other = start(groups[0], new AbortController().signal);
        const controller = new AbortController();
        if (isBefore) controller.abort(new Error('enough'));
        const call = (async () => start(groups[1], controller.signal))();
        controller.abort(new Error('enough'));
        await expect(call).rejects.toMatchObject({ code: 'aborted', rank: 1, peer: 1 });
        await expect(other).rejects.toMatchObject({ code: 'aborted', peer: 1 });
      }
    }
  });

  it('may be that of many calls at once', async () => {
    await using world = await startRanks(2);
    const warnings: Error[] = [];
    const onWarning = (warning: Error): void => void warnings.push(warning);
    process.on('warning', onWarning);
    const controller = new AbortController();
    const { signal } = controller;
    const [first, second] = world.groups;
    const works = Array.from({ length: 20 }, () => first.allReduce(new Float32Array(2), { signal }));
    await Promise.all(Array.from({ length: 15 }, () => second.allReduce(new Float32Array(2))));
    await Promise.all(works.slice(0, 15));
    controller.abort(new Error('enough'));
    for (const work of works.slice(15)) await expect(work).rejects.toMatchObject({ code: 'aborted', peer: 0 });
    await new Promise(setImmediate);
    process.off('warning', onWarning);
    expect(warnings).toEqual([]);
  });

  it('is refused when it is none', async () => {
    await using world = await startRanks(1);
    expect(() => world.groups[0].barrier({ signal: {} as AbortSignal })).toThrow(/option 'signal' must be an AbortSignal/);
  });
});

describe('a group that is aborted', () => {
  const byRank1 = {
    code: 'aborted',
    rank: 1,
    peer: 1,
    message: "rank 1 aborted group 'world' (enough): the group has ended on all its ranks",
  };

  it.each<InProcessOptions>([{ fastPath: true }, { kind: 'network' }])('has ended on every rank, with the reason: %j', async (options) => {
    await using world = await startRanks(3, options);
    const [first, second, third] = world.groups;
    const parts = await world.each((group) => group.newGroup([2, 1, 0]));
    const x = new Float32Array(4);
    await Promise.all(world.groups.map((group) => group.allReduce(x)));
    const [late, message] = [first.allReduce(x), second.recv(new Float32Array(2), 0)];
    expect(world.groups.map(({ isAborted }) => isAborted)).toEqual([false, false, false]);
    second.abort(new Error('enough'));
    expect(second.isAborted).toBe(true);
    for (const work of [late, message]) await expect(work).rejects.toMatchObject(byRank1);
    // The same call as before, which needs no preparation.
    for (const group of world.groups) await expect(group.allReduce(x)).rejects.toMatchObject(byRank1);
    await expect(third.allGatherObject(1)).rejects.toMatchObject(byRank1);
    await expect(first.newGroup([0])).rejects.toMatchObject(byRank1);
    expect(world.groups.map(({ isAborted }) => isAborted)).toEqual([true, true, true]);
    // The first reason stays.
    third.abort('too late');
    await expect(third.barrier()).rejects.toMatchObject(byRank1);
    await Promise.all(parts.map((part) => part!.barrier()));
    expect(parts.map((part) => part!.isAborted)).toEqual([false, false, false]);
  });

  it('has no reason where none is given, and is as good as new once its ranks have changed', async () => {
    const { groups } = await startRanks(2);
    groups[0].abort();
    await expect(groups[1].barrier()).rejects.toMatchObject({
      code: 'aborted',
      message: "rank 0 aborted group 'world': the group has ended on all its ranks",
    });
    const shrunk = await Promise.all(groups.map((group) => group.shrink()));
    expect(shrunk.map(({ isAborted }) => isAborted)).toEqual([false, false]);
    await Promise.all(shrunk.map((group) => group.barrier()));
    expect(() => groups[0].abort()).toThrow(expect.objectContaining({ code: 'closed' }));
    await Promise.all(shrunk.map((group) => group.destroy()));
    expect(() => shrunk[0].abort()).toThrow(expect.objectContaining({ code: 'closed' }));
  });

  it('with calls of a device ends those, too', async () => {
    await using world = await startRanks(2);
    const late = onDevice(world.groups[0], {}).work;
    world.groups[0].abort('enough');
    await expect(late).rejects.toMatchObject({ code: 'aborted', peer: 0 });
    await expect(onDevice(world.groups[1], {}).work).rejects.toMatchObject({ code: 'aborted', peer: 0 });
  });

  it('alone has nobody to tell', async () => {
    await using world = await startRanks(1, { fastPath: true });
    const [group] = world.groups;
    const x = group.tensor('float32', [2]);
    for (let k = 0; k < 3; k++) await group.allReduce(x);
    group.abort('enough');
    // Here the comm side has its turns on this thread.
    await new Promise(setImmediate);
    await expect(group.allReduce(x)).rejects.toMatchObject({ code: 'aborted', rank: 0 });
  });
});

/** One call of a program, and what is right once it has ended well. */
interface MomentCall {
  readonly work: PromiseLike<unknown>;
  check(): void;
}

type Options = { readonly signal?: AbortSignal };
type Call = (group: ProcessGroup, options: Options) => MomentCall;

const ranks = 3;
const numbers = (length: number, value: number): Float32Array => new Float32Array(length).fill(value);

function expectAll(data: Float32Array, value: number): void {
  if (data.some((each) => each !== value)) throw new Error(`wrong: ${data[0]}, not ${value}`);
}

const tensorOf = (group: ProcessGroup, length: number, value: number): Tensor<'float32'> => {
  const tensor = group.tensor('float32', [length]);
  tensor.data.fill(value);
  return tensor;
};

const reduce =
  (length: number, isTensor: boolean, name?: string): Call =>
  (group, options) => {
    const value = isTensor ? tensorOf(group, length, group.rank + 1) : numbers(length, group.rank + 1);
    const data = value instanceof Float32Array ? value : value.data;
    const work = group.allReduce(value, { ...options, ...(name !== undefined && { name }) });
    return { work, check: () => expectAll(data, 6) };
  };

const gather: Call = (group, options) => {
  const output = numbers(300 * ranks, 0);
  return {
    work: group.allGather(output, numbers(300, group.rank), options),
    check: () => [0, 1, 2].forEach((rank) => expectAll(output.subarray(300 * rank, 300 * (rank + 1)), rank)),
  };
};

const around: Call = (group, options) => {
  const [right, left] = [(group.rank + 1) % ranks, (group.rank + 2) % ranks];
  const received = numbers(2000, -1);
  const works = [group.recv(received, left, options), group.send(numbers(2000, group.rank), right, options)];
  return { work: Promise.all(works), check: () => expectAll(received, left) };
};

const batch: Call = (group, options) => {
  const [right, left] = [(group.rank + 1) % ranks, (group.rank + 2) % ranks];
  const [first, second, received] = [numbers(3, group.rank + 1), numbers(5, group.rank + 1), numbers(7, -1)];
  const work = group.batch(
    [
      { call: 'allReduce', data: first },
      { call: 'send', data: numbers(7, group.rank), peer: right },
      { call: 'allReduce', data: second },
      { call: 'recv', data: received, peer: left },
    ],
    options,
  );
  return { work, check: () => [first, second].forEach((data) => expectAll(data, 6)) };
};

const splits: Call = (group, options) => {
  const counts = [1, 2, 3];
  const output = numbers(counts[group.rank] * ranks, -1);
  const work = group.allToAll(output, numbers(6, group.rank), {
    ...options,
    inputSplits: counts,
    outputSplits: counts.map(() => counts[group.rank]),
  });
  const own = counts[group.rank];
  return { work, check: () => counts.forEach((_, rank) => expectAll(output.subarray(rank * own, (rank + 1) * own), rank)) };
};

const onDevice: Call = (group, options) => {
  const device = new FakeDevice();
  const data = new DeviceTensor({ device, buffer: bufferOf(device, numbers(64, group.rank + 1)), dtype: 'float32', shape: [64] });
  return { work: group.allReduce(data, options), check: () => {} };
};

const objects: Call = (group, options) => {
  let all: unknown;
  const work = group.allGatherObject({ rank: group.rank }, options).then((value) => (all = value));
  return { work, check: () => expect(all).toEqual([{ rank: 0 }, { rank: 1 }, { rank: 2 }]) };
};

/** A group that is made beside a call that may be aborted, and used. */
const opening: Call = (group, options) => {
  const made = group.newGroup([0, 1, 2]);
  // The other call may be refused.
  made.catch(() => undefined);
  const beside = group.allReduce(numbers(2, 1), options);
  const x = numbers(2, group.rank + 1);
  const use = async (): Promise<void> => {
    await must(await made, () => 'one of all').allReduce(x);
    await beside;
  };
  return { work: use(), check: () => expectAll(x, 6) };
};

const collectives: readonly Call[] = [
  reduce(4, false),
  reduce(4, true),
  reduce(20_000, true),
  gather,
  reduce(20_000, false),
  reduce(2, true),
];

const paths: Readonly<Record<string, { options: InProcessOptions; calls: readonly Call[]; isScheduled?: true; inTurn?: true }>> = {
  'the comm threads of a host': { options: {}, calls: collectives },
  'the host fast path': { options: { fastPath: true }, calls: collectives },
  'the comm threads over a network': { options: { kind: 'network' }, calls: [...collectives, splits] },
  'the network fast path': { options: { kind: 'network', fastPath: true, hostIds: ['a', 'b', 'c'] }, calls: collectives },
  'two hosts': { options: { hostIds: ['a', 'a', 'b'] }, calls: collectives },
  messages: { options: { kind: 'network' }, calls: [around, around, around] },
  'messages within a host': { options: { fastPath: true }, calls: [around, reduce(4, false), around] },
  batches: { options: { fastPath: true }, calls: [batch, reduce(4, false), batch] },
  'batches over a network': { options: { kind: 'network', fastPath: true, hostIds: ['a', 'b', 'c'] }, calls: [batch, batch] },
  objects: { options: { fastPath: true }, calls: [objects, objects], inTurn: true },
  'groups that open': { options: {}, calls: [opening, opening], inTurn: true },
  'groups that open over a network': {
    options: { kind: 'network', fastPath: true, hostIds: ['a', 'b', 'c'] },
    calls: [opening],
    inTurn: true,
  },
  devices: { options: {}, calls: [onDevice, reduce(4, false), onDevice] },
  'a scheduled group': {
    options: { kind: 'network' },
    calls: [reduce(500, false, 'a'), reduce(20, true, 'b'), reduce(500, true, 'c')],
    isScheduled: true,
  },
};

interface Moment {
  readonly seed: number;
  readonly rank: number;
  /** Number of events from the first call on. */
  readonly at: number;
  /** The signal of the rank's calls fires, or it aborts the group. */
  readonly by: 'signal' | 'abort';
}

/** @returns how many events there were; one rank aborts its calls, or the group, after `at` of them. */
async function runMoment(path: (typeof paths)[string], { seed, rank: aborter, at, by }: Moment): Promise<number> {
  const seeded = new SeededWorld({ random: seededRandom(seed) });
  const roles = Array.from({ length: ranks }, (_, rank) => seeded.role(`rank ${rank}`));
  const site = new InProcessSite(ranks, { ...path.options, seed, role: (rank) => roles[rank] });
  const running = async <T>(body: (rank: number) => Promise<T>): Promise<T[]> =>
    seeded.until(Promise.all(roles.map((_, rank) => body(rank))), 100_000);
  const worlds = await running((rank) => site.start(rank));
  const groups = await running(async (rank) => {
    const scheduling = { creditBytes: 400, partitionBytes: 200 };
    return path.isScheduled ? worlds[rank].scheduled(scheduling) : must(await worlds[rank].newGroup([0, 1, 2]), () => 'one of all');
  });
  const controller = new AbortController();
  const begin = seeded.events;
  let isFired = false;
  seeded.at(begin + at, () => {
    isFired = true;
    (by === 'signal' ? controller : groups[aborter]).abort(new Error('enough'));
  });
  /** True: it has failed, as it may. */
  const isAborted = async ({ work, check }: MomentCall): Promise<boolean> => {
    try {
      await work;
    } catch (thrown) {
      return isByName(thrown);
    }
    check();
    return false;
  };
  const isByName = (thrown: unknown): true => {
    expect(thrown).toMatchObject({ code: 'aborted', peer: aborter, message: expect.stringContaining(`rank ${aborter} aborted`) as string });
    return true;
  };
  const hears = async (rank: number, call: Call, options: Options = {}): Promise<boolean> => {
    try {
      return await isAborted(call(groups[rank], options));
    } catch (thrown) {
      return isByName(thrown);
    }
  };
  const heard = await running(async (rank) => {
    const options = rank === aborter && by === 'signal' ? { signal: controller.signal } : {};
    const pending: Promise<boolean>[] = [];
    for (const [index, call] of path.calls.entries()) {
      pending.push(hears(rank, call, options));
      // Some calls overlap, where they may.
      if ((path.inTurn || (index + rank) % 2 === 0) && (await pending[index])) break;
    }
    return (await Promise.all(pending)).includes(true);
  });
  const events = seeded.events - begin;
  await seeded.pass(10);
  const failed = await running((rank) => hears(rank, reduce(2, false, path.isScheduled && 'last')));
  // All ranks, or none: a signal that comes when its calls are done has no effect.
  expect(new Set(failed).size).toBe(1);
  if (heard.includes(true)) expect(failed).toContain(true);
  if (!isFired) expect(failed).toContain(false);
  if (isFired && by === 'abort') expect(failed).toContain(true);
  expect(groups.map(({ isAborted }) => isAborted)).toEqual(failed);
  const sums = (of: readonly ProcessGroup[]): Promise<number[]> =>
    running(async (rank) => {
      const x = numbers(2, rank + 1);
      await of[rank].allReduce(x);
      return x[0];
    });
  if (by === 'abort') {
    // With a scheduled group, the one that it was made of has ended.
    const ended = path.isScheduled ? worlds : groups;
    const next = await running((rank) => ended[rank].reconfigure({ ranks: [2, 0, 1] }));
    expect(next.map(({ rank, isAborted }) => ({ rank, isAborted }))).toEqual([1, 2, 0].map((rank) => ({ rank, isAborted: false })));
    expect(await sums(next)).toEqual([6, 6, 6]);
    if (!path.isScheduled) await running((rank) => next[rank].destroy());
  }
  // The group that the calls were not made in goes on.
  if (by === 'signal' || !path.isScheduled) expect(await sums(worlds)).toEqual([6, 6, 6]);
  await running((rank) => worlds[rank].destroy());
  return events;
}

describe.each(['signal', 'abort'] as const)('%s at any moment: no hang, no wrong value, one error by name on all ranks', (by) => {
  const moments = Number(process.env.ABORT_MOMENTS ?? 10);
  it.each(Object.entries(paths))('%s', { timeout: 600_000 }, async (_, path) => {
    const whole = await runMoment(path, { seed: 1, rank: 0, at: Infinity, by });
    for (let k = 0; k < moments; k++) {
      const moment = { seed: k + 1, rank: k % ranks, at: Math.floor(k * Math.max(1, whole / moments)) % whole, by };
      try {
        await runMoment(path, moment);
      } catch (thrown) {
        throw new Error(`moment ${JSON.stringify(moment)}: ${messageOf(thrown)}`, { cause: thrown });
      }
    }
  });
});
