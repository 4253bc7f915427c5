/** The frame in which the ranks of a world join: one time limit, and an early end when another rank ends or gives up. */
import { setMaxListeners } from 'node:events';
import { within, type Clock } from '../base/clock.ts';
import { ShoalError } from '../base/errors.ts';
import type { CheckDescriptors } from '../base/exhaustion.ts';
import type { JoinLimit } from './join-limit.ts';
import type { Store } from '../store/store.ts';
import { giveUp, rankEnded } from '../store/ended-ranks.ts';

const foreverMs = 0x7fffffff;

/** Limits of the wait for a store that may have stopped: of a rank that gives up, for which launchers wait a little longer, and of a rank
 *  that has heard nothing for so long beyond its limit. */
export const storeAnswerMs = 4000;
const silentStoreMs = 10_000;

/** Descriptors for a connection, and for the moment in which memory is mapped; and the time between two looks for them. */
const spareDescriptors = 2;
const descriptorsLookMs = 1000;

export interface Joining {
  readonly store: Store;
  /** The rank that serves it; undefined: no rank does. */
  readonly servedBy: number | undefined;
  readonly rank: number;
  readonly clock: Clock;
  readonly limit: JoinLimit;
  readonly checkDescriptors?: CheckDescriptors | undefined;
}

/** Runs `join`, unless another rank ends or gives up before. One that fails here tells the others why, before it lets go of them.
 *  @throws ShoalError the reason that was first, or this rank's own that is no consequence of it. */
export async function joinTogether<T>(joining: Joining, join: (signal: AbortSignal) => Promise<T>): Promise<T> {
  const { store, rank, clock, limit } = joining;
  const silent = (): never => {
    throw silentStore(joining);
  };
  // A request that the store answers at once has no limit of its own.
  await within<void>(clock, limit.leftMs, claimRank(store, rank), silent);
  const over = new AbortController();
  // Everything that is waited for listens: a connection to every rank, too.
  setMaxListeners(0, over.signal);
  try {
    const joined = Promise.race([
      join(over.signal),
      rankEnded(store, rank, { timeoutMs: foreverMs, signal: over.signal }),
      descriptorsEnded(joining, over.signal),
    ]);
    return await within(clock, limit.leftMs + silentStoreMs, joined, silent);
  } catch (thrown) {
    const error = ShoalError.from(thrown);
    throw await within(
      clock,
      storeAnswerMs,
      giveUp(store, rank, error).catch(() => error),
      () => error,
    );
  } finally {
    over.abort();
  }
}

/** Rejects when this process can open no more: connections of others to it are then dropped without a word. */
function descriptorsEnded({ clock, checkDescriptors }: Joining, signal: AbortSignal): Promise<never> {
  return new Promise((_, reject) => {
    const look = (): void => {
      if (signal.aborted) return;
      try {
        checkDescriptors?.(spareDescriptors, 'joining the world');
        clock.setTimer(descriptorsLookMs, look);
      } catch (thrown) {
        reject(ShoalError.from(thrown));
      }
    };
    if (checkDescriptors) look();
  });
}

function silentStore({ rank, servedBy, limit: { timeoutMs } }: Joining): ShoalError {
  const who = servedBy === undefined ? 'who serves it' : `rank ${servedBy}, which serves it,`;
  const message = `rank ${rank} could not join within ${timeoutMs} ms: the store does not answer; ${who} is stopped or cannot be reached`;
  return new ShoalError('timeout', message, { rank, peer: servedBy, operation: 'store', timeoutMs });
}

/** Two processes with one rank: the second is refused, the first goes on. @throws ShoalError `config`. */
async function claimRank(store: Store, rank: number): Promise<void> {
  if ((await store.add(`claim/${rank}`, 1)) > 1) {
    const message = `two processes claim rank ${rank} of the same world; give every process its own RANK, or a fresh store to every job`;
    throw new ShoalError('config', message, { rank });
  }
}
