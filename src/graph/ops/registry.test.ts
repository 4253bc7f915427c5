/** Shape functions of the operations, and that all the graph needs are there. */
import { describe, expect, it } from 'vitest';
import { GraphBuilder } from '../structure/builder.ts';
import type { Output } from '../structure/graph-node.ts';
import { formatShape, type Shape } from '../structure/shape.ts';
import * as array from './array.ts';
import * as math from './math.ts';
import * as matrix from './matrix.ts';
import * as nn from './nn.ts';
import * as reduction from './reduction.ts';
import { operations } from './registry.ts';
import * as state from './state.ts';

const g = new GraphBuilder();
const f = (...shape: (number | null)[]): Output<'float32'> => placeholder(shape);
const unknown = placeholder('unknown');
const i = (...shape: (number | null)[]): Output<'int32'> => array.placeholder(g, 'int32', shape);

function placeholder(shape: Shape): Output<'float32'> {
  return array.placeholder(g, 'float32', shape);
}

function formatOf(output: Output): string {
  return `${output.dtype} ${formatShape(output.shape)}`;
}

describe('operations', () => {
  it('have names of their own', () => {
    const names = operations.map(({ name }) => name);
    expect(new Set(names).size).toBe(names.length);
  });

  it('take every family that models need', () => {
    const needed = 'Placeholder Const VariableV2 GatherV2 ScatterUpdate Identity AddV2 MatMul ConcatV2 Split Sum Mean Relu Sigmoid Softmax';
    const more = 'SigmoidCrossEntropyWithLogits Switch Merge Enter Exit NextIteration LoopCond ControlTrigger Call Send Recv FuseRecv';
    const names = new Set(operations.map(({ name }) => name));
    expect([...needed.split(' '), ...more.split(' ')].filter((name) => !names.has(name))).toEqual([]);
  });

  it.each<[string, () => Output, string]>([
    ['Cast', () => array.cast(g, f(2, null), 'float64'), 'float64 [2, ?]'],
    ['Reshape', () => array.reshape(g, f(6, 4), { shape: [null, 8] }), 'float32 [3, 8]'],
    ['Reshape of what is open', () => array.reshape(g, f(null, 4), { shape: [null, 8] }), 'float32 [?, 8]'],
    ['Transpose', () => array.transpose(g, f(2, null, 4), { perm: [2, 0, 1] }), 'float32 [4, 2, ?]'],
    ['ExpandDims', () => array.expandDims(g, f(2, 3), { axis: -1 }), 'float32 [2, 3, 1]'],
    ['Slice', () => array.slice(g, f(4, null), { begin: [1, 0], size: [2, 3] }), 'float32 [2, 3]'],
    ['ConcatV2', () => array.concat(g, [f(2, 3), f(2, 5), f(null, 1)], { axis: 1 }), 'float32 [2, 9]'],
    ['ConcatV2 of what is open', () => array.concat(g, [f(2, 3), f(null, null)], { axis: -1 }), 'float32 [2, ?]'],
    ['Pack', () => array.pack(g, [f(null, 3), f(2, null)]), 'float32 [2, 2, 3]'],
    ['Split', () => array.split(g, f(6, 2), 3)[2], 'float32 [2, 2]'],
    ['Shape', () => array.shapeOf(g, f(6, 2)), 'int32 [2]'],
    ['arithmetic', () => math.mul(g, f(4, 1, 3), f(null, 3)), 'float32 [4, ?, 3]'],
    ['comparison', () => math.less(g, f(2), f()), 'bool [2]'],
    ['AddN', () => math.addN(g, [f(null, 2), f(3, null)]), 'float32 [3, 2]'],
    ['SelectV2', () => math.select(g, math.less(g, f(2, 1), f()), f(3), f()), 'float32 [2, 3]'],
    ['MatMul', () => matrix.matMul(g, f(3, 2), f(5, 3), { transpose_a: true, transpose_b: true }), 'float32 [2, 5]'],
    ['BatchMatMulV2', () => matrix.batchMatMul(g, f(7, 1, 2, 3), f(4, 3, 5)), 'float32 [7, 4, 2, 5]'],
    ['BiasAdd', () => matrix.biasAdd(g, f(null, 4), f(4)), 'float32 [?, 4]'],
    ['Sum', () => reduction.sum(g, f(2, 3)), 'float32 []'],
    ['Mean over axes', () => reduction.mean(g, f(2, 3, 4), { axis: [0, -1] }), 'float32 [3]'],
    ['Max that keeps axes', () => reduction.max(g, f(2, 3), { axis: [1], keep_dims: true }), 'float32 [2, 1]'],
    ['ArgMax', () => reduction.argMax(g, f(2, 3), { axis: 1 }), 'int64 [2]'],
    ['Softmax', () => nn.softmax(g, f(null, 3)), 'float32 [?, 3]'],
    ['sigmoid loss', () => nn.sigmoidCrossEntropyWithLogits(g, f(null, 1), f(8, 1)), 'float32 [8, 1]'],
    ['softmax loss', () => nn.softmaxCrossEntropyWithLogits(g, f(8, null), f(8, 3))[0], 'float32 [8]'],
    ['softmax gradient', () => nn.sparseSoftmaxCrossEntropyWithLogits(g, f(null, 3), i(8))[1], 'float32 [8, 3]'],
    ['GatherV2', () => state.gather(g, state.variable(g, 'float32', [100, 16]), i(null, 4)), 'float32 [?, 4, 16]'],
    ['ScatterAdd', () => state.scatterAdd(g, state.variable(g, 'float32', [100, 16]), i(4), f(4, 16)), 'float32 [100, 16]'],
    ['what is unknown', () => math.add(g, unknown, f(2)), 'float32 unknown'],
  ])('%s', (_, build, expected) => {
    expect(formatOf(build())).toBe(expected);
  });

  it.each<[string, () => unknown, RegExp]>([
    ['Reshape', () => array.reshape(g, f(6), { shape: [4, null] }), /\[6\] has 6 elements and does not fit \[4, \?\]/],
    ['Transpose', () => array.transpose(g, f(2, 3), { perm: [0, 0] }), /perm \[0, 0\] is no permutation/],
    ['Slice', () => array.slice(g, f(4), { begin: [2], size: [3] }), /\[2, 5\) is outside axis 0 of 4/],
    ['ConcatV2', () => array.concat(g, [f(2, 3), f(3, 3)], { axis: 1 }), /differ beside axis 1/],
    ['Split', () => array.split(g, f(5), 2), /axis 0 of \[5\] does not split into 2/],
    ['broadcast', () => math.add(g, f(2), f(3)), /shapes \[2\] and \[3\] do not broadcast/],
    ['float operations of integers', () => math.sqrt(g, i(2) as never), /T must be float64, float32, float16, bfloat16, not int32/],
    ['BiasAdd', () => matrix.biasAdd(g, f(2, 3), f(2)), /a bias of 2 does not fit \[2, 3\]/],
    ['MatMul of a vector', () => matrix.matMul(g, f(2), f(2, 2)), /input 0 must have 2 dimensions, not \[2\]/],
    ['Sum', () => reduction.sum(g, f(2), { axis: [1] }), /axis 1 is outside \[2\]/],
    ['losses', () => nn.sigmoidCrossEntropyWithLogits(g, f(2), f(3)), /\[2\] and \[3\] are not one shape/],
    ['GatherV2', () => state.gather(g, f(4, 4), f(2) as never), /Tindices must be int32, int64, not float32/],
    ['Assign', () => state.assign(g, state.variable(g, 'float32', [2]), f(3)), /shape \[3\] does not fit a variable of shape \[2\]/],
    ['ScatterUpdate', () => state.scatterUpdate(g, state.variable(g, 'float32', [9, 2]), i(4), f(4)), /updates have shape \[4\]/],
  ])('%s refuses what does not fit', (_, build, message) => {
    expect(build).toThrow(message);
  });
});
