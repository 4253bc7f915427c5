/** Gradient compression with error feedback: what an encoding loses is added to the next gradient of the same parameter.
 *  One file each, listed in registry.ts.
 *  Source: MXNet "Gradient Compression"; Seide et al., "1-bit stochastic gradient descent", Interspeech 2014. */

export type CompressionSpec =
  /** Each element becomes −threshold, 0 or +threshold: a sixteenth of the bytes. */
  | { readonly type: '2bit'; readonly threshold?: number }
  /** Half the bytes. */
  | { readonly type: 'fp16' };

export interface GradientCodec {
  readonly spec: CompressionSpec;
  /** Number on the wire; 0 is "not compressed". */
  readonly code: number;
  /** Bytes of `count` elements. */
  encodedBytes(count: number): number;
  /** `residual += gradient`; the target is the encoding of the residual; the residual keeps what was lost. */
  encode(target: Uint8Array, gradient: Float32Array, residual: Float32Array): void;
  /** @throws ShoalError `protocol` when the length does not fit or the bytes are no encoding. */
  decode(target: Float32Array, source: Uint8Array): void;
}
