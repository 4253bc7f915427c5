/** Operations of imported graphs, one by one: a model with one node gives what TensorFlow.js's own executor gives for it, and the shape that
 *  the graph knows before it runs. */
import * as tf from '@tensorflow/tfjs';
import { readFileSync, writeFileSync } from 'node:fs';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { temporaryFolder } from '../base/testing/temporary-folder.ts';
import { Session } from '../graph/execute/session.ts';
import { localKernels } from '../graph/local-kernels.ts';
import { tensorflowKernels } from '../graph/kernels/tensorflow.ts';
import { constant } from '../graph/ops/array.ts';
import { operations } from '../graph/ops/registry.ts';
import { GraphBuilder } from '../graph/structure/builder.ts';
import { formatShape } from '../graph/structure/shape.ts';
import type { DenseValue, Value } from '../graph/structure/value.ts';
import { dense, numbersOf } from '../graph/testing/kernels.ts';
import { runByTensorFlow, writeModel } from '../graph/testing/model-files.ts';
import { importModelJson } from './model-json.ts';

const folder = temporaryFolder('graph-operations', afterAll);
const device = '/job:localhost/task:0/device:CPU:0';
const types: Readonly<Record<string, string>> = { float32: 'DT_FLOAT', int32: 'DT_INT32', bool: 'DT_BOOL', string: 'DT_STRING' };

beforeAll(async () => {
  await tf.setBackend('cpu');
});

/** A value that is fed, of an unknown first dimension where the shape has one. */
interface Fed {
  readonly fed: DenseValue;
}

interface Case {
  readonly op: string;
  readonly inputs: readonly (DenseValue | Fed)[];
  readonly attr?: Readonly<Record<string, object>>;
  /** Outputs that are compared: one by default. */
  readonly outputs?: number;
  /** The shape of output 0 as the graph knows it. */
  readonly shape: string;
  /** The numbers, where TensorFlow.js does not run the operation as TensorFlow does. */
  readonly numbers?: readonly (readonly number[])[];
}

const integers = (...data: readonly number[]): DenseValue => dense([data.length], data, 'int32');
const integer = (value: number): DenseValue => dense([], [value], 'int32');
const float = (value: number): DenseValue => dense([], [value]);
const ramp = (...shape: readonly number[]): DenseValue =>
  dense(
    shape,
    Array.from({ length: shape.reduce((a, b) => a * b, 1) }, (_, k) => Math.fround(Math.sin(k + 1) * 2)),
  );
const fed = (value: DenseValue): Fed => ({ fed: value });
const i = (value: number): object => ({ i: String(value) });
const list = (...values: readonly number[]): object => ({ list: { i: values.map(String) } });
const text = (value: string): object => ({ s: Buffer.from(value).toString('base64') });
const type = (name: string): object => ({ type: name });
const typed = (name: string): Readonly<Record<string, object>> => ({ T: type(name) });
const masks = (begin = 0, end = 0, ellipsis = 0, newAxis = 0, shrink = 0): Readonly<Record<string, object>> => ({
  begin_mask: i(begin),
  end_mask: i(end),
  ellipsis_mask: i(ellipsis),
  new_axis_mask: i(newAxis),
  shrink_axis_mask: i(shrink),
});

const strided = (begin: number[], end: number[], strides: number[], attr: Readonly<Record<string, object>>, shape: string): Case => ({
  op: 'StridedSlice',
  inputs: [fed(ramp(4, 5, 6)), integers(...begin), integers(...end), integers(...strides)],
  attr: { ...typed('DT_FLOAT'), Index: type('DT_INT32'), ...attr },
  shape,
});

const conv = (op: string, x: DenseValue, filter: DenseValue, attr: Readonly<Record<string, object>>, shape: string): Case => ({
  op,
  inputs: [fed(x), filter],
  attr: { dilations: list(1, 1, 1, 1), data_format: text('NHWC'), use_cudnn_on_gpu: { b: true }, ...attr },
  shape,
});
const fusedWith = (...ops: readonly string[]): Readonly<Record<string, object>> => ({
  fused_ops: { list: { s: ops.map((op) => Buffer.from(op).toString('base64')) } },
  num_args: i(1),
  epsilon: { f: 0 },
  data_format: text('NHWC'),
});

const cases: Readonly<Record<string, Case>> = {
  'StridedSlice of some': strided([1, 0, -1], [3, 5, -4], [1, 2, -1], masks(), '[?, 3, 3]'),
  'StridedSlice of all': strided([0, 0], [0, 0], [1, -1], masks(3, 3), '[?, 5, 6]'),
  'StridedSlice with an ellipsis': strided([0, 2], [0, 5], [1, 2], masks(0, 0, 1), '[?, 5, 2]'),
  'StridedSlice that adds and takes axes': strided([0, 2, 0], [0, 0, 3], [1, 1, 1], masks(1, 1, 0, 1, 2), '[1, 3, 6]'),
  'StridedSlice of one': strided([-1, 1, 2], [0, 2, 3], [1, 1, 1], masks(0, 0, 0, 0, 7), '[]'),
  'StridedSlice of nothing': { ...strided([3, 4], [1, 2], [1, 1], masks(), '[?, 0, 6]'), numbers: [[]] },
  Squeeze: { op: 'Squeeze', inputs: [fed(ramp(2, 1, 3, 1))], attr: { squeeze_dims: list(1, -1) }, shape: '[?, 3]' },
  'Squeeze of all': { op: 'Squeeze', inputs: [ramp(2, 1, 3, 1)], attr: { squeeze_dims: list() }, shape: '[2, 3]' },
  GreaterEqual: { op: 'GreaterEqual', inputs: [fed(ramp(2, 3)), float(Math.fround(Math.sin(2) * 2))], shape: '[?, 3]' },
  NotEqual: { op: 'NotEqual', inputs: [fed(integers(1, 2, 3)), integer(2)], attr: typed('DT_INT32'), shape: '[?]' },
  StopGradient: { op: 'StopGradient', inputs: [fed(ramp(3))], shape: '[?]' },
  Fill: { op: 'Fill', inputs: [integers(2, 3), float(0.5)], attr: { index_type: type('DT_INT32') }, shape: '[2, 3]' },
  'Fill of a shape that is fed': { op: 'Fill', inputs: [fed(integers(2, 3)), float(0.5)], shape: 'unknown' },
  BroadcastTo: { op: 'BroadcastTo', inputs: [fed(ramp(2, 1)), integers(3, 2, 4)], attr: { Tidx: type('DT_INT32') }, shape: '[3, 2, 4]' },
  Tile: { op: 'Tile', inputs: [fed(ramp(2, 3)), integers(2, 3)], attr: { Tmultiples: type('DT_INT32') }, shape: '[?, 9]' },
  OneHot: {
    op: 'OneHot',
    inputs: [fed(integers(2, 0, 5)), integer(4), float(2), float(-1)],
    attr: { axis: i(-1), TI: type('DT_INT32') },
    shape: '[?, 4]',
  },
  Unpack: { op: 'Unpack', inputs: [fed(ramp(2, 3))], attr: { num: i(3), axis: i(-1) }, outputs: 3, shape: '[?]' },
  Pack: { op: 'Pack', inputs: [fed(ramp(2, 3)), ramp(2, 3)], attr: { N: i(2), axis: i(2) }, shape: '[2, 3, 2]' },
  SplitV: {
    op: 'SplitV',
    inputs: [fed(ramp(2, 7)), integers(2, 4, 1), integer(1)],
    attr: { num_split: i(3), Tlen: type('DT_INT32') },
    outputs: 3,
    shape: '[?, 2]',
  },
  Pad: {
    op: 'Pad',
    inputs: [fed(ramp(2, 3)), dense([2, 2], [0, 1, 2, 0], 'int32')],
    attr: { Tpaddings: type('DT_INT32') },
    shape: '[?, 5]',
  },
  PadV2: { op: 'PadV2', inputs: [fed(ramp(2, 3)), dense([2, 2], [0, 1, 2, 0], 'int32'), float(7)], shape: '[?, 5]' },
  MirrorPad: {
    op: 'MirrorPad',
    inputs: [fed(ramp(3, 4)), dense([2, 2], [1, 1, 0, 2], 'int32')],
    attr: { mode: text('REFLECT') },
    shape: '[?, 6]',
  },
  ClipByValue: { op: 'ClipByValue', inputs: [fed(ramp(2, 3)), float(-0.5), float(1)], shape: '[?, 3]' },
  GatherNd: {
    op: 'GatherNd',
    inputs: [fed(ramp(3, 4, 2)), dense([3, 2], [0, 1, 2, 3, 0, 1], 'int32')],
    attr: { T: undefined as never, Tparams: type('DT_FLOAT'), Tindices: type('DT_INT32') },
    shape: '[3, 2]',
  },
  Where: { op: 'Where', inputs: [fed(dense([2, 3], [0, 1, 1, 0, 0, 1], 'bool'))], attr: typed('DT_BOOL'), shape: '[?, 2]' },
  Unique: {
    op: 'Unique',
    inputs: [fed(integers(7, 3, 7, 7, 1, 3))],
    attr: { ...typed('DT_INT32'), out_idx: type('DT_INT32') },
    outputs: 2,
    shape: '[?]',
  },
  Einsum: { op: 'Einsum', inputs: [fed(ramp(2, 3, 4)), ramp(3, 5)], attr: { N: i(2), equation: text('abc,bd->dac') }, shape: '[5, ?, 4]' },
  'Conv2D SAME': conv('Conv2D', ramp(2, 5, 6, 3), ramp(3, 3, 3, 4), { strides: list(1, 2, 2, 1), padding: text('SAME') }, '[?, 3, 3, 4]'),
  'Conv2D VALID, dilated': conv(
    'Conv2D',
    ramp(2, 7, 6, 2),
    ramp(3, 2, 2, 4),
    { strides: list(1, 1, 1, 1), dilations: list(1, 2, 3, 1), padding: text('VALID') },
    '[?, 3, 3, 4]',
  ),
  'Conv2D EXPLICIT': conv(
    'Conv2D',
    ramp(2, 5, 6, 2),
    ramp(3, 3, 2, 4),
    { strides: list(1, 2, 1, 1), padding: text('EXPLICIT'), explicit_paddings: list(0, 0, 1, 2, 0, 1, 0, 0) },
    '[?, 3, 5, 4]',
  ),
  DepthwiseConv2dNative: conv(
    'DepthwiseConv2dNative',
    ramp(2, 5, 6, 3),
    ramp(3, 3, 3, 2),
    { strides: list(1, 1, 1, 1), padding: text('SAME') },
    '[?, 5, 6, 6]',
  ),
  _FusedConv2D: {
    ...conv('_FusedConv2D', ramp(2, 5, 6, 3), ramp(3, 3, 3, 4), { strides: list(1, 2, 2, 1), padding: text('SAME') }, '[?, 3, 3, 4]'),
    inputs: [fed(ramp(2, 5, 6, 3)), ramp(3, 3, 3, 4), ramp(4)],
    attr: { ...fusedWith('BiasAdd', 'Relu6'), strides: list(1, 2, 2, 1), dilations: list(1, 1, 1, 1), padding: text('SAME') },
  },
  FusedDepthwiseConv2dNative: {
    op: 'FusedDepthwiseConv2dNative',
    inputs: [fed(ramp(2, 5, 6, 3)), ramp(3, 3, 3, 2), ramp(6)],
    attr: {
      ...fusedWith('BiasAdd', 'Elu'),
      strides: list(1, 1, 1, 1),
      dilations: list(1, 1, 1, 1),
      padding: text('VALID'),
      data_format: text('NHWC'),
    },
    shape: '[?, 3, 4, 6]',
  },
  MaxPool: {
    op: 'MaxPool',
    inputs: [fed(ramp(2, 5, 6, 3))],
    attr: { ksize: list(1, 2, 3, 1), strides: list(1, 2, 2, 1), padding: text('SAME'), data_format: text('NHWC') },
    shape: '[?, 3, 3, 3]',
  },
  AvgPool: {
    op: 'AvgPool',
    inputs: [fed(ramp(2, 5, 6, 3))],
    attr: { ksize: list(1, 3, 2, 1), strides: list(1, 2, 1, 1), padding: text('SAME') },
    shape: '[?, 3, 6, 3]',
  },
  FusedBatchNormV3: {
    op: 'FusedBatchNormV3',
    inputs: [fed(ramp(2, 3, 4, 3)), ramp(3), ramp(3), ramp(3), dense([3], [0.5, 1, 2])],
    attr: { U: type('DT_FLOAT'), epsilon: { f: 0.001 }, is_training: { b: false }, data_format: text('NHWC') },
    shape: '[?, 3, 4, 3]',
  },
  SparseSegmentSum: {
    op: 'SparseSegmentSum',
    inputs: [fed(ramp(5, 3)), integers(4, 0, 0, 2), integers(0, 0, 1, 2)],
    attr: { Tidx: type('DT_INT32'), Tsegmentids: type('DT_INT32') },
    shape: '[?, 3]',
  },
  SparseSegmentMean: { op: 'SparseSegmentMean', inputs: [fed(ramp(5, 3)), integers(4, 0, 0, 2), integers(0, 0, 1, 2)], shape: '[?, 3]' },
  StringToHashBucketFast: {
    op: 'StringToHashBucketFast',
    inputs: [fed({ dtype: 'string', shape: [3], data: ['a', 'ünder', ''] })],
    attr: { T: undefined as never, num_buckets: i(1000) },
    shape: '[?]',
  },
};
for (const op of 'Floor Ceil Round Reciprocal Log1p Expm1 Sin Cos Tan Asin Acos Atan Sinh Cosh Asinh Acosh Atanh Erf Elu Selu Relu6'.split(
  ' ',
)) {
  // The result of each function is a number for these numbers.
  const x = dense([5], op === 'Acosh' ? [1, 1.5, 2.5, 3, 40] : [-0.9, -0.25, 0.5, 0.75, 0.99]);
  (cases as Record<string, Case>)[op] = { op, inputs: [fed(x)], shape: '[?]' };
}

describe('an operation of an imported graph gives what TensorFlow.js gives:', () => {
  it.each(Object.entries(cases))('%s', async (name, { op, inputs, attr, outputs = 1, shape, numbers }) => {
    const values = inputs.map((each) => ('fed' in each ? each.fed : each));
    const inputNodes = inputs.map((each, k) => {
      const { dtype, shape: sizes } = values[k];
      const open = sizes.map((size, axis) => ({ size: String('fed' in each && axis === 0 && op !== 'Pack' ? -1 : size) }));
      return 'fed' in each
        ? { name: `x${k}`, op: 'Placeholder', attr: { dtype: { type: types[dtype] }, shape: { shape: { dim: open } } } }
        : {
            name: `x${k}`,
            op: 'Const',
            attr: { dtype: { type: types[dtype] }, value: { tensor: { dtype: types[dtype], tensorShape: { dim: open } } } },
          };
    });
    const node = { name: 'y', op, input: inputs.map((_, k) => `x${k}`), attr: { ...typed('DT_FLOAT'), ...attr } };
    const constants = values.map((value, k) => ({ ...value, name: `x${k}` })).filter((_, k) => !('fed' in inputs[k]));
    const path = writeModel(
      folder,
      name.replaceAll(' ', '-'),
      [...inputNodes, node],
      constants.map(({ name: each, shape: sizes, dtype }) => ({ name: each, shape: sizes, dtype })),
      Uint8Array.from(Buffer.concat(constants.map(({ dtype, data }) => bytesOf(dtype, data)))),
      1,
    );
    const feeds = Object.fromEntries(values.map((value, k): [string, Value] => [`x${k}`, value]).filter((_, k) => 'fed' in inputs[k]));
    const slots = Array.from({ length: outputs }, (_, slot) => `y:${slot}`);
    const graph = await importModelJson(path);
    expect(formatShape(graph.output('y').shape)).toBe(shape);
    const session = new Session(graph, { devices: [device], kernels: { ...localKernels(), ...tensorflowKernels(tf) } });
    const ours = (await session.run(Object.entries(feeds), slots)).map((each) => numbersOf(each).map(Number));
    const theirs = numbers ?? (await runByTensorFlow(path, feeds, slots));
    expect(ours).toEqual(theirs.map((each) => [...each]));
  });
});

/** Nodes of a model whose constants are weights. */
const weights = {
  keys: { dtype: 'string', shape: [2], data: ['a', 'b'] },
  numbers: { dtype: 'int32', shape: [2], data: [5, 6] },
  none: { dtype: 'int32', shape: [], data: [-1] },
  one: { dtype: 'float32', shape: [2], data: [1, 10] },
  half: { dtype: 'float32', shape: [2], data: [0.5, 0.5] },
} as const satisfies Readonly<Record<string, DenseValue>>;

/** @param names of the weights that it has. */
async function imported(
  names: readonly (keyof typeof weights)[],
  nodes: readonly object[],
  initializer?: readonly object[],
): Promise<Session> {
  const constants = names.map((name) => {
    const dtype = types[weights[name].dtype];
    return { name, op: 'Const', attr: { dtype: { type: dtype }, value: { tensor: { dtype } } } };
  });
  const path = writeModel(
    folder,
    'several',
    [...constants, ...nodes],
    names.map((name) => ({ name, shape: weights[name].shape, dtype: weights[name].dtype })),
    Uint8Array.from(Buffer.concat(names.map((name) => bytesOf(weights[name].dtype, weights[name].data)))),
    1,
  );
  if (initializer !== undefined) {
    const model = JSON.parse(readFileSync(path, 'utf8')) as object;
    writeFileSync(path, JSON.stringify({ ...model, modelInitializer: { node: initializer, versions: {} } }));
  }
  return new Session(await importModelJson(path), { devices: [device], kernels: { ...localKernels(), ...tensorflowKernels(tf) } });
}

describe('a table', () => {
  const table = {
    name: 'table',
    op: 'HashTableV2',
    attr: { key_dtype: type('DT_STRING'), value_dtype: type('DT_INT32'), shared_name: text('t') },
  };
  const fill = {
    name: 'fill',
    op: 'InitializeTableV2',
    input: ['table', 'keys', 'numbers'],
    attr: { Tkey: type('DT_STRING'), Tval: type('DT_INT32') },
  };
  const find = {
    name: 'y',
    op: 'LookupTableFindV2',
    input: ['table', 'x', 'none'],
    attr: { Tin: type('DT_STRING'), Tout: type('DT_INT32') },
  };
  const x = { name: 'x', op: 'Placeholder', attr: { dtype: type('DT_STRING'), shape: { shape: { dim: [{ size: '-1' }] } } } };
  const feed: [string, DenseValue] = ['x', { dtype: 'string', shape: [3], data: ['b', 'c', 'a'] }];

  it('is looked up, also when another graph of the model fills it', async () => {
    for (const apart of [false, true]) {
      const nodes = [table, x, find];
      const session = apart
        ? await imported(['keys', 'numbers', 'none'], nodes, [table, fill])
        : await imported(['keys', 'numbers', 'none'], [...nodes, fill]);
      const [y] = await session.run([feed], ['y:0']);
      expect(numbersOf(y)).toEqual([6, -1, 5]);
    }
  });

  it('that nothing fills is refused', async () => {
    await expect(imported(['none'], [table, x, find])).rejects.toThrow(
      /LookupTableFindV2 'y': its table 'table' is not filled with keys and values of the graph/,
    );
  });
});

describe('a variable with a handle', () => {
  const handle = (name: string): object => ({
    name,
    op: 'VarHandleOp',
    attr: { dtype: type('DT_FLOAT'), shape: { shape: { dim: [{ size: '2' }] } }, shared_name: text('v'), container: text('') },
  });
  const node = (name: string, op: string, input: readonly string[]): object => ({ name, op, input, attr: { dtype: type('DT_FLOAT') } });

  it('is written, changed and read', async () => {
    const session = await imported(
      ['one', 'half'],
      [
        handle('v'),
        node('init', 'AssignVariableOp', ['v', 'one']),
        node('add', 'AssignAddVariableOp', ['v', 'half']),
        node('read', 'ReadVariableOp', ['v', '^add']),
      ],
    );
    await session.run([], ['init']);
    const [value] = await session.run([], ['read:0']);
    expect(numbersOf(value)).toEqual([1.5, 10.5]);
  });

  it('has no second one', async () => {
    await expect(imported([], [handle('v'), handle('w')])).rejects.toThrow(/VarHandleOp 'w': the variable 'v' has a second handle/);
  });
});

describe('kernels beside those of TensorFlow.js', () => {
  const run = async (op: string, inputs: readonly DenseValue[], fetches: number, attributes = {}): Promise<readonly unknown[][]> => {
    const g = new GraphBuilder();
    const made = g.node(
      operations.find(({ name }) => name === op)!,
      inputs.map((each) => constant(g, each as DenseValue & { dtype: 'int64' })),
      attributes,
    );
    const session = new Session(g.finish(), { devices: [device], kernels: { ...localKernels(), ...tensorflowKernels(tf) } });
    const values = await session.run([], made.outputs.slice(0, fetches));
    return values.map((each) => Array.from((each as DenseValue).data as ArrayLike<unknown>));
  };

  it('find the different elements of strings and of 64-bit integers', async () => {
    expect(await run('Unique', [{ dtype: 'string', shape: [3], data: ['b', 'a', 'b'] }], 2)).toEqual([
      ['b', 'a'],
      [0, 1, 0],
    ]);
    const large = 2n ** 60n;
    expect(await run('Unique', [{ dtype: 'int64', shape: [3], data: [large, large + 1n, large] }], 2)).toEqual([
      [large, large + 1n],
      [0, 1, 0],
    ]);
  });

  it('take 64-bit integers that fit into 32', async () => {
    expect(await run('Cast', [{ dtype: 'bool', shape: [2], data: [1, 0] }], 1, { DstT: 'int64' })).toEqual([[1n, 0n]]);
    const scalars = [
      { dtype: 'int32', shape: [], data: [3] },
      { dtype: 'int64', shape: [], data: [1n] },
      { dtype: 'int64', shape: [], data: [0n] },
    ];
    expect(await run('OneHot', [{ dtype: 'int64', shape: [1], data: [2n] }, ...scalars], 1)).toEqual([[0n, 0n, 1n]]);
    await expect(run('OneHot', [{ dtype: 'int64', shape: [1], data: [2n ** 32n] }, ...scalars], 1)).rejects.toThrow(
      /TensorFlow\.js has no int64\[1\]; cast it to float32 or int32/,
    );
  });
});

function bytesOf(dtype: string, data: DenseValue['data']): Uint8Array {
  if (dtype === 'string') {
    const texts = (data as readonly string[]).map((each) => Buffer.from(each));
    return Buffer.concat(texts.flatMap((each) => [Buffer.from(Uint32Array.of(each.length).buffer), each]));
  }
  const numbers = data as readonly number[];
  const elements =
    dtype === 'float32' ? Float32Array.from(numbers) : dtype === 'int32' ? Int32Array.from(numbers) : Uint8Array.from(numbers);
  return new Uint8Array(elements.buffer);
}
