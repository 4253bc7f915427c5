/** The part of the conformance suite of process groups that is on calls which are made of others, and on parts that are in place. */
import assert from 'node:assert/strict';
import { dtypes } from '../../memory/dtype.ts';
import { ReduceOp } from '../../memory/reduce-op.ts';
import type { AnyReduceOp, ProcessGroup } from '../caller/types.ts';
import {
  bounds,
  checkElements,
  checkInput,
  filled,
  numberAt,
  period,
  unevenCounts,
  valueAt,
  wrapTo,
  type GroupCheck,
} from './conformance-values.ts';

export const composedChecks: readonly GroupCheck[] = [
  {
    name: 'gather and scatter in place at the root, even and uneven, in tensors and arrays',
    async run(group) {
      for (let root = 0; root < group.size; root++) {
        const isRoot = group.rank === root;
        for (const counts of [Array<number>(group.size).fill(9), Array<number>(group.size).fill(30_000), unevenCounts(group.size)]) {
          const total = isRoot ? counts.reduce((a, b) => a + b, 0) : 0;
          const [whole, mine] = [group.tensor('int32', [total]), filled(group, 'int32', counts[group.rank])];
          const expected = new Int32Array(total);
          for (let i = 0, rank = 0; isRoot && rank < group.size; i += counts[rank++])
            for (let k = 0; k < counts[rank]; k++) expected[i + k] = valueAt(rank, k, 'int32');
          const input = (mine.data as Int32Array).slice();
          for (const [all, own] of [
            [whole, mine],
            [new Int32Array(total), input.slice()],
          ] as const) {
            const elements = all instanceof Int32Array ? all : all.data;
            if (isRoot) elements.fill(-1).set(input, bounds(counts, group.rank)[0]);
            await group.gather(isRoot ? all : null, isRoot ? null : own, { root, counts });
            if (isRoot) assert.deepEqual(elements, expected);
            (own instanceof Int32Array ? own : (own.data as Int32Array)).fill(-1);
            await group.scatter(isRoot ? null : own, isRoot ? all : null, { root, counts });
            if (isRoot) assert.deepEqual(elements, expected);
            else checkInput({ dtype: 'int32', data: own instanceof Int32Array ? own : own.data }, group.rank, 'scattered');
          }
          group.release(whole);
          group.release(mine);
        }
      }
    },
  },
  {
    name: 'scans and logical operators, of every dtype, beside reductions by an operator of the program',
    async run(group) {
      const { rank, size } = group;
      for (const { name: dtype } of dtypes) {
        const inputs = (i: number): number[] => Array.from({ length: size }, (_, each) => valueAt(each, i, dtype));
        const check = async (
          call: Extract<keyof ProcessGroup, 'allReduce' | 'reduce' | 'scan' | 'exscan'>,
          op: AnyReduceOp,
        ): Promise<void> => {
          const x = filled(group, dtype, 37);
          await group[call](x, { op });
          const reduces = call === 'allReduce' || (call === 'reduce' && rank === 0);
          const end = reduces ? size : call === 'exscan' ? rank : rank + 1;
          const expected = Array.from({ length: period }, (_, i) => {
            const given = call === 'reduce' && rank > 0 ? [] : inputs(i).slice(0, end);
            if (given.length === 0) return valueAt(rank, i, dtype);
            if (op === 'land') return Number(given.every(Boolean));
            if (op === 'lor') return Number(given.some(Boolean));
            if (op === 'lxor') return given.filter(Boolean).length % 2;
            if (dtype === 'bool') return Math.max(...given);
            return wrapTo(
              dtype,
              given.reduce((a, b) => a + b),
            );
          });
          checkElements(x, expected, `${call} ${dtype} ${typeof op === 'object' ? op.name : op} on ${rank}`);
          group.release(x);
        };
        for (const op of ['land', 'lor', 'lxor'] as const)
          for (const call of ['allReduce', 'reduce', 'scan', 'exscan'] as const) await check(call, op);
        await check('scan', ReduceOp.Sum);
        await check('exscan', ReduceOp.Sum);
      }
      await assert.rejects(async () => group.scan(Float32Array.of(1), { op: ReduceOp.Avg }), { code: 'unsupported' });
    },
  },
  {
    name: 'operators of the program are applied in the order of ranks, commutative or not',
    async run(group) {
      const { rank, size } = group;
      // Composition of x ↦ a·x + b: associative, not commutative. The product and the sum of a few ranks are exact.
      const compose = {
        name: 'compose',
        reduce(first: Int32Array, then: Int32Array) {
          for (let i = 0; i < first.length; i += 2) {
            first[i + 1] = Math.imul(first[i + 1], then[i]) + then[i + 1];
            first[i] = Math.imul(first[i], then[i]);
          }
        },
      };
      const functions = (each: number): number[] =>
        Array.from({ length: 6 * size }, (_, i) => (i % 2 === 0 ? 1 + ((i + each) % 3) : i + each));
      const composed = (ranks: number): number[] => {
        const result = Int32Array.from(functions(0));
        for (let each = 1; each < ranks; each++) compose.reduce(result, Int32Array.from(functions(each)));
        return [...result];
      };
      const own = (): Int32Array => Int32Array.from(functions(rank));
      const [all, root, prefix, before] = [own(), own(), own(), own()];
      const works = [
        group.allReduce(all, { op: compose }),
        group.reduce(root, { op: compose, root: size - 1 }),
        group.scan(prefix, { op: compose }),
        group.exscan(before, { op: compose }),
      ];
      const parts = [new Int32Array(6), group.tensor('int32', [6]).data];
      for (const part of parts) works.push(group.reduceScatter(part, own(), { op: compose }));
      const counts = Array.from({ length: size }, (_, each) => (each === 0 ? 6 * size - 2 * (size - 1) : 2));
      const uneven = new Int32Array(counts[rank]);
      works.push(group.reduceScatter(uneven, own(), { op: compose, counts }));
      await Promise.all(works);
      assert.deepEqual([...all], composed(size));
      assert.deepEqual([...root], rank === size - 1 ? composed(size) : functions(rank));
      assert.deepEqual([...prefix], composed(rank + 1));
      assert.deepEqual([...before], rank === 0 ? functions(0) : composed(rank));
      for (const part of parts) assert.deepEqual([...part], composed(size).slice(6 * rank, 6 * rank + 6));
      assert.deepEqual([...uneven], composed(size).slice(...bounds(counts, rank)));
      const failing = group.allReduce(Int32Array.of(1), {
        op: {
          name: 'failing',
          reduce() {
            throw new RangeError('not these');
          },
        },
      });
      if (size > 1) await assert.rejects(async () => failing, { code: 'usage', message: /not these/ });
      else await failing;
      await group.barrier();
    },
  },
  {
    name: 'results times a factor, beside inputs times one',
    async run(group) {
      const { rank, size } = group;
      const sum = (size * (size + 1)) / 2;
      const ones = (): Float32Array => Float32Array.of(1, 2);
      const [all, root, part, prefix, user] = [ones(), ones(), new Float32Array(1), ones(), ones()];
      const halves = group.tensor('bfloat16', [2]);
      // 1 and 2 as bfloat16.
      halves.data.set([0x3f80, 0x4000]);
      await Promise.all([
        group.allReduce(all, { op: ReduceOp.Premul, factor: rank + 1, postscale: 0.5 }),
        group.reduce(root, { postscale: 3 }),
        group.reduceScatter(part, new Float32Array(size).fill(4), { op: ReduceOp.Max, postscale: 0.25 }),
        group.scan(prefix, { postscale: -1 }),
        group.allReduce(user, { op: { name: 'last', reduce: (to: Float32Array, from: Float32Array) => to.set(from) }, postscale: 2 }),
        group.allReduce(halves, { op: ReduceOp.Max, postscale: 2 }),
      ]);
      assert.deepEqual([...all], [sum / 2, sum]);
      assert.deepEqual([...root], rank === 0 ? [3 * size, 6 * size] : [1, 2]);
      assert.deepEqual([...part, ...user], [1, 2, 4]);
      assert.deepEqual([...prefix], [-rank - 1, -2 * rank - 2]);
      assert.deepEqual([...halves.data], [0x4000, 0x4080]);
    },
  },
  {
    name: 'extremes with their places',
    async run(group) {
      const { rank, size } = group;
      for (const { name: dtype } of dtypes) {
        for (const [call, better] of [
          ['maxLoc', (a: number, b: number) => a > b],
          ['minLoc', (a: number, b: number) => a < b],
        ] as const) {
          const values = filled(group, dtype, 33);
          // Later ranks have smaller indices: of equal values the last rank's is found.
          const indices = Int32Array.from({ length: 33 }, (_, i) => 1000 * (size - rank) + i);
          await group[call](values, indices);
          for (let i = 0; i < indices.length; i++) {
            let best = 0;
            for (let each = 1; each < size; each++) if (!better(valueAt(best, i, dtype), valueAt(each, i, dtype))) best = each;
            assert.equal(numberAt(values, i), valueAt(best, i, dtype), `${call} ${dtype}`);
            assert.equal(indices[i], 1000 * (size - best) + i, `place of ${call} ${dtype}`);
          }
          group.release(values);
        }
      }
      const [values, indices] = [
        Float32Array.of(rank === size - 1 ? NaN : rank, rank % 2 === 0 ? -0 : 0),
        BigInt64Array.of(BigInt(rank), BigInt(rank)),
      ];
      await group.maxLoc(values, indices);
      assert.deepEqual([...values, ...indices], [NaN, size > 1 ? 0 : -0, BigInt(size - 1), size > 1 ? 1n : 0n]);
    },
  },
];
