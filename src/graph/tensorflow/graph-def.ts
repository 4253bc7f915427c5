/** TensorFlow's GraphDef, as far as an import reads it: the messages of graph.proto, node_def.proto, attr_value.proto, tensor.proto and
 *  tensor_shape.proto. Fields that are not here (functions, variants, complex numbers) are skipped when bytes are read. */
import type protobuf from 'protobufjs';
import { messageOf, ShoalError } from '../../base/errors.ts';
import type { Fail } from '../structure/definition.ts';
import type { GraphDType } from '../structure/graph-dtype.ts';

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
}

export interface GraphProto {
  readonly node: readonly NodeProto[];
  readonly versions: { readonly producer: number } | null;
}

/** The parts of a protobufjs `Type` that are used here. Declarations of the package must not need protobufjs, which is optional. */
export interface MessageCodec {
  decode(bytes: Uint8Array): object;
  encode(message: object): { finish(): Uint8Array };
  fromObject(json: object): object;
}

/** The codec of GraphDef. @throws ShoalError `unsupported` without the package. */
export async function loadGraphDef(): Promise<MessageCodec> {
  try {
    const { default: protobuf } = await import('protobufjs');
    return protobuf.Root.fromJSON({ nested: messages }).lookupType('GraphDef');
  } catch (cause) {
    throw new ShoalError('unsupported', `a GraphDef is read by the package protobufjs: ${messageOf(cause)}; npm install protobufjs`, {
      cause,
    });
  }
}

/** @throws ShoalError `protocol` for bytes that are no GraphDef, or were cut off. */
export function graphFromBytes(type: MessageCodec, bytes: Uint8Array): GraphProto {
  try {
    return type.decode(bytes) as GraphProto;
  } catch (cause) {
    throw new ShoalError('protocol', `${bytes.byteLength} bytes are no GraphDef: ${messageOf(cause)}`, { cause });
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

const repeated = { rule: 'repeated' } as const;

const messages: protobuf.INamespace['nested'] = {
  DataType: {
    values: {
      DT_INVALID: 0,
      ...Object.fromEntries(types.map(([name, number]) => [name, number])),
      ...Object.fromEntries(types.map(([name, number]) => [`${name}_REF`, number + references])),
    },
  },
  Dim: { fields: { size: { type: 'int64', id: 1 } } },
  TensorShapeProto: { fields: { dim: { ...repeated, type: 'Dim', id: 2 }, unknownRank: { type: 'bool', id: 3 } } },
  TensorProto: {
    fields: {
      dtype: { type: 'DataType', id: 1 },
      tensorShape: { type: 'TensorShapeProto', id: 2 },
      tensorContent: { type: 'bytes', id: 4 },
      floatVal: { ...repeated, type: 'float', id: 5 },
      doubleVal: { ...repeated, type: 'double', id: 6 },
      intVal: { ...repeated, type: 'int32', id: 7 },
      stringVal: { ...repeated, type: 'bytes', id: 8 },
      int64Val: { ...repeated, type: 'int64', id: 10 },
      boolVal: { ...repeated, type: 'bool', id: 11 },
      halfVal: { ...repeated, type: 'int32', id: 13 },
      uint32Val: { ...repeated, type: 'uint32', id: 16 },
    },
  },
  AttrValue: {
    oneofs: { value: { oneof: ['list', 's', 'i', 'f', 'b', 'type', 'shape', 'tensor'] } },
    fields: {
      list: { type: 'ListValue', id: 1 },
      s: { type: 'bytes', id: 2 },
      i: { type: 'int64', id: 3 },
      f: { type: 'float', id: 4 },
      b: { type: 'bool', id: 5 },
      type: { type: 'DataType', id: 6 },
      shape: { type: 'TensorShapeProto', id: 7 },
      tensor: { type: 'TensorProto', id: 8 },
    },
  },
  ListValue: {
    fields: {
      s: { ...repeated, type: 'bytes', id: 2 },
      i: { ...repeated, type: 'int64', id: 3 },
      type: { ...repeated, type: 'DataType', id: 6 },
      shape: { ...repeated, type: 'TensorShapeProto', id: 7 },
    },
  },
  NodeDef: {
    fields: {
      name: { type: 'string', id: 1 },
      op: { type: 'string', id: 2 },
      input: { ...repeated, type: 'string', id: 3 },
      device: { type: 'string', id: 4 },
      attr: { keyType: 'string', type: 'AttrValue', id: 5 } as protobuf.IField,
    },
  },
  VersionDef: { fields: { producer: { type: 'int32', id: 1 } } },
  GraphDef: { fields: { node: { ...repeated, type: 'NodeDef', id: 1 }, versions: { type: 'VersionDef', id: 4 } } },
};
