import { expect, it } from 'vitest';
import { VirtualClock } from '../base/clock.ts';
import { noteJoined } from '../store/ended-ranks.ts';
import { HashStore } from '../store/hash-store.ts';
import { ElasticRanks } from './elastic-ranks.ts';
import type { EndedProcess } from './supervisor.ts';
import { WorldLedger } from './world-ledger.ts';

function ended(rank: number, code = 1): EndedProcess {
  const words = { said: '', uncaught: undefined };
  const about = { name: `rank ${rank}`, rank, pid: 1, afterMs: 1, isLost: false, waited: false };
  return { ...about, ending: { code, signal: null }, text: `exited with code ${code}`, words: () => words };
}

async function turns(): Promise<void> {
  for (let turn = 0; turn < 10; turn++) await new Promise(setImmediate);
}

function start({ size, min, restarts }: { size: number; min: number; restarts: number }) {
  const clock = new VirtualClock();
  const store = new HashStore({ clock });
  const [lines, started, changes]: [string[], number[][], unknown[]] = [[], [], []];
  const say = (line: string): void => void lines.push(line);
  const nobody = (): void => undefined;
  const world = new WorldLedger({
    ...{ clock, sizes: new Map([[0, size]]), min, hostOf: () => 'here', say },
    ...{ onTooFew: nobody, onLostWithNode: nobody, onOver: nobody },
    onChange: (change) => changes.push(change),
  });
  const ranks = new ElasticRanks({
    ...{ clock, size, firstRank: 0, restarts, store, world: world.listener(0), say },
    start: ({ rank, localRank }) => started.push([rank, localRank, clock.now()]),
  });
  const lose = (rank: number): void => {
    expect(ranks.goOnWithout(rank)).toBe(true);
    ranks.onLost(ended(rank), { node: 0, host: 'here', rank, exitCode: 1, text: 'exited with code 1', final: false });
  };
  const advance = async (ms: number): Promise<void> => {
    clock.advance(ms);
    await turns();
  };
  return { clock, store, ranks, lines, started, changes, lose, advance };
}

it('a lost rank is started again as the next number, in its place, and counts when it has joined', async () => {
  const { store, ranks, lines, started, changes, lose, advance } = start({ size: 4, min: 2, restarts: 3 });
  lose(3);
  await advance(999);
  expect(started).toEqual([]);
  await advance(1);
  expect(started).toEqual([[4, 3, 1000]]);
  expect(ranks.isWaiting(4)).toBe(true);
  await noteJoined(store, 4);
  await turns();
  expect(ranks.isWaiting(4)).toBe(false);
  lose(4);
  await advance(2000);
  expect(started.at(-1)).toEqual([5, 3, 3000]);
  expect(lines).toEqual([
    'world 4 → 3: rank 3 exited with code 1; the others go on; it is started again in 1 s (1 of 3)',
    'world 3 → 4: rank 4 (started again for rank 3) joined',
    'world 4 → 3: rank 4 exited with code 1; the others go on; it is started again in 2 s (2 of 3)',
  ]);
  expect(changes).toEqual([
    { from: 4, to: 3, rank: 3, text: 'exited with code 1' },
    { from: 3, to: 4, rank: 4, startedFor: 3, text: 'joined' },
    { from: 4, to: 3, rank: 4, text: 'exited with code 1' },
  ]);
});

it('the time between restarts grows up to a bound, and each place has its own restarts', async () => {
  const { ranks, lines, started, lose, advance } = start({ size: 3, min: 1, restarts: 7 });
  lose(2);
  for (const [at, delayMs] of [1000, 2000, 4000, 8000, 16_000, 30_000, 30_000].entries()) {
    await advance(delayMs - 1);
    expect(started).toHaveLength(at);
    await advance(1);
    expect(started.at(-1)?.slice(0, 2)).toEqual([3 + at, 2]);
    ranks.onNewcomerEnd(ended(3 + at));
  }
  await advance(100_000);
  expect(started).toHaveLength(7);
  expect(lines.at(-1)).toBe('rank 9 (started again for rank 2) did not join: rank 9 exited with code 1; its 7 restarts are used up');
  lose(0);
  await advance(1000);
  expect(started.at(-1)?.slice(0, 2)).toEqual([10, 0]);
});

it('a newcomer that ends well before it joins is not started again', async () => {
  const { ranks, lines, started, lose, advance } = start({ size: 2, min: 1, restarts: 3 });
  lose(1);
  await advance(1000);
  ranks.onNewcomerEnd(ended(2, 0));
  await advance(60_000);
  expect(started).toHaveLength(1);
  expect(lines.at(-1)).toBe('rank 2 (started again for rank 1) did not join: rank 2 exited with code 0');
});

it('the job ends with fewer ranks than it needs, and nothing is started after its end', async () => {
  const { store, ranks, lines, started, lose, advance } = start({ size: 3, min: 1, restarts: 3 });
  lose(0);
  lose(1);
  expect(ranks.goOnWithout(2)).toBe(false);
  await advance(1000);
  expect(started).toHaveLength(2);
  ranks.onNewcomerEnd(ended(3));
  ranks.close();
  await store.close();
  ranks.onNewcomerEnd(ended(4));
  await advance(60_000);
  expect(started).toHaveLength(2);
  expect(lines.filter((line) => line.includes('rank 4'))).toEqual([]);
});

it('says that a rank could not be started again when the store has no number for it', async () => {
  const { store, lines, started, lose, advance } = start({ size: 3, min: 1, restarts: 3 });
  store.add = () => Promise.reject(new Error('the store is closed'));
  lose(2);
  await advance(1000);
  expect(started).toEqual([]);
  expect(lines.at(-1)).toBe('rank 2 could not be started again: the store is closed');
});
