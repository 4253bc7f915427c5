/** Cases of torch's tests of groups over gloo, of the dispatched collectives, and of data-parallel training. */
import { expect } from 'vitest';
import { Reducer, type CommHook } from '../../../src/ddp/index.ts';
import type { ProcessGroup, Work } from '../../../src/index.ts';
import { ReduceOp } from '../../../src/memory/reduce-op.ts';
import { expectElements, onOwnRanks, ranksOf, type OnRanks } from '../support/shared-worlds.ts';
import type { SuiteCases } from '../support/suite-cases.ts';

export function glooGroupCases(cases: SuiteCases, onRanks: OnRanks): void {
  cases.add('gloo_warn_not_in_group', 'who is not in a group gets none', () =>
    onRanks(2, async (group) => {
      const part = await group.newGroup([0]);
      expect(part === null).toBe(group.rank === 1);
      await part?.destroy();
    }),
  );
  cases.add('gloo_rank_membership', 'ranks are those of the group', () =>
    onRanks(4, async (group) => {
      const part = await group.newGroup([3, 1]);
      if (part) expect([part.rank, part.size, part.globalRanks]).toEqual([group.rank === 3 ? 0 : 1, 2, [3, 1]]);
      else expect(group.rank % 2).toBe(0);
      await part?.destroy();
    }),
  );
  const disagreements = [
    ['allReduce', (group: ProcessGroup, data: Float32Array | Float64Array) => group.allReduce(data)],
    ['broadcast', (group: ProcessGroup, data: Float32Array | Float64Array) => group.broadcast(data)],
  ] as const;
  cases.each(
    'tensor_dtype_mismatch',
    disagreements,
    ([call]) => `${call} of another dtype on one rank is refused by all`,
    ([, call]) =>
      onOwnRanks(2, async (group) => {
        const work = call(group, group.rank === 0 ? new Float32Array(4) : new Float64Array(4));
        await expect(Promise.resolve(work)).rejects.toMatchObject({
          code: 'mismatch',
          message: expect.stringMatching(/float32.*float64|float64.*float32/s),
        });
      }),
  );
  cases.add('default_store_timeout_gloo', 'the limit of a wait that gives none is that of the store', () =>
    onRanks(2, async (group) => {
      await expect(group.store.get('nobody sets it', { timeoutMs: 5 })).rejects.toMatchObject({ code: 'timeout' });
    }),
  );
  cases.add('set_gloo_pg_timeout', 'the limit of one call is its own', () =>
    onOwnRanks(2, async (group) => {
      await group.allReduce(new Float32Array(10));
      if (group.rank === 0) {
        const alone = group.allReduce(new Float32Array(10), { timeoutMs: 30 });
        await expect(Promise.resolve(alone)).rejects.toMatchObject({ code: 'timeout', message: expect.stringMatching(/rank 1/) });
      }
    }),
  );
  dispatchedCases(cases, onRanks);
  subgroupCases(cases, onRanks);
  reducerCases(cases, onRanks);
}

function dispatchedCases(cases: SuiteCases, onRanks: OnRanks): void {
  /** Each gets what it has to start with: the data itself, or the input's, in the output. */
  const calls: readonly (readonly [string, (group: ProcessGroup, input: Float32Array, output: Float32Array) => Work])[] = [
    ['reduce', (group, input) => group.reduce(input)],
    ['broadcast', (group, input) => group.broadcast(input)],
    ['allReduce', (group, input) => group.allReduce(input)],
    ['allGather', (group, input, output) => group.allGather(output, input)],
    ['gather', (group, input, output) => group.gather(output, input)],
    ['scatter', (group, input, output) => group.scatter(output, input)],
    ['reduceScatter', (group, input, output) => group.reduceScatter(output, input)],
    ['barrier', (group) => group.barrier()],
  ];
  cases.each(
    'collectives',
    calls,
    ([call]) => `${call} in a world of one`,
    ([, call]) =>
      onRanks(1, async (group) => {
        const [input, output] = [Float32Array.of(1, 2), new Float32Array(2)];
        await call(group, input, output);
        expect([...input]).toEqual([1, 2]);
        const isApart = call.length === 3;
        expect([...output]).toEqual(isApart ? [1, 2] : [0, 0]);
      }),
  );
  cases.add('allreduce_coalesced', 'a batch in a world of one', () =>
    onRanks(1, async (group) => {
      const data = new Float32Array(100).fill(1);
      await group.batch([{ call: 'allReduce', data }]);
      expectElements(data, 100, () => 1, 'sum');
    }),
  );
  cases.add('all_to_all_single', 'a world of one gets what it has sent', () =>
    onRanks(1, async (group) => {
      const output = new Float32Array(2);
      await group.allToAll(output, Float32Array.of(1, 2));
      expect([...output]).toEqual([1, 2]);
    }),
  );
  cases.add('allgather_coalesced', 'a batch in a world of one', () =>
    onRanks(1, async (group) => {
      const output = new Float32Array(100);
      await group.batch([{ call: 'allGather', output, input: new Float32Array(100).fill(1) }]);
      expectElements(output, 100, () => 1, 'gathered');
    }),
  );
  cases.each(
    'monitored_barrier',
    [1, 4],
    (size) => `${size} ranks`,
    (size) => onRanks(size, (group) => group.monitoredBarrier()),
  );
}

function subgroupCases(cases: SuiteCases, onRanks: OnRanks): void {
  cases.add('new_group_local_sync', 'pairs of ranks sum within their group', () =>
    onRanks(4, async (group) => {
      const first = group.rank - (group.rank % 2);
      const pair = await group.newSubgroups({ groupSize: 2 });
      expect(pair!.globalRanks).toEqual([first, first + 1]);
      const data = Int32Array.of(group.rank);
      await pair!.allReduce(data);
      expect(data[0]).toBe(2 * first + 1);
      await pair!.destroy();
    }),
  );
  cases.add('new_group_local_sync_sanity_check', 'overlapping groups keep their messages apart', () =>
    onRanks(4, async (group) => {
      const chain = [await group.newGroup([0, 1]), await group.newGroup([1, 2]), await group.newGroup([2, 3])];
      const results = chain.map((each) => (each ? Int32Array.of(group.rank) : null));
      await Promise.all(chain.map(async (each, k) => each?.allReduce(results[k]!)));
      results.forEach((result, k) => result && expect(result[0]).toBe(2 * k + 1));
      for (const each of chain) await each?.destroy();
    }),
  );
  cases.add('new_group_local_sync_duplicate_pg', 'two groups of the same ranks are two groups', () =>
    onRanks(4, async (group) => {
      const [a, b] = [await group.newGroup([0, 2]), await group.newGroup([0, 2])];
      if (a && b) {
        const [x, y] = [Int32Array.of(group.rank), Int32Array.of(10 * group.rank)];
        await Promise.all([b.allReduce(y), a.allReduce(x)]);
        expect([x[0], y[0]]).toEqual([2, 20]);
        await a.destroy();
        await b.allReduce(y);
        expect(y[0]).toBe(40);
        await b.destroy();
      }
    }),
  );
}

/** The gradients of a layer with these parameters, each a multiple of rank + 1. */
function trained(group: ProcessGroup, options: ConstructorParameters<typeof Reducer>[2] = {}) {
  const parameters = [
    { name: 'fc1', shape: [2, 10], dtype: 'float32' },
    { name: 'fc2', shape: [10, 4], dtype: 'float32' },
    { name: 'fc3', shape: [4, 4], dtype: 'float32' },
  ] as const;
  const gradients = (scale: number): Float32Array[] => [20, 40, 16].map((count) => new Float32Array(count).fill(scale * (group.rank + 1)));
  return { reducer: new Reducer(group, parameters, options), gradients };
}

function reducerCases(cases: SuiteCases, onRanks: OnRanks): void {
  const mean = (size: number): number => (size + 1) / 2;
  cases.each(
    'gloo_backend_cpu_module',
    [1, 2, 4],
    (size) => `every replica has the mean gradient, ${size} ranks`,
    (size) =>
      onRanks(size, async (group) => {
        const { reducer, gradients } = trained(group);
        const own = gradients(2);
        await reducer.average(own);
        for (const gradient of own) expect(new Set(gradient)).toEqual(new Set([2 * mean(size)]));
        reducer.close();
      }),
  );
  cases.add('gloo_backend_cpu_module_grad_is_view', 'the mean can be read in the bucket itself', () =>
    onRanks(2, async (group) => {
      const { reducer, gradients } = trained(group);
      gradients(1).forEach((gradient, index) => reducer.gradientReady(index, gradient));
      await reducer.finish();
      for (const index of [0, 1, 2]) expect(new Set<unknown>(reducer.gradient(index))).toEqual(new Set([1.5]));
      reducer.close();
    }),
  );
  for (const test of ['global_local_unused_params_grad', 'find_unused_parameters_when_unused_parameters_empty']) {
    cases.add(test, 'a parameter that one rank did not use counts as zeros there', () =>
      onRanks(2, async (group) => {
        const { reducer, gradients } = trained(group, { findUnused: true });
        const used = group.rank === 0 ? [0, 1] : [1];
        for (const index of used) reducer.gradientReady(index, gradients(1)[index]);
        await reducer.finish();
        expect([0, 1].map((index) => reducer.gradient(index)[0])).toEqual([0.5, 1.5]);
        reducer.close();
      }),
    );
  }
  cases.add('ignored_output', 'steps without a backward pass communicate nothing', () =>
    onRanks(2, async (group) => {
      const { reducer, gradients } = trained(group);
      expect(reducer.stats.buckets).toBe(0);
      for (let step = 0; step < 4; step++) await reducer.average(gradients(step));
      expect(reducer.stats.steps).toBe(4);
      reducer.close();
    }),
  );
  cases.add('ignored_output_with_unused_parameters', 'the same, with a parameter that nobody uses', () =>
    onRanks(2, async (group) => {
      const { reducer, gradients } = trained(group, { findUnused: true });
      for (let step = 0; step < 4; step++) {
        for (const index of [0, 1]) reducer.gradientReady(index, gradients(1)[index]);
        await reducer.finish();
        expect(reducer.gradient(2).every((value) => value === 0)).toBe(true);
      }
      reducer.close();
    }),
  );
  const doubled: CommHook<null> = function* (_, bucket) {
    yield bucket.allReduce(bucket.buffer(), { op: ReduceOp.Sum });
    bucket.buffer().fill(2);
  };
  cases.add('ddp_comm_hook_future_passing_cpu', 'the gradient is what the hook leaves', () =>
    onRanks(2, async (group) => {
      const { reducer, gradients } = trained(group);
      reducer.registerCommHook(null, doubled);
      const own = gradients(1);
      await reducer.average(own);
      for (const gradient of own) expect(new Set(gradient)).toEqual(new Set([2]));
      reducer.close();
    }),
  );
  cases.each(
    'ddp_invalid_comm_hook_init',
    [1, 'hook', null],
    (hook) => `a hook that is ${String(hook)} is refused`,
    (hook) =>
      onRanks(2, (group) => {
        const { reducer } = trained(group);
        expect(() => reducer.registerCommHook(null, hook as never)).toThrow(/the hook is a generator function/);
        reducer.close();
      }),
  );
  cases.add('ddp_invalid_comm_hook_return_type', 'a hook that returns no works fails its step', () =>
    onRanks(2, async (group) => {
      const { reducer, gradients } = trained(group);
      reducer.registerCommHook(null, (() => 1) as never);
      await expect((async () => reducer.average(gradients(1)))()).rejects.toMatchObject({
        message: expect.stringMatching(/generator function/),
      });
      reducer.close();
    }),
  );
  cases.add('ddp_comm_hook_register_just_once', 'a second hook is refused', () =>
    onRanks(2, (group) => {
      const { reducer } = trained(group);
      reducer.registerCommHook(null, doubled);
      expect(() => reducer.registerCommHook(null, doubled)).toThrow(/a hook already/);
      reducer.close();
    }),
  );
  const spec = (name: string, dtype: 'float32' | 'float64') => ({ name, shape: [10], dtype });
  const models = [
    ['single_dtype_single_bucket', [spec('a', 'float32'), spec('b', 'float32')], 1],
    ['multi_dtype_single_bucket', [spec('a', 'float64'), spec('b', 'float32')], 2],
    ['multi_dtype_multi_bucket', [spec('a', 'float64'), spec('b', 'float64'), spec('c', 'float32')], 2],
  ] as const;
  for (const [test, parameters, buckets] of models) {
    cases.add(test, `${buckets} ${buckets === 1 ? 'bucket' : 'buckets, of one dtype each'}`, () =>
      onRanks(1, (group) => {
        const reducer = new Reducer(group, parameters);
        expect(reducer.buckets.length).toBe(buckets);
        for (const bucket of reducer.buckets)
          expect(new Set(bucket.parameters.map((name) => parameters.find((each) => each.name === name)?.dtype)).size).toBe(1);
        reducer.close();
      }),
    );
  }
  cases.add('forward_backward', 'a step of two dtypes', () =>
    onRanks(1, async (group) => {
      const reducer = new Reducer(group, [spec('a', 'float64'), spec('b', 'float32')]);
      const gradients = [new Float64Array(10).fill(3), new Float32Array(10).fill(4)];
      await reducer.average(gradients);
      expect([gradients[0][9], gradients[1][9]]).toEqual([3, 4]);
      reducer.close();
    }),
  );
  cases.add('forward_backward_unused_parameters', 'an unused parameter stays without gradient', () =>
    onRanks(1, async (group) => {
      const strict = trained(group);
      strict.reducer.gradientReady(0, strict.gradients(1)[0]);
      await expect((async () => strict.reducer.finish())()).rejects.toMatchObject({
        code: 'usage',
        message: expect.stringMatching(/fc2.*fc3|fc3.*fc2/),
      });
      strict.reducer.close();
      const { reducer, gradients } = trained(group, { findUnused: true });
      for (const index of [0, 1]) reducer.gradientReady(index, gradients(1)[index]);
      await reducer.finish();
      expect(reducer.gradient(2)[0]).toBe(0);
      reducer.close();
    }),
  );
  cases.add('forward_backward_optimizer', 'three steps, an unused parameter in the first', () =>
    onRanks(1, async (group) => {
      const { reducer, gradients } = trained(group, { findUnused: true });
      for (const step of ranksOf(3)) {
        for (const index of step === 0 ? [0, 1] : [0, 1, 2]) reducer.gradientReady(index, gradients(step + 1)[index]);
        await reducer.finish();
        expect([0, 1, 2].map((index) => reducer.gradient(index)[0])).toEqual([step + 1, step + 1, step === 0 ? 0 : step + 1]);
      }
      reducer.close();
    }),
  );
}
