/** Receives from one other task, for all steps of this one: counts and records them. *Direct*: a request per receive, answered when all its
 *  keys are there (RecvTensor, FuseRecvTensor). *recvSome*: receives gather for a moment and go as one request; the sender gives what is
 *  ready, each key by itself. */
import type { Clock } from '../../base/clock.ts';
import { failureOf, type ShoalError } from '../../base/errors.ts';
import type { FusedWaiter, SlotOutcome, TensorCarrier } from '../../rendezvous/protocol/tensor-carrier.ts';
import type { Cancel, Waiter } from '../../rendezvous/table/rendezvous.ts';
import type { TensorValue } from '../../rendezvous/value/tensor-value.ts';
import { ReceiveWindow } from './receive-window.ts';
import type { TaskTrace } from './task-trace.ts';

export interface TaskReceivesOptions {
  readonly task: string;
  /** The way to the task. */
  readonly carrier: TensorCarrier;
  readonly clock: Clock;
  /** True: fusion at run time. */
  readonly recvSome: boolean;
  readonly trace: TaskTrace;
  /** Counters of all tasks together. */
  readonly stats: ReceiveStats;
  /** Called with the step of the first receive of each request. */
  readonly onRequest: (stepId: number) => void;
}

export interface ReceiveStats {
  /** Number of requests that were sent. */
  requests: number;
  /** Number of tensors that came. */
  tensors: number;
  bytes: number;
}

/** Keys of one request at most. */
const keysMax = 100_000;

/** A key that waits for its request, or for its tensor. */
interface Item {
  readonly stepId: number;
  readonly key: string;
  readonly startMs: number;
  readonly settle: (outcome: SlotOutcome) => void;
  cancel: Cancel;
}

export class TaskReceives implements TensorCarrier {
  readonly #options: TaskReceivesOptions;
  readonly #window: ReceiveWindow<Item>;

  constructor(options: TaskReceivesOptions) {
    this.#options = options;
    this.#window = new ReceiveWindow<Item>({ clock: options.clock, itemsMax: keysMax, send: (items) => this.#request(items) });
  }

  get description(): string {
    return this.#options.carrier.description;
  }

  recv(stepId: number, key: string, waiter: Waiter<TensorValue>): Cancel {
    const { carrier, trace, recvSome, task } = this.#options;
    const fail = (cause: ShoalError): void => waiter.fail(this.#named(cause));
    const startMs = trace.now();
    if (recvSome) return this.#gather(stepId, key, (outcome) => ('cause' in outcome ? fail(outcome.cause) : waiter.receive(outcome.value)));
    this.#count(stepId);
    return carrier.recv(stepId, key, {
      fail,
      receive: (value) => {
        this.#came(stepId, key, startMs, { value });
        trace.request('RecvTensor', task, startMs, 1);
        waiter.receive(value);
      },
    });
  }

  recvFused(stepId: number, keys: readonly string[], waiter: FusedWaiter): Cancel {
    const { carrier, trace, recvSome, task } = this.#options;
    const startMs = trace.now();
    if (recvSome) {
      const outcomes: SlotOutcome[] = [];
      let missing = keys.length;
      const cancels = keys.map((key, slot) =>
        this.#gather(stepId, key, (outcome) => {
          outcomes[slot] = outcome;
          if (--missing === 0) waiter.receive(outcomes);
        }),
      );
      return () => cancels.forEach((cancel) => cancel());
    }
    this.#count(stepId);
    return carrier.recvFused(stepId, keys, {
      fail: (cause) => waiter.fail(this.#named(cause)),
      receive: (outcomes) => {
        outcomes.forEach((outcome, slot) => this.#came(stepId, keys[slot], startMs, outcome));
        trace.request('FuseRecvTensor', task, startMs, keys.length);
        waiter.receive(outcomes);
      },
    });
  }

  endStep(stepId: number): void {
    this.#options.carrier.endStep(stepId);
  }

  close(): Promise<void> {
    return this.#options.carrier.close();
  }

  #gather(stepId: number, key: string, settle: Item['settle']): Cancel {
    const item: Item = { stepId, key, settle, startMs: this.#options.trace.now(), cancel: () => void this.#window.remove(item) };
    this.#window.add(item);
    return () => item.cancel();
  }

  #request(items: readonly Item[]): void {
    const { carrier, clock, trace, task } = this.#options;
    this.#count(items[0].stepId);
    const startMs = clock.now();
    let missing = items.length;
    let isFirst = true;
    for (const item of items) {
      const { stepId, key, startMs: askedMs, settle } = item;
      const came = (outcome: SlotOutcome): void => {
        if (isFirst) this.#window.observeRoundTrip(clock.now() - startMs);
        isFirst = false;
        this.#came(stepId, key, askedMs, outcome);
        if (--missing === 0) trace.request('RecvSome', task, startMs, items.length);
        settle(outcome);
      };
      item.cancel = carrier.recv(stepId, key, { receive: (value) => came({ value }), fail: (cause) => came({ cause }) });
    }
  }

  #count(stepId: number): void {
    this.#options.stats.requests++;
    this.#options.onRequest(stepId);
  }

  #came(stepId: number, key: string, startMs: number, outcome: SlotOutcome): void {
    const { stats, trace } = this.#options;
    const data = 'value' in outcome ? outcome.value?.data : undefined;
    const bytes = ArrayBuffer.isView(data) ? data.byteLength : 0;
    stats.tensors++;
    stats.bytes += bytes;
    trace.received(key, stepId, startMs, bytes);
  }

  #named(cause: ShoalError): ShoalError {
    return cause.code === 'peer-lost' ? failureOf(`${this.#options.task} is lost`, cause) : cause;
  }
}
