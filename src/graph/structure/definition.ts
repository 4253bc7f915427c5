/** The definition of an operation: its inputs, attributes and outputs. A definition knows nothing of how the operation is computed. */
import type { GpuDevice } from '../../memory/device/gpu.ts';
import type { GraphDType } from './graph-dtype.ts';
import type { Dimension, Shape } from './shape.ts';
import type { Value } from './value.ts';

/** The facts that are known of an output before anything runs. */
export interface OutputSpec {
  readonly dtype: GraphDType;
  readonly shape: Shape;
  /** True: a reference to a variable's buffer, which operations on the same device may change. */
  readonly isRef?: boolean;
}

export interface InputSpec {
  readonly name: string;
  /** A dtype, or the name of a type attribute, which all inputs that name it agree on. 'any': each as it is. */
  readonly dtype: string;
  /** True: the operation changes the variable, so it needs the reference itself. */
  readonly isRef?: boolean;
  /** True: the variable is a hash table, which no other operation takes. */
  readonly isTable?: boolean;
  /** True: the kernel has what it needs of the value when it returns, and keeps nothing: a variable may change in place then. */
  readonly isCopied?: boolean;
  /** True: any number of inputs, at least `least`; only the last input of an operation. */
  readonly isList?: boolean;
  readonly least?: number;
}

/** Plain data, but for the function of a call. A shape may be 'unknown'. */
export type Attribute =
  | string
  | number
  | bigint
  | boolean
  | readonly Dimension[]
  | Value
  | readonly string[]
  | readonly number[]
  | readonly bigint[]
  | readonly Shape[]
  | CallFunction;

export type Attributes = Readonly<Record<string, Attribute>>;

/** The step, as a `call`'s function sees it. */
export interface CallContext {
  /** Aborted when the step has failed elsewhere or its time is over. */
  readonly signal: AbortSignal;
  /** The number of the step; overlapping steps have different ones. */
  readonly stepId: number;
  /** Calls back when nobody reads the outputs any more: the step has ended on this task. What the callback throws fails a step that has not
   *  failed by itself. */
  readonly atEnd: (callback: () => void) => void;
}

/** Any computation as a node: gets the inputs, gives the outputs that the node was declared with. */
export interface CallFunction {
  (inputs: readonly Value[], context: CallContext): readonly Value[] | Promise<readonly Value[]>;
  /** The WebGPU device that it computes on: inputs come as `DeviceTensor`s of it where they can, and outputs may be some. Their buffers
   *  stay until `atEnd`. Default: everything is in host memory. */
  readonly device?: GpuDevice;
}

/** The value of an attribute; an `int64`, such as an incarnation, is a bigint. */
export type AttributeKind =
  | 'type'
  | 'shape'
  | 'int'
  | 'int64'
  | 'float'
  | 'bool'
  | 'string'
  | 'value'
  | 'function'
  | 'list(int)'
  | 'list(int64)'
  | 'list(type)'
  | 'list(shape)'
  | 'list(string)';

export interface AttributeSpec {
  readonly kind: AttributeKind;
  /** Absent: the attribute must be given. */
  readonly default?: Attribute;
  /** The dtypes that a type attribute takes. Absent: all. */
  readonly allowed?: readonly GraphDType[];
  /** The smallest integer that is taken. */
  readonly least?: number;
}

/** Ends with a ShoalError that says of what. */
export type Fail = (why: string) => never;

/** The arguments of a shape function. */
export interface InferContext {
  readonly inputs: readonly OutputSpec[];
  /** Complete: defaults filled in, type attributes bound to what the inputs are. */
  readonly attributes: Attributes;
  dtype(attribute: string): GraphDType;
  integer(attribute: string): number;
  integers(attribute: string): readonly number[];
  flag(attribute: string): boolean;
  /** The input's dimensions, which must be `rank` many where they are known. */
  ranked(input: number, rank: number): readonly Dimension[];
  /** The elements of an input that is an integer constant; undefined: they are only known when a step runs. */
  constant(input: number): readonly number[] | undefined;
  /** @throws ShoalError `usage` that names the node. */
  fail(why: string): never;
}

/** The executor's treatment of an operation; `kernel`: a function computes it. */
export type ControlKind =
  | 'kernel'
  | 'switch'
  | 'merge'
  | 'enter'
  | 'exit'
  | 'next-iteration'
  | 'control-trigger'
  | 'send'
  | 'recv'
  | 'fuse-recv'
  | 'argument'
  | 'return';

export interface OpDefinition {
  readonly name: string;
  readonly inputs: readonly InputSpec[];
  readonly attributes: Readonly<Record<string, AttributeSpec>>;
  /** Dtypes and shapes of the outputs; the shape function. */
  readonly infer: (context: InferContext) => readonly OutputSpec[];
  readonly control?: ControlKind;
  /** True: has an effect or a state beyond its outputs. */
  readonly isStateful?: boolean;
  /** True: reads or changes rows of a table by index; its traffic is embeddings. */
  readonly isSparse?: boolean;
}
