/** One step as a program sees it: tensors by name, to and from other workers. */
import type { Clock, Timer } from '../base/clock.ts';
import { ShoalError } from '../base/errors.ts';
import { abortSignal, anyList, anything, checkArgument, checkOptions, describeValue, optionTable } from '../base/schema.ts';
import { checkDevice, isOnDevice, type DeviceTensor } from '../memory/device/device-tensor.ts';
import type { GpuDevice } from '../memory/device/gpu.ts';
import { dtypeOfArray, type TypedArray } from '../memory/dtype.ts';
import type { StepRendezvous } from './carriers/step-rendezvous.ts';
import type { WorkerIdentity } from './carriers/tensor-connection.ts';
import type { WorkerCore } from './carriers/worker-core.ts';
import { receiveOnDevice, type ArrivalTarget } from './device/device-arrival.ts';
import type { WorkerDevices } from './device/worker-devices.ts';
import type { RecvOptions } from './table/rendezvous.ts';
import type { SentValue } from './value/staged-tensor.ts';
import { checkTensorValue, type Release, type TensorValue } from './value/tensor-value.ts';

/** A value that can be sent: a tensor of Shoal or anything with its fields; one of a device; a typed array, as a vector; a string or
 *  several. */
export type Sendable = Pick<TensorValue, 'dtype' | 'shape' | 'data'> | DeviceTensor | TypedArray | string | readonly string[];

/** A tensor that has come. Its memory is used again when it is released; what is not released counts against `memoryBytesMax`. */
export interface ReceivedTensor extends TensorValue, Disposable {
  release(): void;
}

/** Where a received tensor is put, instead of into host memory. */
export interface DeviceRecvOptions extends RecvOptions {
  /** Into this one's memory: its dtype and bytes must be those of what comes. */
  readonly into?: DeviceTensor;
  /** Into a buffer that is made for it, with COPY_SRC, COPY_DST and STORAGE. It is the caller's. */
  readonly device?: GpuDevice;
}

/** The time within which a sent tensor must be asked for. */
export interface SendLimits {
  readonly clock: Clock;
  readonly timeoutMs: number;
}

const recvKeys = optionTable<DeviceRecvOptions>({ signal: abortSignal, into: anything, device: anything });
const recvFusedKeys = optionTable<RecvOptions>({ signal: abortSignal });

/** One step of a worker: a name is sent once and received once in it, in either order. Values of different steps never meet. Made by
 *  `RendezvousWorker.beginStep`; calls after its end are `usage` or fail with its cause. */
export class WorkerStep {
  /** The number given to `beginStep`: the same at both ends. */
  readonly stepId: number;
  readonly #core: WorkerCore;
  readonly #devices: WorkerDevices;
  readonly #limits: SendLimits;
  readonly #rendezvous: StepRendezvous<TensorValue, SentValue>;

  constructor(core: WorkerCore, devices: WorkerDevices, stepId: number, limits: SendLimits) {
    this.#core = core;
    this.#devices = devices;
    this.#limits = limits;
    this.stepId = stepId;
    this.#rendezvous = core.beginStep(stepId);
  }

  /** For `to` to receive by this name, once. Resolves when the value may be changed: it has left, or the step has ended and nobody will ask
   *  for it. Rejects with `peer-lost` when `to` is lost before that, with `timeout` when it does not ask within the worker's `timeoutMs`,
   *  and when a tensor of a device could not be read, which the receiver is told as well. Such a failure is no unhandled rejection where
   *  nobody awaits it.
   *  @throws ShoalError `usage` for a name that was sent already, and for what is no value. */
  send(to: WorkerIdentity, name: string, value: Sendable): Promise<void> {
    const { clock, timeoutMs } = this.#limits;
    let release!: Release;
    const sent = new Promise<void>((resolve, reject) => {
      release = (cause) => {
        timer?.cancel();
        if (cause === undefined) resolve();
        else reject(cause);
      };
    });
    sent.catch(() => undefined);
    let timer: Timer | undefined;
    const sendable = isOnDevice(value) ? this.#devices.staged(value, release) : { ...hostValueOf(value), release };
    try {
      const key = tensorKey(this.#core, name, this.#core.self, to);
      const late = (): ShoalError => {
        const message = `'${name}' was not asked for by ${to.device} within ${timeoutMs} ms of step ${this.stepId}; has it begun the step, and does it receive this name?`;
        return new ShoalError('timeout', message, { timeoutMs });
      };
      timer = clock.setTimer(timeoutMs, () => this.#rendezvous.withdraw((each) => (each === key ? late() : undefined)));
      this.#rendezvous.send(key, sendable);
    } catch (thrown) {
      const cause = ShoalError.from(thrown);
      if (cause.code === 'usage') {
        timer?.cancel();
        return Promise.reject(cause);
      }
      release(cause);
    }
    return sent;
  }

  /** Says to who receives the name that there is no value in this step. */
  sendDead(to: WorkerIdentity, name: string): void {
    this.#rendezvous.send(tensorKey(this.#core, name, this.#core.self, to), undefined);
  }

  /** Waits for the tensor that `from` sends by this name in this step; undefined when it is dead. */
  recv(from: WorkerIdentity, name: string, options?: RecvOptions & { into?: never; device?: never }): Promise<ReceivedTensor | undefined>;
  /** The same, into a device's memory. Until it resolves no command may use the buffer of `into`; when it rejects, what that has is
   *  undefined. */
  recv(from: WorkerIdentity, name: string, options: DeviceRecvOptions): Promise<DeviceTensor | undefined>;
  async recv(from: WorkerIdentity, name: string, options?: DeviceRecvOptions): Promise<ReceivedTensor | DeviceTensor | undefined> {
    checkOptions('recv', options, recvKeys);
    const key = tensorKey(this.#core, name, from, this.#core.self);
    const target = options === undefined ? undefined : targetOf(options);
    if (target === undefined) return received(await this.#rendezvous.recvAsync(key, options));
    return receiveOnDevice(this.#devices, target, options?.signal, (sink, signal) => this.#rendezvous.recvAsync(key, { signal }, sink));
  }

  /** One request for several names: waits for all. */
  async recvFused(from: WorkerIdentity, names: readonly string[], options?: RecvOptions): Promise<(ReceivedTensor | undefined)[]> {
    checkArgument('recvFused: names', names, anyList);
    checkOptions('recvFused', options, recvFusedKeys);
    const keys = names.map((name) => tensorKey(this.#core, name, from, this.#core.self));
    return (await this.#rendezvous.recvFused(keys, options)).map(received);
  }

  /** Ends the step: receives that wait fail, and values that were sent and not asked for are dropped. */
  end(): void {
    this.#core.endStep(this.stepId);
  }

  /** Ends the step with a cause, which everybody who waits for it is told, here and elsewhere. */
  abort(cause: Error): void {
    if (!(cause instanceof Error)) throw new ShoalError('usage', `abort: the cause must be an Error, not ${describeValue(cause)}`);
    this.#core.endStep(this.stepId, new ShoalError('aborted', `step ${this.stepId} was aborted: ${cause.message}`, { cause }));
  }
}

/** @throws ShoalError `usage` for what is no name, and for what are no workers. */
export function tensorKey(core: WorkerCore, name: string, from: WorkerIdentity, to: WorkerIdentity): string {
  if (typeof name !== 'string' || name === '' || name.length > nameCharactersMax || name.includes(';')) {
    const message = `the name of a tensor must be a text of 1 to ${nameCharactersMax} characters without ';', not ${describeValue(name).slice(0, 100)}`;
    throw new ShoalError('usage', message);
  }
  for (const worker of [from, to])
    if (typeof worker?.device !== 'string') {
      const message = `'${name}' must go between workers: pass what \`connect\` or \`peer\` gives, not ${describeValue(worker)}`;
      throw new ShoalError('usage', message);
    }
  return core.key(name, from, to);
}

const nameCharactersMax = 1000;

/** @throws ShoalError `usage` for what is no tensor of a device or no device, and for both. */
function targetOf({ into, device }: DeviceRecvOptions): ArrivalTarget | undefined {
  if (into !== undefined && device !== undefined) throw new ShoalError('usage', 'recv: `into` names a device already; leave out `device`');
  if (into !== undefined && !isOnDevice(into))
    throw new ShoalError('usage', `recv: \`into\` must be a DeviceTensor, not ${describeValue(into)}`);
  if (into !== undefined) return { into };
  if (device === undefined) return undefined;
  checkDevice('recv', device);
  return { device };
}

/** A value without the `release` of a received one. @throws ShoalError `usage` for anything that is no value. */
function hostValueOf(value: Exclude<Sendable, DeviceTensor>): TensorValue {
  const { dtype, shape, data } = checkTensorValue(valueOf(value));
  return { dtype, shape, data };
}

function valueOf(value: Sendable): TensorValue {
  if (typeof value === 'string') return { dtype: 'string', shape: [], data: [value] };
  if (Array.isArray(value) && value.every((each) => typeof each === 'string'))
    return { dtype: 'string', shape: [value.length], data: value };
  if (ArrayBuffer.isView(value) && !(value instanceof DataView)) return { dtype: dtypeOfArray(value), shape: [value.length], data: value };
  return value as TensorValue;
}

function received(value: TensorValue | undefined): ReceivedTensor | undefined {
  if (value === undefined) return undefined;
  const { dtype, shape, data } = value;
  const release = (): void => value.release?.();
  return { dtype, shape, data, release, [Symbol.dispose]: release };
}
