/** Cases of MPICH's programs that reduce: operators over dtypes, operators of the program, scans, reduce-scatters. */
import { expect } from 'vitest';
import type { AnyReduceOp, ProcessGroup } from '../../../src/group/caller/types.ts';
import { ReduceOp, type LogicalOp } from '../../../src/memory/reduce-op.ts';
import type { DType } from '../../../src/memory/dtype.ts';
import { dtypeNames, numbersOf, opsOf, reduced, tensorOf } from '../support/element-values.ts';
import { doubles, expectElements, integers, ranksOf, triangle, type OnRanks } from '../support/shared-worlds.ts';
import type { SuiteCases } from '../support/suite-cases.ts';

const sumOp = {
  name: 'user sum',
  reduce: (to: Int32Array, from: Int32Array) => to.forEach((each, i) => (to[i] = each + from[i])),
};
const left = { name: 'left', reduce: () => undefined };
const right = { name: 'right', reduce: (to: Int32Array, from: Int32Array) => to.set(from) };

export function reductionCases(cases: SuiteCases, onRanks: OnRanks): void {
  allReduceCases(cases, onRanks);
  operatorCases(cases, onRanks);
  userOperatorCases(cases, onRanks);
  reduceScatterCases(cases, onRanks);
  scanCases(cases, onRanks);
}

function allReduceCases(cases: SuiteCases, onRanks: OnRanks): void {
  const programs = [
    { size: 4, count: 10 },
    { size: 7, count: 10 },
    { size: 4, count: 100 },
  ];
  const rows = programs.flatMap((program) => dtypeNames.map((dtype) => ({ ...program, dtype })));
  cases.each(
    'allred',
    rows,
    ({ size, count, dtype }) => `every operator on ${count} of ${dtype}, ${size} ranks`,
    ({ size, count, dtype }) =>
      onRanks(size, async (group) => {
        const inputAt = (rank: number, i: number): number => (dtype === 'bool' ? (rank + i) % 2 : 1 + ((rank * i) % 2));
        for (const op of opsOf(dtype)) {
          const data = tensorOf(
            group,
            dtype,
            ranksOf(count).map((i) => inputAt(group.rank, i)),
          );
          await group.allReduce(data, { op });
          numbersOf(data).forEach((number, i) => {
            const expected = reduced(
              op,
              dtype,
              ranksOf(size).map((rank) => inputAt(rank, i)),
            );
            // A mean of seven is rounded.
            if (op === ReduceOp.Avg) expect(Math.abs(number - expected)).toBeLessThanOrEqual(0.01);
            else expect(number, `${op} of element ${i}`).toBe(expected);
          });
          group.release(data);
        }
      }),
  );
  const sumOfRanks = async (group: ProcessGroup, count: number, op?: AnyReduceOp): Promise<void> => {
    const data = integers(count, (i) => group.rank + i);
    await group.allReduce(data, op && { op });
    expectElements(data, count, (i) => i * group.size + triangle(group.size), 'sum');
  };
  cases.each(
    'allred2',
    [1, 8, 64, 512, 4096, 32_768],
    (count) => `${count} ints in place`,
    (count) => onRanks(4, (group) => sumOfRanks(group, count)),
  );
  cases.each(
    'allred5',
    [5, 10],
    (size) => `twice as many ints as ranks, ${size} ranks`,
    (size) =>
      onRanks(size, async (group) => {
        const data = integers(2 * size, (i) => i);
        await group.allReduce(data);
        expectElements(data, 2 * size, (i) => i * size, 'sum');
      }),
  );
  const lengths = [1, 64, 4096, 32_768].flatMap((count) => [4, 7].map((size) => ({ size, count })));
  cases.each(
    'allred6',
    lengths,
    ({ size, count }) => `${count} ints by an operator of the program, ${size} ranks`,
    ({ size, count }) => onRanks(size, (group) => sumOfRanks(group, count, sumOp)),
  );
  cases.each(
    'allred_float',
    [4, 10],
    (size) => `sums that depend on their order have the same bits on ${size} ranks`,
    (size) =>
      onRanks(size, async (group) => {
        for (let big = 0; big < size; big += 2) {
          for (let small = big + 1; small < size; small += 3) {
            const value = group.rank === big ? 1e6 : group.rank === small ? -1e6 : 1e-2;
            const data = new Float32Array(8).fill(value);
            await group.allReduce(data);
            const all = new Float32Array(8 * size);
            await group.allGather(all, data);
            expectElements(all, 8 * size, (i) => all[i % 8], `${big} and ${small}`);
            expect(Math.abs(data[0])).toBeLessThan(1);
          }
        }
      }),
  );
  cases.add('allredmany', 'a flood of sums of one double', () =>
    onRanks(4, async (group) => {
      const results = Array.from({ length: 250 }, () => Float64Array.of(10));
      const works = results.map((data) => group.allReduce(data));
      await Promise.all(works);
      for (const data of results) expect(data[0]).toBe(40);
    }),
  );
  const roots = [1, 16, 1024, 32_768].flatMap((count) => [3, 5].map((size) => ({ size, count })));
  cases.each(
    'reduce',
    roots,
    ({ size, count }) => `${count} ints to each of ${size} roots`,
    ({ size, count }) =>
      onRanks(size, async (group) => {
        for (const root of ranksOf(size)) {
          const data = integers(count, (i) => i);
          await group.reduce(data, { root });
          expectElements(data, count, (i) => (group.rank === root ? i * size : i), `root ${root}`);
        }
      }),
  );
  const calls: readonly (readonly [string, (group: ProcessGroup) => Promise<void>])[] = [
    [
      'reduce',
      async (group) => {
        for (const root of ranksOf(group.size)) {
          const data = integers(10, (i) => group.rank + i);
          await group.reduce(data, { root });
          if (group.rank === root) expectElements(data, 10, (i) => 4 * i + 6, `root ${root}`);
        }
      },
    ],
    ['allReduce', (group) => sumOfRanks(group, 10)],
    [
      'reduceScatter with counts',
      async (group) => {
        const part = new Int32Array(10);
        await group.reduceScatter(
          part,
          integers(40, (i) => group.rank + i),
          { counts: [10, 10, 10, 10] },
        );
        expectElements(part, 10, (i) => 4 * (10 * group.rank + i) + 6, 'part');
      },
    ],
    [
      'reduceScatter',
      async (group) => {
        const part = new Int32Array(10);
        await group.reduceScatter(
          part,
          integers(40, (i) => group.rank + i),
        );
        expectElements(part, 10, (i) => 4 * (10 * group.rank + i) + 6, 'part');
      },
    ],
    [
      'scan',
      async (group) => {
        const data = integers(10, (i) => group.rank + i);
        await group.scan(data);
        expectElements(data, 10, (i) => (group.rank + 1) * i + triangle(group.rank + 1), 'prefix');
      },
    ],
    [
      'exscan',
      async (group) => {
        const data = integers(10, (i) => group.rank + i);
        await group.exscan(data);
        expectElements(data, 10, (i) => (group.rank === 0 ? i : group.rank * i + triangle(group.rank)), 'prefix');
      },
    ],
  ];
  cases.each(
    'op_coll',
    calls,
    ([name]) => name,
    ([, run]) => onRanks(4, run),
  );
}

/** One program per operator: 1, 0, and a number of the rank, of every dtype. */
function operatorCases(cases: SuiteCases, onRanks: OnRanks): void {
  const numbers = (dtype: DType, rank: number): number[] => [1, 0, dtype === 'bool' ? rank % 2 : rank];
  const arithmetic = [
    ['opmax', ReduceOp.Max, numbers],
    ['opmin', ReduceOp.Min, numbers],
    ['opsum', ReduceOp.Sum, numbers],
    ['opprod', ReduceOp.Product, (dtype: DType, rank: number) => (dtype === 'bool' ? [1, 0, rank % 2] : [1, Math.min(1, rank), rank + 1])],
  ] as const;
  for (const [program, op, inputOf] of arithmetic) {
    cases.each(
      program,
      dtypeNames,
      (dtype) => `${op} of ${dtype}`,
      (dtype) =>
        onRanks(5, async (group) => {
          const data = tensorOf(group, dtype, inputOf(dtype, group.rank));
          await group.reduce(data, { op });
          const expected = [0, 1, 2].map((i) =>
            reduced(
              op,
              dtype,
              ranksOf(5).map((rank) => inputOf(dtype, rank)[i]),
            ),
          );
          expect(numbersOf(data)).toEqual(group.rank === 0 ? expected : inputOf(dtype, group.rank));
          group.release(data);
        }),
    );
  }
  const bits = [
    ['opband', ReduceOp.BitAnd],
    ['opbor', ReduceOp.BitOr],
    ['opbxor', ReduceOp.BitXor],
  ] as const;
  for (const [program, op] of bits) {
    const inputOf = (dtype: DType, rank: number): number[] =>
      dtype === 'bool' ? [1, 0, Number(rank > 0)] : [0x7f, 0, rank > 0 ? 0x3c : 0x43];
    const whole = dtypeNames.filter((dtype) => opsOf(dtype).includes(op));
    cases.each(
      program,
      whole,
      (dtype) => `${op} of ${dtype}`,
      (dtype) =>
        onRanks(5, async (group) => {
          const data = tensorOf(group, dtype, inputOf(dtype, group.rank));
          await group.reduce(data, { op });
          const expected = [0, 1, 2].map((i) =>
            reduced(
              op,
              dtype,
              ranksOf(5).map((rank) => inputOf(dtype, rank)[i]),
            ),
          );
          if (group.rank === 0) expect(numbersOf(data)).toEqual(expected);
          group.release(data);
        }),
    );
  }
  const logical: readonly (readonly [string, LogicalOp, (values: boolean[]) => boolean])[] = [
    ['opland', 'land', (values) => values.every(Boolean)],
    ['oplor', 'lor', (values) => values.some(Boolean)],
    ['oplxor', 'lxor', (values) => values.filter(Boolean).length % 2 === 1],
  ];
  for (const [program, op, resultOf] of logical) {
    cases.each(
      program,
      dtypeNames,
      (dtype) => `${op} of ${dtype}`,
      (dtype) =>
        onRanks(5, async (group) => {
          const data = tensorOf(group, dtype, numbers(dtype, group.rank));
          await group.reduce(data, { op });
          const expected = [0, 1, 2].map((i) => Number(resultOf(ranksOf(5).map((rank) => numbers(dtype, rank)[i] !== 0))));
          if (group.rank === 0) expect(numbersOf(data)).toEqual(expected);
          group.release(data);
        }),
    );
  }
  for (const [program, call] of [
    ['opmaxloc', 'maxLoc'],
    ['opminloc', 'minLoc'],
  ] as const) {
    cases.each(
      program,
      dtypeNames,
      (dtype) => `${dtype}, the first rank of those with the same value`,
      (dtype) =>
        onRanks(5, async (group) => {
          const values = tensorOf(group, dtype, numbers(dtype, group.rank));
          const indices = new Int32Array(3).fill(group.rank);
          await group[call](values, indices);
          const last = dtype === 'bool' ? 1 : 4;
          expect([...numbersOf(values), ...indices]).toEqual([1, 0, call === 'maxLoc' ? last : 0, 0, 0, call === 'maxLoc' ? last : 0]);
          group.release(values);
        }),
    );
  }
}

/** The product of square matrices: associative, not commutative. */
function matrixProduct(side: number): { name: string; reduce: (to: Int32Array, from: Int32Array) => void } {
  return {
    name: `product of ${side} by ${side}`,
    reduce: (to, from) => {
      for (let at = 0; at < to.length; at += side * side) {
        const [a, b] = [to.slice(at, at + side * side), from.subarray(at, at + side * side)];
        for (let i = 0; i < side; i++)
          for (let j = 0; j < side; j++) {
            let sum = 0;
            for (let k = 0; k < side; k++) sum += a[i * side + k] * b[k * side + j];
            to[at + i * side + j] = sum;
          }
      }
    },
  };
}

/** A permutation as a matrix. */
function permutation(side: number, of: (i: number) => number): Int32Array {
  return integers(side * side, (at) => Number(at % side === of(Math.floor(at / side))));
}

function userOperatorCases(cases: SuiteCases, onRanks: OnRanks): void {
  /** Rank r swaps r and r + 1; the product is a shift, and in any other order it is not. */
  const swap = (rank: number, side: number): Int32Array => {
    const next = (rank + 1) % side;
    return permutation(side, (i) => (i === rank ? next : i === next ? rank : i));
  };
  const expectedProduct = (size: number, matrixOf: (rank: number) => Int32Array, side: number): Int32Array => {
    const product = matrixOf(0).slice();
    for (const rank of ranksOf(size).slice(1)) matrixProduct(side).reduce(product, matrixOf(rank));
    return product;
  };
  cases.each(
    'allred3',
    [4, 10],
    (size) => `swaps of neighbours, multiplied in the order of ${size} ranks`,
    (size) =>
      onRanks(size, async (group) => {
        const data = swap(group.rank, size);
        await group.allReduce(data, { op: matrixProduct(size) });
        const expected = expectedProduct(size, (rank) => swap(rank, size), size);
        expectElements(data, size * size, (i) => expected[i], 'product');
        expect([...expected]).not.toEqual([...expectedProduct(size, (rank) => swap(size - 1 - rank, size), size)]);
      }),
  );
  const rotation = [0, 1, 0, 0, 0, 1, 1, 0, 0];
  const [unit, a, b] = [permutation(3, (i) => i), permutation(3, (i) => [0, 2, 1][i]), permutation(3, (i) => [1, 0, 2][i])];
  cases.each(
    'allred4',
    [1, 9, 100],
    (count) => `${count} matrices of 3 by 3 between unit matrices`,
    (count) =>
      onRanks(4, async (group) => {
        const factorOf = (rank: number, matrix: number): Int32Array => {
          const first = matrix % 3;
          const second = first + 1 + (Math.floor(matrix / 3) % (3 - first));
          return rank === first ? a : rank === second ? b : unit;
        };
        const data = integers(9 * count, (i) => factorOf(group.rank, Math.floor(i / 9))[i % 9]);
        await group.allReduce(data, { op: matrixProduct(3) });
        // A·B, whatever stands around the factors; B·A is the other rotation.
        expectElements(data, 9 * count, (i) => rotation[i % 9], 'rotations');
      }),
  );
  for (const program of ['red3', 'red4'] as const) {
    cases.each(
      program,
      program === 'red3' ? [4] : [5, 10],
      (size) => `to each of ${size} roots`,
      (size) =>
        onRanks(size, async (group) => {
          const expected = expectedProduct(size, (rank) => swap(rank, size), size);
          for (const root of ranksOf(size)) {
            const data = swap(group.rank, size);
            await group.reduce(data, { op: matrixProduct(size), root });
            const wanted = group.rank === root ? expected : swap(group.rank, size);
            expectElements(data, size * size, (i) => wanted[i], `root ${root}`);
          }
        }),
    );
  }
  cases.each(
    'longuser',
    [1000, 100_000],
    (count) => `a sum of ${count} doubles by an operator of the program`,
    (count) =>
      onRanks(4, async (group) => {
        const data = doubles(count, (i) => group.rank * count + i);
        const op = { name: 'sum', reduce: (to: Float64Array, from: Float64Array) => to.forEach((each, i) => (to[i] = each + from[i])) };
        await group.allReduce(data, { op });
        expectElements(data, count, (i) => 4 * i + 6 * count, 'sum');
      }),
  );
  const triples = [1, 1024, 65_536];
  cases.each(
    'uoplong',
    triples,
    (count) => `sum, maximum and minimum of ${count} triples`,
    (count) =>
      onRanks(4, async (group) => {
        const op = {
          name: 'triples',
          reduce: (to: Float64Array, from: Float64Array) => {
            for (let i = 0; i < to.length; i += 3) {
              to[i] += from[i];
              to[i + 1] = Math.max(to[i + 1], from[i + 1]);
              to[i + 2] = Math.min(to[i + 2], from[i + 2]);
            }
          },
        };
        const data = doubles(3 * count, (i) => 1 + (i % 4) + group.rank);
        await group.reduce(data, { op });
        const expected = (i: number): number => [4 * (1 + (i % 4)) + 6, 4 + (i % 4), 1 + (i % 4)][i % 3];
        if (group.rank === 0) expectElements(data, 3 * count, expected, 'triples');
      }),
  );
  cases.each(
    'uop_equal',
    [true, false],
    (equal) => `texts of all ranks are ${equal ? '' : 'not '}the same`,
    (equal) =>
      onRanks(4, async (group) => {
        const text = new TextEncoder().encode(`Testing ${equal ? 'String' : group.rank}.`.padEnd(99));
        const data = Uint8Array.of(...text, 1);
        const op = {
          name: 'equal',
          reduce: (to: Uint8Array, from: Uint8Array) =>
            void (to[99] &= from[99] & Number(Buffer.compare(to.subarray(0, 99), from.subarray(0, 99)) === 0)),
        };
        await group.reduce(data, { op });
        if (group.rank === 0) expect(data[99]).toBe(Number(equal));
      }),
  );
}

function reduceScatterCases(cases: SuiteCases, onRanks: OnRanks): void {
  const perRank = (size: number): string => `one int for each of ${size} ranks`;
  const single = (size: number, counts: boolean) =>
    onRanks(size, async (group) => {
      const part = Int32Array.of(-1);
      await group.reduceScatter(
        part,
        integers(size, (i) => group.rank + i),
        counts ? { counts: Array<number>(size).fill(1) } : {},
      );
      expect(part[0]).toBe(size * group.rank + triangle(size));
    });
  cases.each('redscat', [4, 6], perRank, (size) => single(size, true));
  cases.each('red_scat_block', [4, 5, 8], perRank, (size) => single(size, false));
  const ops = [
    ['the left operand', left],
    ['the right operand', right],
    ['a sum', sumOp],
  ] as const;
  for (const [program, counted] of [
    ['redscat2', true],
    ['red_scat_block2', false],
  ] as const) {
    const rows = [4, 5, 10].flatMap((size) => ops.map(([what, op]) => ({ size, what, op })));
    cases.each(
      program,
      rows,
      ({ size, what }) => `${what}, in the order of ${size} ranks`,
      ({ size, op }) =>
        onRanks(size, async (group) => {
          for (const block of [1, 8, 64]) {
            const part = new Int32Array(block).fill(-1);
            const input = integers(size * block, (i) => group.rank + i);
            await group.reduceScatter(part, input, { op, ...(counted && { counts: Array<number>(size).fill(block) }) });
            const at = (i: number): number => group.rank * block + i;
            const expected = (i: number): number => (op === left ? at(i) : op === right ? at(i) + size - 1 : size * at(i) + triangle(size));
            expectElements(part, block, expected, `blocks of ${block}`);
          }
        }),
    );
  }
  const long = (size: number, counted: boolean) =>
    onRanks(size, async (group) => {
      const count = Math.floor(2 ** 18 / size);
      const part = group.tensor('int32', [count]);
      const input = group.tensor('int32', [count * size]);
      for (let i = 0; i < count * size; i++) input.data[i] = group.rank + Math.floor(i / count);
      await group.reduceScatter(part, input, counted ? { counts: Array<number>(size).fill(count) } : {});
      expectElements(part.data, count, () => size * group.rank + triangle(size), 'part');
      group.release(part);
      group.release(input);
    });
  cases.each(
    'redscat3',
    [8],
    (size) => `a long vector over ${size} ranks`,
    (size) => long(size, true),
  );
  cases.each(
    'redscatblk3',
    [8, 10],
    (size) => `a long vector over ${size} ranks`,
    (size) => long(size, false),
  );
}

function scanCases(cases: SuiteCases, onRanks: OnRanks): void {
  const bad = 123_456;
  const ops = [
    ['sum', ReduceOp.Sum],
    ['sum of the program', sumOp],
  ] as const;
  cases.each(
    'scantst',
    ops,
    ([name]) => `${name}, twice`,
    ([, op]) =>
      onRanks(4, async (group) => {
        for (let round = 0; round < 2; round++) {
          const data = Int32Array.of(group.rank);
          await group.scan(data, { op });
          expect(data[0]).toBe(triangle(group.rank + 1));
        }
      }),
  );
  cases.add('scantst', 'an operator that needs the order of ranks', () =>
    onRanks(4, async (group) => {
      const op = {
        name: 'order',
        reduce: (to: Int32Array, from: Int32Array) => to.forEach((each, i) => (to[i] = from[i] <= each || each === bad ? bad : from[i])),
      };
      const data = Int32Array.of(group.rank);
      await group.scan(data, { op });
      expect(data[0]).toBe(group.rank);
    }),
  );
  const rows = [1, 100, 10_000].flatMap((count) => [4, 10].map((size) => ({ size, count })));
  cases.each(
    'exscan',
    rows,
    ({ size, count }) => `${count} ints over ${size} ranks; rank 0 keeps its own`,
    ({ size, count }) =>
      onRanks(size, async (group) => {
        const data = integers(count, (i) => group.rank + i * size);
        await group.exscan(data);
        const expected = (i: number): number => (group.rank === 0 ? i * size : group.rank * i * size + triangle(group.rank));
        expectElements(data, count, expected, 'prefix');
      }),
  );
  cases.add('exscan2', 'one int of each rank', () =>
    onRanks(5, async (group) => {
      const data = Int32Array.of(group.rank);
      await group.exscan(data);
      expect(data[0]).toBe([0, 0, 1, 3, 6][group.rank]);
    }),
  );
}
