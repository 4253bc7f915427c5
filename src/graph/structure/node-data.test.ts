/** Graphs as data: there and back, in any order; circles, unknown operations and names. */
import { describe, expect, it } from 'vitest';
import { seededRandom } from '../../base/random.ts';
import { constant, placeholder, split } from '../ops/array.ts';
import { call } from '../ops/call.ts';
import { cond, noOp, whileLoop } from '../ops/control-flow.ts';
import { add, less, neg } from '../ops/math.ts';
import { operations } from '../ops/registry.ts';
import { GraphBuilder } from './builder.ts';
import type { Output } from './graph-node.ts';
import { exportNodes, importNodes, type NodeData } from './node-data.ts';

function example(): NodeData[] {
  const g = new GraphBuilder();
  const x = placeholder(g, 'float32', [4, null], { name: 'x', device: '/job:ps/task:0' });
  const [, second] = split(g, x, 2, { colocateWith: x });
  const first = noOp(g, { name: 'first' });
  neg(g, second, { controlInputs: [first] });
  const zero = constant(g, { dtype: 'int32', shape: [] });
  whileLoop(g, [zero], {
    cond: ([i]) => less(g, i as Output<'int32'>, constant(g, { dtype: 'int32', shape: [] })),
    body: ([i]) => [add(g, i as Output<'int32'>, i as Output<'int32'>)],
  });
  cond(g, placeholder(g, 'bool', []), [x], { then: ([v]) => [v], else: () => [constant(g, { dtype: 'float32', shape: [4, 4] })] });
  return exportNodes(g.finish());
}

describe('graphs as data', () => {
  it('come back as they were', () => {
    const data = example();
    expect(exportNodes(importNodes(data, operations))).toEqual(data);
  });

  it('may come in any order', () => {
    const data = example();
    const random = seededRandom(3);
    const mixed = [...data].map((each) => ({ each, at: random.next() })).sort((a, b) => a.at - b.at);
    const back = exportNodes(
      importNodes(
        mixed.map(({ each }) => each),
        operations,
      ),
    );
    const byName = (a: NodeData, b: NodeData): number => (a.name < b.name ? -1 : 1);
    expect(back.sort(byName)).toEqual(data.sort(byName));
  });

  it('hold no functions', () => {
    const g = new GraphBuilder();
    call(g, () => [], [], []);
    expect(() => exportNodes(g.finish())).toThrow(/Call 'Call': its function is a function, which is no data/);
  });

  const neg2 = (name: string, ...inputs: string[]): NodeData => ({ name, op: 'Neg', inputs });
  const x: NodeData = { name: 'x', op: 'Placeholder', inputs: [], attributes: { dtype: 'float32' } };

  it.each<[string, readonly NodeData[], string, RegExp]>([
    [
      'circles',
      [x, neg2('a', 'c'), neg2('b', 'a'), neg2('c', 'b', '^x')],
      'usage',
      /has a circle: a → b → c → a; only NextIteration to Merge goes back/,
    ],
    ['circles of control inputs', [x, neg2('a', 'x', '^b'), neg2('b', 'x', '^a')], 'usage', /has a circle: a → b → a/],
    ['nodes that need themselves', [neg2('a', 'a')], 'usage', /has a circle: a → a/],
    [
      'unknown operations, all of them',
      [x, { ...x, name: 'y', op: 'Foo' }, { ...x, name: 'z', op: 'Bar' }],
      'unsupported',
      /not known: Bar, Foo/,
    ],
    ['inputs that are not there', [neg2('a', 'nobody:1')], 'usage', /Neg 'a': its input 'nobody:1' is not there/],
    ['outputs that are not there', [x, neg2('a', 'x:1')], 'usage', /Neg 'a': 'x' has no output 1/],
    ['two nodes of one name', [x, x], 'usage', /two nodes 'x'/],
    ['companions that are not there', [{ ...x, colocateWith: 'y' }], 'usage', /colocateWith 'y' is not there/],
    ['fields that are none', [{ ...x, atributes: {} } as NodeData], 'usage', /has no option 'atributes'/],
  ])('refuse %s', (_, data, code, message) => {
    expect(() => importNodes(data, operations)).toThrow(
      expect.objectContaining({ code, message: expect.stringMatching(message) as string }),
    );
  });
});
