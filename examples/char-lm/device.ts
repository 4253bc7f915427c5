/** Starts the device that jax-js computes on: wasm or WebGPU. */
import { defaultDevice, init } from '@jax-js/jax';
import { initWebGpu } from 'shoal/ddp/jax-js';

export interface Device {
  /** Name of the GPU; none for wasm. */
  readonly adapter?: string;
  close(): void;
}

/** @param name wasm, or webgpu: by the package `webgpu`, where there is a Vulkan driver. */
export async function computeOn(name: string): Promise<Device> {
  if (name === 'webgpu') return initWebGpu();
  if (name !== 'wasm') throw new Error(`--device ${name}: wasm or webgpu is needed`);
  await init('wasm'); // single-threaded under Node.js
  defaultDevice('wasm');
  return { close: () => {} };
}
