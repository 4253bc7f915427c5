/** Values of several devices of one worker, as one: their sum, in the canonical order, passed through the codec of
 *  compressed gradients where one is set. */
import { assert } from '../../base/assert.ts';
import { bytesOf } from '../../base/bytes.ts';
import { dtypeInfo, viewOf, type DType, type TypedArray } from '../../memory/dtype.ts';
import { balancedTree, type Kernels } from '../../memory/kernels.ts';
import type { GradientCodec } from '../compression/codec.ts';

const smallBytes = 16_384;

/** target := the sum of the sources, which may be one. A source may be the target itself. */
export function sumDevices(kernels: Kernels, dtype: DType, target: TypedArray, sources: readonly TypedArray[]): void {
  assert(sources.length > 0, () => 'a key has at least one value');
  if (sources.length > 1) kernels.reduce(dtype, 'sum', [bytesOf(target)], sources.map(bytesOf), balancedTree(sources.length));
  else if (sources[0] !== target) copyElements(kernels, target, sources[0]);
}

/** target := source, of one type and length. */
export function copyElements(kernels: Kernels, target: TypedArray, source: TypedArray): void {
  // Small: what the kernel's checks and views cost would be most of it.
  if (source.byteLength < smallBytes) target.set(source as never);
  else kernels.copy(bytesOf(target), bytesOf(source));
}

/** An array of its own: zeros. */
export function emptyLike(dtype: DType, count: number): TypedArray {
  return viewOf(dtype, new ArrayBuffer(count * dtypeInfo(dtype).bytes), 0, count);
}

/** The loss of compression so far, per parameter, or part of one. */
export class Residuals {
  readonly #arrays = new Map<string | number, Float32Array>();

  /** The encoding of a gradient and what was lost of those before it. */
  encode(codec: GradientCodec, key: string | number, gradient: Float32Array, target: Uint8Array): void {
    let residual = this.#arrays.get(key);
    if (residual === undefined) {
      residual = new Float32Array(gradient.length);
      this.#arrays.set(key, residual);
    }
    codec.encode(target, gradient, residual);
  }

  clear(): void {
    this.#arrays.clear();
  }
}
