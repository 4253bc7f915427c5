/** Values and graphs as bytes: there and back; and bytes of a stranger. */
import { describe, expect, it } from 'vitest';
import type { ShoalError } from '../../base/errors.ts';
import { seededRandom } from '../../base/random.ts';
import { dtypes } from '../../memory/dtype.ts';
import { joinPieces } from '../rpc/rpc.ts';
import { exportNodes } from '../structure/node-data.ts';
import { randomGraph } from '../testing/random-graph.ts';
import type { Value } from '../structure/value.ts';
import { graphData, graphOf } from './graphs.ts';
import { decodeMessage, encodeMessage } from './messages.ts';

const values: Value[] = [
  ...dtypes.map(({ name, view }) => ({ dtype: name, shape: [3, 1], data: view(new ArrayBuffer(24), 0, 3) })),
  { dtype: 'float32', shape: [0, 5], data: new Float32Array(0) },
  { dtype: 'string', shape: [2], data: ['a', 'ä'] },
  { dtype: 'float32', shape: [], data: Float32Array.of(1.5) },
];

describe('values as bytes', () => {
  it('keep their layout', () => {
    const two: Value[] = [
      { dtype: 'float32', shape: [2, 1], data: Float32Array.of(1.5, -2) },
      { dtype: 'string', shape: [1], data: ['a'] },
    ];
    const encoded =
      '0200000000000000000102000000000000000000000020400000000000000040000000000000f03f00ff0100000000000000000000001440000000000000f03f0000c03f000000c05b2261225d000000';
    expect(Buffer.from(joinPieces(encodeMessage({ x: 1 }, two))).toString('hex')).toBe(`07000000000000007b2278223a317d00${encoded}`);
  });

  it('come back as they were', () => {
    const back = (given: Value[]): unknown => decodeMessage(joinPieces(encodeMessage({}, given))).values;
    expect(back(values)).toEqual(values);
    expect(back([])).toEqual([]);
    expect(back([{ dtype: 'int64', shape: [2], data: [1, 2] }])).toEqual([{ dtype: 'int64', shape: [2], data: BigInt64Array.of(1n, 2n) }]);
  });

  it('of a stranger are refused or are values, and nothing else happens', () => {
    const good = joinPieces(encodeMessage({ x: [1, 2] }, values));
    const random = seededRandom(9);
    for (let round = 0; round < 3000; round++) {
      const bytes = good.slice(0, round % 3 === 0 ? random.integer(good.length) : good.length);
      for (let k = 0; k < 1 + (round % 4) && bytes.length > 0; k++) bytes[random.integer(bytes.length)] = random.integer(256);
      try {
        decodeMessage(bytes);
      } catch (thrown) {
        expect((thrown as ShoalError).code, String(thrown)).toMatch(/protocol/);
      }
    }
  });
});

describe('graphs as bytes', () => {
  it('come back as they were', () => {
    for (let seed = 0; seed < 20; seed++) {
      const graph = randomGraph(seededRandom(seed), { nodes: 60, devices: ['/job:a/task:0/device:CPU:0'] });
      const beside: Value[] = [];
      const data = graphData(graph, beside);
      const message = decodeMessage(joinPieces(encodeMessage({ nodes: data }, beside)));
      const back = graphOf((message.fields as { nodes: unknown }).nodes, message.values);
      expect(exportNodes(back)).toEqual(exportNodes(graph));
    }
  });

  it.each([[undefined], [{}], [[1]], [[{ name: 'x', op: 'NoOp', inputs: [], attributes: { y: { value: 3 } } }]]])('refuse %j', (data) => {
    expect(() => graphOf(data, [])).toThrow(expect.objectContaining({ code: 'protocol' }));
  });
});
