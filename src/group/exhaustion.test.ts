/** A comm side that runs out of something in the middle of a command: the call that needed it fails, on all ranks, and the rank is
 *  named. Real processes: test/group/world-resources.test.ts. */
import { describe, expect, it } from 'vitest';
import { exhaustion } from '../base/exhaustion.ts';
import type { RegionAllocator } from '../memory/region.ts';
import type { ProcessGroup } from './caller/types.ts';
import { startRanks } from './testing/in-process-world.ts';

const culprit = 2;

/** The comm side of the culprit gets no memory any more from when `ended` says so. */
function withoutMemory(ended: { maps: boolean; makes: boolean }): (allocator: RegionAllocator, rank: number) => RegionAllocator {
  const none = (): never => {
    throw exhaustion(`rank ${culprit}`, Object.assign(new Error('EMFILE'), { code: 'EMFILE' }), 'testing');
  };
  return (allocator, rank) => ({
    kind: allocator.kind,
    create: (bytes) => (rank === culprit && ended.makes ? none() : allocator.create(bytes)),
    checkBudget: (bytes) => allocator.checkBudget(bytes),
    open: (share) => (rank === culprit && ended.maps ? none() : allocator.open(share)),
  });
}

const calls: Record<string, (group: ProcessGroup) => PromiseLike<unknown>> = {
  'all-reduce of an array': (group) => group.allReduce(new Float32Array(1 << 18)),
  'all-reduce of a tensor': (group) => group.allReduce(group.tensor('float32', [1 << 18])),
  'send and receive': (group) => {
    if (group.rank === 0) return group.recv(new Float32Array(1 << 18), culprit);
    return group.rank === culprit ? group.send(new Float32Array(1 << 18), 0) : group.barrier();
  },
  split: (group) => group.split(0),
  newGroup: (group) => group.newGroup([2, 0, 1]),
};

describe.each(['host', 'network'] as const)('over %s', (kind) => {
  it.each([
    { call: 'all-reduce of an array', what: 'maps' },
    { call: 'all-reduce of a tensor', what: 'maps' },
    { call: 'send and receive', what: 'maps' },
    { call: 'split', what: 'makes' },
    { call: 'newGroup', what: 'makes' },
  ] as const)('$call, nothing more that it $what: all ranks name it', async ({ call, what }) => {
    const ended = { maps: false, makes: false };
    const { groups } = await startRanks(3, { kind, wrapMemory: withoutMemory(ended) });
    ended[what] = true;
    for (const [rank, outcome] of (await Promise.allSettled(groups.map((group) => calls[call](group)))).entries()) {
      const { reason } = outcome as PromiseRejectedResult;
      expect(reason).toMatchObject({ code: 'out-of-memory', resource: 'file descriptors' });
      expect(reason).toMatchObject({ message: expect.stringMatching(/rank 2 ran out of file descriptors/) });
      expect(reason.peer).toBe(rank === culprit ? undefined : culprit);
    }
    // A region that was not mapped is given back all the same.
    await Promise.all(groups.map((group) => group.destroy({ timeoutMs: 100 })));
  });
});
