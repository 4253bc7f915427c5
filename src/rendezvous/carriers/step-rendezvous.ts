/** The rendezvous of one step in one worker: a table of keys, each sent once and received once. What another worker sends is asked of that
 *  worker, over its carrier. */
import { Fifo } from '../../base/collections/fifo.ts';
import { failureOf, ShoalError } from '../../base/errors.ts';
import type { PieceSink, SlotOutcome, TensorCarrier } from '../protocol/tensor-carrier.ts';
import type { Asker, Cancel, RecvOptions, Rendezvous, Waiter } from '../table/rendezvous.ts';
import { describeKey } from '../table/rendezvous-key.ts';
import { nothingToCancel } from '../protocol/tensor-response.ts';

export interface ValueOptions<V, Sent = V> {
  /** The values of this process, as they are sent and received within it; those of other processes come as tensors. Default: any. */
  readonly values?: StepValues<V, Sent>;
  /** Told of values that were sent and that nobody will receive. @param cause why, where the step has not ended. */
  readonly onDropped?: (value: Sent, cause?: ShoalError) => void;
  /** True: a value stays until its step ends, in loops until many others have passed, so that it can be given again to a worker whose
   *  connection broke. Default: it goes with its receive, and comes back only while it has not left. */
  readonly keeps?: boolean;
  /** Makes of a value what other workers receive. @throws ShoalError that they are told. */
  readonly prepare?: (value: Sent) => Sent;
}

export interface StepValues<V, Sent> {
  /** @throws ShoalError `usage` for a thing that is no value. */
  check(value: Sent): unknown;
  received(value: Sent): V | Promise<V>;
}

/** The other workers, by the keys of what they send and receive. */
export interface OtherWorkers {
  /** @returns undefined for a key that is sent here. @throws ShoalError when there is no such worker, or it has restarted. */
  carrierOf(key: string): TensorCarrier | undefined;
  /** @throws ShoalError for a key that is not sent from here, or whose sender has restarted since the key was made. */
  checkSender(key: string): void;
  /** @throws ShoalError when the worker that has the receiving device is lost. */
  checkReceiver(key: string): void;
}

export interface StepRendezvousOptions<V, Sent> extends ValueOptions<V, Sent> {
  /** Keys at most that were sent or asked for in the step. */
  readonly keysMax: number;
  /** Default: there are none. */
  readonly others?: OtherWorkers;
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

/** Keys of loops that stay after they have passed: more than are on their way at a time. */
const loopKeysKept = 1024;

export class StepRendezvous<V, Sent = V> implements Rendezvous<V, Sent> {
  /** Receives in this process, and requests to other workers for which this step has been the first reason: a fused one counts once. */
  requests = 0;
  readonly #stepId: number;
  readonly #options: StepRendezvousOptions<V, Sent>;
  readonly #meetings = new Map<string, Meeting<Sent>>();
  /** Keys of loops whose values were given, the oldest first. */
  readonly #passed = new Fifo<string>();
  /** Receives from other workers that wait: how they are told that the step is over, and their keys. */
  readonly #waiting = new Map<(cause: ShoalError) => void, string | readonly string[]>();
  #aborted: (() => ShoalError) | undefined;

  constructor(stepId: number, options: StepRendezvousOptions<V, Sent>) {
    this.#stepId = stepId;
    this.#options = options;
  }

  /** Keys that are asked for and have not come. */
  get awaited(): readonly string[] {
    const here = [...this.#meetings].filter(([, { isAsked, isSent }]) => isAsked && !isSent).map(([key]) => key);
    return [...[...this.#waiting.values()].flat(), ...here];
  }

  send(key: string, value: Sent | undefined): void {
    const { values, others } = this.#options;
    if (value !== undefined) values?.check(value);
    others?.checkReceiver(key);
    if (this.#aborted !== undefined) throw this.#aborted();
    others?.checkSender(key);
    const meeting = this.#meeting(key);
    if (meeting.isSent) throw twice(key, 'sent');
    meeting.isSent = true;
    const { waiter } = meeting;
    meeting.waiter = undefined;
    if (waiter === undefined) meeting.value = value;
    else this.#give(key, meeting, waiter, value);
  }

  /** @param sink told of pieces that come from another worker. */
  recvAsync(key: string, options?: RecvOptions, sink?: PieceSink): Promise<V | undefined> {
    let carrier: TensorCarrier | undefined;
    try {
      if (this.#aborted !== undefined) throw this.#aborted();
      carrier = this.#options.others?.carrierOf(key);
    } catch (thrown) {
      return Promise.reject(ShoalError.from(thrown));
    }
    if (carrier === undefined) {
      this.requests++;
      return this.#receive(key, options?.signal);
    }
    const over = carrier;
    return received<unknown>(
      key,
      options?.signal,
      (receive, fail) => over.recv(this.#stepId, key, { receive, fail }, sink),
      this.#waiting,
    ) as Promise<V | undefined>;
  }

  async recvFused(keys: readonly string[], options?: RecvOptions): Promise<readonly (V | undefined)[]> {
    if (this.#aborted !== undefined) throw this.#aborted();
    if (keys.length === 0) throw new ShoalError('usage', 'a fused receive must have at least one key');
    const carriers = new Set(keys.map((key) => this.#options.others?.carrierOf(key)));
    if (carriers.size > 1)
      throw new ShoalError('usage', `a fused receive is from one worker; its ${keys.length} keys are from ${carriers.size}`);
    const [carrier] = carriers;
    if (carrier === undefined) return this.#receiveAll(keys, options?.signal);
    const start = (receive: (outcomes: readonly SlotOutcome[]) => void, fail: (cause: ShoalError) => void): Cancel =>
      carrier.recvFused(this.#stepId, keys, { receive, fail });
    const outcomes = await received(keys, options?.signal, start, this.#waiting);
    const failed = outcomes.findIndex((outcome) => 'cause' in outcome);
    const values = outcomes.map((outcome) => ('value' in outcome ? outcome.value : undefined));
    if (failed < 0) return values as V[];
    for (const value of values) value?.release?.();
    throw slotError(failed, keys, (outcomes[failed] as { cause: ShoalError }).cause);
  }

  /** A receive in this worker, or by another one. The waiter may be called before this returns.
   *  @param asker the connection of another worker that asks. A key that was asked for over another one, which has ended, may be asked for
   *  again.
   *  @throws ShoalError `usage` for a key that was asked for already, `peer-lost` for a tensor that left over a connection which broke, and
   *  the cause after an abort. */
  take(key: string, waiter: Waiter<Sent>, asker?: Asker): Cancel {
    if (this.#aborted !== undefined) throw this.#aborted();
    this.#options.others?.checkSender(key);
    const meeting = this.#meeting(key);
    if (meeting.isAsked) {
      if (!isSuccessor(asker, meeting.asker)) throw twice(key, 'asked for');
      if (meeting.isGone) {
        const message = `${describeKey(key)} had left over a connection that broke, and was not kept; it can be sent in another step`;
        throw new ShoalError('peer-lost', message);
      }
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
    this.#give(key, meeting, waiter, meeting.value);
    return nothingToCancel;
  }

  /** Takes back a value that was given to another worker and has not left. @returns false when it cannot be asked for any more. */
  giveBack(key: string, value: Sent): boolean {
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
    const meetings = [...this.#meetings.values()];
    this.#meetings.clear();
    for (const meeting of meetings) {
      const { waiter, value } = meeting;
      meeting.waiter = meeting.value = undefined;
      if (value !== undefined) this.#options.onDropped?.(value);
      waiter?.fail(cause());
    }
    if (this.#waiting.size === 0) return;
    const told = cause();
    for (const tell of [...this.#waiting.keys()]) tell(told);
  }

  /** A value of this process. */
  #receive(key: string, signal: AbortSignal | undefined): Promise<V | undefined> {
    const sent = received<Sent | undefined>(key, signal, (receive, fail) => this.take(key, { receive, fail }));
    const { values } = this.#options;
    if (values === undefined) return sent as Promise<unknown> as Promise<V | undefined>;
    return sent.then((value) => (value === undefined ? undefined : values.received(value)));
  }

  /** Values of this process. Where one cannot be had, the others are dropped, also those that come later.
   *  @throws ShoalError that names the slot. */
  async #receiveAll(keys: readonly string[], signal: AbortSignal | undefined): Promise<readonly (V | undefined)[]> {
    this.requests++;
    const values = keys.map(async (key, slot) => {
      try {
        return await this.#receive(key, signal);
      } catch (thrown) {
        throw slotError(slot, keys, ShoalError.from(thrown));
      }
    });
    const drop = (value: V | undefined): void => {
      if (value !== undefined) this.#options.onDropped?.(value as unknown as Sent);
    };
    try {
      return await Promise.all(values);
    } catch (thrown) {
      for (const value of values) value.then(drop, () => undefined);
      throw thrown;
    }
  }

  #give(key: string, meeting: Meeting<Sent>, waiter: Waiter<Sent>, value: Sent | undefined): void {
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
    if (!key.endsWith(';0:0')) this.#forgetAfter(key);
    waiter.receive(given);
  }

  /** A loop may have any number of iterations: what has passed long before is forgotten. */
  #forgetAfter(key: string): void {
    this.#passed.push(key);
    const oldest = this.#passed.length > loopKeysKept ? this.#passed.shift()! : '';
    if (this.#meetings.get(oldest)?.isAsked === true) this.#meetings.delete(oldest);
  }

  #meeting(key: string): Meeting<Sent> {
    const found = this.#meetings.get(key);
    if (found !== undefined) return found;
    if (this.#meetings.size >= this.#options.keysMax) {
      throw new ShoalError('out-of-memory', `a step has more than ${this.#options.keysMax} rendezvous keys; raise keysMax`);
    }
    const meeting: Meeting<Sent> = { isSent: false, isAsked: false, isGone: false, value: undefined, waiter: undefined, asker: undefined };
    this.#meetings.set(key, meeting);
    return meeting;
  }
}

function isSuccessor(asker: Asker | undefined, before: Asker | undefined): boolean {
  return asker !== undefined && before !== undefined && asker !== before && before.isOver && asker.worker === before.worker;
}

/** The error of one slot of a fused receive. */
function slotError(slot: number, keys: readonly string[], cause: ShoalError): ShoalError {
  return failureOf(`slot ${slot} of ${keys.length}, ${describeKey(keys[slot])}`, cause);
}

/** Waits for what `start` asks for. @param waiting has, while it waits, the function that gives it up, with the keys. */
function received<R>(
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
