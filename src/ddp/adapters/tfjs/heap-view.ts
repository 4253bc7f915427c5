/** Elements of TensorFlow.js tensors without a copy, where their memory can be seen: the heap of the wasm backend. It must not
 *  know what the elements are used for. */
import type * as tf from '@tensorflow/tfjs';

/** The parts of the wasm backend, version 4, that are read here. */
interface WasmBackend {
  readonly wasm?: { readonly HEAPU8?: Uint8Array };
  readonly dataIdMap?: {
    has(dataId: object): boolean;
    get(dataId: object): { readonly memoryOffset?: number | null; readonly dtype?: string } | undefined;
  };
}

/** The elements of a float32 tensor: a view of the heap, until the next operation of TensorFlow.js, which may move it; elsewhere a copy. */
export function elementsOf(backend: object, tensor: Pick<tf.Tensor, 'dataId' | 'size' | 'dtype' | 'dataSync'>): Float32Array {
  const { wasm, dataIdMap } = backend as WasmBackend;
  const heap = wasm?.HEAPU8;
  if (heap && tensor.dtype === 'float32' && dataIdMap?.has(tensor.dataId)) {
    const offset = dataIdMap.get(tensor.dataId)?.memoryOffset;
    if (typeof offset === 'number' && offset % 4 === 0 && offset + 4 * tensor.size <= heap.length)
      return new Float32Array(heap.buffer, heap.byteOffset + offset, tensor.size);
  }
  return tensor.dataSync<'float32'>();
}
