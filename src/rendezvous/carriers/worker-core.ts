/** One worker's part in all steps: the rendezvous of each, requests that precede their step, and the other workers. Requests of other
 *  workers are parked until their step begins, up to a bound. Ended steps are remembered, up to a bound, so that late requests fail at
 *  once. It must not know how connections are made. */
import { Fifo } from '../../base/collections/fifo.ts';
import { getOrMake } from '../../base/collections/lists.ts';
import { failureOf, ShoalError } from '../../base/errors.ts';
import type { TensorCarrier } from '../protocol/tensor-carrier.ts';
import type { Asker, Cancel, Waiter } from '../table/rendezvous.ts';
import { checkIncarnation, formatRendezvousKey, incarnationText, parseRendezvousKey } from '../table/rendezvous-key.ts';
import { StepRendezvous, type OtherWorkers, type StepRendezvousOptions, type StepValues, type ValueOptions } from './step-rendezvous.ts';
import { hostValue, isStaged, type SentValue } from '../value/staged-tensor.ts';
import { checkTensorValue, type Release, type TensorValue } from '../value/tensor-value.ts';
import type { RemoteWorkerOptions } from './remote-worker.ts';
import type { WorkerIdentity } from './tensor-connection.ts';
import { nothingToCancel } from '../protocol/tensor-response.ts';

/** Bounds on the memory of steps. */
export interface StepBounds {
  /** Steps at a time. Default 1,024. */
  readonly stepsMax?: number;
  /** Requests that wait for their step to begin. Default 65,536. */
  readonly parkedMax?: number;
  /** Ended steps that are remembered. Default 4,096. */
  readonly endedMax?: number;
}

/** Values are tensors unless `values` says more. */
export interface WorkerCoreOptions<V, Sent> extends StepBounds, ValueOptions<V, Sent> {
  /** The worker that a device belongs to. Default: the one of that name. */
  readonly workerOf?: (device: string) => string;
  /** Makes the carrier of a worker, which `detach` forgets. Default: workers are made known by `attach`, and stay known as lost. */
  readonly find?: (worker: string) => TensorCarrier;
}

const tensorValues: StepValues<TensorValue, SentValue> = {
  // The maker of a staged value has checked it.
  check: (value) => (typeof value === 'object' && value !== null && isStaged(value)) || checkTensorValue(value),
  received: hostValue,
};

/** Another worker. */
interface Peer {
  readonly carrier: TensorCarrier;
  /** Undefined: found by name; its incarnation is not looked at here. */
  readonly identity: WorkerIdentity | undefined;
  /** The incarnation, as keys have it. */
  readonly incarnation: string;
}

/** A request of another worker for a step that has not begun. */
interface Parked<Sent> {
  readonly key: string;
  readonly waiter: Waiter<Sent>;
  readonly asker: Asker | undefined;
  cancel: Cancel;
}

/** Keys of one step. */
const keysMax = 1_000_000;
/** Keys that are kept from one worker to another. */
const keptKeysMax = 65_536;

export class WorkerCore<V = TensorValue, Sent = SentValue> implements OtherWorkers {
  readonly self: WorkerIdentity;
  readonly #options: WorkerCoreOptions<V, Sent>;
  readonly #bounds: Required<StepBounds>;
  readonly #stepOptions: StepRendezvousOptions<V, Sent>;
  /** This worker's incarnation, as keys have it. */
  readonly #incarnation: string;
  /** Steps that have begun and not ended. */
  readonly #steps = new Map<number, StepRendezvous<V, Sent>>();
  readonly #parked = new Map<number, Set<Parked<Sent>>>();
  #parkedCount = 0;
  /** The reason for which a step ended, by step. */
  readonly #ended = new Map<number, () => ShoalError>();
  /** The same steps, in the order in which they ended. */
  readonly #endings = new Fifo<number>();
  readonly #peers = new Map<string, Peer>();
  /** The reason, by worker, for which it can neither be asked nor ask any more. */
  readonly #lost = new Map<string, ShoalError>();
  /** Keys by sender, receiver and name. */
  readonly #keys = new WeakMap<WorkerIdentity, WeakMap<WorkerIdentity, Map<string, string>>>();
  #closed: ShoalError | undefined;

  constructor(self: WorkerIdentity, options: WorkerCoreOptions<V, Sent> = {}) {
    this.self = self;
    this.#incarnation = `${incarnationText(self.incarnation)};`;
    this.#options = options;
    const { stepsMax = 1024, parkedMax = 65_536, endedMax = 4096, ...values } = options;
    this.#bounds = { stepsMax, parkedMax, endedMax };
    this.#stepOptions = {
      values: tensorValues as unknown as StepValues<V, Sent>,
      onDropped: (value, cause) => (value as { release?: Release }).release?.(cause),
      ...values,
      keysMax,
      others: this,
    };
  }

  /** The tensors that are sent from here, for those who ask over connections. */
  get sent(): RemoteWorkerOptions['sent'] {
    // `prepare` makes tensors of values.
    return this as unknown as RemoteWorkerOptions['sent'];
  }

  /** Requests that wait for their step to begin. */
  get parked(): number {
    return this.#parkedCount;
  }

  // ── steps ──────────────────────────────────────────────────────────────────────────────────────────────────────

  /** Begins a step, and serves what was parked for it.
   *  @throws ShoalError `usage` for a step that has begun already or has ended, `out-of-memory` beyond `stepsMax`. */
  beginStep(stepId: number): StepRendezvous<V, Sent> {
    if (this.#closed !== undefined) throw this.#closed;
    checkStepId(stepId);
    const { stepsMax } = this.#bounds;
    if (this.#steps.has(stepId)) throw new ShoalError('usage', `step ${stepId} has begun already`);
    const ended = this.#ended.get(stepId)?.();
    if (ended !== undefined) throw new ShoalError('usage', `step ${stepId} cannot begin: ${ended.message}`, { cause: ended });
    if (this.#steps.size >= stepsMax)
      throw new ShoalError('out-of-memory', `${stepsMax} steps have begun and not ended; end some, or raise stepsMax`);
    const step = new StepRendezvous(stepId, this.#stepOptions);
    this.#steps.set(stepId, step);
    for (const parked of this.#unpark(stepId)) parked.cancel = takeFrom(step, parked.key, parked.waiter, parked.asker);
    return step;
  }

  /** A request of another worker. The waiter is told of every failure, and may be called before this returns. */
  take(stepId: number, key: string, waiter: Waiter<Sent>, asker?: Asker): Cancel {
    const step = this.#steps.get(stepId);
    if (step !== undefined) return takeFrom(step, key, waiter, asker);
    const cause = this.#closed ?? this.#ended.get(stepId)?.() ?? this.#full(stepId);
    if (cause === undefined) return this.#park(stepId, key, waiter, asker);
    waiter.fail(cause);
    return nothingToCancel;
  }

  /** A value that another worker was given has not left. @returns false when it cannot be asked for any more. */
  giveBack(stepId: number, key: string, value: Sent): boolean {
    return this.#steps.get(stepId)?.giveBack(key, value) ?? false;
  }

  /** A request was sent for the step. */
  countRequest(stepId: number): void {
    const step = this.#steps.get(stepId);
    if (step !== undefined) step.requests++;
  }

  /** Ends a step, also one that has not begun: what waits for it fails, and it will not begin. @param cause default: that it has ended. */
  endStep(stepId: number, cause?: ShoalError): void {
    checkStepId(stepId);
    if (!this.#ended.has(stepId)) this.#end(stepId, () => cause ?? new ShoalError('aborted', `step ${stepId} has ended`));
    for (const { carrier } of this.#peers.values()) carrier.endStep(stepId);
  }

  /** Ends all steps; none will begin. */
  endSteps(cause: ShoalError): void {
    this.#closed ??= cause;
    for (const stepId of new Set([...this.#steps.keys(), ...this.#parked.keys()])) this.endStep(stepId, cause);
  }

  /** Ends all steps, and the carriers. */
  async close(cause = new ShoalError('closed', `the rendezvous worker ${this.self.device} is closed`)): Promise<void> {
    this.endSteps(cause);
    await Promise.all([...this.#peers.values()].map(({ carrier }) => carrier.close()));
  }

  /** @param cause makes it when somebody is told. */
  #end(stepId: number, cause: () => ShoalError): void {
    this.#ended.set(stepId, cause);
    this.#endings.push(stepId);
    // The first key of a map is found behind all that were deleted before it: the queue knows it at once.
    if (this.#ended.size > this.#bounds.endedMax) this.#ended.delete(this.#endings.shift()!);
    const step = this.#steps.get(stepId);
    this.#steps.delete(stepId);
    step?.end(cause);
    for (const { waiter } of this.#unpark(stepId)) waiter.fail(cause());
  }

  #full(stepId: number): ShoalError | undefined {
    const { parkedMax } = this.#bounds;
    if (this.#parkedCount < parkedMax) return undefined;
    return new ShoalError('out-of-memory', `step ${stepId} has not begun, and ${parkedMax} requests wait for such steps already`);
  }

  #park(stepId: number, key: string, waiter: Waiter<Sent>, asker: Asker | undefined): Cancel {
    const ofStep = getOrMake(this.#parked, stepId, () => new Set<Parked<Sent>>());
    const parked: Parked<Sent> = {
      key,
      waiter,
      asker,
      cancel: () => {
        if (!ofStep.delete(parked)) return;
        this.#parkedCount--;
        if (ofStep.size === 0) this.#parked.delete(stepId);
      },
    };
    ofStep.add(parked);
    this.#parkedCount++;
    return () => parked.cancel();
  }

  /** The parked requests, in the order in which they came. */
  #unpark(stepId: number): readonly Parked<Sent>[] {
    const parked = [...(this.#parked.get(stepId) ?? [])];
    this.#parked.delete(stepId);
    this.#parkedCount -= parked.length;
    for (const each of parked) each.cancel = nothingToCancel;
    return parked;
  }

  // ── other workers ──────────────────────────────────────────────────────────────────────────────────────────────

  /** Tensors of the worker come over this carrier from now on; another of its incarnations is forgotten. */
  attach(identity: WorkerIdentity, carrier: TensorCarrier): void {
    if (identity.device === this.self.device) {
      const message = `worker ${identity.rank} has device ${identity.device}, which is this worker's; devices have names of their own`;
      throw new ShoalError('config', message);
    }
    this.#peers.set(identity.device, { identity, carrier, incarnation: `${incarnationText(identity.incarnation)};` });
    this.#lost.delete(identity.device);
  }

  /** The worker is lost: what was sent to it and not asked for fails, and what is asked of it or sent to it from now on. */
  detach(worker: string, cause: ShoalError): void {
    if (this.#options.find !== undefined) {
      this.#peers.delete(worker);
      return;
    }
    this.#lost.set(worker, cause);
    for (const [stepId, step] of this.#steps)
      step.withdraw((key) => {
        const { name, recvDevice } = parseRendezvousKey(key);
        return recvDevice === worker ? failureOf(`'${name}' for ${recvDevice} was not taken in step ${stepId}`, cause) : undefined;
      });
  }

  /** The key of a tensor that goes from one worker's device to another's. */
  key(name: string, from: WorkerIdentity, to: WorkerIdentity): string {
    // One string for all steps: tables find it by a hash that it has already.
    let names = this.#keys.get(from)?.get(to);
    if (names === undefined || names.size >= keptKeysMax) {
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

  /** @returns undefined for a key that is sent here. @throws ShoalError `usage`, `mismatch`, or the reason for which the worker is lost. */
  carrierOf(key: string): TensorCarrier | undefined {
    const end = key.indexOf(';');
    const worker = this.#workerOf(key.slice(0, end));
    if (worker === this.self.device) return undefined;
    const peer = this.#peers.get(worker) ?? this.#find(worker, key);
    const { identity, incarnation, carrier } = peer;
    if (identity === undefined) return carrier;
    if (!key.startsWith(incarnation, end + 1)) checkIncarnation(parseRendezvousKey(key), identity.incarnation);
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

  checkSender(key: string): void {
    const end = key.indexOf(';');
    const own = this.#workerOf(key.slice(0, end)) === this.self.device ? this.self : undefined;
    // Each tensor passes here, and a comparison of text takes less time than reading the key.
    if (!own || !key.startsWith(this.#incarnation, end + 1)) checkIncarnation(parseRendezvousKey(key), own?.incarnation);
  }

  checkReceiver(key: string): void {
    if (this.#lost.size === 0) return;
    const { name, recvDevice } = parseRendezvousKey(key);
    const lost = this.#lost.get(recvDevice);
    if (lost !== undefined) throw failureOf(`'${name}' cannot be sent to ${recvDevice}`, lost);
  }
}

function takeFrom<V, Sent>(step: StepRendezvous<V, Sent>, key: string, waiter: Waiter<Sent>, asker: Asker | undefined): Cancel {
  try {
    return step.take(key, waiter, asker);
  } catch (thrown) {
    waiter.fail(ShoalError.from(thrown));
    return nothingToCancel;
  }
}

/** @throws ShoalError `usage` for anything but an integer from 0 to 2^53 − 1. */
export function checkStepId(stepId: number): void {
  if (!Number.isSafeInteger(stepId) || stepId < 0)
    throw new ShoalError('usage', `${stepId} is no step id: it must be an integer from 0 to 2^53 − 1`);
}
