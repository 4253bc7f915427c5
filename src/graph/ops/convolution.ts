/** Windows that go over images: convolutions, pools, and what normalises their channels. Images are [batch, height, width, channels]. */
import { describeValue } from '../../base/schema.ts';
import type { AttributeSpec, InferContext, OpDefinition } from '../structure/definition.ts';
import { formatShape, type Dimension } from '../structure/shape.ts';
import { define, defineOne, floating } from './op.ts';

const ones: AttributeSpec = { kind: 'list(int)', default: [1, 1, 1, 1] };
const places = {
  strides: { kind: 'list(int)' },
  padding: { kind: 'string' },
  explicit_paddings: { kind: 'list(int)', default: [] },
} as const;

/** Operations that programs add by `g.node`. */
export const convolutionOps: readonly OpDefinition[] = [
  ...['Conv2D', 'DepthwiseConv2dNative'].map((name) =>
    defineOne(name, { input: 'T', filter: 'T' }, { ...floating, ...places, dilations: ones }, (context) => {
      const [height, width, from, to] = context.ranked(1, 4);
      const channels = context.ranked(0, 4)[3];
      if (channels !== null && from !== null && channels !== from)
        context.fail(`a filter of ${formatShape(context.inputs[1].shape)} does not fit ${channels} channels`);
      const [inner, outer] = [from ?? channels, to];
      const made = name === 'Conv2D' ? outer : inner === null || outer === null ? null : inner * outer;
      return [...windows(context, [height, width], context.integers('dilations')), made];
    }),
  ),
  ...['MaxPool', 'AvgPool'].map((name) =>
    defineOne(name, { value: 'T' }, { ...floating, ...places, ksize: { kind: 'list(int)' } }, (context) => [
      ...windows(context, context.integers('ksize').slice(1, 3)),
      context.ranked(0, 4)[3],
    ]),
  ),
  define(
    'FusedBatchNormV3',
    { x: 'T', scale: 'U', offset: 'U', mean: 'U', variance: 'U' },
    {
      ...floating,
      U: floating.T,
      epsilon: { kind: 'float', default: 1e-4 },
      is_training: { kind: 'bool', default: true },
      exponential_avg_factor: { kind: 'float', default: 1 },
    },
    ({ inputs: [x, scale] }) => [x, ...Array.from({ length: 5 }, () => ({ dtype: scale.dtype, shape: [null] }))],
  ),
];

/** [batch, height, width] of the result. */
function windows(
  { attributes, integers, ranked, fail }: InferContext,
  sizes: readonly Dimension[],
  dilations: readonly number[] = [1, 1, 1, 1],
): Dimension[] {
  const [batch, ...rest] = ranked(0, 4);
  const [padding, strides, explicit] = [attributes.padding, integers('strides'), integers('explicit_paddings')];
  if (strides.length !== 4 || dilations.length !== 4 || sizes.length !== 2) fail('strides, dilations and windows are about 4 axes');
  if (strides[0] !== 1 || strides[3] !== 1) fail('strides go along height and width only');
  if (padding !== 'SAME' && padding !== 'VALID' && (padding !== 'EXPLICIT' || explicit.length !== 8))
    fail(`padding is SAME, VALID or EXPLICIT with explicit_paddings, not ${describeValue(padding)}`);
  const spatial = sizes.map((window, k): Dimension => {
    const [size, stride] = [rest[k], strides[k + 1]];
    if (stride < 1) fail(`a stride of ${stride}`);
    if (size === null) return null;
    if (padding === 'SAME') return Math.ceil(size / stride);
    const added = padding === 'EXPLICIT' ? explicit[2 * k + 2] + explicit[2 * k + 3] : 0;
    return window === null ? null : Math.max(0, Math.floor((size + added - (window - 1) * dilations[k + 1] - 1) / stride) + 1);
  });
  return [batch, ...spatial];
}
