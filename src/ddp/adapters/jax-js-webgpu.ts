/** jax-js on WebGPU in Node.js: the package `webgpu`, where jax-js looks for it. */
import { defaultDevice, getWebGPUDevice, init } from '@jax-js/jax';
import { ShoalError } from '../../base/errors.ts';
import { describeAdapter, findAdapter } from '../../memory/device/webgpu-adapter.ts';
import { nativeUnavailableReason } from '../../memory/native.ts';

/** The device that `initWebGpu` has opened for jax-js. */
export interface WebGpuSession {
  /** For people: which device computes. */
  readonly adapter: string;
  /** Ends the device, and what holds it: the process can exit. No array of it may be used afterwards. Idempotent. */
  close(): void;
}

/** Makes `webgpu` the default device of jax-js in this process. It defines what browsers have, as jax-js looks there: `navigator.gpu`
 *  and the global names of WebGPU.
 *  @throws ShoalError `unsupported` where there is no package `webgpu`, no driver or no native addon; the message says what to do. */
export async function initWebGpu(): Promise<WebGpuSession> {
  // Dawn ends the process at the first average otherwise.
  const reason = nativeUnavailableReason();
  if (reason !== undefined) throw new ShoalError('unsupported', `jax-js on device webgpu needs the native addon: ${reason}; or use wasm`);
  const { gpu, globals, adapter } = await findAdapter();
  Object.assign(globalThis, globals);
  const place = globalThis as { navigator?: object };
  if (place.navigator === undefined) {
    const navigator = { userAgent: `Node.js/${process.versions.node}` };
    Object.defineProperty(globalThis, 'navigator', { value: navigator, configurable: true, writable: true });
  }
  const navigator = place.navigator as { gpu?: unknown };
  Object.defineProperty(navigator, 'gpu', { value: gpu, configurable: true, writable: true });
  if (!(await init('webgpu')).includes('webgpu')) {
    delete navigator.gpu;
    throw new ShoalError('unsupported', `jax-js refuses the device ${describeAdapter(adapter)}: it lacks what its kernels need; use wasm`);
  }
  defaultDevice('webgpu');
  return {
    adapter: describeAdapter(adapter),
    close: () => {
      if (navigator.gpu === undefined) return;
      getWebGPUDevice().destroy();
      // Dawn runs for as long as something refers to it.
      delete navigator.gpu;
    },
  };
}
