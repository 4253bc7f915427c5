/** The agreement on who goes on, without links: ranks are rows of a store. */
import { expect, it } from 'vitest';
import { encodeJson } from '../base/bytes.ts';
import { VirtualClock } from '../base/clock.ts';
import { HashStore } from '../store/hash-store.ts';
import { Agreement, type Members } from './agreement.ts';
import { GroupNumbers } from './group-numbers.ts';

const numbers = new GroupNumbers().encode();
const change = { exclude: [2], order: [], admits: false, numbers, timeoutMs: 10_000 };
const first = { ranks: [0, 1, 2], serial: 0 };

const nobody = { add: () => undefined, delete: () => undefined };
const world = { lossWatchers: nobody, isLost: () => false, newcomers: async () => undefined, open: async () => undefined };

function agreementOf(rank: number, store: HashStore, clock: VirtualClock): Promise<Members> {
  return new Agreement({ ...world, rank, clock }, store, 'world', first).next(change);
}

function worldStore(): [HashStore, VirtualClock] {
  const clock = new VirtualClock();
  return [new HashStore({ clock }), clock];
}

/** Lets calls of the store, which take no time, come to their end. */
const settled = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));

it('the first rank writes who goes on, and the others read it', async () => {
  const [store, clock] = worldStore();
  const all = await Promise.all([agreementOf(1, store, clock), agreementOf(0, store, clock)]);
  expect(all.map(({ ranks }) => ranks)).toEqual([
    [0, 1],
    [0, 1],
  ]);
  expect(clock.now()).toBe(0);
});

it('where the first rank stops after it has said that it goes on, another one writes it', async () => {
  const [store, clock] = worldStore();
  await store.set('members/0-0/row/0', encodeJson({ numbers: [...numbers], ranks: [0, 1], lost: [], admits: false }));
  const next = agreementOf(1, store, clock);
  await settled();
  expect(await store.check(['members/0-0/members'])).toBe(false);
  clock.advance(200);
  expect((await next).ranks).toEqual([0, 1]);
});

it('ranks that have lost each other part at once, though the first rank has lost nobody: the one with the most losses is left out', async () => {
  const [store, clock] = worldStore();
  const isLostOn = [[], [], [4], [4], [2, 3], [6], [5]];
  const ranks = isLostOn.map((_, rank) => rank);
  const ends = ranks.map((rank) => {
    const here = { ...world, rank, clock, isLost: (other: number) => isLostOn[rank].includes(other) };
    return new Agreement(here, store, 'world', { ranks, serial: 0 }).next({ ...change, exclude: [] });
  });
  const settledEnds = await Promise.allSettled(ends);
  expect(settledEnds.map((end) => (end.status === 'fulfilled' ? end.value.ranks.join() : end.reason.code))).toEqual(
    ranks.map((rank) => ([4, 6].includes(rank) ? 'closed' : '0,1,2,3,5')),
  );
  expect(clock.now()).toBe(0);
});
