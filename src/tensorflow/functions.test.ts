/** Functions of imported graphs: calls, branches and loops give what TensorFlow.js gives where it has them; functions that do not fit are refused. */
import * as tf from '@tensorflow/tfjs';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { temporaryFolder } from '../base/testing/temporary-folder.ts';
import { Session } from '../graph/execute/session.ts';
import { localKernels } from '../graph/local-kernels.ts';
import { tensorflowKernels } from '../graph/kernels/tensorflow.ts';
import type { Value } from '../graph/structure/value.ts';
import { dense, numbersOf } from '../graph/testing/kernels.ts';
import { runByTensorFlow, writeModel } from '../graph/testing/model-files.ts';
import { importModelJson } from './model-json.ts';

const folder = temporaryFolder('graph-functions', afterAll);
const devices = ['/job:localhost/task:0/device:CPU:0'];

beforeAll(async () => {
  await tf.setBackend('cpu');
});

const type = (name: string): object => ({ type: name });
const T = { T: type('DT_FLOAT') };
const types = { float32: 'DT_FLOAT', int32: 'DT_INT32' } as const;
const node = (name: string, op: string, input: readonly string[], attr: object = T): object => ({ name, op, input, attr });
const placeholder = (name: string, dtype: string, ...sizes: readonly number[]): object =>
  node(name, 'Placeholder', [], { dtype: type(dtype), shape: { shape: { dim: sizes.map((size) => ({ size: String(size) })) } } });
const func = (name: string): object => ({ func: { name, attr: {} } });

interface Weight {
  readonly name: string;
  readonly dtype: 'float32' | 'int32';
  readonly shape: readonly number[];
  readonly data: readonly number[];
}

const weight = ({ name, dtype }: Weight): object =>
  node(name, 'Const', [], { dtype: type(types[dtype]), value: { tensor: { dtype: types[dtype] } } });

/** A function by the names of its arguments, its nodes, and the outputs that are its results. */
function define(
  name: string,
  args: readonly string[],
  nodes: readonly object[],
  results: readonly string[],
  effects: readonly string[] = [],
): object {
  return {
    signature: {
      name,
      inputArg: args.map((arg) => ({ name: arg, type: 'DT_FLOAT' })),
      outputArg: results.map((_, k) => ({ name: `out_${k}`, type: 'DT_FLOAT' })),
    },
    nodeDef: nodes,
    ret: Object.fromEntries(results.map((result, k) => [`out_${k}`, result])),
    controlRet: Object.fromEntries(effects.map((effect) => [effect, effect])),
  };
}

let written = 0;
function write(nodes: readonly object[], functions: readonly object[], weights: readonly Weight[] = []): string {
  const bytes = weights.map(
    ({ dtype, data }) => new Uint8Array((dtype === 'float32' ? Float32Array.from(data) : Int32Array.from(data)).buffer),
  );
  const specs = weights.map(({ name, dtype, shape }) => ({ name, dtype, shape }));
  return writeModel(folder, `model-${written++}`, nodes, specs, Uint8Array.from(Buffer.concat(bytes)), 1, functions);
}

async function run(path: string, feeds: Readonly<Record<string, Value>>, fetches: readonly string[]): Promise<number[][]> {
  const session = new Session(await importModelJson(path), { devices, kernels: { ...localKernels(), ...tensorflowKernels(tf) } });
  return (await session.run(Object.entries(feeds), fetches)).map((each) => [...numbersOf(each)]);
}

const three: Weight = { name: 'three', dtype: 'float32', shape: [], data: [3] };
const ten: Weight = { name: 'ten', dtype: 'float32', shape: [], data: [10] };

const branches = [
  define('square', ['a', 'b'], [node('sq', 'Square', ['a'])], ['sq:y:0', 'b']),
  define('thrice', ['a', 'b'], [weight(three), node('prod', 'Mul', ['a', 'three:output:0'])], ['prod:z:0', 'three:output:0']),
];

describe('functions', () => {
  it('of an If are its branches, of which one runs', async () => {
    const nodes = [
      placeholder('x', 'DT_FLOAT', 2),
      placeholder('y', 'DT_FLOAT'),
      placeholder('choice', 'DT_BOOL'),
      node('z', 'StatelessIf', ['choice', 'x', 'y'], {
        then_branch: func('square'),
        else_branch: func('thrice'),
        Tcond: type('DT_BOOL'),
        Tin: { list: { type: ['DT_FLOAT', 'DT_FLOAT'] } },
        Tout: { list: { type: ['DT_FLOAT', 'DT_FLOAT'] } },
      }),
      node('sum', 'AddV2', ['z', 'z:1']),
    ];
    const path = write(nodes, branches, [three]);
    for (const choice of [1, 0]) {
      const feeds = { x: dense([2], [2, 5]), y: dense([], [7]), choice: dense([], [choice], 'bool') };
      expect(await run(path, feeds, ['sum:0'])).toEqual([...(await runByTensorFlow(path, feeds, ['sum']))]);
    }
  });

  it('of a While are its condition and its body', async () => {
    const nodes = [
      placeholder('x', 'DT_FLOAT'),
      placeholder('y', 'DT_FLOAT', 2),
      node('loop', 'StatelessWhile', ['x', 'y'], {
        cond: func('below'),
        body: func('step'),
        T: { list: { type: ['DT_FLOAT', 'DT_FLOAT'] } },
      }),
      node('sum', 'AddV2', ['loop', 'loop:1']),
    ];
    const loop = [
      define('below', ['a', 'b'], [weight(ten), node('less', 'Less', ['a', 'ten:output:0'])], ['less:z:0']),
      define(
        'step',
        ['a', 'b'],
        [weight(three), node('next', 'AddV2', ['a', 'three:output:0']), node('more', 'Mul', ['b', 'next:z:0'])],
        ['next:z:0', 'more:z:0'],
      ),
    ];
    const path = write(nodes, loop, [three, ten]);
    const feeds = { x: dense([], [1]), y: dense([2], [1, -2]) };
    expect(await run(path, feeds, ['sum:0'])).toEqual([...(await runByTensorFlow(path, feeds, ['sum']))]);
  });

  it('call each other, also in loops and branches', async () => {
    const inner = define('inner', ['a'], [weight(three), node('sum', 'AddV2', ['a', 'three:output:0'])], ['sum:z:0']);
    const outer = define(
      'outer',
      ['a', 'b'],
      [
        node('call', 'PartitionedCall', ['a'], { f: func('inner') }),
        node('negative', 'Neg', ['call:output:0']),
        node('again', 'inner', ['negative:y:0'], {}),
        node('parts', 'Unpack', ['b'], { ...T, num: { i: '2' }, axis: { i: '0' } }),
        node('both', 'AddV2', ['again:sum:0', 'parts:output:1']),
      ],
      ['both:z:0', 'b'],
    );
    const below = define('below', ['a', 'b'], [weight(ten), node('less', 'Less', ['a', 'ten:output:0'])], ['less:z:0']);
    const nodes = [
      placeholder('x', 'DT_FLOAT'),
      placeholder('y', 'DT_FLOAT', 2),
      node('loop', 'While', ['x', 'y'], { cond: func('below'), body: func('outer'), parallel_iterations: { i: '1' } }),
      node('z', 'PartitionedCall', ['loop', 'y'], { f: func('outer') }),
    ];
    const path = write(nodes, [inner, outer, below], [three, ten]);
    // x becomes 25 − x.
    const outputs = await run(path, { x: dense([], [2]), y: dense([2], [0, 25]) }, ['loop:0', 'z:0', 'z:1']);
    expect(outputs).toEqual([[23], [2], [0, 25]]);
  });

  it('change variables that they are called with, in the order of control inputs', async () => {
    const handle = node('v', 'VarHandleOp', [], { dtype: type('DT_FLOAT'), shape: { shape: { dim: [] } } });
    const change = define(
      'change',
      ['handle', 'by'],
      [
        node('add', 'AssignAddVariableOp', ['handle', 'by'], { dtype: type('DT_FLOAT') }),
        node('read', 'ReadVariableOp', ['handle', '^add'], { dtype: type('DT_FLOAT') }),
      ],
      ['read:value:0'],
      ['add'],
    );
    const nodes = [
      handle,
      weight(three),
      weight(ten),
      node('init', 'AssignVariableOp', ['v', 'three'], { dtype: type('DT_FLOAT') }),
      node('first', 'StatefulPartitionedCall', ['v', 'ten', '^init'], { f: func('change') }),
      node('second', 'StatefulPartitionedCall', ['v', 'three', '^first'], { f: func('change') }),
    ];
    expect(await run(write(nodes, [change], [three, ten]), {}, ['second:0'])).toEqual([[16]]);
  });

  const x = placeholder('x', 'DT_FLOAT');
  const call = (name: string): object => node('y', 'PartitionedCall', ['x'], { f: func(name) });
  it.each<[string, readonly object[], readonly object[], RegExp]>([
    ['are not there', [x, call('f')], [], /PartitionedCall 'y': its function 'f' is not there/],
    ['call themselves', [x, call('f')], [define('f', ['a'], [node('g', 'f', ['a'])], ['g:0'])], /f 'y\/g': 'f' calls itself/],
    ['take more inputs', [x, call('f')], [define('f', ['a', 'b'], [], ['a'])], /'f' takes 2 inputs, not 1/],
    ['have no such result', [x, call('f')], [define('f', ['a'], [], ['b:y:0'])], /IdentityN 'y': its input 'y\/b' is not there/],
    [
      'give other numbers of results',
      [x, placeholder('c', 'DT_BOOL'), node('y', 'If', ['c', 'x'], { then_branch: func('f'), else_branch: func('g') })],
      [define('f', ['a'], [], ['a']), define('g', ['a'], [], [])],
      /If 'y': one branch gives 1 results, the other 0/,
    ],
    [
      'change a variable in a branch',
      [x, placeholder('c', 'DT_BOOL'), node('y', 'If', ['c', 'x'], { then_branch: func('f'), else_branch: func('f') })],
      [define('f', ['a'], [node('set', 'AssignVariableOp', ['a', 'a'])], [], ['set'])],
      /AssignVariableOp 'y\/then\/set' changes a variable in a branch or a loop/,
    ],
    [
      'become too many nodes',
      [x, call('f0')],
      Array.from({ length: 30 }, (_, k) =>
        define(`f${k}`, ['a'], k === 29 ? [] : [node('p', `f${k + 1}`, ['a']), node('q', `f${k + 1}`, ['p:out:0'])], [
          k === 29 ? 'a' : 'q:out:0',
        ]),
      ),
      /become more than 1048576 nodes/,
    ],
  ])('that %s are refused', async (_, nodes, functions, message) => {
    await expect(importModelJson(write(nodes, functions))).rejects.toThrow(message);
  });
});
