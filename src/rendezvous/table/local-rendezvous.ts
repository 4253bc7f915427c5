/** The table of one step in one process: keys, each sent once and received once. */
import { failureOf, ShoalError } from '../../base/errors.ts';
import type { Asker, Cancel, Incarnations, RecvOptions, Rendezvous, Waiter } from './rendezvous.ts';
import { checkIncarnation, describeKey, parseRendezvousKey } from './rendezvous-key.ts';

export interface LocalRendezvousOptions {
  /** Keys at most that were sent or asked for in the step. */
  readonly keysMax: number;
  /** Default: incarnations are not looked at. */
  readonly incarnations?: Incarnations;
}

export interface ValueOptions<V> {
  /** Told of values that were sent and that nobody will receive. @param cause why, where the step has not ended. */
  readonly onDropped?: (value: V, cause?: ShoalError) => void;
  /** True: a value stays until its step ends, so that it can be given again to a worker whose connection broke. Default: it goes with
   *  its receive, and comes back only while it has not left. */
  readonly keeps?: boolean;
  /** Makes of a value what other workers receive. @throws ShoalError that they are told. */
  readonly prepare?: (value: V) => V;
}

interface Meeting<V> {
  isSent: boolean;
  isAsked: boolean;
  /** The value was given away, and is not here. */
  isGone: boolean;
  value: V | undefined;
  waiter: Waiter<V> | undefined;
  /** The connection that has asked; undefined: this process has. */
  asker: Asker | undefined;
}

export class LocalRendezvous<V> implements Rendezvous<V> {
  readonly #options: LocalRendezvousOptions & ValueOptions<V>;
  readonly #meetings = new Map<string, Meeting<V>>();
  #aborted: (() => ShoalError) | undefined;
  #requests = 0;

  constructor(options: LocalRendezvousOptions & ValueOptions<V>) {
    this.#options = options;
  }

  /** Number of receives: a fused one counts once. */
  get requests(): number {
    return this.#requests;
  }

  /** Keys that are asked for and were not sent. */
  get awaited(): readonly string[] {
    return [...this.#meetings].filter(([, { isAsked, isSent }]) => isAsked && !isSent).map(([key]) => key);
  }

  send(key: string, value: V | undefined): void {
    if (this.#aborted !== undefined) throw this.#aborted();
    this.#check(key);
    const meeting = this.#meeting(key);
    if (meeting.isSent) throw twice(key, 'sent');
    meeting.isSent = true;
    const { waiter } = meeting;
    meeting.waiter = undefined;
    if (waiter === undefined) meeting.value = value;
    else this.#give(meeting, waiter, value);
  }

  recvAsync(key: string, options?: RecvOptions): Promise<V | undefined> {
    this.#requests++;
    return this.#receive(key, options?.signal);
  }

  async recvFused(keys: readonly string[], options?: RecvOptions): Promise<readonly (V | undefined)[]> {
    this.#requests++;
    return allSlots(
      keys,
      (slot) => this.#receive(keys[slot], options?.signal),
      (value) => value !== undefined && this.#options.onDropped?.(value),
    );
  }

  /** The same as `recvAsync`, for callers that make no promise. The waiter may be called before this returns.
   *  @param asker the connection of another worker that asks. A key that was asked for over another one, which has ended, may be asked for again.
   *  @throws ShoalError `usage` for a key that was asked for already, `peer-lost` for a tensor that left over a connection which broke, and
   *  the cause after an abort. */
  take(key: string, waiter: Waiter<V>, asker?: Asker): Cancel {
    if (this.#aborted !== undefined) throw this.#aborted();
    this.#check(key);
    const meeting = this.#meeting(key);
    if (meeting.isAsked) {
      if (!isSuccessor(asker, meeting.asker)) throw twice(key, 'asked for');
      if (meeting.isGone)
        throw new ShoalError(
          'peer-lost',
          `${describeKey(key)} had left over a connection that broke, and was not kept; it can be sent in another step`,
        );
    }
    meeting.isAsked = true;
    meeting.asker = asker;
    if (!meeting.isSent) {
      meeting.waiter = waiter;
      return () => {
        if (meeting.waiter !== waiter) return;
        meeting.waiter = undefined;
        meeting.isAsked = false;
      };
    }
    this.#give(meeting, waiter, meeting.value);
    return nothingToCancel;
  }

  /** Takes back a value that was given to another worker and has not left. @returns false when it cannot be asked for any more. */
  giveBack(key: string, value: V): boolean {
    const meeting = this.#meetings.get(key);
    if (meeting?.isGone !== true) return false;
    meeting.isGone = meeting.isAsked = false;
    meeting.value = value;
    return true;
  }

  /** Takes back what was sent and not asked for; such a key may be sent again.
   *  @param causeOf why, by key; undefined: the value stays. */
  withdraw(causeOf: (key: string) => ShoalError | undefined): void {
    for (const [key, { isSent, isAsked, value }] of this.#meetings) {
      const cause = isSent && !isAsked ? causeOf(key) : undefined;
      if (cause === undefined) continue;
      this.#meetings.delete(key);
      if (value !== undefined) this.#options.onDropped?.(value, cause);
    }
  }

  startAbort(cause: ShoalError): void {
    this.end(() => cause);
  }

  /** The same as `startAbort`. @param cause makes it when somebody is told: of most steps nobody is. */
  end(cause: () => ShoalError): void {
    if (this.#aborted !== undefined) return;
    this.#aborted = cause;
    if (this.#meetings.size === 0) return;
    const meetings = [...this.#meetings.values()];
    this.#meetings.clear();
    for (const meeting of meetings) {
      const { waiter, value } = meeting;
      meeting.waiter = meeting.value = undefined;
      if (value !== undefined) this.#options.onDropped?.(value);
      waiter?.fail(cause());
    }
  }

  #receive(key: string, signal: AbortSignal | undefined): Promise<V | undefined> {
    return received<V | undefined>(key, signal, (receive, fail) => this.take(key, { receive, fail }));
  }

  #give(meeting: Meeting<V>, waiter: Waiter<V>, value: V | undefined): void {
    const { keeps = false, prepare } = this.#options;
    const isRemote = meeting.asker !== undefined;
    let given = value;
    if (isRemote && prepare !== undefined && value !== undefined) {
      try {
        given = prepare(value);
      } catch (thrown) {
        waiter.fail(ShoalError.from(thrown));
        return;
      }
    }
    const stays = keeps && isRemote;
    meeting.value = stays ? given : undefined;
    meeting.isGone = given !== undefined && !stays;
    waiter.receive(given);
  }

  #check(key: string): void {
    const { incarnations } = this.#options;
    if (incarnations !== undefined) checkIncarnation(parseRendezvousKey(key), incarnations);
  }

  #meeting(key: string): Meeting<V> {
    const found = this.#meetings.get(key);
    if (found !== undefined) return found;
    if (this.#meetings.size >= this.#options.keysMax) {
      throw new ShoalError('out-of-memory', `a step has more than ${this.#options.keysMax} rendezvous keys; raise keysMax`);
    }
    const meeting: Meeting<V> = { isSent: false, isAsked: false, isGone: false, value: undefined, waiter: undefined, asker: undefined };
    this.#meetings.set(key, meeting);
    return meeting;
  }
}

const nothingToCancel: Cancel = () => {};

function isSuccessor(asker: Asker | undefined, before: Asker | undefined): boolean {
  return asker !== undefined && before !== undefined && asker !== before && before.isOver && asker.worker === before.worker;
}

/** The values of a fused receive, by slot. Where one cannot be had, the others are dropped, also those that come later.
 *  @throws ShoalError that names the slot. */
export async function allSlots<T>(
  keys: readonly string[],
  valueOf: (slot: number) => Promise<T>,
  drop: (value: T) => unknown,
): Promise<T[]> {
  const values = keys.map(async (_, slot) => {
    try {
      return await valueOf(slot);
    } catch (thrown) {
      throw slotError(slot, keys, ShoalError.from(thrown));
    }
  });
  try {
    return await Promise.all(values);
  } catch (thrown) {
    for (const value of values) value.then(drop).catch(() => undefined);
    throw thrown;
  }
}

/** The error of one slot of a fused receive. */
export function slotError(slot: number, keys: readonly string[], cause: ShoalError): ShoalError {
  return failureOf(`slot ${slot} of ${keys.length}, ${describeKey(keys[slot])}`, cause);
}

/** Waits for what `start` asks for. @param waiting has, while it waits, the function that gives it up, with the keys. */
export function received<R>(
  keys: string | readonly string[],
  signal: AbortSignal | undefined,
  start: (receive: (result: R) => void, fail: (cause: ShoalError) => void) => Cancel,
  waiting?: Map<(cause: ShoalError) => void, string | readonly string[]>,
): Promise<R> {
  return new Promise((resolve, reject) => {
    const onAbort = (): void => giveUp(cancelled(typeof keys === 'string' ? keys : keys[0], signal!));
    let isSettled = false;
    const asked: { cancel?: Cancel } = {};
    const settle = (): boolean => {
      if (isSettled) return false;
      isSettled = true;
      waiting?.delete(giveUp);
      signal?.removeEventListener('abort', onAbort);
      return true;
    };
    const giveUp = (cause: ShoalError): void => {
      if (!settle()) return;
      asked.cancel?.();
      reject(cause);
    };
    if (signal?.aborted === true) return onAbort();
    waiting?.set(giveUp, keys);
    asked.cancel = start(
      (result) => {
        if (settle()) resolve(result);
      },
      (cause) => {
        if (settle()) reject(cause);
      },
    );
    if (!isSettled) signal?.addEventListener('abort', onAbort, { once: true });
  });
}

/** The caller's signal ended a receive. */
function cancelled(key: string, signal: AbortSignal): ShoalError {
  return new ShoalError('aborted', `the receive of ${describeKey(key)} was cancelled by its signal`, { cause: signal.reason });
}

function twice(key: string, what: string): ShoalError {
  return new ShoalError('usage', `${describeKey(key)} was ${what} twice in one step: ${key}`);
}
