import { describe, expect, it } from 'vitest';
import { UnheededWorks } from '../../comm/caller/work.ts';
import { nativeUnavailableReason } from '../../memory/native.ts';
import type { Work } from '../caller/types.ts';
import { groupChecks } from '../conformance.ts';
import type { CommGroup } from './process-group.ts';
import { startRanks, type InProcessOptions } from '../testing/in-process-world.ts';

const missing = nativeUnavailableReason();
/** Worlds, and the numbers of ranks that every check runs with: calls go the same ways in larger ones. */
const worlds: readonly { name: string; options: InProcessOptions; ranks: readonly number[] }[] = [
  { name: 'host', options: { kind: 'host' }, ranks: [1, 2, 3, 4] },
  { name: 'host, with its fast path', options: { kind: 'host', fastPath: true }, ranks: [1, 2, 4] },
  { name: 'network', options: { kind: 'network' }, ranks: [2, 3] },
  ...(missing === undefined ? [{ name: 'tcp', options: { kind: 'tcp' }, ranks: [3] } as const] : []),
];
if (missing !== undefined)
  it(`process group over tcp (skipped: ${missing}: test/group-processes is over it)`, (context) => context.skip(missing));

describe.each(worlds)('process group over $name', ({ options, ranks }) => {
  for (const n of ranks) {
    describe(`${n} ranks`, () => {
      it.each(groupChecks)('$name', async ({ run }) => {
        await using world = await startRanks(n, options);
        await world.each(run);
        expect(world.groups).toHaveLength(n);
      });
    });
  }
});

describe('a work that nobody looks at', () => {
  const calls: readonly [string, (group: CommGroup) => Work][] = [
    ['a collective', (group) => group.allReduce(new Float32Array(2))],
    ['the same collective again', (group) => group.barrier()],
    ['a message', (group) => (group.rank === 0 ? group.send(new Float32Array(2), 1) : group.recv(new Float32Array(2), 0))],
    ['a batch', (group) => group.batch([{ call: 'allReduce', data: new Float32Array(2) }])],
    ['a call with a signal', (group) => group.allReduce(new Float32Array(2), { signal: new AbortController().signal })],
  ];
  const ways: readonly [string, (work: Work) => unknown][] = [
    ['await', (work) => Promise.resolve(work)],
    ['done', (work) => work.done],
    ['error', (work) => work.error],
    ['catch', (work) => work.catch(() => undefined)],
  ];
  const ended = async (): Promise<void> => {
    for (let turn = 0; turn < 40; turn++) await new Promise(setImmediate);
  };

  it.each(worlds.slice(0, 3).flatMap(({ name, options }) => calls.map(([what, call]) => ({ name, what, options, call }))))(
    'is counted, until somebody does: $what over $name',
    async ({ options, call }) => {
      const unheeded = new UnheededWorks();
      await using world = await startRanks(2, { ...options, unheeded });
      await world.each(async (group) => group.barrier());
      const works = world.groups.map(call);
      // On a fast path the last rank to call finds the operation complete.
      const { running } = unheeded;
      expect(running).toBeGreaterThan(0);
      await ended();
      expect([unheeded.count, unheeded.running]).toEqual([running, 0]);
      expect(unheeded.describe().join()).toMatch(/group 'world'|(send|recv) \w+ rank \d/);
      for (const work of works) expect(work.done).toBe(true);
      expect(unheeded.count).toBe(0);
      for (const [way, look] of ways) {
        for (const work of world.groups.map(call)) void look(work);
        await ended();
        expect([unheeded.count, unheeded.running], way).toEqual([0, 0]);
      }
    },
  );

  it('is not, where it fails', async () => {
    const unheeded = new UnheededWorks();
    await using world = await startRanks(2, { unheeded });
    const [a, b] = world.groups;
    a.allReduce(new Float32Array(2));
    b.allReduce(new Float32Array(3));
    await ended();
    expect([unheeded.count, unheeded.running]).toEqual([0, 0]);
  });
});
