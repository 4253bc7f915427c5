/** Cases of MPICH's programs that move data: broadcasts, gathers, scatters, exchanges. */
import { expect } from 'vitest';
import { ReduceOp } from '../../../src/memory/reduce-op.ts';
import { doubles, expectElements, integers, ranksOf, triangle, type OnRanks } from '../support/shared-worlds.ts';
import type { SuiteCases } from '../support/suite-cases.ts';

/** Elements of a part: from one to thousands. */
const partCounts = [1, 8, 128, 8192];
/** Numbers of ranks: a power of two, and others. */
const worldSizes = [4, 5];

const perSize = (size: number): string => `${size} ranks`;

export function movementCases(cases: SuiteCases, onRanks: OnRanks): void {
  allGatherCases(cases, onRanks);
  gatherCases(cases, onRanks);
  scatterCases(cases, onRanks);
  allToAllCases(cases, onRanks);
  broadcastCases(cases, onRanks);
  tableCases(cases, onRanks);
}

function allGatherCases(cases: SuiteCases, onRanks: OnRanks): void {
  cases.each(
    'allgather2',
    partCounts,
    (count) => `${count} doubles, a part that lies in the output before`,
    (count) =>
      onRanks(4, async (group) => {
        const output = doubles(4 * count, (i) => (Math.floor(i / count) === group.rank ? i : -1));
        await group.allGather(output, output.slice(group.rank * count, (group.rank + 1) * count));
        expectElements(output, 4 * count, (i) => i, 'gathered');
      }),
  );
  cases.each(
    'allgather3',
    [0, ...partCounts],
    (count) => `${count} doubles of each rank`,
    (count) =>
      onRanks(5, async (group) => {
        const output = new Float64Array(5 * count).fill(-1);
        await group.allGather(
          output,
          doubles(count, (i) => group.rank * count + i),
        );
        expectElements(output, 5 * count, (i) => i, 'gathered');
      }),
  );
  cases.each('allgather_struct', worldSizes, perSize, (size) =>
    onRanks(size, async (group) => {
      // An int, then a long that is not aligned to its size.
      const bytes = 12;
      const own = new DataView(new ArrayBuffer(bytes));
      own.setInt32(0, group.rank, true);
      own.setBigInt64(4, BigInt(group.rank * 10), true);
      const all = new Uint8Array(size * bytes);
      await group.allGather(all, new Uint8Array(own.buffer));
      const view = new DataView(all.buffer);
      for (const rank of ranksOf(size)) {
        expect(view.getInt32(rank * bytes, true)).toBe(rank);
        expect(view.getBigInt64(rank * bytes + 4, true)).toBe(BigInt(rank * 10));
      }
    }),
  );
  const constant = (size: number, count: number): number[] => Array<number>(size).fill(count);
  cases.each(
    'allgatherv2',
    partCounts,
    (count) => `lists of ${count}, a part that lies in the output before`,
    (count) =>
      onRanks(4, async (group) => {
        const output = doubles(4 * count, (i) => (Math.floor(i / count) === group.rank ? i : -1));
        const own = output.slice(group.rank * count, (group.rank + 1) * count);
        await group.allGather(output, own, { counts: constant(4, count) });
        expectElements(output, 4 * count, (i) => i, 'gathered');
      }),
  );
  cases.each(
    'allgatherv3',
    partCounts,
    (count) => `lists of ${count}`,
    (count) =>
      onRanks(5, async (group) => {
        const output = new Float64Array(5 * count).fill(-1);
        const own = doubles(count, (i) => group.rank * count + i);
        await group.allGather(output, own, { counts: constant(5, count) });
        expectElements(output, 5 * count, (i) => i, 'gathered');
      }),
  );
  const size = 4;
  const most = 4096;
  const shapes: readonly (readonly [string, (rank: number) => number])[] = [
    ['equal parts', () => most],
    ['one rank has all', (rank) => (rank === 0 ? most * size : 0)],
    ['one rank has more', (rank) => (rank === 0 ? most / 2 : most / (2 * (size - 1)))],
    ['half of the ranks have something', (rank) => (rank < size / 2 ? most : 0)],
    ['parts that become smaller', (rank) => most - rank * 1000],
    ['parts like a bell', (rank) => [7, 3000, 2999, 1][rank]],
  ];
  cases.each(
    'allgatherv4',
    shapes,
    ([name]) => name,
    ([, countOf]) =>
      onRanks(size, async (group) => {
        const counts = ranksOf(size).map((rank) => Math.floor(countOf(rank)));
        const total = counts.reduce((sum, count) => sum + count);
        const from = counts.slice(0, group.rank).reduce((sum, count) => sum + count, 0);
        const output = new Int32Array(total).fill(-1);
        await group.allGather(
          output,
          integers(counts[group.rank], (i) => from + i),
          { counts },
        );
        expectElements(output, total, (i) => i, 'gathered');
      }),
  );
}

function gatherCases(cases: SuiteCases, onRanks: OnRanks): void {
  const roots = ranksOf(4);
  cases.each(
    'gather',
    [1, 60, 8192],
    (count) => `${count} doubles to each root`,
    (count) =>
      onRanks(4, async (group) => {
        for (const root of roots) {
          const whole = group.rank === root ? new Float64Array(4 * count).fill(-1) : null;
          await group.gather(
            whole,
            doubles(count, (i) => group.rank * count + i),
            { root },
          );
          if (whole) expectElements(whole, 4 * count, (i) => i, `at root ${root}`);
        }
      }),
  );
  cases.add('gather', 'every tenth element of a vector, packed', () =>
    onRanks(4, async (group) => {
      const vector = doubles(120, (i) => (i % 10 === 0 ? group.rank * 12 + i / 10 : -1));
      const whole = group.rank === 2 ? new Float64Array(48) : null;
      await group.gather(
        whole,
        vector.filter((_, i) => i % 10 === 0),
        { root: 2 },
      );
      if (whole) expectElements(whole, 48, (i) => i, 'packed');
    }),
  );
  cases.add('gather', 'nothing from anybody', () =>
    onRanks(4, (group) => group.gather(group.rank === 0 ? new Uint8Array(0) : null, new Uint8Array(0))),
  );
  cases.each(
    'gather2',
    roots,
    (root) => `in place at root ${root}`,
    (root) =>
      onRanks(4, async (group) => {
        const own = doubles(12, (i) => group.rank * 12 + i);
        const whole = group.rank === root ? doubles(48, (i) => (Math.floor(i / 12) === root ? i : -1)) : null;
        await group.gather(whole, whole ? null : own, { root });
        if (whole) expectElements(whole, 48, (i) => i, 'in place');
      }),
  );
  cases.each(
    'gatherv',
    ranksOf(5),
    (root) => `rows of a table at root ${root}`,
    (root) =>
      onRanks(5, async (group) => {
        const counts = [20, 20, 0, 40, 20];
        const whole = group.rank === root ? new Int32Array(100) : null;
        await group.gather(whole, new Int32Array(counts[group.rank]).fill(group.rank + 10), { root, counts });
        const colours = counts.flatMap((count, rank) => Array<number>(count).fill(rank + 10));
        if (whole) expectElements(whole, 100, (i) => colours[i], 'table');
      }),
  );
}

function scatterCases(cases: SuiteCases, onRanks: OnRanks): void {
  const size = 4;
  const count = 12;
  const strided = (): Float64Array => doubles(size * count * 10, (i) => i).filter((i) => i % 10 === 0);
  cases.each(
    'scattern',
    ranksOf(size),
    (root) => `elements of a vector from root ${root}`,
    (root) =>
      onRanks(size, async (group) => {
        const part = new Float64Array(count).fill(-1);
        await group.scatter(part, group.rank === root ? strided() : null, { root });
        expectElements(part, count, (i) => 10 * (group.rank * count + i), 'part');
      }),
  );
  cases.each(
    'scatter2',
    ranksOf(size),
    (root) => `root ${root} keeps its part in place`,
    (root) =>
      onRanks(size, async (group) => {
        const whole = group.rank === root ? strided() : null;
        const part = new Float64Array(count).fill(-1);
        await group.scatter(whole ? null : part, whole, { root });
        if (whole) expectElements(whole, size * count, (i) => 10 * i, 'the whole of the root');
        else expectElements(part, count, (i) => 10 * (group.rank * count + i), 'part');
      }),
  );
  cases.each(
    'scatter3',
    ranksOf(size),
    (root) => `a view of a larger array at root ${root}`,
    (root) =>
      onRanks(size, async (group) => {
        const around = new Float64Array(count + 20).fill(-1);
        const place = around.subarray(10, 10 + count);
        await group.scatter(place, group.rank === root ? doubles(size * count, (i) => i) : null, { root });
        expectElements(place, count, (i) => group.rank * count + i, 'view');
        expectElements(around.subarray(0, 10), 10, () => -1, 'before the view');
        expectElements(around.subarray(10 + count), 10, () => -1, 'after the view');
      }),
  );
  cases.each(
    'scatterv',
    [false, true],
    (inPlace) => `blocks of a matrix${inPlace ? ', the root in place' : ''}`,
    (inPlace) =>
      onRanks(size, async (group) => {
        const [nx, ny] = [10, 8];
        const valueAt = (rank: number, i: number): number => 1000 * Math.floor(rank / 2) + 100 * (rank % 2) + i;
        const isRoot = group.rank === 0;
        const whole = isRoot ? doubles(size * nx * ny, (i) => valueAt(Math.floor(i / (nx * ny)), i % (nx * ny))) : null;
        const block = new Float64Array(nx * ny).fill(-1);
        const counts = Array<number>(size).fill(nx * ny);
        await group.scatter(isRoot && inPlace ? null : block, whole, { counts });
        expectElements(block, nx * ny, (i) => (isRoot && inPlace ? -1 : valueAt(group.rank, i)), 'block');
      }),
  );
}

function allToAllCases(cases: SuiteCases, onRanks: OnRanks): void {
  cases.each(
    'alltoall1',
    [1, 16, 128, 512, 2048],
    (count) => `${count} ints for each of 8 ranks`,
    (count) =>
      onRanks(8, async (group) => {
        const sent = integers(8 * count, (i) => Math.floor(i / count) * 100_000 + group.rank * 10_000 + (i % count));
        const received = new Int32Array(8 * count).fill(-1);
        await group.allToAll(received, sent);
        expectElements(received, 8 * count, (i) => group.rank * 100_000 + Math.floor(i / count) * 10_000 + (i % count), 'received');
      }),
  );
  /** Rank i sends i items to rank i from all ranks: each value says its sender and its place. */
  const uneven = async (onRanksOf: number, unit: 'elements' | 'bytes'): Promise<void> => {
    await onRanks(onRanksOf, async (group) => {
      const { rank, size } = group;
      const sent = integers(triangle(size), (i) => 100 * rank + i);
      const received = new Int32Array(size * rank).fill(-1);
      const width = unit === 'bytes' ? 4 : 1;
      const inputSplits = ranksOf(size).map((to) => to * width);
      const outputSplits = Array<number>(size).fill(rank * width);
      const seen = (array: Int32Array): Int32Array | Uint8Array => (unit === 'bytes' ? new Uint8Array(array.buffer) : array);
      await group.allToAll(seen(received), seen(sent), { inputSplits, outputSplits });
      expectElements(received, size * rank, (i) => 100 * Math.floor(i / rank) + triangle(rank) + (i % rank), 'received');
    });
  };
  cases.each('alltoallv', [4, 5, 10], perSize, (size) => uneven(size, 'elements'));
  cases.each(
    'alltoallw2',
    [4, 5, 10],
    (size) => `places in bytes, ${size} ranks`,
    (size) => uneven(size, 'bytes'),
  );
  cases.each(
    'alltoallv0',
    [5, 10],
    (size) => `two neighbours of ${size} ranks, nothing for others`,
    (size) =>
      onRanks(size, async (group) => {
        const { rank } = group;
        const [left, right] = [(rank + size - 1) % size, (rank + 1) % size];
        const splits = ranksOf(size).map((other) => (other === left || other === right ? 300 : 0));
        const sent = new Int32Array(600).fill(rank + 10);
        const received = new Int32Array(600).fill(-1);
        await group.allToAll(received, sent, { inputSplits: splits, outputSplits: splits });
        const [first, second] = [left, right].sort((a, b) => a - b);
        expectElements(received, 600, (i) => 10 + (i < 300 ? first : second), 'halo');
      }),
  );
  cases.each(
    'alltoallw1',
    [2, 4, 5],
    (size) => `a matrix of blocks transposed over ${size} ranks`,
    (size) =>
      onRanks(size, async (group) => {
        const [rows, columns] = [3 * size + 1, 2 * size + 1];
        // Ranks have rows of A, and rows of its transpose; the last has what does not divide.
        const bounds = (n: number, rank: number): [number, number] => [
          rank * Math.floor(n / size),
          rank === size - 1 ? n : (rank + 1) * Math.floor(n / size),
        ];
        const [r0, r1] = bounds(rows, group.rank);
        const [c0, c1] = bounds(columns, group.rank);
        const sent: number[] = [];
        const [inputSplits, outputSplits]: [number[], number[]] = [[], []];
        for (const to of ranksOf(size)) {
          const [from, until] = bounds(columns, to);
          for (let c = from; c < until; c++) for (let r = r0; r < r1; r++) sent.push(r * 1000 + c);
          inputSplits.push((until - from) * (r1 - r0));
          const [top, bottom] = bounds(rows, to);
          outputSplits.push((c1 - c0) * (bottom - top));
        }
        const blocks = new Float64Array((c1 - c0) * rows).fill(-1);
        await group.allToAll(blocks, Float64Array.from(sent), { inputSplits, outputSplits });
        let at = 0;
        for (const from of ranksOf(size)) {
          const [top, bottom] = bounds(rows, from);
          for (let c = c0; c < c1; c++) for (let r = top; r < bottom; r++) expect(blocks[at++]).toBe(r * 1000 + c);
        }
        expect(at).toBe(blocks.length);
      }),
  );
  cases.each(
    'alltoallw_zeros',
    [1, 2, 5, 8],
    (size) => `only ranks of other parity exchange, ${size} ranks`,
    (size) =>
      onRanks(size, async (group) => {
        const splits = ranksOf(size).map((other) => (other % 2 === group.rank % 2 ? 0 : 1));
        const partners = ranksOf(size).filter((other) => splits[other] === 1);
        const received = new Int32Array(partners.length).fill(-1);
        await group.allToAll(
          received,
          integers(partners.length, (i) => group.rank * 100 + partners[i]),
          { inputSplits: splits, outputSplits: splits },
        );
        expectElements(received, partners.length, (i) => partners[i] * 100 + group.rank, 'received');
      }),
  );
}

function broadcastCases(cases: SuiteCases, onRanks: OnRanks): void {
  const arrays = [Int8Array, Uint8Array, Int16Array, Int32Array, Float32Array, Float64Array] as const;
  cases.each(
    'bcast',
    arrays,
    (Of) => `${Of.name} from each root`,
    (Of) =>
      onRanks(5, async (group) => {
        for (const root of ranksOf(5)) {
          for (const count of [1, 17, 1000]) {
            const data = new Of(count).map((_, i) => (group.rank === root ? (i + root) % 100 : 101));
            await group.broadcast(data, { root });
            expectElements(data, count, (i) => (i + root) % 100, `${count} from ${root}`);
          }
        }
      }),
  );
  cases.each(
    'bcasttest',
    [100, 16 * 1024, 128 * 1024],
    (count) => `${count} ints, again and again`,
    (count) =>
      onRanks(4, async (group) => {
        const data = group.tensor('int32', [count]);
        for (let repetition = 0; repetition < 3; repetition++) {
          for (let i = 0; i < count; i++) data.data[i] = group.rank === 0 ? 1_000_000 * repetition + i : -1 - repetition;
          await group.broadcast(data);
          expectElements(data.data, count, (i) => 1_000_000 * repetition + i, `repetition ${repetition}`);
        }
        group.release(data);
      }),
  );
  cases.each(
    'bcastzerotype',
    [1, 4, 5],
    (size) => `nothing is sent, and nothing changed, ${size} ranks`,
    (size) =>
      onRanks(size, async (group) => {
        const around = Uint8Array.from([group.rank, group.rank + 1]);
        await group.broadcast(around.subarray(1, 1));
        expect([...around]).toEqual([group.rank, group.rank + 1]);
      }),
  );
}

/** The programs `coll2` to `coll13`, which paint rows of a table, and some reductions beside them. */
function tableCases(cases: SuiteCases, onRanks: OnRanks): void {
  const side = 10;
  const painted = (rows: number, rank: number): Int32Array => new Int32Array(rows * side).fill(rank + 10);
  cases.add('coll2', 'each rank gathers the table at itself', () =>
    onRanks(5, async (group) => {
      const tables = ranksOf(5).map(() => new Int32Array(side * side));
      const works = ranksOf(5).map((root) => group.gather(root === group.rank ? tables[root] : null, painted(2, group.rank), { root }));
      await Promise.all(works);
      expectElements(tables[group.rank], side * side, (i) => Math.floor(i / (2 * side)) + 10, 'table');
    }),
  );
  const rowOfTable = (i: number): number => Math.floor(i / side) * 100 + (i % side);
  cases.add('coll4', 'a row of the table for each rank', () =>
    onRanks(4, async (group) => {
      const row = new Int32Array(side);
      await group.scatter(row, group.rank === 0 ? integers(4 * side, rowOfTable) : null);
      expectElements(row, side, (i) => group.rank * 100 + i, 'row');
    }),
  );
  cases.add('coll5', 'rows by a list of counts', () =>
    onRanks(4, async (group) => {
      const row = new Int32Array(side);
      const counts = Array<number>(4).fill(side);
      await group.scatter(row, group.rank === 0 ? integers(4 * side, rowOfTable) : null, { counts });
      expectElements(row, side, (i) => group.rank * 100 + i, 'row');
    }),
  );
  cases.add('coll6', 'everybody has the table, by a list of counts', () =>
    onRanks(5, async (group) => {
      const table = new Int32Array(side * side);
      const counts = [30, 10, 20, 0, 40];
      await group.allGather(table, new Int32Array(counts[group.rank]).fill(group.rank + 10), { counts });
      const colours = counts.flatMap((count, rank) => Array<number>(count).fill(rank + 10));
      expectElements(table, side * side, (i) => colours[i], 'table');
    }),
  );
  cases.each(
    'coll7',
    [1, 2, 5],
    (size) => `everybody has the table, ${size} ranks`,
    (size) =>
      onRanks(size, async (group) => {
        const table = new Int32Array(side * side);
        await group.allGather(table, painted(side / size, group.rank));
        expectElements(table, side * side, (i) => Math.floor(i / ((side * side) / size)) + 10, 'table');
      }),
  );
  cases.each(
    'coll8',
    [ReduceOp.Sum, ReduceOp.Min, ReduceOp.Max],
    (op) => `reduce by ${op}, then broadcast`,
    (op) =>
      onRanks(4, async (group) => {
        const data = Int32Array.of(group.rank);
        await group.reduce(data, { op });
        await group.broadcast(data);
        expect(data[0]).toBe({ sum: 6, min: 0, max: 3 }[op]);
      }),
  );
  cases.add('coll9', 'a sum by an operator of the program', () =>
    onRanks(4, async (group) => {
      const data = Int32Array.of(group.rank);
      const op = { name: 'addem', reduce: (to: Int32Array, from: Int32Array) => to.forEach((each, i) => (to[i] = each + from[i])) };
      await group.reduce(data, { op });
      await group.broadcast(data);
      expect(data[0]).toBe(6);
    }),
  );
  cases.add('coll10', 'an operator that needs the order of ranks, whatever the root', () =>
    onRanks(4, async (group) => {
      const bad = -1;
      // Right where the left operand is of smaller ranks.
      const assoc = {
        name: 'assoc',
        reduce: (to: Int32Array, from: Int32Array) => to.forEach((each, i) => (to[i] = from[i] <= each || each === bad ? bad : from[i])),
      };
      const data = Int32Array.of(group.rank);
      await group.reduce(data, { op: assoc, root: 3 });
      await group.broadcast(data, { root: 3 });
      expect(data[0]).toBe(3);
    }),
  );
  cases.each(
    'coll12',
    ['maxLoc', 'minLoc'] as const,
    (call) => call,
    (call) =>
      onRanks(4, async (group) => {
        const values = doubles(10, (i) => ((group.rank + 1) * (i + 3)) % 7);
        const indices = new Int32Array(10).fill(group.rank);
        await group[call](values, indices);
        for (let i = 0; i < 10; i++) {
          const all = ranksOf(4).map((rank) => ((rank + 1) * (i + 3)) % 7);
          const best = call === 'maxLoc' ? Math.max(...all) : Math.min(...all);
          expect([values[i], indices[i]]).toEqual([best, all.indexOf(best)]);
        }
      }),
  );
  cases.add('coll13', '128 ints for each rank', () =>
    onRanks(4, async (group) => {
      const received = new Int32Array(4 * 128);
      await group.allToAll(received, new Int32Array(4 * 128).fill(group.rank + 1));
      expectElements(received, 4 * 128, (i) => Math.floor(i / 128) + 1, 'received');
    }),
  );
}
