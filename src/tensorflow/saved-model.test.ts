/** SavedModels, as TensorFlow 2 writes them: signatures that call functions, variables in a checkpoint that a function restores; and files that are none. */
import * as tf from '@tensorflow/tfjs';
import { mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import protobuf from 'protobufjs';
import { beforeAll, describe, expect, it } from 'vitest';
import { temporaryFolder } from '../base/testing/temporary-folder.ts';
import { Session } from '../graph/execute/session.ts';
import { localKernels } from '../graph/local-kernels.ts';
import { tensorflowKernels } from '../graph/kernels/tensorflow.ts';
import { dense, numbersOf } from '../graph/testing/kernels.ts';
import { importSavedModel } from './saved-model.ts';
import { maskedCrc32c } from '../base/crc32c.ts';

/** The messages that TensorFlow publishes, as far as a model here needs them, written by hand. */
const schema = `
syntax = "proto3";
package tensorflow;
message TensorShapeProto { message Dim { int64 size = 1; string name = 2; } repeated Dim dim = 2; bool unknown_rank = 3; }
message TensorProto { int32 dtype = 1; TensorShapeProto tensor_shape = 2; repeated bytes string_val = 8; }
message NameAttrList { string name = 1; }
message AttrValue {
  oneof value { bytes s = 2; int64 i = 3; bool b = 5; int32 type = 6; TensorShapeProto shape = 7; TensorProto tensor = 8; NameAttrList func = 10; }
}
message NodeDef { string name = 1; string op = 2; repeated string input = 3; string device = 4; map<string, AttrValue> attr = 5; }
message OpDef {
  message ArgDef { string name = 1; string description = 2; int32 type = 3; }
  string name = 1; repeated ArgDef input_arg = 2; repeated ArgDef output_arg = 3;
}
message FunctionDef { OpDef signature = 1; repeated NodeDef node_def = 3; map<string, string> ret = 4; map<string, string> control_ret = 6; }
message FunctionDefLibrary { repeated FunctionDef function = 1; }
message VersionDef { int32 producer = 1; }
message GraphDef { repeated NodeDef node = 1; FunctionDefLibrary library = 2; VersionDef versions = 4; }
message TensorInfo { string name = 1; int32 dtype = 2; TensorShapeProto tensor_shape = 3; }
message SignatureDef { map<string, TensorInfo> inputs = 1; map<string, TensorInfo> outputs = 2; string method_name = 3; }
message MetaInfoDef { string meta_graph_version = 1; repeated string tags = 4; }
message MetaGraphDef { MetaInfoDef meta_info_def = 1; GraphDef graph_def = 2; map<string, SignatureDef> signature_def = 5; }
message SavedModel { int64 saved_model_schema_version = 1; repeated MetaGraphDef meta_graphs = 2; }
message TensorSliceProto { message Extent { int64 start = 1; int64 length = 2; } repeated Extent extent = 1; }
message BundleHeaderProto { int32 num_shards = 1; int32 endianness = 2; VersionDef version = 3; }
message BundleEntryProto {
  int32 dtype = 1; TensorShapeProto shape = 2; int32 shard_id = 3; int64 offset = 4; int64 size = 5; fixed32 crc32c = 6; repeated TensorSliceProto slices = 7;
}`;
const { root } = protobuf.parse(schema, { keepCase: true });
const encode = (message: string, value: object): Buffer => {
  const type = root.lookupType(`tensorflow.${message}`);
  return Buffer.from(type.encode(type.fromObject(value)).finish());
};

const [float, text] = [1, 7];
const shape = (...sizes: readonly number[]): object => ({ dim: sizes.map((size) => ({ size })) });
const node = (name: string, op: string, input: readonly string[] = [], attr: object = {}): object => ({ name, op, input, attr });
const typed = { dtype: { type: float } };
const strings = (name: string, ...values: readonly string[]): object =>
  node(name, 'Const', [], {
    dtype: { type: text },
    value: { tensor: { dtype: text, tensor_shape: shape(values.length), string_val: values.map((each) => Buffer.from(each)) } },
  });
const handle = (name: string, ...sizes: readonly number[]): object =>
  node(name, 'VarHandleOp', [], { ...typed, shape: { shape: shape(...sizes) }, shared_name: { s: Buffer.from(name) } });
const define = (
  name: string,
  args: readonly string[],
  nodes: readonly object[],
  results: Readonly<Record<string, string>>,
  effects: readonly string[] = [],
): object => ({
  signature: {
    name,
    input_arg: args.map((each) => ({ name: each, type: float })),
    output_arg: Object.keys(results).map((each) => ({ name: each, type: float })),
  },
  node_def: nodes,
  ret: results,
  control_ret: Object.fromEntries(effects.map((each) => [each, each])),
});
const keys = ['w/.ATTRIBUTES/VARIABLE_VALUE', 'b/.ATTRIBUTES/VARIABLE_VALUE', '_CHECKPOINTABLE_OBJECT_GRAPH'];

/** y = x · w + b; saving needs operations that are not imported. */
function model(slices = ''): object {
  const restored = (slot: number): object[] => [
    node(`identity_${slot}`, 'Identity', [`RestoreV2:tensors:${slot}`], { T: { type: float } }),
    node(`assign_${slot}`, 'AssignVariableOp', [slot === 0 ? 'w' : 'b', `identity_${slot}:output:0`], typed),
  ];
  const library = [
    define(
      'serve',
      ['x', 'w', 'b'],
      [
        node('read_w', 'ReadVariableOp', ['w'], typed),
        node('read_b', 'ReadVariableOp', ['b'], typed),
        node('product', 'MatMul', ['x', 'read_w:value:0'], { T: { type: float } }),
        node('sum', 'BiasAdd', ['product:product:0', 'read_b:value:0'], { T: { type: float } }),
      ],
      { y: 'sum:output:0' },
    ),
    define(
      'restore_all',
      ['file', 'w', 'b'],
      [
        strings('RestoreV2/tensor_names', ...keys),
        strings('RestoreV2/shape_and_slices', slices, '', ''),
        node('RestoreV2', 'RestoreV2', ['file', 'RestoreV2/tensor_names:output:0', 'RestoreV2/shape_and_slices:output:0']),
        ...restored(0),
        ...restored(1),
        node('done', 'Identity', ['file', '^assign_0', '^assign_1'], { T: { type: text } }),
      ],
      { out: 'done:output:0' },
      ['assign_0', 'assign_1'],
    ),
  ];
  const nodes = [
    handle('w', 2, 3),
    handle('b', 3),
    node('serving_default_x', 'Placeholder', [], { ...typed, shape: { shape: shape(-1, 2) } }),
    // The signature feeds the result of the parsing.
    node('x', 'Identity', ['example']),
    node('example', 'ParseExample', ['serving_default_x']),
    node('StatefulPartitionedCall', 'StatefulPartitionedCall', ['x', 'w', 'b'], { f: { func: { name: 'serve' } } }),
    node('saver_filename', 'Placeholder', [], { dtype: { type: text }, shape: { shape: shape() } }),
    node('StatefulPartitionedCall_1', 'StatefulPartitionedCall', ['saver_filename', 'w', 'b'], { f: { func: { name: 'restore_all' } } }),
    node('save', 'MergeV2Checkpoints', ['saver_filename']),
    node('NoOp', 'NoOp'),
  ];
  const signature_def = {
    serving_default: {
      inputs: { x: { name: 'x:0', dtype: float, tensor_shape: shape(-1, 2) } },
      outputs: { output_0: { name: 'StatefulPartitionedCall:0' } },
    },
    __saved_model_init_op: { outputs: { __saved_model_init_op: { name: 'NoOp' } } },
  };
  return {
    saved_model_schema_version: 1,
    meta_graphs: [{ meta_info_def: { tags: ['serve'] }, graph_def: { node: nodes, library: { function: library } }, signature_def }],
  };
}

function varint(value: number): Buffer {
  const bytes: number[] = [];
  let rest = value;
  for (; rest > 127; rest = Math.floor(rest / 128)) bytes.push((rest % 128) + 128);
  return Buffer.from([...bytes, rest]);
}

/** Sorted keys, each without what it has in common with the one before. */
function block(entries: readonly (readonly [string, Buffer])[]): Buffer {
  let before = '';
  const parts = entries.map(([key, value]) => {
    let shared = 0;
    while (shared < key.length && key[shared] === before[shared]) shared++;
    before = key;
    return Buffer.concat([varint(shared), varint(key.length - shared), varint(value.length), Buffer.from(key.slice(shared)), value]);
  });
  // One place to begin at, and how many there are.
  return Buffer.concat([...parts, Buffer.from(Uint32Array.of(0, 1).buffer)]);
}

/** Blocks, each with its kind of compression and a checksum behind it, an index of them, and a footer that says where that is. */
function table(entries: readonly (readonly [string, Buffer])[], compression = 0, times = 1): Buffer {
  const sorted = entries.toSorted(([a], [b]) => (a < b ? -1 : 1));
  const half = Math.ceil(sorted.length / 2);
  const parts: Buffer[] = [];
  let at = 0;
  const write = (each: Buffer): Buffer => {
    const place = Buffer.concat([varint(at), varint(each.length)]);
    parts.push(each, Buffer.from([compression, 0, 0, 0, 0]));
    at += each.length + 5;
    return place;
  };
  const index = [sorted.slice(0, half), sorted.slice(half)].map((each): [string, Buffer] => [each.at(-1)![0], write(block(each))]);
  const repeated = Array.from({ length: times }, () => index).flat();
  const places = Buffer.concat([write(block([])), write(block(repeated))]);
  const footer = Buffer.alloc(48);
  places.copy(footer);
  footer.writeBigUInt64LE(0xdb4775248b80fb57n, 40);
  return Buffer.concat([...parts, footer]);
}

const elements = Buffer.from(Float32Array.of(1, 2, 3, 4, 5, 6, 10, 20, 30).buffer);
const entry = (sizes: readonly number[], offset: number, size: number, more: object = {}): Buffer =>
  encode('BundleEntryProto', {
    ...{ dtype: float, shape: shape(...sizes), shard_id: 0, offset, size },
    ...{ crc32c: maskedCrc32c(elements.subarray(offset, offset + size)), ...more },
  });
const entries = (more: object = {}, header: object = {}): [string, Buffer][] => [
  ['', encode('BundleHeaderProto', { num_shards: 1, version: { producer: 1 }, ...header })],
  [keys[0], entry([2, 3], 0, 24, more)],
  [keys[1], entry([3], 24, 12)],
];

function write(saved = model(), index = table(entries())): string {
  const folder = temporaryFolder('saved-model');
  mkdirSync(join(folder, 'variables'));
  writeFileSync(join(folder, 'saved_model.pb'), encode('SavedModel', saved));
  writeFileSync(join(folder, 'variables', 'variables.index'), index);
  writeFileSync(join(folder, 'variables', 'variables.data-00000-of-00001'), elements);
  return folder;
}

beforeAll(async () => {
  await tf.setBackend('cpu');
});

describe('a SavedModel', () => {
  it('computes with its variables after they are restored', async () => {
    const { graph, restore, signatures } = await importSavedModel(write());
    expect(Object.keys(signatures)).toEqual(['serving_default']);
    const kernels = { ...localKernels(), ...tensorflowKernels(tf) };
    const session = new Session(graph, { devices: ['/job:localhost/task:0/device:CPU:0'], kernels });
    await session.run([], [restore]);
    const { inputs, outputs } = signatures.serving_default;
    const [y] = await session.run([[inputs.x, dense([1, 2], [1, 10])]], [outputs.output_0]);
    expect(numbersOf(y)).toEqual([51, 72, 93]);
  });

  it('has no other signatures', async () => {
    await expect(importSavedModel(write(), { signatures: ['train'] })).rejects.toThrow(
      /has no signature 'train'; it has serving_default, __saved_model_init_op/,
    );
  });

  it.each<[string, string, RegExp, () => string]>([
    ['a folder without a model', 'system', /cannot read .*saved_model\.pb/, () => temporaryFolder('saved-model')],
    [
      'a model that is cut off',
      'protocol',
      /bytes are no SavedModel, in .*saved_model\.pb/,
      () => {
        const folder = write();
        const path = join(folder, 'saved_model.pb');
        writeFileSync(path, readFileSync(path).subarray(0, 100));
        return folder;
      },
    ],
    ['no graph', 'protocol', /has no graph/, () => write({})],
    [
      'missing elements',
      'system',
      /cannot read .*data-00000-of-00001/,
      () => {
        const folder = write();
        rmSync(join(folder, 'variables', 'variables.data-00000-of-00001'));
        return folder;
      },
    ],
    ['an index that is none', 'protocol', /is no table of a checkpoint/, () => write(model(), Buffer.alloc(60))],
    ['an index that lacks a variable', 'protocol', /has no 'b\/.ATTR/, () => write(model(), table(entries().slice(0, 2)))],
    ['elements of another number', 'protocol', /float32\[2, 3\] has 24 bytes, not 20/, () => write(model(), table(entries({ size: 20 })))],
    [
      'an index that is not compressed as it says',
      'protocol',
      /not compressed with Snappy|is cut off/,
      () => write(model(), table(entries(), 1)),
    ],
    ['elements that have changed', 'protocol', /their checksum differs/, () => write(model(), table(entries({ crc32c: 1 })))],
    ['big-endian elements', 'unsupported', /are big-endian/, () => write(model(), table(entries({}, { endianness: 1 })))],
    [
      'a key that is too long',
      'protocol',
      /a key of 5000 bytes; at most 4096/,
      () => write(model(), table([...entries(), ['x'.repeat(5000), Buffer.alloc(0)]])),
    ],
    ['a block that is read again and again', 'protocol', /outside of it, or twice/, () => write(model(), table(entries(), 0, 3))],
    ['variables in slices', 'unsupported', /is in slices/, () => write(model(), table(entries({ slices: [{}] })))],
    ['slices of variables', 'unsupported', /RestoreV2' reads slices of variables/, () => write(model('2 3 0,1:-'))],
  ])('is refused: %s', async (_, code, message, make) => {
    await expect(importSavedModel(make())).rejects.toMatchObject({ code, message: expect.stringMatching(message) as string });
  });

  it('has the checksums of its standard', () => {
    const unmasked = (masked: number): number => {
      const rotated = (masked - 0xa282ead8) >>> 0;
      return ((rotated >>> 17) | (rotated << 15)) >>> 0;
    };
    expect(unmasked(maskedCrc32c(Buffer.from('123456789')))).toBe(0xe3069283);
    expect(unmasked(maskedCrc32c(Buffer.alloc(32)))).toBe(0x8a9136aa);
  });

  it('is a path', async () => {
    await expect(importSavedModel(3 as never)).rejects.toThrow(/importSavedModel takes the path of a folder, not 3/);
  });
});
