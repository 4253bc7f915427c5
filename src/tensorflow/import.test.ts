/** Graphs of TensorFlow: GraphDefs as the published schema encodes them; graph models that TensorFlow.js runs to the same numbers; what cannot
 *  be imported, by name; and bytes that are no graphs. */
import * as tf from '@tensorflow/tfjs';
import { readFileSync, rmSync, truncateSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import protobuf from 'protobufjs';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { temporaryFolder } from '../base/testing/temporary-folder.ts';
import { ShoalError } from '../base/errors.ts';
import { seededRandom } from '../base/random.ts';
import { Session } from '../graph/execute/session.ts';
import { localKernels } from '../graph/local-kernels.ts';
import { tensorflowKernels } from '../graph/kernels/tensorflow.ts';
import type { Graph } from '../graph/structure/graph.ts';
import type { Value } from '../graph/structure/value.ts';
import { dense, numbersOf } from '../graph/testing/kernels.ts';
import { runByTensorFlow, writeModel } from '../graph/testing/model-files.ts';
import { importGraphDef } from './import-graph-def.ts';
import { importModelJson } from './model-json.ts';
import { operations } from '../graph/ops/registry.ts';
import { fusedOperations, translations } from './translations.ts';

/** The messages that TensorFlow publishes (graph.proto, node_def.proto, attr_value.proto, tensor.proto, tensor_shape.proto, versions.proto), written by hand. */
const schema = `
syntax = "proto3";
package tensorflow;
message VersionDef { int32 producer = 1; int32 min_consumer = 2; repeated int32 bad_consumers = 3; }
message TensorShapeProto { message Dim { int64 size = 1; string name = 2; } repeated Dim dim = 2; bool unknown_rank = 3; }
message TensorProto {
  int32 dtype = 1; TensorShapeProto tensor_shape = 2; int32 version_number = 3; bytes tensor_content = 4;
  repeated int32 half_val = 13 [packed = true]; repeated float float_val = 5 [packed = true]; repeated double double_val = 6 [packed = true];
  repeated int32 int_val = 7 [packed = true]; repeated bytes string_val = 8; repeated float scomplex_val = 9 [packed = true];
  repeated int64 int64_val = 10 [packed = true]; repeated bool bool_val = 11 [packed = true]; repeated uint32 uint32_val = 16 [packed = true];
}
message AttrValue {
  message ListValue {
    repeated bytes s = 2; repeated int64 i = 3 [packed = true]; repeated float f = 4 [packed = true]; repeated bool b = 5 [packed = true];
    repeated int32 type = 6 [packed = true]; repeated TensorShapeProto shape = 7; repeated TensorProto tensor = 8;
  }
  oneof value {
    ListValue list = 1; bytes s = 2; int64 i = 3; float f = 4; bool b = 5; int32 type = 6; TensorShapeProto shape = 7; TensorProto tensor = 8;
    string placeholder = 9;
  }
}
message NodeDef { string name = 1; string op = 2; repeated string input = 3; string device = 4; map<string, AttrValue> attr = 5; }
message GraphDef { repeated NodeDef node = 1; int32 version = 3; VersionDef versions = 4; }`;

const GraphDef = protobuf.parse(schema, { keepCase: true }).root.lookupType('tensorflow.GraphDef');

const [float, int32, text, int64, bool] = [1, 3, 7, 9, 10];
type Attr = Readonly<Record<string, unknown>>;
interface NodeJson {
  readonly name: string;
  readonly op: string;
  readonly input?: readonly string[];
  readonly device?: string;
  readonly attr?: Readonly<Record<string, Attr>>;
}

const bytesOf = (node: readonly NodeJson[], producer = 1482): Uint8Array =>
  Uint8Array.from(GraphDef.encode(GraphDef.fromObject({ node, versions: { producer } })).finish());
const shape = (...sizes: readonly number[]): Attr => ({ dim: sizes.map((size) => ({ size })) });
const input = (name: string, type: number, ...sizes: readonly number[]): NodeJson => ({
  name,
  op: 'Placeholder',
  attr: { dtype: { type }, shape: { shape: shape(...sizes) } },
});
const constant = (name: string, dtype: number, sizes: readonly number[], elements: Attr): NodeJson => ({
  name,
  op: 'Const',
  attr: { dtype: { type: dtype }, value: { tensor: { dtype, tensor_shape: shape(...sizes), ...elements } } },
});
const node = (name: string, op: string, inputs: readonly string[], attr: Readonly<Record<string, Attr>> = {}): NodeJson => ({
  name,
  op,
  input: inputs,
  attr,
});
const floats = { T: { type: float } };

const device = '/job:localhost/task:0/device:CPU:0';
const kernels = { ...localKernels(), ...tensorflowKernels(tf) };
const sessionOf = (graph: Graph, devices = [device]): Session => new Session(graph, { devices, kernels });

async function valueOf(nodes: readonly NodeJson[], fetch: string, feeds: readonly (readonly [string, Value])[] = []): Promise<Value> {
  const [value] = await sessionOf(await importGraphDef(bytesOf(nodes))).run(feeds, [`${fetch}:0`]);
  return value as Value;
}

const folder = temporaryFolder('graph-def', afterAll);

beforeAll(async () => {
  await tf.setBackend('cpu');
});

describe('a GraphDef', () => {
  it('runs: inputs, control inputs, slots, devices, colocation, attributes', async () => {
    const graph = await importGraphDef(
      bytesOf([
        // Inputs come later, as they may.
        node('y', 'MatMul', ['x:0', 'parts:1', '^first'], { ...floats, transpose_a: { b: true }, _output_shapes: { list: {} } }),
        { ...input('x', float, 2, -1), device: '/job:ps/replica:0/task:3/device:CPU:0' },
        constant('axis', int32, [], { int_val: [1] }),
        constant('w', float, [2, 4], { tensor_content: Buffer.from(Float32Array.of(1, 2, 3, 4, 5, 6, 7, 8).buffer) }),
        node('parts', 'Split', ['axis', 'w'], { ...floats, num_split: { i: 2 }, _class: { list: { s: [Buffer.from('loc:@x')] } } }),
        node('first', 'NoOp', []),
      ]),
    );
    expect(graph.node('x').device).toBe('/job:ps/task:3/device:CPU:0');
    expect(graph.node('parts').colocateWith?.name).toBe('x');
    expect(graph.node('y').controlInputs.map(({ name }) => name)).toEqual(['first']);
    expect(graph.output('y').shape).toEqual([null, 2]);
    const session = sessionOf(graph, ['/job:ps/task:3/device:CPU:0', device]);
    const [y] = await session.run([['x', dense([2, 1], [10, 1])]], ['y:0']);
    expect(numbersOf(y)).toEqual([37, 48]);
  });

  it.each<[string, NodeJson, Value]>([
    ['one repeated', constant('c', float, [2, 2], { float_val: [1.5] }), dense([2, 2], [1.5, 1.5, 1.5, 1.5])],
    ['the last repeated', constant('c', int32, [4], { int_val: [3, -7] }), dense([4], [3, -7, -7, -7], 'int32')],
    ['none', constant('c', 2, [2], {}), dense([2], [0, 0], 'float64')],
    ['no shape at all', constant('c', bool, [], { bool_val: [true] }), dense([], [1], 'bool')],
    [
      '64 bits',
      constant('c', int64, [2], { int64_val: ['-9007199254740993', 1] }),
      { dtype: 'int64', shape: [2], data: [-9007199254740993n, 1n] },
    ],
    ['halves', constant('c', 19, [1], { half_val: [0x3c00] }), dense([1], [0x3c00], 'float16')],
    [
      'strings',
      constant('c', text, [3], { string_val: [Buffer.from('a'), Buffer.from('ü')] }),
      { dtype: 'string', shape: [3], data: ['a', 'ü', 'ü'] },
    ],
    ['nothing', constant('c', float, [0, 3], {}), dense([0, 3], [])],
    ['bytes', constant('c', 5, [2], { tensor_content: Buffer.from([1, 0, 255, 255]) }), dense([2], [1, -1], 'int16')],
  ])('has constants of lists as TensorFlow reads them: %s', async (_, each, expected) => {
    const value = (await importGraphDef(bytesOf([each]))).node('c').attributes.value as Value;
    expect({ ...value, data: Array.from(value.data as ArrayLike<unknown>) }).toEqual(expected);
  });

  it('takes a placeholder without dimensions for one of any shape, as its version had it', async () => {
    const nodes = [input('x', float)];
    expect((await importGraphDef(bytesOf(nodes, 21))).output('x').shape).toBe('unknown');
    expect((await importGraphDef(bytesOf(nodes, 22))).output('x').shape).toEqual([]);
  });

  it('reduces over no axes where none are named, not over all', async () => {
    const nodes = [input('x', float, 2), constant('axes', int32, [0], {}), node('y', 'Sum', ['x', 'axes'], floats)];
    expect(numbersOf(await valueOf(nodes, 'y', [['x', dense([2], [3, 4])]]))).toEqual([3, 4]);
  });

  it('loops', async () => {
    const frame = { T: { type: int32 }, frame_name: { s: Buffer.from('loop') }, parallel_iterations: { i: 1 } };
    const T = { T: { type: int32 } };
    const nodes = [
      constant('zero', int32, [], {}),
      node('enter', 'Enter', ['zero'], frame),
      node('merge', 'Merge', ['enter', 'next'], { ...T, N: { i: 2 } }),
      constant('ten', int32, [], { int_val: [10] }),
      node('limit', 'Enter', ['ten'], { ...frame, is_constant: { b: true } }),
      node('less', 'Less', ['merge', 'limit'], T),
      node('go', 'LoopCond', ['less']),
      node('switch', 'Switch', ['merge', 'go'], T),
      node('body', 'Identity', ['switch:1'], T),
      { ...constant('three', int32, [], { int_val: [3] }), input: ['^body'] },
      node('sum', 'AddV2', ['body', 'three'], T),
      node('next', 'NextIteration', ['sum'], T),
      node('exit', 'Exit', ['switch'], T),
    ];
    expect(numbersOf(await valueOf(nodes, 'exit'))).toEqual([12]);
  });

  it('trains: variables and updates', async () => {
    const graph = await importGraphDef(
      bytesOf([
        node('v', 'VariableV2', [], { dtype: { type: float }, shape: { shape: shape(2) }, container: { s: Buffer.alloc(0) } }),
        constant('ones', float, [2], { float_val: [1] }),
        node('init', 'Assign', ['v', 'ones'], { ...floats, use_locking: { b: true }, validate_shape: { b: true } }),
        constant('rate', float, [], { float_val: [0.5] }),
        node('train', 'ApplyGradientDescent', ['v', 'rate', 'ones'], floats),
      ]),
    );
    const session = sessionOf(graph);
    await session.run([], ['init']);
    await session.run([], ['train']);
    expect(numbersOf((await session.run([], ['v:0']))[0])).toEqual([0.5, 0.5]);
  });
});

describe('a model.json', () => {
  const T = { T: { type: 'DT_FLOAT' } };
  const Tidx = { Tidx: { type: 'DT_INT32' } };
  const placeholder = (name: string, type: string, ...sizes: readonly number[]): object => ({
    name,
    op: 'Placeholder',
    attr: { dtype: { type }, shape: { shape: { dim: sizes.map((size) => ({ size: String(size) })) } } },
  });

  /** Two towers' worth of everything that a ranking model is made of. */
  function model(): { path: string; nodes: object[]; fetches: string[]; feeds: Record<string, Value> } {
    const random = seededRandom(5);
    const weights: object[] = [];
    const bytes: Uint8Array[] = [];
    const nodes: object[] = [];
    const fetches: string[] = [];
    const weight = (name: string, dtype: 'float32' | 'int32', sizes: readonly number[], values?: readonly number[]): string => {
      const count = sizes.reduce((product, each) => product * each, 1);
      const data = values ?? Array.from({ length: count }, () => random.next() - 0.5);
      const type = dtype === 'float32' ? 'DT_FLOAT' : 'DT_INT32';
      const tensorShape = { dim: sizes.map((size) => ({ size: String(size) })) };
      nodes.push({ name, op: 'Const', attr: { dtype: { type }, value: { tensor: { dtype: type, tensorShape } } } });
      weights.push({ name, shape: sizes, dtype });
      bytes.push(new Uint8Array((dtype === 'float32' ? Float32Array.from(data) : Int32Array.from(data)).buffer));
      return name;
    };
    const integers = (name: string, ...values: readonly number[]): string => weight(name, 'int32', [values.length], values);
    const integer = (name: string, value: number): string => weight(name, 'int32', [], [value]);
    const add = (name: string, op: string, inputs: readonly string[], attr: object = {}, isFetched = true): string => {
      nodes.push({ name, op, input: inputs, attr: { ...T, ...attr } });
      if (isFetched) fetches.push(name);
      return name;
    };
    nodes.push(placeholder('x', 'DT_FLOAT', -1, 6), placeholder('ids', 'DT_INT32', -1));
    const base64 = (each: string): string => Buffer.from(each).toString('base64');
    const fused = (ops: readonly string[]): object => ({
      fused_ops: { list: { s: ops.map(base64) } },
      num_args: { i: '1' },
      transpose_a: { b: false },
      transpose_b: { b: false },
      epsilon: { f: 0 },
    });
    add('rows', 'GatherV2', [weight('table', 'float32', [9, 4]), 'ids', integer('axis0', 0)], {
      Tparams: { type: 'DT_FLOAT' },
      Tindices: { type: 'DT_INT32' },
      Taxis: { type: 'DT_INT32' },
      batch_dims: { i: '0' },
      T: undefined,
    });
    add('wide', 'ConcatV2', ['x', 'rows', integer('axis1', 1)], { N: { i: '2' }, ...Tidx });
    add('h1', '_FusedMatMul', ['wide', weight('w1', 'float32', [10, 8]), weight('b1', 'float32', [8])], fused(['BiasAdd', 'Relu']));
    add('h2', 'MatMul', ['h1', weight('w2', 'float32', [4, 8])], { transpose_b: { b: true }, transpose_a: { b: false } });
    add('h3', 'BiasAdd', ['h2', weight('b2', 'float32', [4])], { data_format: { s: base64('NHWC') } });
    for (const each of ['Sigmoid', 'Tanh', 'Softplus', 'Softmax', 'Exp', 'Neg', 'Abs', 'Square', 'Relu', 'Sign', 'LogSoftmax'])
      add(each, each, ['h3']);
    add('Sqrt', 'Sqrt', ['Exp']);
    add('Rsqrt', 'Rsqrt', ['Exp']);
    add('Log', 'Log', ['Exp']);
    add('leaky', 'LeakyRelu', ['h3'], { alpha: { f: 0.3 } });
    for (const each of ['Add', 'AddV2', 'Sub', 'Mul', 'RealDiv', 'Maximum', 'Minimum', 'SquaredDifference', 'Pow', 'FloorMod'])
      add(`p_${each}`, each, ['Exp', 'Sigmoid']);
    add('parts', 'Split', [integer('axisLast', -1), 'h3'], { num_split: { i: '2' } }, false);
    fetches.push('parts:1');
    add('pack', 'Pack', ['parts', 'parts:1'], { N: { i: '2' }, axis: { i: '0' } });
    add('flat', 'Reshape', ['pack', integers('shape', -1, 2)], { Tshape: { type: 'DT_INT32' } });
    add('perm', 'Transpose', ['pack', integers('order', 2, 0, 1)], { Tperm: { type: 'DT_INT32' } });
    add('cut', 'Slice', ['h3', integers('begin', 1, 1), integers('size', 2, -1)], { Index: { type: 'DT_INT32' } });
    add('wider', 'ExpandDims', ['h3', integer('dim', -2)], { Tdim: { type: 'DT_INT32' } });
    add('batch', 'BatchMatMulV2', ['wider', 'wider'], { adj_x: { b: true }, adj_y: { b: false } });
    for (const each of ['Sum', 'Mean', 'Max', 'Min', 'Prod'])
      add(`r_${each}`, each, ['batch', integers(`axes_${each}`, -1, 0)], { keep_dims: { b: each === 'Mean' }, ...Tidx });
    add('best', 'ArgMax', ['h3', integer('dimension', 1)], { output_type: { type: 'DT_INT32' }, ...Tidx });
    add('less', 'Less', ['h3', 'Sigmoid'], {}, false);
    add('chosen', 'SelectV2', ['less', 'h3', 'Sigmoid']);
    add('many', 'AddN', ['h3', 'Sigmoid', 'Tanh'], { N: { i: '3' } });
    add('count', 'Cast', ['best'], { SrcT: { type: 'DT_INT32' }, DstT: { type: 'DT_FLOAT' }, T: undefined });
    const path = writeModel(folder, 'ranking', nodes, weights, Uint8Array.from(Buffer.concat(bytes)));
    const feeds = {
      x: dense(
        [3, 6],
        Array.from({ length: 18 }, () => random.next()),
      ),
      ids: dense([3], [8, 0, 3], 'int32'),
    };
    return { path, nodes, fetches, feeds };
  }

  it('gives the numbers that TensorFlow.js gives', async () => {
    const { path, fetches, feeds } = model();
    const graph = await importModelJson(path);
    const ours = await sessionOf(graph).run(
      Object.entries(feeds),
      fetches.map((each) => (each.includes(':') ? each : `${each}:0`)),
    );
    const theirs = await runByTensorFlow(path, feeds, fetches);
    fetches.forEach((name, k) => {
      const numbers = numbersOf(ours[k]).map(Number);
      expect(numbers.length, name).toBe(theirs[k].length);
      numbers.forEach((each, i) => expect(each, name).toBeCloseTo(theirs[k][i], 5));
    });
  });

  it('has quantized weights and strings as TensorFlow.js reads them', async () => {
    const specs = [
      { name: 'q8', shape: [3], dtype: 'float32', quantization: { dtype: 'uint8', min: -1, scale: 0.25 } },
      { name: 'text', shape: [2], dtype: 'string' },
      { name: 'q16', shape: [2], dtype: 'int32', quantization: { dtype: 'uint16', min: -5.2, scale: 1.3 } },
      { name: 'half', shape: [4], dtype: 'float32', quantization: { dtype: 'float16' } },
      { name: 'flags', shape: [2], dtype: 'bool' },
    ];
    const strings = Buffer.from([2, 0, 0, 0, 0x68, 0x69, 0, 0, 0, 0]);
    const halves = Buffer.from(Uint16Array.of(0x3c00, 0xc100, 0x0001, 0x7bff).buffer);
    const bytes = Buffer.concat([Buffer.from([0, 8, 255]), strings, Buffer.from(Uint16Array.of(0, 9).buffer), halves, Buffer.from([1, 0])]);
    const types: Record<string, string> = { float32: 'DT_FLOAT', int32: 'DT_INT32', string: 'DT_STRING', bool: 'DT_BOOL' };
    const nodes = specs.map(({ name, dtype }) => ({ name, op: 'Const', attr: { dtype: { type: types[dtype] }, value: { tensor: {} } } }));
    const graph = await importModelJson(writeModel(folder, 'quantized', nodes, specs, Uint8Array.from(bytes), 1));
    const theirs = tf.io.decodeWeights(Uint8Array.from(bytes).buffer, specs as tf.io.WeightsManifestEntry[]);
    for (const { name, dtype } of specs) {
      const value = graph.node(name).attributes.value as Value;
      expect(value.dtype).toBe(dtype);
      expect(Array.from(value.data as ArrayLike<unknown>), name).toEqual(Array.from(theirs[name].dataSync()));
    }
  });

  it('has no integers that are quantized as float16', async () => {
    const specs = [{ name: 'half', shape: [2], dtype: 'int32', quantization: { dtype: 'float16' } }];
    const nodes = [{ name: 'half', op: 'Const', attr: { dtype: { type: 'DT_INT32' }, value: { tensor: {} } } }];
    await expect(importModelJson(writeModel(folder, 'half-integers', nodes, specs, new Uint8Array(4), 1))).rejects.toMatchObject({
      code: 'protocol',
      message: expect.stringContaining("weight 'half': an int32 is not quantized as float16") as string,
    });
  });

  const zero = { name: 'c', op: 'Const', attr: { dtype: { type: 'DT_FLOAT' }, value: { tensor: { dtype: 'DT_FLOAT' } } } };
  const weight = { name: 'c', shape: [2], dtype: 'float32' };

  it('is a path', async () => {
    await expect(importModelJson(3 as never)).rejects.toMatchObject({
      code: 'usage',
      message: expect.stringMatching(/the path of a model/) as string,
    });
  });

  it.each<[string, string, RegExp, (path: string) => void]>([
    ['a file that is not there', 'system', /cannot read .*model\.json/, (path) => rmSync(path)],
    ['no JSON', 'protocol', /is no JSON/, (path) => writeFileSync(path, '{')],
    ['a layers model', 'unsupported', /is a layers model/, (path) => writeFileSync(path, '{"format":"layers-model"}')],
    ['no graph', 'protocol', /no modelTopology with nodes/, (path) => writeFileSync(path, '{"modelTopology":{}}')],
    ['nodes that are none', 'protocol', /is no GraphDef/, (path) => writeFileSync(path, '{"modelTopology":{"node":[3]}}')],
    [
      'missing weights',
      'usage',
      /Const 'c': its value is not among the weights/,
      () => writeModel(folder, 'bad', [zero], [], new Uint8Array()),
    ],
    [
      'weights that are too short',
      'protocol',
      /weight 'c': needs 8 bytes; the files have 7/,
      () => writeModel(folder, 'bad', [zero], [weight], new Uint8Array(7)),
    ],
    [
      'weights that are too long',
      'protocol',
      /weights of 8 bytes, but .* 9/,
      () => writeModel(folder, 'bad', [zero], [weight], new Uint8Array(9)),
    ],
    [
      'weights of no dtype',
      'protocol',
      /a weight that is none/,
      () => writeModel(folder, 'bad', [zero], [{ ...weight, dtype: 'x' }], new Uint8Array(8)),
    ],
    [
      'weights of no end',
      'system',
      /large\.bin has 2147483644 bytes; files of up to 2147483639 are read/,
      (path) => {
        const large = join(dirname(path), 'large.bin');
        writeFileSync(large, '');
        truncateSync(large, 2 ** 31 - 4);
        const paths = ['group1-shard1of2.bin', 'group1-shard2of2.bin', 'large.bin'];
        writeFileSync(path, JSON.stringify({ modelTopology: { node: [zero] }, weightsManifest: [{ paths, weights: [weight] }] }));
      },
    ],
    [
      'weights of many dimensions',
      'protocol',
      /a weight that is none/,
      () => writeModel(folder, 'bad', [zero], [{ ...weight, shape: new Array<number>(33).fill(1) }], new Uint8Array(4)),
    ],
    [
      'files elsewhere',
      'protocol',
      /a file of weights that is not beside it: '\.\.\/secret'/,
      (path) =>
        writeFileSync(path, JSON.stringify({ modelTopology: { node: [zero] }, weightsManifest: [{ paths: ['../secret'], weights: [] }] })),
    ],
  ])('refuses %s', async (_, code, message, spoil) => {
    const path = writeModel(folder, 'bad', [zero], [weight], new Uint8Array(8));
    spoil(path);
    await expect(importModelJson(path)).rejects.toMatchObject({ code, message: expect.stringMatching(message) as string });
  });
});

describe('an import refuses, naming the node,', () => {
  const x = input('x', float, 2, 3);
  it.each<[string, readonly NodeJson[], string, RegExp]>([
    [
      'unknown operations, all of them',
      [x, node('a', 'Conv3D', ['x']), node('b', 'LRN', ['a']), node('c', 'Conv3D', ['b'])],
      'unsupported',
      /imported: Conv3D, LRN$/,
    ],
    [
      'shapes that are computed',
      [x, node('s', 'Shape', ['x']), node('y', 'Reshape', ['x', 's'])],
      'usage',
      /Reshape 'y': its shape must be a constant, but 's' is Shape/,
    ],
    ['inputs that are missing', [x, node('y', 'Reshape', ['x'])], 'usage', /Reshape 'y': input 1, its shape, is missing/],
    ['inputs that are not there', [x, node('y', 'Neg', ['z'])], 'usage', /Neg 'y': its input 'z' is not there/],
    ['circles', [node('a', 'Neg', ['b']), node('b', 'Neg', ['a'])], 'usage', /has a circle: a → b → a|has a circle: b → a → b/],
    ['axes in a circle', [x, node('a', 'Identity', ['a']), node('y', 'Sum', ['x', 'a'])], 'usage', /Sum 'y': .* circle/],
    [
      'dtypes that disagree',
      [x, node('y', 'Neg', ['x'], { T: { type: int32 } })],
      'usage',
      /Neg 'y': input x is float32, but must be int32/,
    ],
    ['shapes that do not fit', [x, node('y', 'MatMul', ['x', 'x'])], 'usage', /MatMul 'y': \[2, 3\] times \[2, 3\]/],
    ['dtypes that are not here', [input('z', 8)], 'usage', /Placeholder 'z': attribute 'dtype': DT_COMPLEX64 is not supported/],
    ['dtypes that are none', [input('z', 77)], 'usage', /Placeholder 'z': attribute 'dtype': 77 is no dtype/],
    [
      'attributes that are not known',
      [x, node('y', 'Neg', ['x'], { swing: { b: true } })],
      'unsupported',
      /Neg 'y': attribute 'swing' is not known/,
    ],
    [
      'attributes of another kind',
      [x, node('y', 'MatMul', ['x', 'x'], { transpose_b: { i: 1 } })],
      'usage',
      /MatMul 'y': attribute 'transpose_b': is no bool/,
    ],
    [
      'other layouts',
      [x, node('y', 'BiasAdd', ['x', 'x'], { data_format: { s: Buffer.from('NCHW') } })],
      'usage',
      /BiasAdd 'y': its data_format must be 'NHWC', not 'NCHW'/,
    ],
    [
      'other fusions',
      [x, node('y', '_FusedMatMul', ['x', 'x'], { fused_ops: { list: { s: [Buffer.from('Gelu')] } } })],
      'unsupported',
      /_FusedMatMul 'y': Gelu behind the product/,
    ],
    [
      'constants of too many elements',
      [constant('c', int32, [1], { int_val: [1, 2] })],
      'usage',
      /Const 'c': attribute 'value': 2 elements are too many/,
    ],
    ['constants of too few bytes', [constant('c', int32, [2], { tensor_content: Buffer.alloc(7) })], 'usage', /has 8 bytes, not 7/],
    [
      'constants of no end',
      [constant('c', float, [2 ** 40, 2 ** 12], { float_val: [1] })],
      'usage',
      /more than 256 MiB of repeated elements/,
    ],
    [
      'constants that are much of little, together',
      [constant('a', float, [2 ** 16], { float_val: [1] }), constant('b', float, [2 ** 26], { float_val: [1] })],
      'usage',
      /Const 'b': attribute 'value': .* more than 256 MiB of repeated elements/,
    ],
    [
      'shapes of many dimensions',
      [input('z', float, ...new Array<number>(10_000).fill(1))],
      'usage',
      /Placeholder 'z': attribute 'shape': 10000 dimensions; at most 32 are allowed/,
    ],
    [
      'operations that make many dimensions',
      [x, ...Array.from({ length: 31 }, (_, k) => node(`y${k}`, 'Pack', [k === 0 ? 'x' : `y${k - 1}`]))],
      'usage',
      /Pack 'y30': output 0 would have 33 dimensions; at most 32 are allowed/,
    ],
    ['constants of an open shape', [constant('c', float, [-1], { float_val: [1] })], 'usage', /the shape of a value must be known/],
    [
      'several companions',
      [x, node('y', 'Neg', ['x'], { _class: { list: { s: ['loc:@x', 'loc:@z'].map((each) => Buffer.from(each)) } } })],
      'usage',
      /is colocated with x, z/,
    ],
    ['two nodes of one name', [x, x], 'usage', /two nodes 'x'/],
    ['no nodes', [], 'protocol', /has no nodes/],
  ])('%s', async (_, nodes, code, message) => {
    await expect(importGraphDef(bytesOf(nodes))).rejects.toMatchObject({ code, message: expect.stringMatching(message) as string });
  });

  it('bytes that are cut off or changed, whatever they become', async () => {
    const whole = bytesOf([
      x,
      constant('w', float, [3, 2], { float_val: [1, 2, 3] }),
      node('y', 'MatMul', ['x', 'w'], floats),
      constant('axes', int32, [1], { int_val: [0] }),
      node('z', 'Sum', ['y', 'axes'], { ...floats, keep_dims: { b: true } }),
    ]);
    const random = seededRandom(11);
    const codes = new Set<string>();
    const attempt = async (bytes: Uint8Array): Promise<void> => {
      try {
        await importGraphDef(bytes);
        codes.add('a graph');
      } catch (error) {
        if (!(error instanceof ShoalError)) throw error;
        codes.add(error.code);
      }
    };
    for (let length = 0; length < whole.length; length++) await attempt(whole.slice(0, length));
    for (let round = 0; round < 300; round++) {
      const bytes = whole.slice();
      for (let left = 1 + Math.floor(4 * random.next()); left > 0; left--)
        bytes[Math.floor(bytes.length * random.next())] = Math.floor(256 * random.next());
      await attempt(bytes);
    }
    // Groups within groups, as deep as it goes.
    await attempt(new Uint8Array(1 << 20).fill(0x0b));
    expect([...codes].sort()).toEqual(['a graph', 'protocol', 'unsupported', 'usage']);
  });
});

describe('the manual', () => {
  const [, section] = /\n## Graphs of TensorFlow\n([\s\S]*?)\n## /.exec(readFileSync('docs/graph.md', 'utf8'))!;
  const namesIn = (text: string): string[] => text.match(/\b_?[A-Z]\w+/g) ?? [];
  const [, refused] = /\nNot imported: ([\s\S]*?)\.\n/.exec(section)!;
  const [, table] = /((?:\n\|.*)+)/.exec(section)!;

  it('says which operations are not imported', () => {
    const without = operations.map(({ name }) => name).filter((name) => !Object.hasOwn(translations, name));
    expect(namesIn(refused).toSorted()).toEqual(without.toSorted());
  });

  it('names every imported operation that a graph does not have', () => {
    const known = new Set(operations.map(({ name }) => name));
    const foreign = [...Object.keys(translations), ...Object.keys(fusedOperations)].filter((name) => !known.has(name));
    expect(foreign.filter((name) => !namesIn(table).includes(name))).toEqual([]);
  });
});
