/** Opens a device of this process, for tensors in its memory. The package that finds one is loaded when a program asks: most
 *  ranks have none. */
import type { Gpu, GpuAdapter, GpuDevice } from './gpu.ts';

/** A device, with the objects that it depends on. */
export interface OpenDevice {
  /** The device, for `DeviceTensor`, and for programs' own shaders. */
  readonly device: GpuDevice;
  /** Dawn's instance, which is `navigator.gpu` in browsers: there is one for the whole process. */
  readonly gpu: Gpu;
  /** The GPU, or the software driver, that the device belongs to: `adapter.info` names it, `adapter.limits` bounds its buffers. */
  readonly adapter: GpuAdapter;
}

/** Opens a device of the first adapter that the driver has, with the largest buffers that it allows. The device is the caller's:
 *  `device.destroy()` ends it. @throws ShoalError `unsupported` where there is no package, or no adapter. */
export async function openDevice(): Promise<OpenDevice> {
  const { findAdapter } = await import('./webgpu-adapter.ts');
  const { gpu, adapter } = await findAdapter();
  const { maxBufferSize, maxStorageBufferBindingSize } = adapter.limits;
  const device = await adapter.requestDevice({ requiredLimits: { maxBufferSize, maxStorageBufferBindingSize } });
  return { device, gpu, adapter };
}
