/** Makes buffers of a device, or throws the reason why it cannot: WebGPU reports that beside the call, in error scopes. */
import { messageOf, ShoalError } from '../../base/errors.ts';
import type { GpuBuffer, GpuDevice } from './gpu.ts';

export interface DeviceBufferOptions {
  readonly size: number;
  readonly usage: number;
  readonly mappedAtCreation?: boolean;
}

/** @param what for messages: `a proxy buffer`. @throws ShoalError `out-of-memory` when the device has no room. */
export async function createDeviceBuffer(device: GpuDevice, what: string, options: DeviceBufferOptions): Promise<GpuBuffer> {
  device.pushErrorScope('out-of-memory');
  device.pushErrorScope('validation');
  let buffer: GpuBuffer | undefined;
  let thrown: unknown;
  try {
    buffer = device.createBuffer({ ...options, label: `shoal: ${what}` });
  } catch (error) {
    thrown = error;
  }
  const [invalid, exhausted] = await Promise.all([device.popErrorScope(), device.popErrorScope()]);
  if (buffer && !invalid && !exhausted) return buffer;
  buffer?.destroy();
  const why = exhausted?.message ?? invalid?.message ?? messageOf(thrown);
  const message = `the device has no room for ${what} of ${options.size} bytes (${why}); free buffers of the device`;
  throw new ShoalError('out-of-memory', message, { bytes: options.size, resource: 'device memory', cause: thrown });
}
