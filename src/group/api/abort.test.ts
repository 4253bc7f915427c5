/** Calls with a signal: what is aborted ends on every rank, by name; what is done is not touched. */
import { describe, expect, it } from 'vitest';
import type { ProcessGroup } from '../call/types.ts';
import { startRanks } from '../testing/in-process-world.ts';

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
