/** Two bits per element, in the packing of MXNet's `2bit`: sixteen elements to a word, the first of a byte in its highest bits.
 *
 *    bytes   0        4        8        12
 *            │threshold│ word 0 │ word 1 │ …      float32 threshold, then ⌈count / 16⌉ words
 *            └─────────┴────────┴────────┘
 *    word    byte 0  e0 e0 e1 e1 e2 e2 e3 e3      highest bit first
 *            byte 1  e4 e4 e5 e5 e6 e6 e7 e7      11 +threshold   10 −threshold   00 zero   01 not finite
 *            byte 2  e8 …  byte 3  e12 …          unused bits of the last word are 0
 *
 *  MXNet agrees on the threshold beforehand and has no 01. With it the receiver sees that a gradient was NaN or infinite,
 *  instead of a parameter that silently stops moving. Source: MXNet, "Gradient Compression". */
import { dataViewOf } from '../../base/bytes.ts';
import { ShoalError } from '../../base/errors.ts';
import { twoBitBytes, type ParameterKernels } from '../../memory/parameter-kernels.ts';
import type { CodecDefinition, CompressionSpec, GradientCodec } from './codec.ts';

type TwoBitSpec = Extract<CompressionSpec, { type: '2bit' }>;

const headerBytes = 4;
/** MXNet's default. */
const defaultThreshold = 0.5;

export class TwoBitCodec implements GradientCodec {
  readonly spec: Required<TwoBitSpec>;
  readonly code = 1;
  readonly #kernels: ParameterKernels;

  /** @throws ShoalError `usage` for a threshold that is not a positive float32. */
  constructor(spec: TwoBitSpec, kernels: ParameterKernels) {
    const threshold = Math.fround(spec.threshold ?? defaultThreshold);
    if (!(threshold > 0 && threshold < Infinity)) {
      throw new ShoalError('usage', `gradient compression '2bit': threshold is ${spec.threshold}; it must be a number above 0`);
    }
    this.spec = { type: '2bit', threshold };
    this.#kernels = kernels;
  }

  encodedBytes(count: number): number {
    return headerBytes + twoBitBytes(count);
  }

  encode(target: Uint8Array, gradient: Float32Array, residual: Float32Array): void {
    dataViewOf(target).setFloat32(0, this.spec.threshold, true);
    this.#kernels.encodeTwoBit(target.subarray(headerBytes), gradient, residual, this.spec.threshold);
  }

  decode(target: Float32Array, source: Uint8Array): void {
    const { length: count } = target;
    if (source.length !== this.encodedBytes(count)) {
      throw new ShoalError('protocol', `${count} elements at 2 bits are ${this.encodedBytes(count)} bytes, not ${source.length}`);
    }
    const threshold = dataViewOf(source).getFloat32(0, true);
    if (!(threshold > 0 && threshold < Infinity)) throw new ShoalError('protocol', `2-bit gradient with a threshold of ${threshold}`);
    if (unusedBits(source, count) !== 0) throw new ShoalError('protocol', `2-bit gradient of ${count} elements has more than that`);
    this.#kernels.decodeTwoBit(target, source.subarray(headerBytes), threshold);
  }
}

/** The bits of the last word that stand for no element. */
function unusedBits(source: Uint8Array, count: number): number {
  let bits = 0;
  for (let at = headerBytes + (count >> 2); at < source.length; at++) {
    const here = Math.max(0, count - (at - headerBytes) * 4);
    bits |= source[at] & (0xff >> (2 * here));
  }
  return bits;
}

export const twoBit: CodecDefinition = {
  type: '2bit',
  code: 1,
  create: (spec, kernels) => new TwoBitCodec(spec.type === '2bit' ? spec : { type: '2bit' }, kernels),
};
