/** The rendezvous of one step of a worker: sent values wait in the worker's own table; received ones come from there, or over the carrier
 *  to the worker that has the sending device. */
import { ShoalError } from '../../base/errors.ts';
import type { PieceSink, SlotOutcome, TensorCarrier } from '../protocol/tensor-carrier.ts';
import { allSlots, received, slotError, type LocalRendezvous } from '../table/local-rendezvous.ts';
import type { Cancel, RecvOptions, Rendezvous } from '../table/rendezvous.ts';
import { hostValue, isStaged, type SentValue } from '../value/staged-tensor.ts';
import { checkTensorValue, type Release, type TensorValue } from '../value/tensor-value.ts';

/** The values of one process, as they are sent and received there; those of other processes come as tensors. */
export interface StepValues<V, Sent> {
  /** @throws ShoalError `usage` for a thing that is no value. */
  check(value: Sent): Sent;
  received(value: Sent): V | Promise<V>;
}

export const tensorValues: StepValues<TensorValue, SentValue> = {
  // The maker of a staged value has checked it.
  check: (value) => (typeof value === 'object' && value !== null && isStaged(value) ? value : checkTensorValue(value)),
  received: hostValue,
};

export interface StepRendezvousOptions<V, Sent> {
  readonly stepId: number;
  readonly local: LocalRendezvous<Sent>;
  readonly values: StepValues<V, Sent>;
  /** @returns undefined for a key that is sent here. @throws ShoalError when there is no such worker, or it has restarted. */
  carrierOf(key: string): TensorCarrier | undefined;
  /** @throws ShoalError when the worker that has the receiving device is lost. */
  checkReceiver(key: string): void;
}

export class StepRendezvous<V = TensorValue, Sent = SentValue> implements Rendezvous<V, Sent> {
  /** Requests of other workers for which this step has been the first reason; for whoever counts them. */
  requests = 0;
  readonly #options: StepRendezvousOptions<V, Sent>;
  /** Receives from other workers that wait: how they are told that the step is over, and their keys. */
  readonly #waiting = new Map<(cause: ShoalError) => void, string | readonly string[]>();
  #aborted: (() => ShoalError) | undefined;

  constructor(options: StepRendezvousOptions<V, Sent>) {
    this.#options = options;
  }

  /** Keys that are asked for and have not come. */
  get awaited(): readonly string[] {
    return [...[...this.#waiting.values()].flat(), ...this.#options.local.awaited];
  }

  send(key: string, value: Sent | undefined): void {
    const { values, local } = this.#options;
    const checked = value === undefined ? value : values.check(value);
    this.#options.checkReceiver(key);
    local.send(key, checked);
  }

  /** The same as that of the local table. */
  withdraw(causeOf: (key: string) => ShoalError | undefined): void {
    this.#options.local.withdraw(causeOf);
  }

  /** @param sink told of pieces that come from another worker. */
  recvAsync(key: string, options?: RecvOptions, sink?: PieceSink): Promise<V | undefined> {
    const { stepId, local } = this.#options;
    if (this.#aborted !== undefined) return Promise.reject(this.#aborted());
    let carrier: TensorCarrier | undefined;
    try {
      carrier = this.#options.carrierOf(key);
    } catch (thrown) {
      return Promise.reject(ShoalError.from(thrown));
    }
    if (carrier === undefined) return local.recvAsync(key, options).then(this.#received);
    const over = carrier;
    const start = (receive: (value: TensorValue | undefined) => void, fail: (cause: ShoalError) => void): Cancel =>
      over.recv(stepId, key, { receive, fail }, sink);
    return received(key, options?.signal, start, this.#waiting) as Promise<V | undefined>;
  }

  async recvFused(keys: readonly string[], options?: RecvOptions): Promise<readonly (V | undefined)[]> {
    const { stepId, local } = this.#options;
    if (this.#aborted !== undefined) throw this.#aborted();
    if (keys.length === 0) throw new ShoalError('usage', 'a fused receive must have at least one key');
    const carriers = new Set(keys.map((key) => this.#options.carrierOf(key)));
    if (carriers.size > 1)
      throw new ShoalError('usage', `a fused receive is from one worker; its ${keys.length} keys are from ${carriers.size}`);
    const [carrier] = carriers;
    if (carrier === undefined) {
      const sent = await local.recvFused(keys, options);
      return allSlots(
        keys,
        async (slot) => this.#received(sent[slot]),
        (value) => (value as { release?: Release } | undefined)?.release?.(),
      );
    }
    const start = (receive: (outcomes: readonly SlotOutcome[]) => void, fail: (cause: ShoalError) => void): Cancel =>
      carrier.recvFused(stepId, keys, { receive, fail });
    const outcomes = await received(keys, options?.signal, start, this.#waiting);
    const failed = outcomes.findIndex((outcome) => 'cause' in outcome);
    const values = outcomes.map((outcome) => ('value' in outcome ? outcome.value : undefined));
    if (failed < 0) return values as V[];
    for (const value of values) value?.release?.();
    throw slotError(failed, keys, (outcomes[failed] as { cause: ShoalError }).cause);
  }

  startAbort(cause: ShoalError): void {
    this.end(() => cause);
  }

  /** The same as `startAbort`. @param cause makes it when somebody is told. */
  end(cause: () => ShoalError): void {
    if (this.#aborted !== undefined) return;
    this.#aborted = cause;
    this.#options.local.end(cause);
    if (this.#waiting.size === 0) return;
    const told = cause();
    for (const tell of [...this.#waiting.keys()]) tell(told);
  }

  readonly #received = (value: Sent | undefined): V | Promise<V> | undefined =>
    value === undefined ? undefined : this.#options.values.received(value);
}
