/** Gradient compression with error feedback: the encoding error is added to the next gradient of the same parameter.
 *  One file each, listed in registry.ts.
 *  Source: MXNet "Gradient Compression"; Seide et al., "1-bit stochastic gradient descent", Interspeech 2014. */
import type { ParameterKernels } from '../../memory/parameter-kernels.ts';

/** The encoding of gradients on their way to the servers. What it loses stays with the worker and is added to the parameter's next
 *  gradient.
 *
 *      kv.setGradientCompression({ type: '2bit', threshold: 0.1 }); */
export type CompressionSpec =
  | {
      /** Each element becomes −threshold, 0 or +threshold: a sixteenth of the bytes of float32. */
      readonly type: '2bit';
      /** Above 0, in the unit of the gradients as pushed. Default 0.5. */
      readonly threshold?: number;
    }
  | {
      /** Elements travel as float16: half the bytes of float32. */
      readonly type: 'fp16';
    };

export interface GradientCodec {
  readonly spec: CompressionSpec;
  /** Number on the wire; 0 is "not compressed". */
  readonly code: number;
  /** Bytes of `count` elements. */
  encodedBytes(count: number): number;
  /** `residual += gradient`; the target is the encoding of the residual; the residual keeps what was lost. An element that
   *  is NaN or infinite is sent as such and leaves a residual of 0. */
  encode(target: Uint8Array, gradient: Float32Array, residual: Float32Array): void;
  /** Decodes gradients of any specification with this code. @throws ShoalError `protocol` when the length does not fit or the bytes are no
   *  encoding. */
  decode(target: Float32Array, source: Uint8Array): void;
}

/** A line of the registry. */
export interface CodecDefinition {
  readonly type: CompressionSpec['type'];
  readonly code: number;
  /** @throws ShoalError `usage`. */
  create(spec: CompressionSpec, kernels: ParameterKernels): GradientCodec;
}
