/** Horovod's tests of its torch interface, told from their descriptions. */
import { describe, expect } from 'vitest';
import { fp16CompressHook, HalfPrecisionState, join, Reducer, SGD } from '../../src/ddp/index.ts';
import type { BatchCall, ProcessGroup, ReduceOptions } from '../../src/index.ts';
import { seededRandom } from '../../src/base/random.ts';
import { dtypeInfo, type DType } from '../../src/memory/dtype.ts';
import { ReduceOp } from '../../src/memory/reduce-op.ts';
import type { Tensor } from '../../src/memory/tensor.ts';
import { horovodTorch } from './foreign-suites.ts';
import { numbersOf, reduced, tensorOf } from './support/element-values.ts';
import { expectElements, onOwnRanks, ranksOf, sharedWorlds, triangle } from './support/shared-worlds.ts';
import { SuiteCases } from './support/suite-cases.ts';

const onRanks = sharedWorlds();
const size = 3;
const dims = [1, 2, 3];
const countOf = (dim: number): number => 7 ** dim;
const floats: readonly DType[] = ['float32', 'float64'];
const kinds: readonly DType[] = ['int32', 'int64', 'float16', ...floats];

/** Dtypes and dimensions of a family of tests. */
const table = (dtypes: readonly DType[]): { dtype: DType; dim: number }[] => dtypes.flatMap((dtype) => dims.map((dim) => ({ dtype, dim })));
const rowName = ({ dtype, dim }: { dtype: DType; dim: number }): string => `${dtype}, ${dim}D`;

/** Small integers that differ between ranks and elements. */
function inputs(dtype: DType, dim: number, rank: number, factor = 1): number[] {
  return Array.from(
    { length: countOf(dim) * factor },
    (_, i) => ((i * 5 + rank * 3) % 7) + (dtypeInfo(dtype).kind === 'float' && i % 2 === 0 ? 0.5 : 0),
  );
}

/** A tensor of a rank, of `dim` dimensions, with `factor` times as many rows. */
function tensorFor(group: ProcessGroup, dtype: DType, dim: number, { rank = group.rank, factor = 1 } = {}): Tensor {
  return tensorOf(group, dtype, inputs(dtype, dim, rank, factor));
}

/** That the numbers are those of these ranks' inputs, reduced. */
function expectReduced(
  actual: readonly number[],
  op: ReduceOp,
  dtype: DType,
  of: (rank: number) => number[],
  ranks: readonly number[],
  scale = 1,
): void {
  const all = ranks.map(of);
  actual.forEach((number, i) => {
    const expected =
      scale *
      reduced(
        op,
        dtype,
        all.map((each) => each[i]),
      );
    const tolerance = op === ReduceOp.Avg || scale !== 1 ? 1e-6 * Math.max(1, Math.abs(expected)) : 0;
    if (Math.abs(number - expected) > tolerance) expect(number, `element ${i}`).toBe(expected);
  });
}

/** Runs the body in the group of even ranks and in that of odd ranks. */
async function inProcessSets(group: ProcessGroup, body: (part: ProcessGroup, ranks: number[]) => Promise<void>): Promise<void> {
  const part = await group.split(group.rank % 2);
  await body(
    part!,
    ranksOf(group.size).filter((rank) => rank % 2 === group.rank % 2),
  );
  await part!.destroy();
}

/** That a call on which ranks disagree fails on all of them. */
function refusedByAll(call: (group: ProcessGroup) => PromiseLike<unknown>, message: RegExp): Promise<unknown> {
  return onOwnRanks(size, (group) =>
    expect((async () => call(group))()).rejects.toMatchObject({ code: 'mismatch', message: expect.stringMatching(message) }),
  );
}

describe(horovodTorch.name, () => {
  const cases = new SuiteCases(horovodTorch);

  cases.add('horovod_reinit', 'a world after another has the same ranks', async () => {
    const [first, second] = [await onOwnRanks(size, ({ rank }) => rank), await onOwnRanks(size, ({ rank }) => rank)];
    expect([first, second]).toEqual([ranksOf(size), ranksOf(size)]);
  });
  cases.add('horovod_is_initialized', 'a group that was destroyed takes no calls', () =>
    onOwnRanks(size, async (group) => {
      await group.allReduce(Float32Array.of(1));
      await group.destroy();
      expect(() => group.allReduce(Float32Array.of(1))).toThrow(expect.objectContaining({ code: 'closed' }));
    }),
  );
  cases.add('horovod_rank', 'ranks are 0 to size − 1', async () => expect(await onRanks(size, ({ rank }) => rank)).toEqual([0, 1, 2]));
  cases.add('horovod_size', 'all know the size', async () => expect(await onRanks(size, (group) => group.size)).toEqual([3, 3, 3]));

  const reductions = [
    ['horovod_allreduce', ReduceOp.Sum, kinds],
    ['horovod_allreduce_average', ReduceOp.Avg, floats],
    ['horovod_allreduce_min', ReduceOp.Min, kinds],
    ['horovod_allreduce_max', ReduceOp.Max, kinds],
    ['horovod_allreduce_product', ReduceOp.Product, floats],
  ] as const;
  for (const [test, op, dtypes] of reductions) {
    cases.each(test, table(dtypes), rowName, ({ dtype, dim }) =>
      onRanks(size, async (group) => {
        const data = tensorFor(group, dtype, dim);
        await group.allReduce(data, { op });
        expectReduced(numbersOf(data), op, dtype, (rank) => inputs(dtype, dim, rank), ranksOf(size));
        group.release(data);
      }),
    );
  }
  cases.each('horovod_allreduce_inplace', table(kinds), rowName, ({ dtype, dim }) =>
    onRanks(size, async (group) => {
      const data = tensorFor(group, dtype, dim, { rank: 1 });
      const memory = data.data;
      await group.allReduce(data);
      expect(data.data).toBe(memory);
      expect(numbersOf(data)).toEqual(inputs(dtype, dim, 1).map((number) => size * number));
      group.release(data);
    }),
  );
  cases.add('horovod_allreduce_async_fused', 'all dtypes and dimensions in flight, then awaited', () =>
    onRanks(size, async (group) => {
      const tensors = table(kinds).map(({ dtype, dim }) => ({ dtype, dim, data: tensorFor(group, dtype, dim) }));
      const works = tensors.map(({ data }) => group.allReduce(data));
      expect(works.every(({ done }) => typeof done === 'boolean')).toBe(true);
      await Promise.all(works);
      for (const { dtype, dim, data } of tensors) {
        expectReduced(numbersOf(data), ReduceOp.Sum, dtype, (rank) => inputs(dtype, dim, rank), ranksOf(size));
        group.release(data);
      }
    }),
  );
  const factors = [0.25, -1.5, 3];
  const scalings = [
    ['horovod_allreduce_prescale', (factor: number): ReduceOptions => ({ op: ReduceOp.Premul, factor })],
    ['horovod_allreduce_postscale', (factor: number): ReduceOptions => ({ postscale: factor })],
  ] as const;
  const scaleRows = floats.flatMap((dtype) => factors.map((factor) => ({ dtype, factor })));
  const scaleName = ({ dtype, factor }: { dtype: DType; factor: number }): string => `${dtype} times ${factor}`;
  for (const [test, optionsOf] of scalings) {
    cases.each(test, scaleRows, scaleName, ({ dtype, factor }) =>
      onRanks(size, async (group) => {
        const data = tensorFor(group, dtype, 2);
        await group.allReduce(data, optionsOf(factor));
        expectReduced(numbersOf(data), ReduceOp.Sum, dtype, (rank) => inputs(dtype, 2, rank), ranksOf(size), factor);
        group.release(data);
      }),
    );
  }
  cases.each('horovod_allreduce_process_sets', table(floats), rowName, ({ dtype, dim }) =>
    onRanks(5, (group) =>
      inProcessSets(group, async (part, ranks) => {
        const data = tensorFor(part, dtype, dim, { rank: group.rank });
        await part.allReduce(data);
        expectReduced(numbersOf(data), ReduceOp.Sum, dtype, (rank) => inputs(dtype, dim, rank), ranks);
      }),
    ),
  );
  cases.add('horovod_allreduce_error', 'ranks with different sizes', () =>
    refusedByAll((group) => group.allReduce(new Float32Array(17 + group.rank)), /17.*18/s),
  );
  const other = (rank: number, count: number): Int32Array | Float32Array =>
    rank % 2 === 0 ? new Int32Array(count) : new Float32Array(count);
  cases.add('horovod_allreduce_type_error', 'ranks with different dtypes', () =>
    refusedByAll((group) => group.allReduce(other(group.rank, 9)), /int32.*float32/s),
  );

  const groupedOf = (group: ProcessGroup, rank = group.rank): { data: Tensor<'float32'>; dim: number }[] =>
    dims.map((dim) => ({ data: tensorFor(group, 'float32', dim, { rank }) as Tensor<'float32'>, dim }));
  const grouped = async (group: ProcessGroup, op: ReduceOp, ranks: readonly number[], rank = group.rank): Promise<void> => {
    const tensors = groupedOf(group, rank);
    await group.batch(tensors.map(({ data }) => ({ call: 'allReduce', data, op })));
    for (const { data, dim } of tensors) {
      expectReduced(numbersOf(data), op, 'float32', (each) => inputs('float32', dim, each), ranks);
      group.release(data);
    }
  };
  cases.add('horovod_grouped_allreduce', 'three dimensions in one batch', () =>
    onRanks(size, (group) => grouped(group, ReduceOp.Sum, ranksOf(size))),
  );
  cases.add('horovod_grouped_allreduce_average', 'three dimensions in one batch', () =>
    onRanks(size, (group) => grouped(group, ReduceOp.Avg, ranksOf(size))),
  );
  cases.add('horovod_grouped_allreduce_inplace', 'the tensors themselves become the sums, batch after batch', () =>
    onRanks(size, async (group) => {
      const data = [Float32Array.of(1), Float32Array.of(2, 3)];
      for (let round = 0; round < 3; round++) await group.batch(data.map((each) => ({ call: 'allReduce', data: each })));
      expect(data.map((each) => [...each])).toEqual([[27], [54, 81]]);
    }),
  );
  cases.add('horovod_grouped_allreduce_process_sets', 'even and odd ranks', () =>
    onRanks(5, (group) => inProcessSets(group, (part, ranks) => grouped(part, ReduceOp.Sum, ranks, group.rank))),
  );

  cases.each('horovod_allgather', table([...kinds, 'uint8', 'int8', 'bool']), rowName, ({ dtype, dim }) =>
    onRanks(size, async (group) => {
      const value = (rank: number): number => (dtype === 'bool' ? rank % 2 : rank);
      const input = tensorOf(group, dtype, Array<number>(countOf(dim)).fill(value(group.rank)));
      const output = group.tensor(dtype, [size * countOf(dim)]);
      await group.allGather(output, input);
      expect(numbersOf(output)).toEqual(ranksOf(size).flatMap((rank) => Array<number>(countOf(dim)).fill(value(rank))));
      group.release(input);
      group.release(output);
    }),
  );
  const sizesPerRank = [17, 32, 3];
  cases.each(
    'horovod_allgather_variable_size',
    kinds,
    (dtype) => dtype,
    (dtype) =>
      onRanks(size, async (group) => {
        const input = tensorOf(group, dtype, Array<number>(sizesPerRank[group.rank]).fill(group.rank));
        const output = group.tensor(dtype, [52]);
        await group.allGather(output, input, { counts: sizesPerRank });
        expect(numbersOf(output)).toEqual(sizesPerRank.flatMap((count, rank) => Array<number>(count).fill(rank)));
        group.release(input);
        group.release(output);
      }),
  );
  cases.add('horovod_allgather_async_fused', 'many in flight', () =>
    onRanks(size, async (group) => {
      const outputs = ranksOf(40).map((k) => new Int32Array(size * (k + 1)));
      await Promise.all(outputs.map((output, k) => group.allGather(output, new Int32Array(k + 1).fill(group.rank + k))));
      outputs.forEach((output, k) => expectElements(output, size * (k + 1), (i) => Math.floor(i / (k + 1)) + k, `gather ${k}`));
    }),
  );
  cases.add('horovod_allgather_process_sets', 'even and odd ranks', () =>
    onRanks(5, (group) =>
      inProcessSets(group, async (part, ranks) => {
        const output = new Int32Array(3 * part.size);
        await part.allGather(output, new Int32Array(3).fill(group.rank));
        expectElements(output, 3 * part.size, (i) => ranks[Math.floor(i / 3)], 'gathered');
      }),
    ),
  );
  cases.add('horovod_allgather_error', 'ranks with different lists of sizes', () =>
    refusedByAll((group) => {
      const counts = group.rank === 0 ? [1, 2, 3] : [2, 1, 3];
      return group.allGather(new Float32Array(6), new Float32Array(counts[group.rank]), { counts });
    }, /rank 0/),
  );
  cases.add('horovod_allgather_type_error', 'ranks with different dtypes', () =>
    refusedByAll((group) => group.allGather(other(group.rank, 9), other(group.rank, 3)), /int32.*float32/s),
  );
  const batchOfGathers = async (group: ProcessGroup, ranks: readonly number[], own: number): Promise<void> => {
    const counts = [1, 50, 343];
    const outputs = counts.map((count) => new Int32Array(count * group.size));
    const calls = counts.map((count, k): BatchCall => ({
      call: 'allGather',
      output: outputs[k],
      input: new Int32Array(count).fill(own + 10 * k),
    }));
    await group.batch(calls);
    outputs.forEach((output, k) => expectElements(output, output.length, (i) => ranks[Math.floor(i / counts[k])] + 10 * k, `output ${k}`));
  };
  cases.add('horovod_grouped_allgather', 'three sizes in one batch', () =>
    onRanks(size, (group) => batchOfGathers(group, ranksOf(size), group.rank)),
  );
  cases.add('horovod_grouped_allgather_process_sets', 'even and odd ranks', () =>
    onRanks(5, (group) => inProcessSets(group, (part, ranks) => batchOfGathers(part, ranks, group.rank))),
  );

  for (const test of ['horovod_broadcast', 'horovod_broadcast_inplace'] as const) {
    const dtypes: readonly DType[] = test === 'horovod_broadcast' ? kinds : ['uint8', 'int8', 'bool'];
    cases.each(
      test,
      table(dtypes),
      (row) => `${rowName(row)}, from each root`,
      ({ dtype, dim }) =>
        onRanks(size, async (group) => {
          for (const root of ranksOf(size)) {
            const value = (rank: number): number => (dtype === 'bool' ? Number(rank === root) : rank);
            const data = tensorOf(group, dtype, Array<number>(countOf(dim)).fill(value(group.rank)));
            await group.broadcast(data, { root });
            expect(new Set(numbersOf(data))).toEqual(new Set([value(root)]));
            group.release(data);
          }
        }),
    );
  }
  cases.add('horovod_broadcast_process_sets', 'the root is a rank of the set', () =>
    onRanks(5, (group) =>
      inProcessSets(group, async (part, ranks) => {
        for (const root of ranksOf(part.size)) {
          const data = Int32Array.of(group.rank);
          await part.broadcast(data, { root });
          expect(data[0]).toBe(ranks[root]);
        }
      }),
    ),
  );
  cases.add('horovod_broadcast_error', 'ranks with different sizes', () =>
    refusedByAll((group) => group.broadcast(new Float32Array(17 + group.rank)), /17.*18/s),
  );
  cases.add('horovod_broadcast_type_error', 'ranks with different dtypes', () =>
    refusedByAll((group) => group.broadcast(other(group.rank, 9)), /int32.*float32/s),
  );
  cases.add('horovod_broadcast_rank_error', 'ranks with different roots', () =>
    refusedByAll((group) => group.broadcast(Float32Array.of(1), { root: group.rank }), /root/),
  );

  const exchanged = async (group: ProcessGroup, dtype: DType, own: number, ranks: readonly number[]): Promise<void> => {
    // To the n-th of the set go n + 1 elements, each the number of its sender.
    const inputSplits = ranks.map((_, to) => to + 1);
    const outputSplits = ranks.map(() => group.rank + 1);
    const input = tensorOf(group, dtype, Array<number>(triangle(group.size + 1)).fill(own));
    const output = group.tensor(dtype, [group.size * (group.rank + 1)]);
    await group.allToAll(output, input, { inputSplits, outputSplits });
    expect(numbersOf(output)).toEqual(ranks.flatMap((rank) => Array<number>(group.rank + 1).fill(rank)));
    group.release(input);
    group.release(output);
  };
  cases.each(
    'horovod_alltoall',
    [...kinds, 'uint8', 'int8'] as const,
    (dtype) => dtype,
    (dtype) => onRanks(size, (group) => exchanged(group, dtype, group.rank, ranksOf(size))),
  );
  cases.each(
    'horovod_alltoall_equal_split',
    [...kinds, 'uint8', 'int8'] as const,
    (dtype) => dtype,
    (dtype) =>
      onRanks(size, async (group) => {
        const input = tensorOf(group, dtype, Array<number>(4 * size).fill(group.rank));
        const output = group.tensor(dtype, [4 * size]);
        await group.allToAll(output, input);
        expect(numbersOf(output)).toEqual(ranksOf(4 * size).map((i) => Math.floor(i / 4)));
        group.release(input);
        group.release(output);
      }),
  );
  cases.add('horovod_alltoall_process_sets', 'even and odd ranks', () =>
    onRanks(5, (group) => inProcessSets(group, (part, ranks) => exchanged(part, 'float32', group.rank, ranks))),
  );
  cases.add('horovod_alltoall_type_error', 'ranks with different dtypes', () =>
    refusedByAll((group) => group.allToAll(other(group.rank, 6), other(group.rank, 6)), /int32.*float32/s),
  );
  cases.add('horovod_alltoall_rank_error', 'a rank expects more than it is sent', () =>
    refusedByAll((group) => {
      const outputSplits = group.rank === 0 ? [1, 2, 1] : [1, 1, 1];
      return group.allToAll(new Float32Array(group.rank === 0 ? 4 : 3), new Float32Array(3), { inputSplits: [1, 1, 1], outputSplits });
    }, /rank 0/),
  );
  const badSplits = [
    ['horovod_alltoall_equal_split_length_error', 'a length that the number of ranks does not divide', {}, 4],
    ['horovod_alltoall_splits_error', 'splits beyond the input', { inputSplits: [2, 2, 2], outputSplits: [1, 1, 1] }, 3],
    ['horovod_alltoall_splits_type_error', 'splits that are no integers', { inputSplits: [0.5, 0.5, 2], outputSplits: [1, 1, 1] }, 3],
    ['horovod_alltoall_splits_type_error', 'splits that are text', { inputSplits: ['1', '1', '1'], outputSplits: [1, 1, 1] }, 3],
  ] as const;
  for (const [test, what, options, count] of badSplits) {
    cases.add(test, what, () =>
      onRanks(size, (group) => {
        const call = (): unknown => group.allToAll(new Float32Array(count), new Float32Array(count), options as never);
        expect(call).toThrow(expect.objectContaining({ code: 'usage' }));
      }),
    );
  }

  trainingCases();
  barrierCases();
  reduceScatterCases();
  cases.complete();

  function trainingCases(): void {
    const specs = [
      { name: 'w', shape: [2, 3], dtype: 'float32' },
      { name: 'b', shape: [3], dtype: 'float32' },
    ] as const;
    cases.add('broadcast_state', 'parameters and state of the optimiser become those of rank 0', () =>
      onRanks(size, async (group) => {
        const data = [new Float32Array(6).fill(group.rank + 1), new Float32Array(3).fill(group.rank + 5)];
        const optimizer = new SGD(
          specs.map(({ name }, k) => ({ name, data: data[k] })),
          { lr: 0.1, momentum: 0.9 },
        );
        optimizer.step(data.map((each) => each.slice()));
        const reducer = new Reducer(group, specs);
        await reducer.broadcastParameters(data);
        for (const state of Object.values(optimizer.state)) await group.broadcast(state);
        await reducer.verifyReplicas(data);
        expect(data[0][0]).toBeCloseTo(0.9);
        expect(Object.values(optimizer.state).map((state) => state[0])).toEqual([1, 5]);
        reducer.close();
      }),
    );
    cases.add('broadcast_state_options', 'options of rank 0, of any kind', () =>
      onRanks(size, async (group) => {
        const options = { lr: 0.1, betas: [0.9, 0.99], name: 'adam', nesterov: true, none: null };
        expect(await group.broadcastObject(group.rank === 0 ? options : undefined)).toEqual(options);
      }),
    );
    const expectedObject = { hello: 123, 0: [1, 2], nested: new Map([['a', new Float32Array([1, 2])]]) };
    cases.add('broadcast_object', 'an object of rank 0', () =>
      onRanks(size, async (group) => expect(await group.broadcastObject(group.rank === 0 ? expectedObject : {})).toEqual(expectedObject)),
    );
    cases.add('broadcast_object_process_sets', 'even and odd ranks', () =>
      onRanks(5, (group) =>
        inProcessSets(group, async (part, ranks) => {
          const root = part.size - 1;
          expect(await part.broadcastObject({ from: group.rank }, { root })).toEqual({ from: ranks[root] });
        }),
      ),
    );
    cases.add('allgather_object', 'an object of each rank', () =>
      onRanks(size, async (group) => {
        const all = await group.allGatherObject({ metric: group.rank, list: Array<number>(group.rank).fill(1) });
        expect(all).toEqual(ranksOf(size).map((rank) => ({ metric: rank, list: Array<number>(rank).fill(1) })));
      }),
    );
    cases.add('compression_fp16', 'gradients that travel as halves', () =>
      onRanks(size, async (group) => {
        const reducer = new Reducer(group, [specs[1]]);
        reducer.registerCommHook(new HalfPrecisionState(), fp16CompressHook);
        const gradient = Float32Array.of(group.rank + 1, 0.1, 1 / 3);
        await reducer.average([gradient]);
        expect(gradient[0]).toBe(2);
        expect(Math.abs(gradient[1] - 0.1)).toBeLessThan(1e-4);
        expect(gradient[1]).not.toBe(Math.fround(0.1));
        reducer.close();
      }),
    );
    cases.add('duplicate_names', 'two parameters of one name are refused', () =>
      onRanks(size, (group) => {
        expect(() => new Reducer(group, [specs[0], specs[0]])).toThrow(
          expect.objectContaining({ code: 'usage', message: expect.stringMatching(/'w'/) }),
        );
      }),
    );
    cases.add('gradient_clipping', 'gradients are clipped after they are averaged, the same on all ranks', () =>
      onRanks(size, async (group) => {
        const reducer = new Reducer(group, [specs[1]]);
        const gradient = new Float32Array(3).fill(10 * (group.rank + 1));
        await reducer.average([gradient]);
        const norm = Math.hypot(...gradient);
        const clipped = gradient.map((value) => value / norm);
        expect(Math.hypot(...clipped)).toBeCloseTo(1);
        await reducer.verifyReplicas([clipped]);
        reducer.close();
      }),
    );
    cases.each(
      'horovod_join_allreduce',
      ranksOf(size),
      (first) => `rank ${first} runs out first`,
      (first) =>
        onRanks(size, async (group) => {
          const reducer = new Reducer(group, [specs[1]]);
          const steps = group.rank === first ? 1 : 3;
          const seen: number[] = [];
          const result = await join(group, [reducer], ranksOf(steps), async () => {
            const gradient = new Float32Array(3).fill(3);
            await reducer.average([gradient]);
            seen.push(gradient[0]);
          });
          // A rank that is out counts as zeros.
          expect(seen).toEqual([3, 2, 2].slice(0, steps));
          expect([result.steps, result.stepsMax]).toEqual([steps, 3]);
          expect(result.lastJoiner).not.toBe(first);
          reducer.close();
        }),
    );
    cases.add('async_sparse_allreduce', 'rows of all ranks, gathered and added, are the sum of the matrices', () =>
      onRanks(size, (group) => sparseSum(group, ranksOf(size), group.rank)),
    );
    cases.add('async_sparse_allreduce_process_sets', 'even and odd ranks', () =>
      onRanks(5, (group) => inProcessSets(group, (part, ranks) => sparseSum(part, ranks, group.rank))),
    );
  }

  /** Rows of a matrix of 10 by 4 that a rank has. */
  function rowsOf(rank: number): { rows: number[]; values: number[] } {
    const random = seededRandom(rank + 1);
    const rows = ranksOf(10).filter(() => random.next() < 0.4);
    return { rows, values: rows.flatMap((row) => [row, rank, row * rank, 1]) };
  }

  async function sparseSum(group: ProcessGroup, ranks: readonly number[], own: number): Promise<void> {
    const { rows, values } = rowsOf(own);
    const counts = await group.allGatherObject(rows.length);
    const total = counts.reduce((sum, count) => sum + count, 0);
    const [allRows, allValues] = [new Int32Array(total), new Float32Array(4 * total)];
    await Promise.all([
      group.allGather(allRows, Int32Array.from(rows), { counts }),
      group.allGather(allValues, Float32Array.from(values), { counts: counts.map((count) => 4 * count) }),
    ]);
    const [sum, dense] = [new Float32Array(40), new Float32Array(40)];
    allRows.forEach((row, k) => allValues.subarray(4 * k, 4 * k + 4).forEach((value, i) => (sum[4 * row + i] += value)));
    rows.forEach((row, k) => dense.set(values.slice(4 * k, 4 * k + 4), 4 * row));
    await group.allReduce(dense);
    expect(sum).toEqual(dense);
    expect(ranks.some((rank) => rowsOf(rank).rows.length > 0)).toBe(true);
  }

  function barrierCases(): void {
    /** Ranks come to the barrier one after the other; none leaves before the last has come. */
    const lateBarrier = async (group: ProcessGroup): Promise<void> => {
      for (const late of ranksOf(group.size)) {
        for (const rank of ranksOf(group.size)) if (rank < group.rank && rank !== late) await group.store.numKeys();
        await group.store.add(`arrived/${group.name}/${late}`, 1);
        await group.barrier();
        const arrived = new TextDecoder().decode(await group.store.get(`arrived/${group.name}/${late}`));
        expect(Number(arrived)).toBe(group.size);
      }
    };
    cases.add('global_barrier_op', 'nobody goes on before all have come', () => onRanks(size, lateBarrier));
    cases.add('process_set_barrier_op', 'a set waits for its own ranks alone', () =>
      onRanks(4, (group) =>
        inProcessSets(group, async (part) => {
          // The odd ranks come first, and do not wait for the others.
          if (group.rank % 2 === 0) await group.store.wait(['odd ranks are through']);
          await part.barrier();
          if (group.rank % 2 === 1) await group.store.set('odd ranks are through', '');
        }),
      ),
    );
    cases.add('barrier_with_multiple_collectives', 'barriers between other calls in flight', () =>
      onRanks(size, async (group) => {
        const [sum, gathered, root] = [Int32Array.of(group.rank), new Int32Array(size), Int32Array.of(group.rank + 5)];
        await Promise.all([
          group.allReduce(sum),
          group.barrier(),
          group.allGather(gathered, Int32Array.of(group.rank)),
          group.barrier(),
          group.broadcast(root, { root: 2 }),
        ]);
        expect([sum[0], ...gathered, root[0]]).toEqual([3, 0, 1, 2, 7]);
      }),
    );
  }

  function reduceScatterCases(): void {
    const part = async (
      group: ProcessGroup,
      dtype: DType,
      dim: number,
      {
        op = ReduceOp.Sum,
        scale = 1,
        options = {},
        own = group.rank,
        ranks = ranksOf(group.size),
      }: {
        op?: ReduceOp;
        scale?: number;
        options?: ReduceOptions;
        own?: number;
        ranks?: readonly number[];
      } = {},
    ): Promise<void> => {
      const count = countOf(dim);
      const input = tensorFor(group, dtype, dim, { rank: own, factor: group.size });
      const output = group.tensor(dtype, [count]);
      await group.reduceScatter(output, input, { op, ...options });
      const slice = (rank: number): number[] => inputs(dtype, dim, rank, group.size).slice(group.rank * count, (group.rank + 1) * count);
      expectReduced(numbersOf(output), op === ReduceOp.Premul ? ReduceOp.Sum : op, dtype, slice, ranks, scale);
      group.release(input);
      group.release(output);
    };
    cases.each('horovod_reducescatter', table(kinds), rowName, ({ dtype, dim }) => onRanks(size, (group) => part(group, dtype, dim)));
    cases.each('horovod_reducescatter_average', table(floats), rowName, ({ dtype, dim }) =>
      onRanks(size, (group) => part(group, dtype, dim, { op: ReduceOp.Avg })),
    );
    const scaled = (group: ProcessGroup, dtype: DType, factor: number, kind: 'prescale' | 'postscale'): Promise<void> =>
      kind === 'prescale'
        ? part(group, dtype, 2, { op: ReduceOp.Premul, options: { factor }, scale: factor })
        : part(group, dtype, 2, { options: { postscale: factor }, scale: factor });
    for (const kind of ['prescale', 'postscale'] as const) {
      cases.each(`horovod_reducescatter_${kind}`, scaleRows, scaleName, ({ dtype, factor }) =>
        onRanks(size, (group) => scaled(group, dtype, factor, kind)),
      );
      cases.add(`horovod_grouped_reducescatter_${kind}`, 'several in flight', () =>
        onRanks(size, (group) => Promise.all(factors.map((factor) => scaled(group, 'float32', factor, kind)))),
      );
    }
    for (const test of ['horovod_reducescatter_scalar_error', 'horovod_grouped_reducescatter_scalar_error']) {
      cases.add(test, 'a single element cannot be scattered', () =>
        onRanks(size, (group) => {
          const [output, input] = [new Float32Array(1), new Float32Array(1)];
          const call = (): unknown =>
            test.includes('grouped') ? group.batch([{ call: 'reduceScatter', output, input }]) : group.reduceScatter(output, input);
          expect(call).toThrow(expect.objectContaining({ code: 'usage' }));
        }),
      );
    }
    cases.add('horovod_reducescatter_async_fused', 'all dtypes and dimensions in flight', () =>
      onRanks(size, (group) => Promise.all(table(kinds).map(({ dtype, dim }) => part(group, dtype, dim)))),
    );
    cases.add('horovod_reducescatter_error', 'ranks with different sizes', () =>
      refusedByAll((group) => group.reduceScatter(new Float32Array(2 + group.rank), new Float32Array(size * (2 + group.rank))), /6.*9/s),
    );
    cases.add('horovod_reducescatter_type_error', 'ranks with different dtypes', () =>
      refusedByAll((group) => group.reduceScatter(other(group.rank, 2), other(group.rank, 6)), /int32.*float32/s),
    );
    cases.each(
      'horovod_reducescatter_process_sets',
      floats,
      (dtype) => dtype,
      (dtype) => onRanks(5, (group) => inProcessSets(group, (each, ranks) => part(each, dtype, 2, { own: group.rank, ranks }))),
    );
    const batch = async (group: ProcessGroup, op: ReduceOp, ranks: readonly number[], own: number): Promise<void> => {
      const outputs = dims.map((dim) => group.tensor('float32', [countOf(dim)]));
      const calls = dims.map((dim, k): BatchCall => ({
        call: 'reduceScatter',
        output: outputs[k],
        input: tensorFor(group, 'float32', dim, { rank: own, factor: group.size }),
        op,
      }));
      await group.batch(calls);
      for (const [k, dim] of dims.entries()) {
        const slice = (rank: number): number[] =>
          inputs('float32', dim, rank, group.size).slice(group.rank * countOf(dim), (group.rank + 1) * countOf(dim));
        expectReduced(numbersOf(outputs[k]), op, 'float32', slice, ranks);
      }
    };
    cases.add('horovod_grouped_reducescatter', 'three dimensions in one batch', () =>
      onRanks(size, (group) => batch(group, ReduceOp.Sum, ranksOf(size), group.rank)),
    );
    cases.add('horovod_grouped_reducescatter_average', 'three dimensions in one batch', () =>
      onRanks(size, (group) => batch(group, ReduceOp.Avg, ranksOf(size), group.rank)),
    );
    cases.add('horovod_grouped_reducescatter_process_sets', 'even and odd ranks', () =>
      onRanks(5, (group) => inProcessSets(group, (each, ranks) => batch(each, ReduceOp.Sum, ranks, group.rank))),
    );
  }
});
