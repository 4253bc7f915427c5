/** Receives of tensors from other tasks, for all steps of one task. *Direct*: a request per receive, answered when all its keys are there
 *  (RecvTensor, FuseRecvTensor). *recvSome*: receives of one sender gather for a moment and go as one request; the sender gives
 *  what is ready, each key by itself. How they travel is the link's. */
import type { Clock } from '../../base/clock.ts';
import { ShoalError } from '../../base/errors.ts';
import { cancelled, slotError } from '../../rendezvous/table/local-rendezvous.ts';
import type { RpcLink, TensorSlot } from '../rpc/rpc.ts';
import type { Value } from '../structure/value.ts';
import { ReceiveWindow } from './receive-window.ts';
import type { TaskTrace } from './task-trace.ts';

export interface TensorReceiverOptions {
  readonly clock: Clock;
  readonly linkTo: (task: string) => Promise<RpcLink>;
  /** True: fusion at run time. */
  readonly recvSome: boolean;
  readonly trace: TaskTrace;
}

export interface ReceiveStats {
  /** Requests that were sent. */
  requests: number;
  /** Tensors that came. */
  tensors: number;
}

/** Whose receives they are. */
export interface ReceivingStep {
  readonly stepId: number;
  /** Told of every request that its receives caused. */
  readonly onRequest: () => void;
}

/** Keys of one request at most. */
const keysMax = 100_000;

/** One key on its way. */
interface Item {
  readonly key: string;
  readonly settle: (slot: TensorSlot) => void;
  readonly step: ReceivingStep;
  /** When it was asked for. */
  readonly startMs: number;
  isOver: boolean;
}

export class TensorReceiver {
  readonly stats: ReceiveStats = { requests: 0, tensors: 0 };
  readonly #options: TensorReceiverOptions;
  readonly #windows = new Map<string, ReceiveWindow<Item>>();

  constructor(options: TensorReceiverOptions) {
    this.#options = options;
  }

  /** One request for these keys, or a share of one. @returns by key. @throws ShoalError that names slot, key and sender. */
  async recv(
    task: string,
    step: ReceivingStep,
    keys: readonly string[],
    signal: AbortSignal | undefined,
  ): Promise<readonly (Value | undefined)[]> {
    if (signal?.aborted === true) throw cancelled(keys[0], signal);
    const slots = this.#options.recvSome
      ? await this.#recvSome(task, step, keys, signal)
      : await this.#recvDirect(task, step, keys, signal);
    return slots.map((slot, index) => {
      if (!(slot instanceof ShoalError)) return slot;
      throw keys.length === 1 ? slot : slotError(index, keys, slot);
    });
  }

  async #recvDirect(
    task: string,
    step: ReceivingStep,
    keys: readonly string[],
    signal: AbortSignal | undefined,
  ): Promise<readonly TensorSlot[]> {
    const { trace } = this.#options;
    const startMs = trace.now();
    const { tensors } = await this.#options.linkTo(task);
    if (signal?.aborted === true) throw cancelled(keys[0], signal);
    this.stats.requests++;
    step.onRequest();
    const values = await tensors.receive(step.stepId, keys, signal);
    this.stats.tensors += values.length;
    trace.request(keys.length === 1 ? 'RecvTensor' : 'FuseRecvTensor', task, startMs, keys.length);
    if (trace.enabled) keys.forEach((key, k) => trace.received(key, step.stepId, startMs, values[k]));
    return values;
  }

  #recvSome(task: string, step: ReceivingStep, keys: readonly string[], signal: AbortSignal | undefined): Promise<readonly TensorSlot[]> {
    const window = this.#windowOf(task);
    const startMs = this.#options.trace.now();
    return new Promise((resolve, reject) => {
      const slots: TensorSlot[] = Array.from({ length: keys.length });
      let missing = keys.length;
      const items = keys.map((key, index): Item => {
        const item = {
          step,
          key,
          startMs,
          isOver: false,
          settle: (slot: TensorSlot) => {
            if (item.isOver) return;
            item.isOver = true;
            slots[index] = slot;
            if (--missing > 0) return;
            signal?.removeEventListener('abort', onAbort);
            resolve(slots);
          },
        };
        return item;
      });
      // The others of the request go on; what still comes for these is dropped.
      const onAbort = (): void => {
        for (const item of items) {
          item.isOver = true;
          window.remove(item);
        }
        reject(cancelled(keys[0], signal as AbortSignal));
      };
      signal?.addEventListener('abort', onAbort, { once: true });
      for (const item of items) window.add(item);
    });
  }

  #windowOf(task: string): ReceiveWindow<Item> {
    const found = this.#windows.get(task);
    if (found !== undefined) return found;
    const window: ReceiveWindow<Item> = new ReceiveWindow<Item>({
      clock: this.#options.clock,
      itemsMax: keysMax,
      send: (items) => {
        this.#request(task, items, window).catch((thrown: unknown) => {
          for (const item of items) item.settle(ShoalError.from(thrown));
        });
      },
    });
    this.#windows.set(task, window);
    return window;
  }

  async #request(task: string, items: readonly Item[], window: ReceiveWindow<Item>): Promise<void> {
    const { clock, trace } = this.#options;
    const { tensors } = await this.#options.linkTo(task);
    this.stats.requests++;
    items[0].step.onRequest();
    const startMs = clock.now();
    let isFirst = true;
    const onSlot = (index: number, slot: TensorSlot): void => {
      if (isFirst) window.observeRoundTrip(clock.now() - startMs);
      isFirst = false;
      this.stats.tensors++;
      const { key, step, startMs: askedMs, settle } = items[index];
      trace.received(key, step.stepId, askedMs, slot);
      settle(slot);
    };
    await tensors.receiveEach(
      items.map(({ step, key }) => [step.stepId, key]),
      onSlot,
    );
    trace.request('RecvSome', task, startMs, items.length);
    for (const { isOver, key, settle } of items)
      if (!isOver) settle(new ShoalError('protocol', `${task} ended its answer without '${key}'`));
  }
}
