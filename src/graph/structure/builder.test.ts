/** Graphs as they are built: names, scopes, devices, and everything that is refused, by the name of the node. */
import { describe, expect, it } from 'vitest';
import { constant, identity, placeholder } from '../ops/array.ts';
import { enter, exit, merge, nextIteration, noOp, whileLoop } from '../ops/control-flow.ts';
import { add, less } from '../ops/math.ts';
import { matMul } from '../ops/matrix.ts';
import { assign, variable } from '../ops/state.ts';
import { GraphBuilder } from './builder.ts';
import { frameTable } from './frames.ts';
import type { Output } from './graph-node.ts';

const one = { dtype: 'int32', shape: [], data: [1] } as const;

describe('a builder', () => {
  it('gives every node a name of its own, within scopes', () => {
    const g = new GraphBuilder();
    const names = g.withScope('tower', () => [
      placeholder(g, 'float32', []),
      placeholder(g, 'float32', []),
      placeholder(g, 'float32', [], { name: 'x' }),
    ]);
    const again = g.withScope('tower', (scope) => [placeholder(g, 'float32', [], { name: scope })]);
    expect([...names, ...again].map(({ node }) => node.name)).toEqual([
      'tower/Placeholder',
      'tower/Placeholder_1',
      'tower/x',
      'tower_1/tower_1',
    ]);
    const graph = g.finish();
    expect(graph.output('tower/x').name).toBe('tower/x:0');
    expect(() => graph.node('tower/y')).toThrow("no node 'tower/y'; did you mean 'tower/x'?");
    expect(() => graph.output('tower/x:1')).toThrow(/has 1 outputs/);
  });

  it('joins devices of scopes and nodes', () => {
    const g = new GraphBuilder();
    const x = g.withDevice('/job:ps/cpu:0', () => placeholder(g, 'float32', [], { device: '/task:3' }));
    expect(x.node.device).toBe('/job:ps/task:3/device:CPU:0');
    expect(() => placeholder(g, 'float32', [], { device: 'ps' })).toThrow(/device 'ps' is not understood/);
  });

  it('has control inputs of scopes and nodes, once', () => {
    const g = new GraphBuilder();
    const [a, b] = [noOp(g, { name: 'a' }), noOp(g, { name: 'b' })];
    const c = g.withControlInputs([a], () => noOp(g, { controlInputs: [b, a] }));
    expect(c.controlInputs).toEqual([a, b]);
  });

  it('infers what it can where dimensions are open', () => {
    const g = new GraphBuilder();
    const x = placeholder(g, 'float32', [null, 16], { name: 'x' });
    expect(matMul(g, x, placeholder(g, 'float32', [16, 4])).shape).toEqual([null, 4]);
    expect(matMul(g, x, placeholder(g, 'float32', 'unknown')).shape).toEqual([null, null]);
    expect(add(g, x, placeholder(g, 'float32', [1])).shape).toEqual([null, 16]);
  });
});

describe('a builder refuses, naming the node,', () => {
  const g = new GraphBuilder();
  const floats = placeholder(g, 'float32', [2, 3], { name: 'floats' });
  const ints = placeholder(g, 'int32', [3, 4], { name: 'ints' });
  const bools = placeholder(g, 'bool', []);
  const other = placeholder(new GraphBuilder(), 'float32', []);
  /** Passes a value that the types would refuse. */
  const untyped = (value: unknown): never => value as never;

  it.each<[string, () => unknown, RegExp]>([
    [
      'inputs of different dtypes',
      () => add(g, floats, untyped(ints), { name: 'sum' }),
      /AddV2 'sum': input y is int32, but must be float32 like the other T/,
    ],
    [
      'shapes that do not fit',
      () => matMul(g, floats, floats, { name: 'h' }),
      /MatMul 'h': \[2, 3\] times \[2, 3\]: the inner dimensions differ/,
    ],
    ['too few inputs', () => g.node(add.definition, [floats]), /AddV2 'AddV2': takes 2 inputs, not 1/],
    [
      'dtypes that an operation does not have',
      () => less(g, bools as never, bools as never),
      /Less 'Less': T must be float64, .*, not bool/,
    ],
    ['what is no output', () => identity(g, untyped('x')), /Identity 'Identity': input 0 is not an output/],
    ['outputs of another graph', () => identity(g, other, { name: 'i' }), /Identity 'i': input 0 is not an output of a node of this graph/],
    [
      'unknown attributes',
      () => matMul(g, floats, floats, untyped({ transpose_c: true })),
      /MatMul 'MatMul': has no attribute 'transpose_c'; did you mean 'transpose_a'/,
    ],
    [
      'attributes of another kind',
      () => matMul(g, floats, floats, untyped({ transpose_a: 1 })),
      /attribute 'transpose_a' must be true or false, not 1/,
    ],
    ['missing attributes', () => enter(g, floats, untyped({})), /Enter 'Enter': attribute 'frame_name' \(string\) is missing/],
    [
      'unknown options',
      () => g.node(noOp.definition, [], {}, untyped({ devise: '/cpu:0' })),
      /has no option 'devise'; did you mean 'device'/,
    ],
    ['names that are none', () => noOp(g, { name: 'a b' }), /'a b' is no name/],
    ['values where a variable is needed', () => assign(g, floats, floats, { name: 'set' }), /Assign 'set': input ref must be a variable/],
    ['dtypes that are none', () => variable(g, untyped('float'), []), /attribute 'dtype' must be a dtype/],
    ['values that are none', () => constant(g, untyped({ shape: [1] })), /attribute 'value' must be a value with dtype and shape/],
  ])('%s', (_, build, message) => {
    expect(build).toThrow(message);
    try {
      build();
    } catch (thrown) {
      expect(thrown).toMatchObject({ name: 'ShoalError', code: 'usage' });
    }
  });

  it('nodes after it has finished', () => {
    const g = new GraphBuilder();
    g.finish();
    expect(() => noOp(g)).toThrow(/the graph is finished/);
  });
});

describe('loops', () => {
  const count = (g: GraphBuilder, from: Output<'int32'>): readonly Output[] =>
    whileLoop(g, [from], {
      cond: ([i]) => less(g, i as Output<'int32'>, constant(g, { dtype: 'int32', shape: [] })),
      body: ([i]) => [add(g, i as Output<'int32'>, constant(g, one))],
    });

  it('put nodes into frames: Enter runs outside, Exit inside', () => {
    const g = new GraphBuilder();
    const [after] = count(g, placeholder(g, 'int32', []));
    identity(g, after, { name: 'after' });
    const graph = g.finish();
    const frames = frameTable(graph.nodes);
    const frameOf = (name: string): string => frames.frameOf(graph.node(name)).name;
    expect(['while/Enter', 'after'].map(frameOf)).toEqual(['', '']);
    expect(['while/Merge', 'while/Const', 'while/AddV2', 'while/Const_1', 'while/NextIteration', 'while/Exit'].map(frameOf)).toEqual(
      Array.from({ length: 6 }, () => 'while'),
    );
    expect(frames.outputFrameOf(graph.node('while/Exit')).name).toBe('');
  });

  it('go back from NextIteration to Merge only, with the same dtype and a shape that fits', () => {
    const g = new GraphBuilder();
    const x = enter(g, placeholder(g, 'float32', [2]), { frame_name: 'f' });
    const [begin] = merge(g, [x], { name: 'begin' });
    const y = enter(g, placeholder(g, 'float32', [3]), { frame_name: 'f' });
    const z = enter(g, placeholder(g, 'int32', [2]), { frame_name: 'f' });
    expect(() => g.connect(begin, x)).toThrow(/Merge 'begin': only a NextIteration goes back, not Enter 'Enter'/);
    expect(() => g.connect(x, nextIteration(g, x))).toThrow(/Enter 'Enter': only a Merge takes the back edge/);
    expect(() => g.connect(begin, nextIteration(g, y))).toThrow(/begins with shape \[2\], but 'NextIteration_1:0' brings back \[3\]/);
    expect(() => g.connect(begin, nextIteration(g, z))).toThrow(/is float32, but 'NextIteration_2:0' brings back int32/);
  });

  it.each<[string, (g: GraphBuilder, x: Output<'int32'>) => void, RegExp]>([
    [
      'mix frames',
      (g, x) => add(g, x, enter(g, x, { frame_name: 'f' }), { name: 'mix' }),
      /AddV2 'mix': its inputs are in different frames/,
    ],
    ['leave no frame', (g, x) => exit(g, x, { name: 'out' }), /Exit 'out': is in no loop that it could leave/],
    ['iterate nowhere', (g, x) => nextIteration(g, x, { name: 'n' }), /NextIteration 'n': is in no loop/],
    [
      'enter a frame from two others',
      (g, x) => {
        const inner = enter(g, x, { frame_name: 'f' });
        enter(g, enter(g, inner, { frame_name: 'g' }), { frame_name: 'f', name: 'wrong' });
      },
      /Enter 'wrong': frame 'f' is entered from 'g' and from ''/,
    ],
    [
      'disagree about parallel iterations',
      (g, x) => [enter(g, x, { frame_name: 'f' }), enter(g, x, { frame_name: 'f', parallel_iterations: 1 })],
      /the Enters of frame 'f' disagree/,
    ],
  ])('must not %s', (_, build, message) => {
    const g = new GraphBuilder();
    build(g, placeholder(g, 'int32', []));
    expect(() => g.finish()).toThrow(message);
  });
});
