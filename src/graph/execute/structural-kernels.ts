/** Kernels of operations that move values and compute nothing. */
import { must } from '../../base/assert.ts';
import { ShoalError } from '../../base/errors.ts';
import type { CallFunction } from '../structure/definition.ts';
import type { Node } from '../structure/graph-node.ts';
import type { Value } from '../structure/value.ts';
import type { Kernel, KernelCall, KernelTable } from './kernel.ts';
import type { Reference, VariableStore } from './variable-store.ts';

/** Functions that a `Call` may name instead of having them: those of the process that runs it. */
export type FunctionTable = Readonly<Record<string, CallFunction>>;

export function structuralKernels(variables: VariableStore, functions: FunctionTable = {}): KernelTable {
  const pass: Kernel = Object.assign(({ inputs }: KernelCall) => inputs, { passes: true });
  const reference: Kernel = ({ node }) => [variables.reference(node)];
  return {
    Const: Object.assign(({ node }: KernelCall) => [node.attributes.value as Value], { passes: true }),
    Identity: pass,
    StopGradient: pass,
    IdentityN: pass,
    LoopCond: pass,
    NoOp: () => [],
    Call: Object.assign(({ node, inputs, ...context }: KernelCall) => functionOf(node, functions)(inputs, context), {
      deviceOf: (node: Node) => namedFunction(node, functions)?.device,
    }),
    VariableV2: reference,
    KvVariable: reference,
    Assign: ({ inputs: [reference, value] }) => {
      (reference as Reference).write(value);
      return [reference];
    },
  };
}

/** @throws ShoalError `usage` for a name that is not in the table. */
function functionOf(node: Node, functions: FunctionTable): CallFunction {
  const found = namedFunction(node, functions);
  if (found !== undefined) return found;
  const name = node.attributes.function as string;
  throw new ShoalError('usage', `there is no function '${name}' in this process; it has ${Object.keys(functions).join(', ') || 'none'}`);
}

function namedFunction(node: Node, functions: FunctionTable): CallFunction | undefined {
  const given = node.attributes.function as CallFunction | string;
  if (typeof given !== 'string') return given;
  return Object.hasOwn(functions, given) ? functions[given] : undefined;
}

/** The number in a value with one element; foreign tensors work as well: TensorFlow.js has `dataSync`, jax-js `item`.
 *  @throws ShoalError `unsupported` when its elements cannot be read at once. */
export function readScalar(value: Value): number | bigint | boolean {
  const { data, dataSync, item } = value as { data?: unknown; dataSync?: () => ArrayLike<number>; item?: () => number };
  if (typeof data === 'object' && data !== null) return must((data as ArrayLike<number>)[0], () => 'a scalar has an element');
  if (typeof dataSync === 'function') return must(dataSync.call(value)[0], () => 'a scalar has an element');
  if (typeof item === 'function') return item.call(value);
  throw new ShoalError('unsupported', `the elements of this value cannot be read: it has neither data nor dataSync() nor item()`);
}
