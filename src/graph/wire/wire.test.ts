/** Values and graphs as bytes: there and back; and bytes of a stranger. */
import { describe, expect, it } from 'vitest';
import type { ShoalError } from '../../base/errors.ts';
import { seededRandom } from '../../base/random.ts';
import { dtypes } from '../../memory/dtype.ts';
import { joinPieces } from '../rpc/rpc.ts';
import { exportNodes } from '../structure/node-data.ts';
import { randomGraph } from '../testing/random-graph.ts';
import { decodeMessage, encodeMessage, graphData, graphOf } from './graphs.ts';
import { decodeSlots, encodeSlots, type Slot } from './values.ts';

const values: Slot[] = [
  ...dtypes.map(({ name, view }) => ({ dtype: name, shape: [3, 1], data: view(new ArrayBuffer(24), 0, 3) })),
  undefined,
  { dtype: 'float32', shape: [0, 5], data: new Float32Array(0) },
  { dtype: 'string', shape: [2], data: ['a', 'ä'] },
  { dtype: 'float32', shape: [], data: Float32Array.of(1.5) },
];

describe('values as bytes', () => {
  it('keep their layout', () => {
    const slots: Slot[] = [
      { dtype: 'float32', shape: [2, 1], data: Float32Array.of(1.5, -2) },
      undefined,
      { dtype: 'string', shape: [1], data: ['a'] },
    ];
    const encoded =
      '0300000000000000000102000000000000000000000020400000000000000040000000000000f03f0100000000000000000000000000000000ff0100000000000000000000001440000000000000f03f0000c03f000000c05b2261225d000000';
    expect(Buffer.from(joinPieces(encodeSlots(slots))).toString('hex')).toBe(encoded);
    const message = Buffer.from(joinPieces(encodeMessage({ x: 1 }, slots))).toString('hex');
    expect(message).toBe(`07000000000000007b2278223a317d00${encoded}`);
  });

  it('come back as they were, dead ones among them', () => {
    expect(decodeSlots(joinPieces(encodeSlots(values)))).toEqual(values);
    expect(decodeSlots(joinPieces(encodeSlots([])))).toEqual([]);
    const plain = decodeSlots(joinPieces(encodeSlots([{ dtype: 'int64', shape: [2], data: [1, 2] }])));
    expect(plain).toEqual([{ dtype: 'int64', shape: [2], data: BigInt64Array.of(1n, 2n) }]);
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
      const beside: Slot[] = [];
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
