/** The counterparts of TensorFlow's operations. The names are the same where the table says nothing else; what TensorFlow has as a constant
 *  input (axes, shapes) is an attribute here. */

import { floatFunctions } from '../graph/ops/float-functions.ts';
import type { NodeProto } from './graph-def.ts';

/** The use of an input that must be a constant. */
export type ConstantKind = 'int' | 'list(int)' | 'shape' | 'float';

export interface Translation {
  /** The operation here. Default: of the same name. */
  readonly op?: string;
  /** Inputs that become attributes: [place, attribute, kind]; a place below 0 counts from the end. */
  readonly constants?: readonly (readonly [at: number, attribute: string, kind: ConstantKind])[];
  /** Names of attributes that are others here. */
  readonly renamed?: Readonly<Record<string, string>>;
  /** Attributes, of TensorFlow's or made of constants, of which one value only is known here, and then says nothing. */
  readonly only?: Readonly<Record<string, unknown>>;
  /** Attributes that TensorFlow does not have. */
  readonly added?: Readonly<Record<string, number>>;
  /** Inputs in the order they have here. */
  readonly order?: readonly number[];
  /** The node is beside what its first input is, where it has no place of its own. */
  readonly isBeside?: boolean;
  /** The first input is a table; what it was filled with is behind the other inputs. */
  readonly isLookup?: boolean;
  /** No axes: the input as it is. Here: all of them. */
  readonly isReduction?: boolean;
}

const same: Translation = {};
const reduction: Translation = { constants: [[1, 'axis', 'list(int)']], isReduction: true };
const turned: Translation = { order: [1, 0] };
const channelsLast: Translation = { only: { data_format: 'NHWC' } };
const batchNorm: Translation = { ...channelsLast, op: 'FusedBatchNormV3' };
const lookup: Translation = { op: 'LookupTableFindV2', isLookup: true };
/** A table, and what fills it: a LookupTableFindV2 has the keys and values as inputs. */
const emptied: Translation = { op: 'NoOp', order: [] };
/** The handle of a variable is the variable. */
const ofVariable = (op: string): Translation => ({ op, renamed: { dtype: 'T' } });

export const translations: Readonly<Record<string, Translation>> = {
  ...named('Placeholder', 'Const', 'Identity', 'ZerosLike', 'AddN', 'SelectV2', 'MatMul', 'BatchMatMulV2', 'Shape', 'Range'),
  ...named('AddV2', 'Sub', 'Mul', 'RealDiv', 'FloorDiv', 'FloorMod', 'Pow', 'Maximum', 'Minimum', 'SquaredDifference'),
  ...named(...floatFunctions, 'StopGradient', 'IdentityN', 'StridedSlice', 'Squeeze', 'Fill', 'BroadcastTo', 'Tile', 'OneHot', 'Unpack'),
  ...named('Pad', 'PadV2', 'MirrorPad', 'ClipByValue', 'GatherNd', 'Where', 'Unique', 'Einsum', 'Pack', 'GreaterEqual'),
  ...named('SparseSegmentSum', 'SparseSegmentMean', 'StringToHashBucketFast'),
  ...named('Less', 'LessEqual', 'Greater', 'LogicalAnd', 'LogicalOr', 'LogicalNot'),
  ...named('Neg', 'Abs', 'Sign', 'Square', 'Sqrt', 'Rsqrt', 'Exp', 'Log'),
  ...named('Relu', 'Sigmoid', 'Tanh', 'Softplus', 'Softmax', 'LogSoftmax', 'LeakyRelu', 'L2Loss'),
  ...named('SoftmaxCrossEntropyWithLogits', 'SparseSoftmaxCrossEntropyWithLogits', 'ReluGrad', 'LeakyReluGrad'),
  ...named('Switch', 'Merge', 'Enter', 'Exit', 'NextIteration', 'LoopCond', 'NoOp', 'ControlTrigger'),
  ...named('VariableV2', 'AssignAdd', 'AssignSub', 'ScatterUpdate', 'ScatterAdd', 'ScatterSub', 'DynamicPartition', 'DynamicStitch'),
  Add: { op: 'AddV2' },
  BatchMatMul: { op: 'BatchMatMulV2' },
  Variable: { op: 'VariableV2' },
  NotEqual: { only: { incompatible_shape_error: true } },
  Equal: { only: { incompatible_shape_error: true } },
  Cast: { only: { Truncate: false } },
  Size: { only: { out_type: 'int32' } },
  BiasAdd: channelsLast,
  Conv2D: channelsLast,
  DepthwiseConv2dNative: channelsLast,
  MaxPool: channelsLast,
  AvgPool: channelsLast,
  FusedBatchNorm: batchNorm,
  FusedBatchNormV2: batchNorm,
  FusedBatchNormV3: batchNorm,
  LookupTableFind: lookup,
  LookupTableFindV2: lookup,
  HashTable: emptied,
  HashTableV2: emptied,
  InitializeTable: emptied,
  InitializeTableV2: emptied,
  LookupTableImport: emptied,
  LookupTableImportV2: emptied,
  PlaceholderWithDefault: { op: 'Identity', renamed: { dtype: 'T' } },
  VarHandleOp: { op: 'VariableV2' },
  ReadVariableOp: { ...ofVariable('Identity'), isBeside: true },
  AssignVariableOp: ofVariable('Assign'),
  AssignAddVariableOp: ofVariable('AssignAdd'),
  AssignSubVariableOp: ofVariable('AssignSub'),
  ResourceGather: { ...ofVariable('GatherV2'), only: { batch_dims: 0 } },
  ResourceScatterUpdate: ofVariable('ScatterUpdate'),
  ResourceScatterAdd: ofVariable('ScatterAdd'),
  ResourceScatterSub: ofVariable('ScatterSub'),
  ResourceApplyGradientDescent: { op: 'ApplyGradientDescent', constants: [[1, 'learning_rate', 'float']] },
  Assign: { only: { validate_shape: true } },
  Reshape: { constants: [[1, 'shape', 'shape']] },
  Transpose: { constants: [[1, 'perm', 'list(int)']] },
  ExpandDims: { constants: [[1, 'axis', 'int']] },
  Slice: {
    constants: [
      [1, 'begin', 'list(int)'],
      [2, 'size', 'list(int)'],
    ],
  },
  ConcatV2: { constants: [[-1, 'axis', 'int']] },
  Concat: { op: 'ConcatV2', constants: [[0, 'axis', 'int']] },
  SplitV: {
    constants: [
      [1, 'size_splits', 'list(int)'],
      [2, 'axis', 'int'],
    ],
  },
  Split: { constants: [[0, 'axis', 'int']] },
  Sum: reduction,
  Mean: reduction,
  Max: reduction,
  Min: reduction,
  Prod: reduction,
  ArgMax: { constants: [[1, 'axis', 'int']] },
  Gather: { op: 'GatherV2', renamed: { Tparams: 'T' } },
  GatherV2: { constants: [[2, 'axis', 'int']], renamed: { Tparams: 'T' }, only: { axis: 0, batch_dims: 0 } },
  SigmoidGrad: turned,
  TanhGrad: turned,
  ApplyGradientDescent: { constants: [[1, 'learning_rate', 'float']] },
  ApplyAdagrad: { constants: [[2, 'learning_rate', 'float']], only: { update_slots: true }, added: { epsilon: 0 } },
};

/** The operation that a fused one does behind its first: its name, whether it takes an input, and attributes that it has from the whole. */
export const fusedSteps: Readonly<
  Record<string, { readonly op: string; readonly takesInput?: boolean; readonly renamed?: Readonly<Record<string, string>> }>
> = {
  BiasAdd: { op: 'BiasAdd', takesInput: true },
  Relu: { op: 'Relu' },
  Relu6: { op: 'Relu6' },
  Elu: { op: 'Elu' },
  LeakyRelu: { op: 'LeakyRelu', renamed: { leakyrelu_alpha: 'alpha' } },
  Sigmoid: { op: 'Sigmoid' },
  Tanh: { op: 'Tanh' },
};

/** Operations that become several, and the first of these. */
export const fusedOperations: Readonly<Record<string, string>> = {
  _FusedMatMul: 'MatMul',
  _FusedConv2D: 'Conv2D',
  FusedDepthwiseConv2dNative: 'DepthwiseConv2dNative',
};

/** Attributes that say what the inputs say already, or how TensorFlow runs the operation. */
export const ignoredAttributes: ReadonlySet<string> = new Set([
  ...'N num_split num_args num_host_args Index Tidx Tdim Tperm Tshape Taxis Tlen Tmultiples TArgs Tkey Tval'.split(' '),
  ...'use_locking use_cudnn_on_gpu use_node_name_sharing validate_indices validate_shape allowed_devices host_args'.split(' '),
  ...'shape key_dtype value_dtype container shared_name debug_name user_specified_name'.split(' '),
  ...'grad_a grad_b grad_x grad_y fused_ops epsilon leakyrelu_alpha'.split(' '),
]);

/** Does it fill a table, with keys and values? */
export function fillsTable({ op, input }: NodeProto): boolean {
  return Object.hasOwn(translations, op) && translations[op] === emptied && input.length > 2;
}

function named(...names: readonly string[]): Record<string, Translation> {
  return Object.fromEntries(names.map((name) => [name, same]));
}
