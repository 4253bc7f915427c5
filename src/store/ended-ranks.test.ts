import { describe, expect, it } from 'vitest';
import { VirtualClock } from '../base/clock.ts';
import { ShoalError } from '../base/errors.ts';
import { giveUp, jobFailed, noteJoined, rankEnded, reportEnded, reportFailed } from './ended-ranks.ts';
import { HashStore } from './hash-store.ts';

const waitMs = 60_000;

function createStore(): { clock: VirtualClock; store: HashStore } {
  const clock = new VirtualClock();
  return { clock, store: new HashStore({ clock }) };
}

it('a process with which the job has failed is told to those that have joined, and to those that wait', async () => {
  const { clock, store } = createStore();
  const over = new AbortController();
  const [told, waiting] = [jobFailed(store, 0, over.signal), rankEnded(store, 1, { timeoutMs: waitMs })];
  const rejections = Promise.allSettled([told, waiting]);
  const first = Promise.race([told.catch(() => 'has joined'), waiting.catch(() => 'waits')]);
  await noteJoined(store, 2);
  await reportFailed(store, { rank: 2, failed: 'rank 2 exited with code 3' });
  await reportFailed(store, { rank: undefined, failed: 'server 0 was killed by SIGKILL' });
  const error = { code: 'peer-lost', peer: 2, message: 'rank 2 exited with code 3; the job ends with it' };
  expect(await rejections).toMatchObject([{ reason: { ...error, rank: 0 } }, { reason: { ...error, rank: 1 } }]);
  expect(await first).toBe('has joined');
  await expect(jobFailed(store, 2, over.signal)).rejects.toSatisfy(({ peer }: ShoalError) => peer === undefined);
  expect(clock.now()).toBe(0);
});

describe('ranks that end before they join', () => {
  it('fail those that wait for them at once, by name', async () => {
    const { clock, store } = createStore();
    const waiting = rankEnded(store, 0, { timeoutMs: waitMs });
    await reportEnded(store, 2, { ending: 'exited with code 0' });
    await reportEnded(store, 1, { ending: 'exited with code 1' });
    await expect(waiting).rejects.toMatchObject({ code: 'peer-lost', rank: 0, peer: 2 });
    await expect(waiting).rejects.toThrow('rank 2 exited with code 0 before it joined');
    expect(clock.now()).toBe(0);
  });

  it('after they have given up have said why, and that is repeated', async () => {
    const { store } = createStore();
    const waiting = rankEnded(store, 1, { timeoutMs: waitMs });
    const own = new ShoalError('timeout', 'rank 2 is missing', { rank: 0, peer: 2 });
    expect(await giveUp(store, 0, own)).toBe(own);
    await reportEnded(store, 0, { ending: 'exited with code 9' });
    const repeated = { code: 'timeout', rank: 1, peer: 2, message: 'rank 0 gave up joining: rank 2 is missing' };
    await expect(waiting).rejects.toMatchObject(repeated);
    expect(await giveUp(store, 1, new ShoalError('timeout', 'rank 0 is missing', { peer: 0 }))).toMatchObject(repeated);
    const other = new ShoalError('config', 'this rank is another version');
    expect(await giveUp(store, 3, other)).toBe(other);
    const toItself = await giveUp(store, 2, new ShoalError('timeout', 'rank 0 is missing', { peer: 0 }));
    expect(toItself).toMatchObject({ code: 'timeout', rank: 2 });
    expect(toItself.peer).toBeUndefined();
  });

  it('are no news once they have joined, nor to those that do not wait any more', async () => {
    const { clock, store } = createStore();
    const told: unknown[] = [];
    const done = new AbortController();
    for (const wait of [{ timeoutMs: waitMs }, { timeoutMs: 1 }, { timeoutMs: waitMs, signal: done.signal }])
      void rankEnded(store, 0, wait).catch((error: unknown) => told.push(error));
    await noteJoined(store, 2);
    await reportEnded(store, 2, { ending: 'exited with code 0' });
    clock.advance(1);
    done.abort();
    await new Promise(setImmediate);
    expect(told).toEqual([]);
    await reportEnded(store, 1, { ending: 'exited with code 0' });
    await new Promise(setImmediate);
    expect(told).toMatchObject([{ peer: 1 }]);
  });
});
