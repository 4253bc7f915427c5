/** A rank that waits to be taken into a world which has begun: it follows the groups of the world, and is connected with the ranks of the
 *  present one. It must not know how it connects. */
import type { Clock } from '../base/clock.ts';
import { ShoalError } from '../base/errors.ts';
import type { Store } from '../store/store.ts';
import { nextOf, type Group, type Members } from './agreement.ts';
import { encodeJson } from '../base/bytes.ts';
import type { JoinLimit } from './join-limit.ts';

/** A newcomer's means. */
export interface Newcomer {
  readonly rank: number;
  readonly clock: Clock;
  /** Connects with those of these ranks that it has no connection with. */
  reach(ranks: readonly number[], signal: AbortSignal): Promise<void>;
  /** The facts about it that members need, as plain data. */
  about(): object;
  /** Tells these ranks that it waits. */
  tell(ranks: readonly number[]): void;
}

export interface Waiting {
  readonly store: Store;
  readonly limit: JoinLimit;
  /** Aborted when nobody waits for the newcomer any more. */
  readonly signal: AbortSignal;
}

const noop = (): undefined => undefined;
/** The time until a newcomer tries again to reach those that it has not reached. */
const againMs = 500;

export const waitingKey = (rank: number): string => `waiting/${rank}`;

/** Follows the world's group until the newcomer is one of its members. @throws ShoalError `config`, `auth`, `protocol`, `timeout`. */
export async function memberAfter(newcomer: Newcomer, { store, limit, signal }: Waiting, first: Group): Promise<Members> {
  for (let group = first; ;) {
    const over = new AbortController();
    const reached = reachAll(newcomer, store, group.ranks, AbortSignal.any([signal, over.signal]));
    try {
      const next = nextOf(store, group, { timeoutMs: limit.leftMs, signal });
      const members = await Promise.race([next, reached.then(() => new Promise<never>(noop))]);
      if (members.ranks.includes(newcomer.rank)) return members;
      group = members;
    } finally {
      over.abort();
      // Two attempts at once would make two connections.
      await reached.catch(noop);
    }
  }
}

/** Connects with these ranks, and with those that wait and have come before; then says that the newcomer waits.
 *  @throws ShoalError `config`, `auth`, `protocol`: what would not be better later. */
async function reachAll(
  { rank, clock, reach, about, tell }: Newcomer,
  store: Store,
  ranks: readonly number[],
  signal: AbortSignal,
): Promise<void> {
  while (!signal.aborted) {
    try {
      const before = (await store.prefix('waiting').listKeys()).map(Number).filter((each) => each < rank && !ranks.includes(each));
      await reach(ranks, signal);
      await reach(before, signal).catch(noop);
      await store.set(waitingKey(rank), encodeJson(about()));
      tell(ranks);
      return;
    } catch (thrown) {
      if (signal.aborted) return;
      const error = ShoalError.from(thrown);
      if (error.code === 'config' || error.code === 'auth' || error.code === 'protocol') throw error;
      await new Promise<void>((resolve) => clock.setTimer(againMs, resolve));
    }
  }
}
