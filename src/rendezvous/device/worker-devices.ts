/** The devices of a worker's tensors: copies out of their memory and into it, and notice of their loss. */
import type { ShoalError } from '../../base/errors.ts';
import { DeviceCopies } from '../../memory/device/device-copies.ts';
import type { DeviceTensor } from '../../memory/device/device-tensor.ts';
import type { GpuDevice } from '../../memory/device/gpu.ts';
import type { StagedTensor } from '../value/staged-tensor.ts';

/** One device. */
export interface WorkerDevice {
  readonly copies: DeviceCopies;
  /** Functions that are called once when nothing can be copied any more. */
  readonly onEnd: Set<(cause: ShoalError) => void>;
}

export class WorkerDevices {
  readonly #devices = new Map<GpuDevice, WorkerDevice>();
  /** Bytes that were copied between staging and proxies, both ways. */
  bytesCopied = 0;

  of(device: GpuDevice): WorkerDevice {
    const known = this.#devices.get(device);
    if (known) return known;
    const onEnd = new Set<(cause: ShoalError) => void>();
    const copies = new DeviceCopies(device, {
      onEnd: (cause) => {
        this.#devices.delete(device);
        for (const tell of [...onEnd]) tell(cause);
      },
    });
    const made = { copies, onEnd };
    this.#devices.set(device, made);
    return made;
  }

  /** A tensor of a device, as it is sent. @param released as `StagedTensor.release`. */
  staged(tensor: DeviceTensor, released: StagedTensor['release']): StagedTensor {
    const { device, buffer, byteOffset, dtype, shape, bytes } = tensor;
    return {
      dtype,
      shape,
      bytes,
      read: (at, target) => {
        this.bytesCopied += target.length;
        return this.of(device).copies.read({ buffer, byteOffset: byteOffset + at }, target);
      },
      release: released,
    };
  }

  close(): void {
    for (const { copies } of [...this.#devices.values()]) copies.close();
  }
}
