/** One worker's part in all steps: its table, and the carriers to other workers. Knows neither threads nor how carriers are made. */
import { failureOf, ShoalError } from '../../base/errors.ts';
import { checkIncarnation } from '../table/incarnation.ts';
import { stepEnded, StepTable, type StepTableOptions } from '../table/step-table.ts';
import { formatRendezvousKey, parseRendezvousKey, type RendezvousKey } from '../table/rendezvous-key.ts';
import type { SentValue } from '../value/staged-tensor.ts';
import type { TensorCarrier } from './carrier.ts';
import { StepRendezvous } from './step-rendezvous.ts';
import type { WorkerIdentity } from './tensor-channel.ts';

interface Peer {
  readonly identity: WorkerIdentity;
  readonly carrier: TensorCarrier;
}

/** Kept from one worker to another. */
const keysMax = 65_536;

export class WorkerCore {
  readonly self: WorkerIdentity;
  readonly steps: StepTable<SentValue>;
  readonly #peers = new Map<string, Peer>();
  /** The reason, by device of a peer, for which it can neither be asked nor ask any more. */
  readonly #lost = new Map<string, ShoalError>();
  readonly #open = new Map<number, StepRendezvous>();
  /** By who sends, who receives, and name. */
  readonly #keys = new WeakMap<WorkerIdentity, WeakMap<WorkerIdentity, Map<string, string>>>();
  #closed = false;

  constructor(self: WorkerIdentity, options: StepTableOptions = {}) {
    this.self = self;
    const incarnations = (device: string): bigint | undefined => (device === self.device ? self.incarnation : undefined);
    this.steps = new StepTable({ ...options, incarnations, onDropped: (value, cause) => value.release?.(cause) });
  }

  /** Tensors of the worker come over this carrier from now on; another of its incarnations is forgotten. */
  attach(identity: WorkerIdentity, carrier: TensorCarrier): void {
    if (identity.device === this.self.device)
      throw new ShoalError(
        'config',
        `worker ${identity.rank} has device ${identity.device}, which is this worker's; devices have names of their own`,
      );
    this.#peers.set(identity.device, { identity, carrier });
    this.#lost.delete(identity.device);
  }

  /** Its worker is lost: what was sent to it and not asked for fails, and what is asked of it or sent to it from now on. */
  detach(carrier: TensorCarrier, cause: ShoalError): void {
    for (const { identity, carrier: own } of this.#peers.values()) {
      if (own !== carrier) continue;
      this.#lost.set(identity.device, cause);
      for (const [stepId, step] of this.#open)
        step.withdraw((key) => {
          const { name, recvDevice } = parseRendezvousKey(key);
          return recvDevice === identity.device
            ? failureOf(`'${name}' for ${recvDevice} was not taken in step ${stepId}`, cause)
            : undefined;
        });
    }
  }

  /** What a tensor is called that goes from one worker's device to another's. */
  key(name: string, from: WorkerIdentity, to: WorkerIdentity): string {
    // One string for all steps: tables find it by a hash that it has already.
    let names = this.#keys.get(from)?.get(to);
    if (names === undefined || names.size >= keysMax) {
      names = new Map();
      const receivers = this.#keys.get(from) ?? new WeakMap<WorkerIdentity, Map<string, string>>();
      this.#keys.set(from, receivers.set(to, names));
    }
    let key = names.get(name);
    if (key === undefined) {
      const { device: sendDevice, incarnation } = from;
      key = formatRendezvousKey({ sendDevice, incarnation, recvDevice: to.device, name, frame: 0, iteration: 0 });
      names.set(name, key);
    }
    return key;
  }

  beginStep(stepId: number): StepRendezvous {
    const step = new StepRendezvous({
      stepId,
      local: this.steps.begin(stepId),
      carrierOf: (key) => this.carrierOf(key),
      checkReceiver: (key) => this.#checkReceiver(key),
    });
    this.#open.set(stepId, step);
    return step;
  }

  /** @param cause default: that it has ended. */
  endStep(stepId: number, cause?: ShoalError): void {
    if (cause === undefined) this.steps.end(stepId);
    else this.steps.abort(stepId, cause);
    this.#open.get(stepId)?.end(() => cause ?? stepEnded(stepId));
    this.#open.delete(stepId);
    for (const { carrier } of this.#peers.values()) carrier.endStep(stepId);
  }

  async close(): Promise<void> {
    if (this.#closed) return;
    this.#closed = true;
    const cause = new ShoalError('closed', `the rendezvous worker ${this.self.device} is closed`);
    for (const stepId of [...this.#open.keys()]) this.endStep(stepId, cause);
    this.steps.close(cause);
    await Promise.all([...this.#peers.values()].map(({ carrier }) => carrier.close()));
  }

  /** Undefined: here. @throws ShoalError `usage`, `mismatch`, or what the carrier has ended with. */
  carrierOf(key: RendezvousKey): TensorCarrier | undefined {
    const { sendDevice, name } = key;
    if (sendDevice === this.self.device) return undefined;
    const peer = this.#peers.get(sendDevice);
    if (peer === undefined)
      throw new ShoalError('usage', `'${name}' is asked of ${sendDevice}, to which there is no connection; connect to its worker first`);
    checkIncarnation(key, () => peer.identity.incarnation);
    const lost = this.#lost.get(sendDevice);
    if (lost !== undefined) throw failureOf(`'${name}' cannot be asked of ${sendDevice}`, lost);
    return peer.carrier;
  }

  #checkReceiver(key: string): void {
    if (this.#lost.size === 0) return;
    const { name, recvDevice } = parseRendezvousKey(key);
    const lost = this.#lost.get(recvDevice);
    if (lost !== undefined) throw failureOf(`'${name}' cannot be sent to ${recvDevice}`, lost);
  }
}
