/** The conformance suite of process groups. Each check is a program that all ranks run at once; it throws
 *  when a result is wrong. The same checks run in one process (unit tests) and in real processes (test/).
 *
 *  | worlds                                                                             | checks          |
 *  |------------------------------------------------------------------------------------|-----------------|
 *  | in one process: shared memory, network paths, TCP                                  | `groupChecks`   |
 *  | processes that choose algorithms: shared memory, TCP, hosts of two ranks, no addon | `groupChecks`   |
 *  | over libfabric's tcp; by Open MPI, 1 and 4 ranks                                   | `groupChecks`   |
 *  | over libfabric's shm; by Open MPI, 2 ranks                                         | `plannedChecks` |
 *  | processes with one algorithm, groups of hosts, many slices, the strict contract    | `plannedChecks` |
 *  | over network namespaces, with strangers at the ports                               | `plannedChecks` |
 */
import assert from 'node:assert/strict';
import { dtypes, type DType } from '../memory/dtype.ts';
import { checkReduceOp, ReduceOp, reduceOps } from '../memory/reduce-op.ts';
import type { Tensor } from '../memory/tensor.ts';
import { initDeviceMesh } from './api/device-mesh.ts';
import type { ProcessGroup, TensorLike } from './caller/types.ts';
import { composedChecks } from './testing/composed-checks.ts';
import {
  bounds,
  checkElements,
  checkInput,
  filled,
  period,
  repeat,
  unevenCounts,
  valueAt,
  wrapTo,
  type Elements,
  type GroupCheck,
} from './testing/conformance-values.ts';

/** Sizes in elements: nothing, one, around a line, several buckets of a small plan. */
const sizes = [0, 1, 3, 16, 17, 1000, 40_003];

function expectedReduction(op: ReduceOp, dtype: DType, size: number, i: number): number {
  const values = Array.from({ length: size }, (_, rank) => valueAt(rank, i, dtype));
  const wrap = (value: number): number => wrapTo(dtype, value);
  switch (op) {
    case ReduceOp.Sum:
    case ReduceOp.Premul:
      return dtype === 'bool' ? Math.max(...values) : wrap(values.reduce((a, b) => a + b, 0));
    case ReduceOp.Avg:
      return values.reduce((a, b) => a + b, 0) / size;
    case ReduceOp.Product:
      return dtype === 'bool' ? Math.min(...values) : wrap(values.reduce((a, b) => a * b, 1));
    case ReduceOp.Min:
      return Math.min(...values);
    case ReduceOp.Max:
      return Math.max(...values);
    case ReduceOp.BitAnd:
      return values.reduce((a, b) => a & b);
    case ReduceOp.BitOr:
      return values.reduce((a, b) => a | b);
    case ReduceOp.BitXor:
      return values.reduce((a, b) => a ^ b);
  }
}

/** Relative tolerance where a division or a narrow float rounds. */
function toleranceOf(dtype: DType, op: ReduceOp): number {
  if (op === ReduceOp.Sum) return 0;
  return dtype === 'float64' ? 1e-12 : dtype === 'float32' ? 1e-6 : dtype === 'float16' ? 2e-3 : dtype === 'bfloat16' ? 1.6e-2 : 0;
}

/** That the elements are the inputs of all ranks, reduced; the first is the one of element `first` of the inputs. */
function checkReduction(tensor: Elements, op: ReduceOp, size: number, what: string, first = 0): void {
  const { dtype } = tensor;
  const expected = Array.from({ length: period }, (_, i) => expectedReduction(op, dtype, size, i));
  checkElements(tensor, expected, what, { first, tolerance: toleranceOf(dtype, op) });
}

function legal(op: ReduceOp, dtype: DType): boolean {
  try {
    checkReduceOp(op, dtype);
    return op !== ReduceOp.Premul;
  } catch {
    return false;
  }
}

type Floats = Float32Array | Tensor<'float32'>;

/** A prime: no offset in memory goes with it. */
const floatPeriod = 251;

function fillFloats(value: Floats, first: number): Floats {
  const data = value instanceof Float32Array ? value : value.data;
  for (let i = 0; i < Math.min(floatPeriod, data.length); i++) data[i] = (first + i) % floatPeriod;
  repeat(data, floatPeriod);
  return value;
}

/** The sum over all ranks r of `fillFloats(…, r + offset)`. */
function checkFloats(value: Floats, group: ProcessGroup, offset: number): void {
  const data = value instanceof Float32Array ? value : value.data;
  const sums = new Float64Array(floatPeriod);
  for (let rank = 0; rank < group.size; rank++) sums.forEach((_, i) => (sums[i] += (rank + offset + i) % floatPeriod));
  for (let i = 0; i < data.length; i++) {
    const sum = sums[i % floatPeriod];
    if (data[i] !== sum) assert.fail(`element ${i} of ${data.length} is ${data[i]}, not ${sum}`);
  }
}

async function checkAllReduce(group: ProcessGroup, dtype: DType, op: ReduceOp, count: number): Promise<void> {
  const x = filled(group, dtype, count);
  await group.allReduce(x, { op });
  checkReduction(x, op, group.size, `all-reduce ${dtype} ${op}`);
  group.release(x);
}

export const groupChecks: readonly GroupCheck[] = [
  ...composedChecks,
  {
    name: 'all-reduce of every dtype by every op',
    async run(group) {
      for (const { name: dtype } of dtypes)
        for (const op of reduceOps.filter((each) => legal(each, dtype))) await checkAllReduce(group, dtype, op, 37);
    },
  },
  {
    name: 'all-reduce of every dtype, by every op of some, and of every size',
    async run(group) {
      for (const count of sizes) await checkAllReduce(group, 'float32', ReduceOp.Sum, count);
      for (const { name: dtype } of dtypes) await checkAllReduce(group, dtype, ReduceOp.Sum, 37);
      for (const [k, op] of reduceOps.entries()) {
        const legalFor = dtypes.filter(({ name }) => legal(op, name));
        if (legalFor.length > 0) await checkAllReduce(group, legalFor[k % legalFor.length].name, op, 1 + k);
      }
    },
  },
  {
    name: 'premul scales each rank by its own factor',
    async run(group) {
      const x = group.tensor('float32', [33]);
      x.data.fill(1);
      await group.allReduce(x, { op: ReduceOp.Premul, factor: group.rank + 1 });
      const expected = (group.size * (group.size + 1)) / 2;
      for (const value of x.data) assert.equal(value, expected);
      // A mailbox holds as many halves, and half as many of what they are scaled in. 1 is 0x3f80, 2 is 0x4000.
      const halves = group.tensor('bfloat16', [4096]);
      halves.data.fill(0x3f80);
      await group.allReduce(halves, { op: ReduceOp.Premul, factor: group.rank === 0 ? 2 : 0 });
      for (const value of halves.data) assert.equal(value, 0x4000);
    },
  },
  {
    name: 'broadcast from every root',
    async run(group) {
      for (let root = 0; root < group.size; root++) {
        for (const count of sizes) {
          const x = filled(group, 'int32', count);
          await group.broadcast(x, { root });
          checkInput(x, root, `broadcast from ${root}`);
          group.release(x);
        }
      }
    },
  },
  {
    name: 'reduce to every root leaves other ranks as they were',
    async run(group) {
      for (let root = 0; root < group.size; root++) {
        for (const count of [0, 1, 17, 5000]) {
          const x = filled(group, 'float64', count);
          await group.reduce(x, { root });
          const what = `reduce to ${root} on ${group.rank}`;
          if (group.rank === root) checkReduction(x, ReduceOp.Sum, group.size, what);
          else checkInput(x, group.rank, what);
          group.release(x);
        }
      }
    },
  },
  {
    name: 'all-gather, even and uneven',
    async run(group) {
      for (const count of [0, 1, 17, 3000]) {
        const output = group.tensor('int16', [count * group.size]);
        await group.allGather(output, filled(group, 'int16', count));
        for (let rank = 0; rank < group.size; rank++) {
          const part = { dtype: 'int16', data: output.data.subarray(rank * count, (rank + 1) * count) } as const;
          checkInput(part, rank, `all-gather, of rank ${rank}`);
        }
      }
      const counts = unevenCounts(group.size);
      const output = group.tensor('float32', [counts.reduce((a, b) => a + b, 0)]);
      await group.allGather(output, filled(group, 'float32', counts[group.rank]), { counts });
      let at = 0;
      for (let rank = 0; rank < group.size; rank++) {
        for (let i = 0; i < counts[rank]; i++) assert.equal(output.data[at++], valueAt(rank, i, 'float32'));
      }
    },
  },
  {
    name: 'uneven parts of a little more than a mailbox holds',
    async run(group) {
      const counts = Array.from({ length: group.size }, (_, rank) => (rank === 0 ? 8194 - group.size : 1));
      const [whole, own] = [group.tensor('int8', [8193]), group.tensor('int8', [counts[group.rank]])];
      const isRoot = group.rank === 0;
      own.data.fill(group.rank + 1);
      await group.allGather(whole, own, { counts });
      const expected = counts.flatMap((count, rank) => new Array<number>(count).fill(rank + 1));
      assert.deepEqual([...whole.data], expected);
      await group.gather(isRoot ? whole.data.fill(0) : null, own, { counts });
      assert.deepEqual([...whole.data], expected);
      await group.scatter(own.data.fill(0), isRoot ? whole : null, { counts });
      assert.ok(own.data.every((value) => value === group.rank + 1));
      const inputSplits = counts.map((count) => (isRoot ? count : 0));
      const outputSplits = counts.map((_, rank) => (rank === 0 ? counts[group.rank] : 0));
      await group.allToAll(own.data.fill(0), isRoot ? whole : new Int8Array(0), { inputSplits, outputSplits });
      assert.ok(own.data.every((value) => value === group.rank + 1));
    },
  },
  {
    name: 'gather and scatter, even and uneven, at every root',
    async run(group) {
      for (let root = 0; root < group.size; root++) {
        for (const counts of [Array<number>(group.size).fill(9), unevenCounts(group.size)]) {
          const total = counts.reduce((a, b) => a + b, 0);
          const whole = group.rank === root ? group.tensor('int32', [total]) : null;
          await group.gather(whole, filled(group, 'int32', counts[group.rank]), { root, counts });
          if (whole) {
            let at = 0;
            for (let rank = 0; rank < group.size; rank++) {
              for (let i = 0; i < counts[rank]; i++) assert.equal(whole.data[at++], valueAt(rank, i, 'int32'));
            }
          }
          const part = group.tensor('int32', [counts[group.rank]]);
          await group.scatter(part, whole, { root, counts });
          for (let i = 0; i < part.count; i++) assert.equal(part.data[i], valueAt(group.rank, i, 'int32'));
        }
      }
    },
  },
  {
    name: 'reduce-scatter, even and uneven',
    async run(group) {
      for (const counts of [Array<number>(group.size).fill(1), Array<number>(group.size).fill(100), unevenCounts(group.size)]) {
        const total = counts.reduce((a, b) => a + b, 0);
        const input = filled(group, 'float32', total);
        const output = group.tensor('float32', [counts[group.rank]]);
        await group.reduceScatter(output, input, { counts });
        const start = counts.slice(0, group.rank).reduce((a, b) => a + b, 0);
        checkReduction(output, ReduceOp.Sum, group.size, 'reduce-scatter', start);
        checkInput(input, group.rank, 'the input is left as it was');
      }
    },
  },
  {
    name: 'all-to-all, even and uneven',
    async run(group) {
      const { rank, size } = group;
      const input = group.tensor('int32', [size * 4]);
      const output = group.tensor('int32', [size * 4]);
      input.data.forEach((_, i) => (input.data[i] = rank * 1000 + i));
      await group.allToAll(output, input);
      for (let from = 0; from < size; from++)
        for (let i = 0; i < 4; i++) assert.equal(output.data[from * 4 + i], from * 1000 + rank * 4 + i);
      const splits = (from: number): number[] => Array.from({ length: size }, (_, to) => (from + 2 * to) % 4);
      const inputSplits = splits(rank);
      const outputSplits = Array.from({ length: size }, (_, from) => splits(from)[rank]);
      const sum = (counts: number[]): number => counts.reduce((a, b) => a + b, 0);
      const unevenInput = Int32Array.from({ length: sum(inputSplits) }, (_, i) => rank * 1000 + i);
      const unevenOutput = new Int32Array(sum(outputSplits));
      await group.allToAll(unevenOutput, unevenInput, { inputSplits, outputSplits });
      let at = 0;
      for (let from = 0; from < size; from++) {
        const start = sum(splits(from).slice(0, rank));
        for (let i = 0; i < outputSplits[from]; i++) assert.equal(unevenOutput[at++], from * 1000 + start + i);
      }
    },
  },
  {
    name: 'a list may change when the call that it was given to has returned',
    async run(group) {
      const { rank, size } = group;
      const counts = unevenCounts(size);
      const total = counts.reduce((sum, count) => sum + count, 0);
      const own = filled(group, 'float32', counts[rank]);
      const whole = group.tensor('float32', [total]);
      const expected = counts.flatMap((count, from) => Array.from({ length: count }, (_, i) => valueAt(from, i, 'float32')));
      const calls: ((own: number[]) => PromiseLike<unknown>)[] = [
        (list) => group.allGather(whole, own, { counts: list }),
        (list) => group.gather(rank === 0 ? whole : null, own, { counts: list }),
        (list) => group.scatter(own, rank === 0 ? whole : null, { counts: list }),
        (list) => group.reduceScatter(group.tensor('float32', [counts[rank]]), whole, { counts: list }),
        (list) =>
          group.allToAll(group.tensor('float32', [counts[rank] * size]), whole, {
            inputSplits: list,
            outputSplits: Array<number>(size).fill(counts[rank]),
          }),
      ];
      for (const call of calls) {
        // One rank after the other, so that all but the last are still waiting when their list changes.
        if (rank > 0) await group.recv(new Uint8Array(1), rank - 1);
        const list = [...counts];
        const work = call(list);
        list.fill(0);
        list[0] = total;
        if (rank < size - 1) await group.send(new Uint8Array(1), rank + 1);
        await work;
        assert.deepEqual([...own.data], expected.slice(...bounds(counts, rank)));
        if (rank === 0) assert.deepEqual([...whole.data], expected);
      }
      const ranks = Array.from({ length: size }, (_, k) => size - 1 - k);
      const opening = group.newGroup(ranks);
      ranks.fill(0);
      const reversed = await opening;
      assert.equal(reversed?.rank, size - 1 - rank);
      await reversed.destroy();
    },
  },
  {
    name: 'barriers',
    async run(group) {
      await group.barrier();
      await group.monitoredBarrier({ timeoutMs: 20_000 });
    },
  },
  {
    name: 'many collectives in flight, of several kinds, finish with the right results',
    async run(group) {
      const tensors = Array.from({ length: 50 }, (_, k) => filled(group, 'float32', 100 + 37 * k));
      const works = tensors.map((tensor, k) => (k % 3 === 2 ? group.broadcast(tensor, { root: k % group.size }) : group.allReduce(tensor)));
      await Promise.all(works);
      tensors.forEach((tensor, k) => {
        if (k % 3 === 2) checkInput(tensor, k % group.size, `operation ${k}`);
        else checkReduction(tensor, ReduceOp.Sum, group.size, `operation ${k}`);
      });
    },
  },
  {
    name: 'foreign typed arrays are staged',
    async run(group) {
      const x = Float32Array.from({ length: 1001 }, (_, i) => valueAt(group.rank, i, 'float32'));
      await group.allReduce(x);
      checkReduction({ dtype: 'float32', data: x }, ReduceOp.Sum, group.size, 'a foreign array');
      const part: TensorLike = new Float64Array(3).fill(group.rank);
      const whole = new Float64Array(3 * group.size);
      await group.allGather(whole, part);
      whole.forEach((value, i) => assert.equal(value, Math.floor(i / 3)));
    },
  },
  {
    name: 'buffers of which some ranks have private ones and others shared ones',
    async run(group) {
      // Bit k of a round says which buffers the ranks k, k + 3, … have. Large sizes share the rounds.
      const rounds: readonly [count: number, rounds: readonly number[]][] = [
        [1, [0, 1, 2, 3, 4, 5, 6, 7]],
        [3000, [0, 1, 2, 3, 4, 5, 6, 7]],
        [70_001, [1, 2, 4, 7]],
        [300_000, [0, 3, 5, 6]],
      ];
      for (const [count, ofCount] of rounds) {
        const array = new Float32Array(count);
        const tensor = group.tensor('float32', [count]);
        for (const round of ofCount) {
          const value = ((round >> (group.rank % 3)) & 1) === 0 ? array : tensor;
          await group.allReduce(fillFloats(value, group.rank + round));
          checkFloats(value, group, round);
        }
        group.release(tensor);
      }
    },
  },
  {
    name: 'private and shared buffers of ranks that are late',
    async run(group) {
      if (group.size === 1) return;
      for (const count of [1, 3000, 300_000]) {
        for (const round of count < 300_000 ? [0, 1, 2, 3] : [0, 1]) {
          const late = round % group.size;
          // The calls that the others have begun by then are left to their comm threads, half done or not begun.
          if (group.rank === late) await group.recv(new Uint8Array(1), (late + 1) % group.size);
          const values = [0, 1, 2, 3].map((k) => {
            const isPrivate = ((round + k) >> (group.rank % 2)) % 2 === 0;
            return fillFloats(isPrivate ? new Float32Array(count) : group.tensor('float32', [count]), group.rank + k);
          });
          const works = values.map((value) => group.allReduce(value));
          if (group.rank === (late + 1) % group.size) await group.send(new Uint8Array(1), late);
          await Promise.all(works);
          values.forEach((value, k) => checkFloats(value, group, k));
        }
      }
    },
  },
  {
    name: 'objects of every kind and size, at every root, with other calls around them',
    async run(group) {
      const valueOf = (rank: number): unknown => ({
        rank,
        words: 'ab'.repeat(rank * 3000),
        map: new Map([[rank, new Date(rank)]]),
        weights: Float64Array.of(rank, -0, NaN),
        big: 1n << 70n,
        none: [undefined, null],
      });
      const everyones = Array.from({ length: group.size }, (_, rank) => valueOf(rank));
      const before = group.tensor('float32', [8]);
      before.data.fill(1);
      const sum = group.allReduce(before);
      assert.deepEqual(await group.allGatherObject(valueOf(group.rank)), everyones);
      for (let root = 0; root < group.size; root++) {
        const gathered = await group.gatherObject(valueOf(group.rank), { root });
        assert.deepEqual(gathered, group.rank === root ? everyones : null);
        assert.deepEqual(await group.broadcastObject(group.rank === root ? valueOf(root) : 'ignored', { root }), valueOf(root));
        assert.deepEqual(await group.scatterObject(group.rank === root ? everyones : null, { root }), valueOf(group.rank));
      }
      assert.deepEqual(await group.allGatherObject(undefined), Array(group.size).fill(undefined));
      await sum;
      checkElements(before, Array(period).fill(group.size), 'the sum around objects');
    },
  },
  {
    name: 'messages match by sender and tag, in order, small and large',
    async run(group) {
      const next = (group.rank + 1) % group.size;
      const previous = (group.rank + group.size - 1) % group.size;
      if (group.size === 1) return;
      for (const count of [0, 1, 1000, 300_000]) {
        const out = filled(group, 'float32', count);
        const into = group.tensor('float32', [count]);
        await Promise.all([group.send(out, next), group.recv(into, previous)]);
        for (let i = 0; i < count; i += 97) assert.equal(into.data[i], valueAt(previous, i, 'float32'));
        group.release(out);
        group.release(into);
      }
      const sends = [3, 1, 2].map((tag) => group.send(Int32Array.of(tag * 10 + group.rank), next, { tag }));
      const sendsSameTag = [0, 1, 2].map((k) => group.send(Int32Array.of(k), next, { tag: 9 }));
      for (const tag of [1, 2, 3]) {
        const into = new Int32Array(1);
        await group.recv(into, previous, { tag });
        assert.equal(into[0], tag * 10 + previous);
      }
      for (const k of [0, 1, 2]) {
        const into = new Int32Array(1);
        await group.recv(into, previous, { tag: 9 });
        assert.equal(into[0], k);
      }
      await Promise.all([...sends, ...sendsSameTag]);
    },
  },
  {
    name: 'subgroups by split and newGroup',
    async run(group) {
      const half = await group.split(group.rank % 2, { key: -group.rank });
      assert.ok(half);
      const x = Int32Array.of(group.rank);
      await half.allReduce(x);
      let expected = 0;
      for (let rank = group.rank % 2; rank < group.size; rank += 2) expected += rank;
      assert.equal(x[0], expected);
      assert.equal(half.rank, half.size - 1 - Math.floor(group.rank / 2), 'ordered by key');
      const some = await group.newGroup([0]);
      assert.equal(some === null, group.rank !== 0);
      if (some) await some.barrier();
      await group.barrier();
      await half.destroy();
      assert.equal(await group.split(null), null);
    },
  },
  {
    name: 'receives from anyone take what came first, and say whose it was',
    async run(group) {
      if (group.size === 1) return;
      const others = Array.from({ length: group.size }, (_, rank) => rank).filter((rank) => rank !== group.rank);
      for (const count of [1, 40_000]) {
        // A tag each: whoever is done with one size sends the next, which a receive from anyone of the first would take.
        const tag = count;
        const out = Int32Array.from({ length: count }, (_, i) => group.rank * 1000 + (i % 7));
        const expected = (rank: number): number[] => [0, 1, count - 1].map((i) => rank * 1000 + (i % 7));
        const inputs = others.map(() => new Int32Array(count));
        const receives = inputs.map((input) => group.recv(input, 'any', { tag }));
        const sends = others.map((rank) => group.send(out, rank, { tag }));
        await Promise.all([...receives, ...sends]);
        const sources = receives.map(({ source }) => source);
        assert.deepEqual(
          [...sources].sort((a, b) => Number(a) - Number(b)),
          others,
        );
        inputs.forEach((input, k) => {
          if (count > 1) assert.deepEqual([input[0], input[1], input[count - 1]], expected(Number(sources[k])));
          else assert.equal(input[0], Number(sources[k]) * 1000);
        });
      }
      // Messages that are there already, and a receive from one rank beside one from anyone: whichever was called first takes it.
      const next = (group.rank + 1) % group.size;
      const previous = (group.rank + group.size - 1) % group.size;
      await group.send(Int32Array.of(5), next, { tag: 4 });
      await group.barrier();
      const [early, late] = [new Int32Array(1), new Int32Array(1)];
      const first = group.recv(early, 'any', { tag: 4 });
      const second = group.recv(late, previous, { tag: 4 });
      await group.send(Int32Array.of(6), next, { tag: 4 });
      await Promise.all([first, second]);
      assert.deepEqual([early[0], late[0], first.source, second.source], [5, 6, previous, previous]);
    },
  },
  {
    name: 'batches give what single calls give, of every size, dtype and kind',
    async run(group) {
      const { rank, size } = group;
      const counts = [3, 1, 1000, 0, 20_000];
      // Exact sums: some algorithms may take them in any order.
      const make = (): Float32Array[] =>
        counts.map((count, k) => Float32Array.from({ length: count }, (_, i) => ((i + 1) * (rank + 1) + k) % 256));
      const [single, batched, tensors] = [make(), make(), make().map((data) => copyOf(group, data))];
      for (const data of single) await group.allReduce(data, { op: ReduceOp.Avg });
      const integers = Int32Array.of(rank, 1);
      const root = size - 1;
      const news = Float64Array.of(rank, rank);
      const parts = [Float32Array.of(rank), Float32Array.of(rank + 10, rank + 20)];
      const wholes = parts.map((part) => new Float32Array(part.length * size));
      const scattered = [new Int32Array(2), new Int32Array(1)];
      const sources = scattered.map((part, k) => Int32Array.from({ length: part.length * size }, (_, i) => i + k + rank));
      const reduced = [Int32Array.of(rank), Int32Array.of(2 * rank)];
      const received = new Float32Array(2);
      const [next, previous] = [(rank + 1) % size, (rank + size - 1) % size];
      const work = group.batch([
        ...batched.map((data) => ({ call: 'allReduce', data, op: ReduceOp.Avg }) as const),
        ...tensors.map((data) => ({ call: 'allReduce', data, op: ReduceOp.Avg }) as const),
        { call: 'allReduce', data: integers },
        { call: 'broadcast', data: news, root },
        ...parts.map((input, k) => ({ call: 'allGather', input, output: wholes[k] }) as const),
        ...scattered.map((output, k) => ({ call: 'reduceScatter', output, input: sources[k] }) as const),
        ...reduced.map((data) => ({ call: 'reduce', data, root }) as const),
        ...(size === 1
          ? []
          : ([
              { call: 'send', data: Float32Array.of(rank, 7), peer: next },
              { call: 'recv', data: received, peer: previous },
            ] as const)),
      ]);
      await work;
      assert.equal(work.done, true);
      assert.deepEqual(batched, single);
      assert.deepEqual(
        tensors.map(({ data }) => Float32Array.from(data)),
        single,
      );
      const ranks = Array.from({ length: size }, (_, each) => each);
      const total = ranks.reduce((sum, each) => sum + each, 0);
      assert.deepEqual([...integers, ...news], [total, size, root, root]);
      assert.deepEqual(
        wholes.map((whole) => [...whole]),
        [ranks, ranks.flatMap((each) => [each + 10, each + 20])],
      );
      assert.deepEqual(
        scattered.map((part) => [...part]),
        scattered.map((part, k) => Array.from(part, (_, i) => (rank * part.length + i + k) * size + total)),
      );
      assert.deepEqual(
        reduced.map(([value]) => value),
        rank === root ? [total, 2 * total] : [rank, 2 * rank],
      );
      if (size > 1) assert.deepEqual([...received], [previous, 7]);
      await group.batch([]);
      for (const tensor of tensors) group.release(tensor);
    },
  },
  {
    name: 'subgroups of so many ranks, by host and by lists; a mesh',
    async run(group) {
      const { rank, size } = group;
      const sumOf = async (part: ProcessGroup): Promise<number> => {
        const x = Int32Array.of(rank);
        await part.allReduce(x);
        return x[0];
      };
      const local = await group.newSubgroups();
      assert.ok(local);
      assert.deepEqual(
        local.globalRanks,
        group.hosts.find((ranks) => ranks.includes(rank))?.map((each) => group.globalRanks[each]),
      );
      const alone = await group.newSubgroups({ groupSize: 1 });
      assert.ok(alone);
      assert.equal(await sumOf(alone), rank);
      const some = await group.newSubgroups({ ranks: [[size - 1]] });
      assert.equal(some === null, rank !== size - 1);
      await group.barrier();
      await Promise.all([local.destroy(), alone.destroy(), some?.destroy()]);
      const shape = size % 2 === 0 ? [size / 2, 2] : [1, size];
      await using mesh = await initDeviceMesh(group, shape, { names: ['dp', 'tp'] });
      assert.deepEqual(mesh.coordinate, [Math.floor(rank / shape[1]), rank % shape[1]]);
      assert.equal(mesh.group('tp').rank, mesh.localRank('tp'));
      assert.equal(mesh.group('dp').size, shape[0]);
      const row = mesh.coordinate[0] * shape[1];
      assert.equal(
        await sumOf(mesh.group('tp')),
        Array.from({ length: shape[1] }, (_, k) => row + k).reduce((a, b) => a + b),
      );
      assert.equal(
        await sumOf(mesh.group(0)),
        Array.from({ length: shape[0] }, (_, k) => k * shape[1] + mesh.coordinate[1]).reduce((a, b) => a + b),
      );
    },
  },
  {
    name: 'the store of the world is that of all ranks',
    async run(group) {
      const store = group.store.prefix(`conformance of ${group.name}`);
      const text = (bytes: Uint8Array): string => new TextDecoder().decode(bytes);
      await store.set(`from ${group.rank}`, `value ${group.rank}`);
      const all = Array.from({ length: group.size }, (_, rank) => `from ${rank}`);
      await store.wait(all);
      assert.deepEqual(
        (await store.multiGet(all)).map(text),
        all.map((_, rank) => `value ${rank}`),
      );
      assert.equal(text(await store.get(`from ${group.size - 1}`)), `value ${group.size - 1}`);
      const sum = await store.add('count', group.rank + 1);
      assert.ok(sum >= group.rank + 1);
      await group.barrier();
      assert.equal(await store.add('count', 0), (group.size * (group.size + 1)) / 2);
      const won = text(await store.compareSet('leader', '', `${group.rank}`));
      assert.equal(text(await store.get('leader')), won);
      assert.equal(await store.check(['leader', 'nobody']), false);
      assert.ok((await store.numKeys()) >= group.size + 2);
      await group.barrier();
      const turn = store.queuePop(`turn of ${group.rank}`);
      await store.queuePush(`turn of ${(group.rank + 1) % group.size}`, 'yours');
      assert.equal(text(await turn), 'yours');
      await store.append('all', '.');
      await group.barrier();
      assert.equal(text(await store.get('all')), '.'.repeat(group.size));
      assert.ok((await store.listKeys()).includes(`from ${group.rank}`));
      await group.barrier();
      assert.equal(await store.deleteKey(`from ${group.rank}`), true);
      assert.equal(await store.deleteKey(`from ${group.rank}`), false);
      await assert.rejects(store.get('nobody', { signal: AbortSignal.timeout(20) }), { code: 'aborted' });
      await group.barrier();
    },
  },
];

/** Checks that come out alike whatever algorithm, slices and delays a world has, and why. */
const alikeEverywhere: ReadonlyMap<string, string> = new Map([
  ...composedChecks.map(({ name }): [string, string] => [name, 'these calls are made of others, which are checked']),
  ['all-reduce of every dtype by every op', 'a plan of one dtype and op is that of another of the same size, with another kernel'],
  ['a list may change when the call that it was given to has returned', 'the caller copies it'],
  ['objects of every kind and size, at every root, with other calls around them', 'they travel as bytes of collectives'],
  ['messages match by sender and tag, in order, small and large', 'links carry them, without a plan'],
  ['receives from anyone take what came first, and say whose it was', 'links carry them, without a plan'],
  ['subgroups by split and newGroup', 'a group is opened before its first plan is made'],
  ['subgroups of so many ranks, by host and by lists; a mesh', 'a group is opened before its first plan is made'],
  ['the store of the world is that of all ranks', 'the store is no part of a group'],
]);

export const plannedChecks: readonly GroupCheck[] = groupChecks.filter(({ name }) => !alikeEverywhere.has(name));
assert.equal(plannedChecks.length + alikeEverywhere.size, groupChecks.length, 'a check that is left out has another name');

function copyOf(group: ProcessGroup, data: Float32Array): Tensor<'float32'> {
  const tensor = group.tensor('float32', [data.length]);
  tensor.data.set(data);
  return tensor;
}
