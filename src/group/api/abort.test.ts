/** Calls with a signal: what is aborted ends on every rank, by name; what is done is not touched. */
import { describe, expect, it } from 'vitest';
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

  it('is refused when it is none', async () => {
    await using world = await startRanks(1);
    expect(() => world.groups[0].barrier({ signal: {} as AbortSignal })).toThrow(/option 'signal' must be an AbortSignal/);
  });
});
