/** TensorFlow's GraphDef, as far as an import reads it: the messages of graph.proto, node_def.proto, attr_value.proto, tensor.proto and
 *  tensor_shape.proto. Fields that are not here (variants, complex numbers) are skipped when bytes are read. */
import { messageOf, ShoalError } from '../base/errors.ts';
import type { Fail } from '../graph/structure/definition.ts';
import type { GraphDType } from '../graph/structure/graph-dtype.ts';

/** 64-bit integers come as an object whose text is the number. */
export type Int64 = number | { toString(): string };

export interface ShapeProto {
  readonly dim: readonly { readonly size: Int64 }[];
  readonly unknownRank: boolean;
}

export interface TensorProto {
  readonly dtype: number;
  readonly tensorShape: ShapeProto | null;
  readonly tensorContent: Uint8Array;
  readonly halfVal: readonly number[];
  readonly floatVal: readonly number[];
  readonly doubleVal: readonly number[];
  readonly intVal: readonly number[];
  readonly stringVal: readonly Uint8Array[];
  readonly int64Val: readonly Int64[];
  readonly boolVal: readonly boolean[];
  readonly uint32Val: readonly number[];
}

/** One of these fields is there: an own property. */
export interface AttrProto {
  readonly s?: Uint8Array;
  readonly i?: Int64;
  readonly f?: number;
  readonly b?: boolean;
  readonly type?: number;
  readonly shape?: ShapeProto;
  readonly tensor?: TensorProto;
  readonly list?: AttrListProto;
  readonly func?: { readonly name: string };
}

export interface AttrListProto {
  readonly s: readonly Uint8Array[];
  readonly i: readonly Int64[];
  readonly type: readonly number[];
  readonly shape: readonly ShapeProto[];
}

export interface NodeProto {
  readonly name: string;
  readonly op: string;
  readonly input: readonly string[];
  readonly device: string;
  readonly attr: Readonly<Record<string, AttrProto>>;
  /** The name that it has in its function, where it is in the place of a call. */
  readonly original?: string;
}

export interface FunctionProto {
  readonly signature: {
    readonly name: string;
    readonly inputArg: readonly { readonly name: string }[];
    readonly outputArg: readonly { readonly name: string }[];
  } | null;
  readonly nodeDef: readonly NodeProto[];
  /** Outputs of nodes, or arguments, by result. */
  readonly ret: Readonly<Record<string, string>>;
  /** Nodes whose effects are the function's. */
  readonly controlRet: Readonly<Record<string, string>>;
}

export interface GraphProto {
  readonly node: readonly NodeProto[];
  readonly versions: { readonly producer: number } | null;
  readonly library?: { readonly function: readonly FunctionProto[] } | null;
}

/** The parts of a protobufjs `Type` that are used here. Declarations of the package must not need protobufjs, which is optional. */
export interface MessageCodec {
  decode(bytes: Uint8Array): object;
  encode(message: object): { finish(): Uint8Array };
  fromObject(json: object): object;
}

export interface SavedModelProto {
  readonly metaGraphs: readonly {
    readonly metaInfoDef: { readonly tags: readonly string[] } | null;
    readonly graphDef: GraphProto | null;
    readonly signatureDef: Readonly<Record<string, SignatureProto>>;
  }[];
}

export interface TensorInfoProto {
  readonly name: string;
  readonly dtype: number;
  readonly tensorShape: ShapeProto | null;
}

interface SignatureProto {
  readonly inputs: Readonly<Record<string, TensorInfoProto>>;
  readonly outputs: Readonly<Record<string, TensorInfoProto>>;
}

/** A tensor of a checkpoint; of the header, `dtype` is the number of shards. */
export interface BundleEntryProto {
  readonly dtype: number;
  readonly shape: ShapeProto | null;
  readonly shardId: number;
  readonly offset: Int64;
  readonly size: Int64;
  /** Masked. */
  readonly crc32c: number;
  readonly slices: readonly unknown[];
}

export interface BundleHeaderProto {
  readonly numShards: number;
  /** 0: little-endian. */
  readonly endianness: number;
}

/** The codec of a message. @throws ShoalError `unsupported` without the package. */
export async function loadCodec(message: 'GraphDef' | 'SavedModel' | 'BundleHeader' | 'BundleEntry' = 'GraphDef'): Promise<MessageCodec> {
  try {
    const { default: protobuf } = await import('protobufjs');
    return protobuf.parse(proto).root.lookupType(message);
  } catch (cause) {
    throw new ShoalError('unsupported', `a GraphDef is read by the package protobufjs: ${messageOf(cause)}; npm install protobufjs`, {
      cause,
    });
  }
}

/** @throws ShoalError `protocol` for bytes that are no such message, or were cut off. */
export function decoded(type: MessageCodec, bytes: Uint8Array, what: string): object {
  try {
    return type.decode(bytes);
  } catch (cause) {
    throw new ShoalError('protocol', `${bytes.byteLength} bytes are no ${what}: ${messageOf(cause)}`, { cause });
  }
}

/** Reads the JSON form of Protocol Buffers. @throws ShoalError `protocol` for what is no GraphDef. */
export function graphFromJson(type: MessageCodec, json: object): GraphProto {
  try {
    // A field from JSON may still have a wrong kind; an encoded one has not.
    return type.decode(type.encode(type.fromObject(json)).finish()) as GraphProto;
  } catch (cause) {
    throw new ShoalError('protocol', `modelTopology is no GraphDef: ${messageOf(cause)}`, { cause });
  }
}

/** `DT_FLOAT` and what it is here; undefined: there is no such dtype here. */
const types: readonly (readonly [name: string, number: number, dtype?: GraphDType])[] = [
  ['DT_FLOAT', 1, 'float32'],
  ['DT_DOUBLE', 2, 'float64'],
  ['DT_INT32', 3, 'int32'],
  ['DT_UINT8', 4, 'uint8'],
  ['DT_INT16', 5, 'int16'],
  ['DT_INT8', 6, 'int8'],
  ['DT_STRING', 7, 'string'],
  ['DT_COMPLEX64', 8],
  ['DT_INT64', 9, 'int64'],
  ['DT_BOOL', 10, 'bool'],
  ['DT_QINT8', 11],
  ['DT_QUINT8', 12],
  ['DT_QINT32', 13],
  ['DT_BFLOAT16', 14, 'bfloat16'],
  ['DT_QINT16', 15],
  ['DT_QUINT16', 16],
  ['DT_UINT16', 17, 'uint16'],
  ['DT_COMPLEX128', 18],
  ['DT_HALF', 19, 'float16'],
  ['DT_RESOURCE', 20],
  ['DT_VARIANT', 21],
  ['DT_UINT32', 22, 'uint32'],
  ['DT_UINT64', 23],
];

/** A reference to a variable has a number of its own. */
const references = 100;
const dtypesByNumber = new Map(types.map(([name, number, dtype]) => [number, { name, dtype }]));

/** @throws what `fail` throws, for a number that is none and for dtypes that are not here. */
export function dtypeOf(number: number, fail: Fail): GraphDType {
  const found = dtypesByNumber.get(number > references ? number - references : number);
  if (found === undefined) return fail(`${number} is no dtype`);
  return found.dtype ?? fail(`${found.name} is not supported`);
}

const proto = `
  syntax = "proto3";
  enum DataType {
    DT_INVALID = 0;
    ${types.map(([name, number]) => `${name} = ${number}; ${name}_REF = ${number + references};`).join(' ')}
  }
  message Dim { int64 size = 1; }
  message TensorShapeProto { repeated Dim dim = 2; bool unknown_rank = 3; }
  message TensorProto {
    DataType dtype = 1; TensorShapeProto tensor_shape = 2; bytes tensor_content = 4;
    repeated float float_val = 5; repeated double double_val = 6; repeated int32 int_val = 7; repeated bytes string_val = 8;
    repeated int64 int64_val = 10; repeated bool bool_val = 11; repeated int32 half_val = 13; repeated uint32 uint32_val = 16;
  }
  message ListValue { repeated bytes s = 2; repeated int64 i = 3; repeated DataType type = 6; repeated TensorShapeProto shape = 7; }
  message AttrValue {
    oneof value {
      ListValue list = 1; bytes s = 2; int64 i = 3; float f = 4; bool b = 5;
      DataType type = 6; TensorShapeProto shape = 7; TensorProto tensor = 8; NameAttrList func = 10;
    }
  }
  message NameAttrList { string name = 1; }
  message NodeDef {
    string name = 1; string op = 2; repeated string input = 3; string device = 4;
    map<string, AttrValue> attr = 5;
  }
  message VersionDef { int32 producer = 1; }
  message ArgDef { string name = 1; }
  message OpDef { string name = 1; repeated ArgDef input_arg = 2; repeated ArgDef output_arg = 3; }
  message FunctionDef { OpDef signature = 1; repeated NodeDef node_def = 3; map<string, string> ret = 4; map<string, string> control_ret = 6; }
  message Library { repeated FunctionDef function = 1; }
  message GraphDef { repeated NodeDef node = 1; Library library = 2; VersionDef versions = 4; }
  message TensorInfo { string name = 1; DataType dtype = 2; TensorShapeProto tensor_shape = 3; }
  message SignatureDef { map<string, TensorInfo> inputs = 1; map<string, TensorInfo> outputs = 2; }
  message MetaInfo { repeated string tags = 4; }
  message MetaGraphDef { MetaInfo meta_info_def = 1; GraphDef graph_def = 2; map<string, SignatureDef> signature_def = 5; }
  message SavedModel { repeated MetaGraphDef meta_graphs = 2; }
  message Slice {}
  message BundleEntry {
    int32 dtype = 1; TensorShapeProto shape = 2; int32 shard_id = 3; int64 offset = 4; int64 size = 5; fixed32 crc32c = 6;
    repeated Slice slices = 7;
  }
  message BundleHeader { int32 num_shards = 1; int32 endianness = 2; }
`;
