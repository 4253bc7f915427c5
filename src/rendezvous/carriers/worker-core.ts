/** One worker's part in all steps: its table, and the other workers. It must not know how connections are made. */
import { failureOf, ShoalError } from '../../base/errors.ts';
import type { TensorCarrier } from '../protocol/tensor-carrier.ts';
import type { ValueOptions } from '../table/local-rendezvous.ts';
import { checkIncarnation, formatRendezvousKey, incarnationText, parseRendezvousKey } from '../table/rendezvous-key.ts';
import { stepEnded, StepTable, type StepTableOptions } from '../table/step-table.ts';
import type { SentValue } from '../value/staged-tensor.ts';
import type { Release, TensorValue } from '../value/tensor-value.ts';
import type { RemoteWorkerOptions } from './remote-worker.ts';
import { StepRendezvous, tensorValues, type StepValues } from './step-rendezvous.ts';
import type { WorkerIdentity } from './tensor-channel.ts';

export interface WorkerCoreOptions<V, Sent> extends StepTableOptions, ValueOptions<Sent> {
  /** The values of this process, as they are sent and received within it. Default: tensors. */
  readonly values?: StepValues<V, Sent>;
  /** The worker that a device belongs to. Default: the one of that name. */
  readonly workerOf?: (device: string) => string;
  /** Makes the carrier of a worker, which `detach` forgets. Default: workers are made known by `attach`, and stay known as lost. */
  readonly find?: (worker: string) => TensorCarrier;
}

/** Another worker. */
interface Peer {
  readonly carrier: TensorCarrier;
  /** Undefined: found by name; its incarnation is not looked at here. */
  readonly identity: WorkerIdentity | undefined;
  /** The incarnation, as keys have it. */
  readonly incarnation: string;
}

/** Keys that are kept from one worker to another. */
const keysMax = 65_536;

export class WorkerCore<V = TensorValue, Sent = SentValue> {
  readonly self: WorkerIdentity;
  readonly steps: StepTable<Sent>;
  readonly #options: WorkerCoreOptions<V, Sent>;
  readonly #peers = new Map<string, Peer>();
  /** The reason, by worker, for which it can neither be asked nor ask any more. */
  readonly #lost = new Map<string, ShoalError>();
  readonly #open = new Map<number, StepRendezvous<V, Sent>>();
  /** Keys by sender, receiver and name. */
  readonly #keys = new WeakMap<WorkerIdentity, WeakMap<WorkerIdentity, Map<string, string>>>();
  #closed = false;

  constructor(self: WorkerIdentity, options: WorkerCoreOptions<V, Sent> = {}) {
    this.self = self;
    this.#options = options;
    const incarnations = (device: string): bigint | undefined => (this.#workerOf(device) === self.device ? self.incarnation : undefined);
    const onDropped = (value: Sent, cause?: ShoalError): void => (value as { release?: Release }).release?.(cause);
    this.steps = new StepTable({ incarnations, onDropped, ...options });
  }

  /** The tensors that are sent from here, for those who ask over connections. */
  get sent(): RemoteWorkerOptions['sent'] {
    // `prepare` makes tensors of values.
    return this.steps as unknown as RemoteWorkerOptions['sent'];
  }

  /** A request was sent for the step. */
  countRequest(stepId: number): void {
    const step = this.#open.get(stepId);
    if (step !== undefined) step.requests++;
  }

  /** Tensors of the worker come over this carrier from now on; another of its incarnations is forgotten. */
  attach(identity: WorkerIdentity, carrier: TensorCarrier): void {
    if (identity.device === this.self.device)
      throw new ShoalError(
        'config',
        `worker ${identity.rank} has device ${identity.device}, which is this worker's; devices have names of their own`,
      );
    this.#peers.set(identity.device, { identity, carrier, incarnation: `${incarnationText(identity.incarnation)};` });
    this.#lost.delete(identity.device);
  }

  /** The worker is lost: what was sent to it and not asked for fails, and what is asked of it or sent to it from now on. */
  detach(carrier: TensorCarrier, cause: ShoalError): void {
    for (const [worker, peer] of this.#peers) {
      if (peer.carrier !== carrier) continue;
      if (this.#options.find !== undefined) {
        this.#peers.delete(worker);
        continue;
      }
      this.#lost.set(worker, cause);
      for (const [stepId, step] of this.#open)
        step.withdraw((key) => {
          const { name, recvDevice } = parseRendezvousKey(key);
          return recvDevice === worker ? failureOf(`'${name}' for ${recvDevice} was not taken in step ${stepId}`, cause) : undefined;
        });
    }
  }

  /** The key of a tensor that goes from one worker's device to another's. */
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

  beginStep(stepId: number): StepRendezvous<V, Sent> {
    const { values = tensorValues as unknown as StepValues<V, Sent> } = this.#options;
    const step = new StepRendezvous<V, Sent>({
      stepId,
      local: this.steps.begin(stepId),
      values,
      carrierOf: (key) => this.#carrierOf(key),
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

  async close(cause = new ShoalError('closed', `the rendezvous worker ${this.self.device} is closed`)): Promise<void> {
    if (this.#closed) return;
    this.#closed = true;
    for (const stepId of [...this.#open.keys()]) this.endStep(stepId, cause);
    this.steps.close(cause);
    await Promise.all([...this.#peers.values()].map(({ carrier }) => carrier.close()));
  }

  /** @returns undefined for a key that is sent here. @throws ShoalError `usage`, `mismatch`, or the reason for which the worker is lost. */
  #carrierOf(key: string): TensorCarrier | undefined {
    const end = key.indexOf(';');
    const worker = this.#workerOf(key.slice(0, end));
    if (worker === this.self.device) return undefined;
    const peer = this.#peers.get(worker) ?? this.#find(worker, key);
    const { identity, incarnation, carrier } = peer;
    if (identity === undefined) return carrier;
    if (!key.startsWith(incarnation, end + 1)) checkIncarnation(parseRendezvousKey(key), () => identity.incarnation);
    const lost = this.#lost.get(worker);
    if (lost !== undefined) throw failureOf(`'${parseRendezvousKey(key).name}' cannot be asked of ${worker}`, lost);
    return carrier;
  }

  #find(worker: string, key: string): Peer {
    const { name, sendDevice } = parseRendezvousKey(key);
    const { find } = this.#options;
    if (find === undefined)
      throw new ShoalError('usage', `'${name}' is asked of ${sendDevice}, to which there is no connection; connect to its worker first`);
    const peer: Peer = { carrier: find(worker), identity: undefined, incarnation: '' };
    this.#peers.set(worker, peer);
    return peer;
  }

  #workerOf(device: string): string {
    return this.#options.workerOf?.(device) ?? device;
  }

  #checkReceiver(key: string): void {
    if (this.#lost.size === 0) return;
    const { name, recvDevice } = parseRendezvousKey(key);
    const lost = this.#lost.get(recvDevice);
    if (lost !== undefined) throw failureOf(`'${name}' cannot be sent to ${recvDevice}`, lost);
  }
}
