/** The rendezvous of one step of a worker: sent tensors wait in the worker's own table; received tensors come from there, or over the
 *  carrier to the worker that has the sending device. */
import { ShoalError } from '../../base/errors.ts';
import { allSlots, cancelled, slotError, type LocalRendezvous } from '../table/local-rendezvous.ts';
import type { Cancel, RecvOptions, Rendezvous } from '../table/rendezvous.ts';
import { parseRendezvousKey, type RendezvousKey } from '../table/rendezvous-key.ts';
import { hostValue, isStaged, type SentValue } from '../value/staged-tensor.ts';
import { checkTensorValue, type TensorValue } from '../value/tensor-value.ts';
import type { PieceSink } from '../protocol/tensor-request.ts';
import type { SlotOutcome } from '../protocol/tensor-receiver.ts';
import type { TensorCarrier } from './carrier.ts';

export interface StepRendezvousOptions {
  readonly stepId: number;
  readonly local: LocalRendezvous<SentValue>;
  /** Undefined: the sending device is this worker's. @throws ShoalError when there is no such worker, or it has restarted. */
  carrierOf(key: RendezvousKey): TensorCarrier | undefined;
  /** @throws ShoalError when the worker that has the receiving device is lost. */
  checkReceiver(key: string): void;
}

export class StepRendezvous implements Rendezvous<TensorValue, SentValue> {
  readonly #options: StepRendezvousOptions;
  /** What this step waits for from others, and how it is told. */
  readonly #waiting = new Set<(cause: ShoalError) => void>();
  #aborted: (() => ShoalError) | undefined;

  constructor(options: StepRendezvousOptions) {
    this.#options = options;
  }

  send(key: string, value: SentValue | undefined): void {
    // Who makes one that is staged has checked it.
    const checked =
      value === undefined || (typeof value === 'object' && value !== null && isStaged(value)) ? value : checkTensorValue(value);
    this.#options.checkReceiver(key);
    this.#options.local.send(key, checked);
  }

  /** The same as that of the local table. */
  withdraw(causeOf: (key: string) => ShoalError | undefined): void {
    this.#options.local.withdraw(causeOf);
  }

  /** @param sink told of pieces that come from another worker. */
  recvAsync(key: string, options?: RecvOptions, sink?: PieceSink): Promise<TensorValue | undefined> {
    const { stepId, local } = this.#options;
    if (this.#aborted !== undefined) return Promise.reject(this.#aborted());
    let carrier: TensorCarrier | undefined;
    try {
      carrier = this.#options.carrierOf(parseRendezvousKey(key));
    } catch (thrown) {
      return Promise.reject(ShoalError.from(thrown));
    }
    if (carrier === undefined) return local.recvAsync(key, options).then(received);
    const over = carrier;
    return this.#wait(key, options?.signal, (receive, fail) => over.recv(stepId, key, { receive, fail }, sink));
  }

  async recvFused(keys: readonly string[], options?: RecvOptions): Promise<readonly (TensorValue | undefined)[]> {
    const { stepId, local } = this.#options;
    if (this.#aborted !== undefined) throw this.#aborted();
    if (keys.length === 0) throw new ShoalError('usage', 'a fused receive must have at least one key');
    const carriers = new Set(keys.map((key) => this.#options.carrierOf(parseRendezvousKey(key))));
    if (carriers.size > 1)
      throw new ShoalError('usage', `a fused receive is from one worker; its ${keys.length} keys are from ${carriers.size}`);
    const [carrier] = carriers;
    if (carrier === undefined) {
      const sent = await local.recvFused(keys, options);
      return allSlots(
        keys,
        (slot) => received(sent[slot]),
        (value) => value?.release?.(),
      );
    }
    const outcomes = await this.#wait<readonly SlotOutcome[]>(keys[0], options?.signal, (receive, fail) =>
      carrier.recvFused(stepId, keys, { receive, fail }),
    );
    const failed = outcomes.findIndex((outcome) => 'cause' in outcome);
    const values = outcomes.map((outcome) => ('value' in outcome ? outcome.value : undefined));
    if (failed < 0) return values;
    for (const value of values) value?.release?.();
    throw slotError(failed, keys, (outcomes[failed] as { cause: ShoalError }).cause);
  }

  startAbort(cause: ShoalError): void {
    this.end(() => cause);
  }

  /** As `startAbort`. @param cause makes it when somebody is told. */
  end(cause: () => ShoalError): void {
    if (this.#aborted !== undefined) return;
    this.#aborted = cause;
    this.#options.local.end(cause);
    if (this.#waiting.size === 0) return;
    const told = cause();
    for (const tell of [...this.#waiting]) tell(told);
  }

  #wait<R>(
    key: string,
    signal: AbortSignal | undefined,
    start: (receive: (result: R) => void, fail: (cause: ShoalError) => void) => Cancel,
  ): Promise<R> {
    return new Promise((resolve, reject) => {
      if (signal?.aborted === true) throw cancelled(key, signal);
      let isSettled = false;
      const asked: { cancel?: Cancel } = {};
      const settle = (): boolean => {
        if (isSettled) return false;
        isSettled = true;
        this.#waiting.delete(giveUp);
        signal?.removeEventListener('abort', onAbort);
        return true;
      };
      const giveUp = (cause: ShoalError): void => {
        if (!settle()) return;
        asked.cancel?.();
        reject(cause);
      };
      const onAbort = (): void => giveUp(cancelled(key, signal!));
      this.#waiting.add(giveUp);
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
}

async function received(value: SentValue | undefined): Promise<TensorValue | undefined> {
  return value && hostValue(value);
}
