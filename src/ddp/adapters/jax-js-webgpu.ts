/** jax-js on WebGPU in Node.js: the package `webgpu`, where jax-js looks for it. */
import { defaultDevice, getWebGPUDevice, init } from '@jax-js/jax';
import { ShoalError } from '../../base/errors.ts';
import { describeAdapter, findAdapter } from '../../memory/device/webgpu-adapter.ts';

/** The device that `initWebGpu` has opened for jax-js. */
export interface WebGpuSession {
  /** The device that computes, as text for people. */
  readonly adapter: string;
  /** Ends the device. No array of it may be used afterwards. Idempotent. */
  close(): void;
}

/** Makes `webgpu` the default device of jax-js in this process. It defines `navigator.gpu` and the global names of WebGPU, where
 *  jax-js looks for them, as in browsers.
 *  @throws ShoalError `unsupported` where there is no package `webgpu` or no driver; the message says what to do. */
export async function initWebGpu(): Promise<WebGpuSession> {
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
      delete navigator.gpu;
    },
  };
}
