import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { dtypeInfo, dtypes, viewOf, type DType } from '../../memory/dtype.ts';
import { createKernels } from '../../memory/kernels/create-kernels.ts';
import { balancedTree, type ReduceTree } from '../../memory/kernels.ts';
import { checkReduceOp, combineOpOf, reduceOps } from '../../memory/reduce-op.ts';
import { fillWith, Patterns, spoil } from './pattern.ts';

const kernels = createKernels();
const cases = dtypes.flatMap(({ name }) =>
  reduceOps.filter((op) => op !== 'premul' && defined(name, op)).map((op) => ({ dtype: name, op })),
);

function defined(dtype: DType, op: (typeof reduceOps)[number]): boolean {
  try {
    checkReduceOp(op, dtype);
    return true;
  } catch {
    return false;
  }
}

function bytesOf(array: ArrayBufferView): Uint8Array {
  return new Uint8Array(array.buffer, array.byteOffset, array.byteLength);
}

function vector(dtype: DType, count: number): ReturnType<typeof viewOf> {
  return viewOf(dtype, new ArrayBuffer(count * dtypeInfo(dtype).bytes), 0, count);
}

describe('patterns', () => {
  it.each(cases)('$op of $dtype is exact in every order', ({ dtype, op }) => {
    for (const ranks of [1, 2, 3, 8, 33]) {
      const patterns = new Patterns({ dtype, op, ranks, kernels });
      const inputs = Array.from({ length: ranks }, (_, rank) => {
        const input = vector(dtype, 3000);
        fillWith(input, patterns.term(rank), 5);
        return bytesOf(input);
      });
      const oneByOne: ReduceTree = inputs.flatMap((_, rank) => (rank === 0 ? [0] : [rank, -1]));
      const divisor = op === 'avg' ? ranks : undefined;
      for (const tree of [balancedTree(ranks), oneByOne]) {
        const result = vector(dtype, 3000);
        kernels.reduce(dtype, combineOpOf(op), [bytesOf(result)], inputs, tree, divisor);
        expect(patterns.countWrong(result, patterns.reduced(), 5)).toBe(0);
      }
    }
  });

  it('tell every rank and part from every other', () => {
    const patterns = new Patterns({ dtype: 'float32', op: 'sum', ranks: 8, kernels });
    for (let source = 0; source < 8; source++) {
      for (let target = 0; target < 8; target++) {
        const data = vector('float32', 100);
        fillWith(data, patterns.part(source, target), 0);
        expect(patterns.countWrong(data, patterns.part(source, target), 0)).toBe(0);
        expect(patterns.countWrong(data, patterns.part((source + 1) % 8, target), 0)).toBeGreaterThan(90);
        expect(patterns.countWrong(data, patterns.part(source, (target + 1) % 8), 0)).toBeGreaterThan(90);
      }
    }
  });

  it('count exactly the elements that were changed, wherever they are', () => {
    const patterns = new Patterns({ dtype: 'int32', op: 'sum', ranks: 2, kernels });
    fc.assert(
      fc.property(
        fc.integer({ min: 1, max: 5000 }),
        fc.integer({ min: 0, max: 3000 }),
        fc.infiniteStream(fc.nat()),
        (count, offset, stream) => {
          const data = new Int32Array(count);
          fillWith(data, patterns.reduced(), offset);
          expect(patterns.countWrong(data, patterns.reduced(), offset)).toBe(0);
          const places = new Set([...stream.take(3)].map((place) => place % count));
          for (const place of places) data[place] += 1;
          expect(patterns.countWrong(data, patterns.reduced(), offset)).toBe(places.size);
        },
      ),
    );
  });

  it.each(dtypes.map(({ name }) => name))('see results of %s that were never written', (dtype) => {
    const patterns = new Patterns({ dtype, op: dtype === 'bool' ? 'max' : 'sum', ranks: 2, kernels });
    const data = vector(dtype, 1000);
    spoil(data);
    for (const pattern of [patterns.reduced(), patterns.part(0), patterns.part(1)])
      expect(patterns.countWrong(data, pattern, 0)).toBe(1000);
  });

  it('see a missing contribution', () => {
    const patterns = new Patterns({ dtype: 'float32', op: 'sum', ranks: 4, kernels });
    const data = vector('float32', 1021);
    fillWith(data, patterns.term(0), 0);
    expect(patterns.countWrong(data, patterns.reduced(), 0)).toBeGreaterThan(900);
  });
});
