/** Half precision: two bytes per element, little-endian float16. The rounding error goes into the
 *  next gradient; beyond ±65504 a gradient is sent in parts. NaN and infinity are sent as they are. */
import { ShoalError } from '../../base/errors.ts';
import type { ParameterKernels } from '../../memory/parameter-kernels.ts';
import type { CodecDefinition, GradientCodec } from './codec.ts';

export class HalfCodec implements GradientCodec {
  readonly spec = { type: 'fp16' } as const;
  readonly code = 2;
  readonly #kernels: ParameterKernels;

  constructor(kernels: ParameterKernels) {
    this.#kernels = kernels;
  }

  encodedBytes(count: number): number {
    return count * 2;
  }

  encode(target: Uint8Array, gradient: Float32Array, residual: Float32Array): void {
    if (target.byteOffset % 2 === 0) {
      this.#kernels.encodeHalf(target, gradient, residual);
      return;
    }
    const aligned = new Uint8Array(target.length);
    this.#kernels.encodeHalf(aligned, gradient, residual);
    target.set(aligned);
  }

  decode(target: Float32Array, source: Uint8Array): void {
    if (source.length !== target.length * 2) {
      throw new ShoalError('protocol', `${target.length} elements as float16 are ${target.length * 2} bytes, not ${source.length}`);
    }
    // The bytes that arrived may begin at any address, which the array cannot tell.
    this.#kernels.decodeHalf(target, new Uint8Array(source));
  }
}

export const half: CodecDefinition = { type: 'fp16', code: 2, create: (_, kernels) => new HalfCodec(kernels) };
