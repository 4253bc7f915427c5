/** The rank that is said to have failed first is the one that the others failed because of, in whatever order their ends are seen. */
import { describe, expect, it } from 'vitest';
import { sleep, systemClock } from '../base/clock.ts';
import { ShoalError } from '../base/errors.ts';
import { systemRandom } from '../base/random.ts';
import { causeOf, firstNamed, noteCause } from '../store/ended-ranks.ts';
import { HashStore } from '../store/hash-store.ts';
import { generationPrefix } from '../store/open-store.ts';
import { PrefixStore } from '../store/store.ts';
import { StoreClient } from '../store/store-client.ts';
import type { JobFailure } from './node-records.ts';
import { NodeAgreement } from './node-agreement.ts';
import type { NodeOptions } from './node-entry.ts';

const secret = 'a secret';
/** Time for ranks that have not failed. */
const graceMs = 1000;
const patientMs = 120_000;
const lateMs = 2000;

const job: NodeOptions = {
  clock: systemClock,
  random: systemRandom,
  job: 'test',
  secret,
  node: 0,
  nodes: 1,
  localSize: 4,
  masterAddress: '127.0.0.1',
  masterPort: 0,
  joinTimeoutMs: 60_000,
  signal: new AbortController().signal,
};

function failureOf(rank: number): JobFailure {
  return { node: 0, host: 'here', rank, exitCode: 10 + rank, text: `exited with code ${10 + rank}`, final: false };
}

/** The first cause of the failure of rank `first`, when all of `failed` have ended badly, and each of `causes` failed because of the
 *  rank behind it. The ends of `late` are seen a while later. */
async function firstCause(
  first: number,
  failed: readonly number[],
  causes: readonly (readonly [number, number])[],
  late: readonly number[] = [],
  well: readonly number[] = [],
): Promise<JobFailure> {
  const agreement = await NodeAgreement.join(job);
  const place = { clock: systemClock, random: systemRandom, host: '127.0.0.1', port: agreement.masterPort };
  const client = await StoreClient.connect({ ...place, secret: new TextEncoder().encode(secret), world: 'test', rank: 0 });
  try {
    const ranks = new PrefixStore(client, generationPrefix(0));
    for (const [rank, peer] of causes) await noteCause(ranks, rank, new ShoalError('peer-lost', 'gone', { peer }));
    const end = (rank: number): Promise<void> =>
      agreement.rankEnded(0, { rank, ending: failureOf(rank).text, because: undefined, failure: failureOf(rank) });
    for (const rank of failed) await end(rank);
    for (const rank of well) await agreement.rankEnded(0, { rank, ending: 'exited with code 0', because: undefined, failure: undefined });
    const coming = sleep(systemClock, late.length > 0 ? lateMs : 0).then(() => Promise.all(late.map(end)));
    await client.close();
    const cause = await agreement.firstCause(0, failureOf(first), late.length > 0 ? patientMs : graceMs);
    await coming;
    return cause;
  } finally {
    await client.close();
    await agreement.leave(1000);
  }
}

describe('the first failure', () => {
  it('is that of a rank that names nobody', async () => {
    expect(await firstCause(1, [1], [])).toEqual(failureOf(1));
  });

  it('is that of the rank which another one lost', async () => {
    expect(await firstCause(0, [0, 1], [[0, 1]])).toEqual(failureOf(1));
  });

  it('is that of a rank whose process takes a while to end after others have lost it', async () => {
    expect(await firstCause(0, [0], [[0, 1]], [1])).toEqual(failureOf(1));
  });

  it('is that of the rank which another one lost, although its word is on its way for longer than its end', async () => {
    const agreement = await NodeAgreement.join(job);
    const place = { clock: systemClock, random: systemRandom, host: '127.0.0.1', port: agreement.masterPort };
    const client = await StoreClient.connect({ ...place, secret: new TextEncoder().encode(secret), world: 'test', rank: 0 });
    try {
      for (const rank of [0, 1])
        await agreement.rankEnded(0, { rank, ending: failureOf(rank).text, because: undefined, failure: failureOf(rank) });
      const cause = agreement.firstCause(0, failureOf(0), graceMs);
      await sleep(systemClock, lateMs);
      await noteCause(new PrefixStore(client, generationPrefix(0)), 0, new ShoalError('peer-lost', 'gone', { peer: 1 }));
      await client.close();
      expect(await cause).toEqual(failureOf(1));
    } finally {
      await client.close();
      await agreement.leave(1000);
    }
  });

  it('is that of the rank which the first group of another one lost, whatever its other groups lose then', async () => {
    const causes = [
      [0, 2],
      [0, 1],
    ] as const;
    expect(await firstCause(0, [0, 1, 2], causes)).toEqual(failureOf(2));
  });

  it('is not the signal by which a rank has ended a group before, whose script went on', async () => {
    const store = new HashStore({ clock: systemClock });
    const noted = async (): Promise<number | undefined> => causeOf(store, 0, AbortSignal.timeout(graceMs));
    await noteCause(store, 0, new ShoalError('aborted', 'enough', { peer: 1 }));
    expect(await noted()).toBe(1);
    await noteCause(store, 0, new ShoalError('peer-lost', 'gone', { peer: 2 }));
    await noteCause(store, 0, new ShoalError('aborted', 'enough', { peer: 1 }));
    await noteCause(store, 0, new ShoalError('peer-lost', 'gone', { peer: 3 }));
    expect(await noted()).toBe(2);
    expect(await firstNamed(store, AbortSignal.timeout(graceMs))).toBe(2);
  });

  it('is found behind ranks that waited for each other', async () => {
    const causes = [
      [0, 2],
      [2, 3],
      [3, 1],
    ] as const;
    expect(await firstCause(0, [0, 1, 2, 3], causes)).toEqual(failureOf(1));
  });

  it('is that of the rank which was blamed first, of ranks that blame each other', async () => {
    const circle = [
      [0, 1],
      [1, 2],
      [2, 0],
    ] as const;
    for (const first of [0, 1, 2]) expect(await firstCause(first, [0, 1, 2], circle)).toEqual(failureOf(1));
    expect(await firstCause(3, [0, 1, 2, 3], [[3, 0], ...circle])).toEqual(failureOf(0));
  });

  it('is that of the rank whose end led to a circle which the rank that was blamed first is not in', async () => {
    const causes = [
      [4, 5],
      [0, 1],
      [1, 2],
      [2, 0],
    ] as const;
    expect(await firstCause(0, [0, 1, 2, 4], causes)).toEqual(failureOf(0));
  });

  it('names who is to blame and has not failed', async () => {
    const text = 'exited with code 10, because of rank 1, which had not ended';
    expect(await firstCause(0, [0], [[0, 1]])).toEqual({ ...failureOf(0), text });
  });

  it('names who left the others without a word, with code 0', async () => {
    const text = 'exited with code 10, because of rank 1, which ended before it, with code 0';
    expect(await firstCause(0, [0], [[0, 1]], [], [1])).toEqual({ ...failureOf(0), text });
  });
});

it.each([
  ['goes on after a failure of a rank in the next one', false],
  ['ends with the refusal of the next one', true],
])('a node that hears late that all have stopped %s', async (_, final) => {
  const agreement = await NodeAgreement.join(job);
  try {
    const failure = { ...failureOf(0), final };
    await agreement.fail(1, failure);
    expect(await agreement.stopped(0, patientMs)).toEqual(final ? failure : undefined);
  } finally {
    await agreement.leave(1000);
  }
});
