/** Arithmetic, comparisons and logic, element by element. */
import type { GraphBuilder, NodeOptions } from '../structure/builder.ts';
import type { OpDefinition } from '../structure/definition.ts';
import { graphDTypes, numericDTypes, type FloatDType, type GraphDType, type NumericDType } from '../structure/graph-dtype.ts';
import type { Output } from '../structure/graph-node.ts';
import { floatFunctions } from './float-functions.ts';
import {
  define,
  broadcast,
  defineOne,
  firstShape,
  floating,
  inputsOf,
  likeFirst,
  numeric,
  oneShape,
  op,
  type Binary,
  type Unary,
} from './op.ts';

const [x, y] = inputsOf({ x: 'T', y: 'T' });

function arithmetic(name: string): OpDefinition {
  return defineOne(name, { x: 'T', y: 'T' }, numeric, broadcast);
}

function comparison(name: string, allowed: readonly GraphDType[]): OpDefinition {
  const attributes = { T: { kind: 'type', allowed } } as const;
  return define(name, [x, y], attributes, (context) => [{ dtype: 'bool', shape: broadcast(context) }]);
}

function logical(name: string): OpDefinition {
  const inputs = inputsOf({ x: 'bool', y: 'bool' });
  return define(name, inputs, {}, (context) => [{ dtype: 'bool', shape: broadcast(context) }]);
}

function unary(name: string, attributes: OpDefinition['attributes'] = floating): OpDefinition {
  return defineOne(name, { x: 'T' }, attributes, firstShape);
}

type Bools = Output<'bool'>;
type Comparison<In extends GraphDType> = <D extends In>(g: GraphBuilder, x: Output<D>, y: Output<D>, options?: NodeOptions) => Bools;

/** x + y, element by element; shapes broadcast as NumPy's. */
export const add = op<Binary<NumericDType>>(arithmetic('AddV2'));
/** x − y, element by element; shapes broadcast. */
export const sub = op<Binary<NumericDType>>(arithmetic('Sub'));
/** x · y, element by element; shapes broadcast. */
export const mul = op<Binary<NumericDType>>(arithmetic('Mul'));
/** x / y, element by element; shapes broadcast. Of integers, kernels of TensorFlow.js round down. */
export const div = op<Binary<NumericDType>>(arithmetic('RealDiv'));
/** x to the power of y, element by element; shapes broadcast. */
export const pow = op<Binary<NumericDType>>(arithmetic('Pow'));
/** ⌊x / y⌋, element by element; shapes broadcast. */
export const floorDiv = op<Binary<NumericDType>>(arithmetic('FloorDiv'));
/** The remainder, with the sign of the divisor. */
export const floorMod = op<Binary<NumericDType>>(arithmetic('FloorMod'));
/** The larger of x and y, element by element; shapes broadcast. */
export const maximum = op<Binary<NumericDType>>(arithmetic('Maximum'));
/** The smaller of x and y, element by element; shapes broadcast. */
export const minimum = op<Binary<NumericDType>>(arithmetic('Minimum'));
/** (x − y)², element by element; shapes broadcast. */
export const squaredDifference = op<Binary<NumericDType>>(arithmetic('SquaredDifference'));

/** x < y, element by element; shapes broadcast, the result is bool. */
export const less = op<Comparison<NumericDType>>(comparison('Less', numericDTypes));
/** x ≤ y, element by element; shapes broadcast, the result is bool. */
export const lessEqual = op<Comparison<NumericDType>>(comparison('LessEqual', numericDTypes));
/** x > y, element by element; shapes broadcast, the result is bool. */
export const greater = op<Comparison<NumericDType>>(comparison('Greater', numericDTypes));
/** x ≥ y, element by element; shapes broadcast, the result is bool. */
export const greaterEqual = op<Comparison<NumericDType>>(comparison('GreaterEqual', numericDTypes));
/** x ≠ y, element by element, of any dtype; shapes broadcast, the result is bool. */
export const notEqual = op<Comparison<GraphDType>>(comparison('NotEqual', graphDTypes));
/** x = y, element by element, of any dtype; shapes broadcast, the result is bool. */
export const equal = op<Comparison<GraphDType>>(comparison('Equal', graphDTypes));

/** x and y, element by element; bool, shapes broadcast. */
export const logicalAnd = op<Comparison<'bool'>>(logical('LogicalAnd'));
/** x or y, element by element; bool, shapes broadcast. */
export const logicalOr = op<Comparison<'bool'>>(logical('LogicalOr'));
/** Not x, element by element; bool. */
export const logicalNot = op<Unary<'bool'>>(define('LogicalNot', { x: 'bool' }, {}, likeFirst));

/** −x, element by element. */
export const neg = op<Unary<NumericDType>>(unary('Neg', numeric));
/** |x|, element by element. */
export const abs = op<Unary<NumericDType>>(unary('Abs', numeric));
/** −1, 0 or 1, element by element. */
export const sign = op<Unary<NumericDType>>(unary('Sign', numeric));
/** x², element by element. */
export const square = op<Unary<NumericDType>>(unary('Square', numeric));
/** √x, element by element; floats. */
export const sqrt = op<Unary<FloatDType>>(unary('Sqrt'));
/** 1 / √x, element by element; floats. */
export const rsqrt = op<Unary<FloatDType>>(unary('Rsqrt'));
/** eˣ, element by element; floats. */
export const exp = op<Unary<FloatDType>>(unary('Exp'));
/** The natural logarithm, element by element; floats. */
export const log = op<Unary<FloatDType>>(unary('Log'));

/** The sum of tensors of one shape. */
export const addN = op<<D extends NumericDType>(g: GraphBuilder, inputs: readonly Output<D>[], options?: NodeOptions) => Output<D>>(
  defineOne('AddN', { inputs: 'T+' }, numeric, oneShape),
);

/** `condition ? x : y`, element by element. */
export const select = op<
  <D extends GraphDType>(g: GraphBuilder, condition: Output<'bool'>, x: Output<D>, y: Output<D>, options?: NodeOptions) => Output<D>
>(
  defineOne('SelectV2', { condition: 'bool', x: 'T', y: 'T' }, {}, (context) => {
    const [condition, left, right] = context.inputs;
    const values = broadcast({ ...context, inputs: [left, right] });
    return broadcast({ ...context, inputs: [condition, { dtype: left.dtype, shape: values }] });
  }),
);

/** Functions of a float, by the names of TensorFlow. */
export const floatOps: readonly OpDefinition[] = floatFunctions.map((name) => unary(name));
