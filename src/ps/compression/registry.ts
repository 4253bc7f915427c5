/** The codecs of gradients, by name and by their number on the wire. */
import { ShoalError } from '../../base/errors.ts';
import type { ParameterKernels } from '../../memory/parameter-kernels.ts';
import type { CodecDefinition, CompressionSpec, GradientCodec } from './codec.ts';
import { half } from './half.ts';
import { twoBit } from './two-bit.ts';

export const codecs: readonly CodecDefinition[] = [twoBit, half];

/** @throws ShoalError `usage` for an unknown type or a parameter out of range. */
export function createCodec(spec: CompressionSpec, kernels: ParameterKernels): GradientCodec {
  const definition = codecs.find(({ type }) => type === spec.type);
  if (definition !== undefined) return definition.create(spec, kernels);
  const known = codecs.map(({ type }) => `'${type}'`).join(', ');
  throw new ShoalError('usage', `there is no gradient compression '${spec.type}'; use one of ${known}`);
}

/** The decoder of gradients that carry this number. @throws ShoalError `protocol` when there is none. */
export function createDecoder(code: number, kernels: ParameterKernels): GradientCodec {
  const definition = codecs.find((each) => each.code === code);
  if (definition !== undefined) return definition.create({ type: definition.type }, kernels);
  throw new ShoalError('protocol', `a gradient is compressed by codec ${code}, which is not known here`);
}
