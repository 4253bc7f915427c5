/** Values in the memory of WebGPU devices, on one task: they go there for kernels that compute there, and come back for all others.
 *
 *      another task ── pieces ──▶ buffer ──▶ kernel of the device ──▶ its buffer ── pieces ──▶ another task
 *      a value here ── copied ──▶                                              ── copied ──▶ a kernel without a device
 *
 *  Buffers that are made for a step are destroyed when the step has ended on the task. */
import { getOrMake } from '../../base/collections/lists.ts';
import { ShoalError } from '../../base/errors.ts';
import { copyAlignment, type GpuDevice } from '../../memory/device/gpu.ts';
import { isOnDevice, type DeviceTensor } from '../../memory/device/device-tensor.ts';
import type { DType } from '../../memory/dtype.ts';
import { receiveOnDevice } from '../../rendezvous/device/device-arrival.ts';
import { WorkerDevices } from '../../rendezvous/device/worker-devices.ts';
import type { PieceSink } from '../../rendezvous/protocol/tensor-carrier.ts';
import { hostValue, type StagedTensor } from '../../rendezvous/value/staged-tensor.ts';
import { elementsOf } from '../structure/elements.ts';
import { elementBytes, type GraphDType } from '../structure/graph-dtype.ts';
import { knownCount, type Shape } from '../structure/shape.ts';
import type { Value } from '../structure/value.ts';

/** Asks for a value. @param sink told of pieces that come from another task. */
type Ask = (sink?: PieceSink, signal?: AbortSignal) => Promise<Value | undefined>;

export class DeviceValues {
  readonly #devices = new WorkerDevices();
  /** Callbacks of the end, by step that has begun and not ended. */
  readonly #ends = new Map<number, (() => void)[]>();

  /** The step begins on the task: also for each further partition. */
  begin(stepId: number): void {
    getOrMake(this.#ends, stepId, () => []);
  }

  /** Ends the step, whose values nobody reads any more: makes all callbacks. @returns the first failure of a callback, with which a step
   *  fails that has not failed by itself. */
  end(stepId: number): ShoalError | undefined {
    const ends = this.#ends.get(stepId) ?? [];
    this.#ends.delete(stepId);
    let failure: ShoalError | undefined;
    for (const callback of ends) {
      try {
        callback();
      } catch (thrown) {
        const { code, message } = ShoalError.from(thrown, 'aborted');
        failure ??= new ShoalError(code, `a callback at the end of step ${stepId} (atEnd) failed: ${message}`, { cause: thrown });
      }
    }
    return failure;
  }

  /** Calls back at the end of the step; at once if it has ended. */
  atEnd(stepId: number, callback: () => void): void {
    const ends = this.#ends.get(stepId);
    if (ends === undefined) callback();
    else ends.push(callback);
  }

  /** A tensor as it is read into host memory, piece by piece. */
  staged(tensor: DeviceTensor): StagedTensor {
    return this.#devices.staged(tensor, () => undefined);
  }

  /** @throws ShoalError of the device. */
  async toHost(value: Value): Promise<Value> {
    return isOnDevice(value) ? hostValue(this.staged(value)) : value;
  }

  /** The value in a buffer of the device, or as it is when it does not fit one; undefined: it is dead. @throws ShoalError of the device, and of `ask`. */
  async toDevice(stepId: number, device: GpuDevice, signal: AbortSignal, ask: Ask): Promise<Value | undefined> {
    let own: Value | undefined;
    const received = await receiveOnDevice(this.#devices, { device }, signal, async (sink, ending) => {
      const value = await ask(sink, ending);
      const isElsewhere = !isOnDevice(value) || value.device !== device;
      if (value !== undefined && isElsewhere && fitsDevice(value.dtype, value.shape))
        return { dtype: value.dtype as DType, shape: value.shape, data: elementsOf(await this.toHost(value)) };
      own = value;
      return undefined;
    });
    if (received !== undefined) this.atEnd(stepId, () => received.buffer.destroy());
    return own ?? received;
  }

  /** Ends the copies. */
  close(): void {
    this.#devices.close();
  }
}

/** Can every tensor of this dtype and shape be in a device's memory? Strings, no elements at all, and sizes that copies of devices cannot
 *  end at stay in host memory. */
export function fitsDevice(dtype: string, shape: Shape): boolean {
  // Whatever the unknown dimensions are, the bytes are a multiple of these.
  const bytes = knownCount(shape) * (elementBytes(dtype as GraphDType) ?? 0);
  return bytes > 0 && bytes % copyAlignment === 0;
}
