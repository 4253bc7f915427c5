/** Cases of torch's tests of collectives over gloo: what is refused, results, and many calls in flight. */
import { expect } from 'vitest';
import type { BatchCall, ProcessGroup, Work } from '../../../src/index.ts';
import { ReduceOp } from '../../../src/memory/reduce-op.ts';
import { expectElements, integers, ranksOf, triangle, type OnRanks } from '../support/shared-worlds.ts';
import type { SuiteCases } from '../support/suite-cases.ts';

const size = 4;
const inFlight = 150;

/** A call that must be refused before anything is sent: thrown, never a work that fails later. */
function refused(call: () => unknown, message: RegExp): void {
  expect(call).toThrow(
    expect.objectContaining({
      name: 'ShoalError',
      code: expect.stringMatching(/usage|unsupported/),
      message: expect.stringMatching(message),
    }),
  );
}

type Refusal = readonly [what: string, call: (group: ProcessGroup) => unknown, message: RegExp];

const [t1, t2, t3] = [new Float32Array(1), new Float64Array(1), new Float32Array(2)];
const all = (): Float32Array => new Float32Array(size);

const refusals: Readonly<Record<string, readonly Refusal[]>> = {
  broadcast_checks: [
    ['a root below 0', (group) => group.broadcast(t1, { root: -1 }), /root/],
    ['a root beyond the ranks', (group) => group.broadcast(t1, { root: size }), /root/],
    ['no tensor', (group) => group.broadcast([] as never), /data of broadcast/],
  ],
  allreduce_checks: [
    ['no tensor', (group) => group.allReduce([] as never), /data of allReduce/],
    ['a list of tensors', (group) => group.allReduce([t1, t3] as never), /data of allReduce/],
  ],
  allreduce_coalesced_checks: [
    ['no list', (group) => group.batch('x' as never), /batch/],
    ['something that is no tensor', (group) => group.batch([{ call: 'allReduce', data: 'x' as never }]), /data/],
  ],
  scatter_checks: [
    ['a root below 0', (group) => group.scatter(t1, null, { root: -1 }), /root/],
    ['a root beyond the ranks', (group) => group.scatter(t1, null, { root: size }), /root/],
    ['no output', (group) => group.scatter(null, null, { root: (group.rank + 1) % size }), /scatter/],
    ['no input at the root', (group) => group.scatter(t1, null, { root: group.rank }), /input of scatter/],
    ['too little input', (group) => group.scatter(t1, new Float32Array(size - 1), { root: group.rank }), /3/],
    ['too much input', (group) => group.scatter(t1, new Float32Array(size + 1), { root: group.rank }), /5/],
    ['another dtype', (group) => group.scatter(t1, new Float64Array(size), { root: group.rank }), /float64/],
    ['input at another rank', (group) => group.scatter(t1, all(), { root: (group.rank + 1) % size }), /input of scatter/],
  ],
  gather_checks: [
    ['a root below 0', (group) => group.gather(null, t1, { root: -1 }), /root/],
    ['a root beyond the ranks', (group) => group.gather(null, t1, { root: size }), /root/],
    ['no input', (group) => group.gather(null, null, { root: (group.rank + 1) % size }), /gather/],
    ['no output at the root', (group) => group.gather(null, t1, { root: group.rank }), /output of gather/],
    ['too little output', (group) => group.gather(new Float32Array(size - 1), t1, { root: group.rank }), /3/],
    ['too much output', (group) => group.gather(new Float32Array(size + 1), t1, { root: group.rank }), /5/],
    ['another dtype', (group) => group.gather(new Float64Array(size), t1, { root: group.rank }), /float64/],
    ['output at another rank', (group) => group.gather(all(), t1, { root: (group.rank + 1) % size }), /output of gather/],
  ],
  allgather_checks: [
    ['no input', (group) => group.allGather(all(), [] as never), /input of allGather/],
    ['no output', (group) => group.allGather([] as never, t1), /output of allGather/],
    ['too little output', (group) => group.allGather(new Float32Array(size - 1), t1), /3/],
    ['too much output', (group) => group.allGather(new Float32Array(size + 1), t1), /5/],
    ['another dtype', (group) => group.allGather(all(), t2), /float64/],
    ['another size', (group) => group.allGather(all(), t3), /8|4/],
  ],
  allgather_coalesced_checks: [
    ['an output that does not fit its input', (group) => group.batch([{ call: 'allGather', output: t1, input: t1 }]), /1/],
    ['an output of another dtype', (group) => group.batch([{ call: 'allGather', output: new Float64Array(size), input: t1 }]), /float64/],
    ['an output that is too large', (group) => group.batch([{ call: 'allGather', output: new Float32Array(size + 1), input: t1 }]), /5/],
    ['a list as output', (group) => group.batch([{ call: 'allGather', output: [all()] as never, input: t1 }]), /output/],
  ],
  reduce_checks: [
    ['a root below 0', (group) => group.reduce(t1, { root: -1 }), /root/],
    ['a root beyond the ranks', (group) => group.reduce(t1, { root: size }), /root/],
    ['two tensors', (group) => group.reduce([t1, t1] as never), /data of reduce/],
  ],
};

/** Operators with the inputs and results that torch's tests have. */
const simpleReductions = [
  { op: ReduceOp.Sum, input: (rank: number) => rank + 1, output: triangle(size + 1) },
  { op: ReduceOp.Product, input: (rank: number) => rank + 1, output: 24 },
  { op: ReduceOp.Min, input: (rank: number) => rank + 1, output: 1 },
  { op: ReduceOp.Max, input: (rank: number) => rank + 1, output: size },
  { op: ReduceOp.Avg, input: (rank: number) => rank + 1, output: (size + 1) / 2 },
  ...[0, 1, 2, 3].map((i) => ({ op: ReduceOp.BitAnd, input: (rank: number) => rank | (1 << i), output: 1 << i })),
  ...[1, 2, 3, 4].map((i) => ({
    op: ReduceOp.BitOr,
    input: (rank: number) => ranksOf(i).reduce((bits, j) => bits | (rank * i + j), 0),
    output: ranksOf(size * i).reduce((bits, j) => bits | j, 0),
  })),
  ...[1, 2, 3, 4].map((i) => ({
    op: ReduceOp.BitXor,
    input: (rank: number) => ranksOf(i).reduce((bits, j) => bits ^ (rank * i + j), 0),
    output: ranksOf(size * i).reduce((bits, j) => bits ^ j, 0),
  })),
].map((row, number) => ({ ...row, number }));

const dataFor = (op: ReduceOp, value: number): Float32Array | Int32Array =>
  op.startsWith('bit-') ? Int32Array.of(value) : Float32Array.of(value);

export function glooCollectiveCases(cases: SuiteCases, onRanks: OnRanks): void {
  for (const [test, rows] of Object.entries(refusals)) {
    cases.each(
      test,
      rows,
      ([what]) => `refused: ${what}`,
      ([, call, message]) => onRanks(size, (group) => refused(() => call(group), message)),
    );
  }
  resultCases(cases, onRanks);
  stressCases(cases, onRanks);
  coalescedCases(cases, onRanks);
}

function resultCases(cases: SuiteCases, onRanks: OnRanks): void {
  cases.add('empty_tensors', 'a broadcast of nothing', () => onRanks(size, (group) => group.broadcast(new Float32Array(0))));
  cases.each(
    'broadcast_basics',
    ranksOf(size),
    (root) => `from rank ${root}`,
    (root) =>
      onRanks(size, async (group) => {
        const data = Float32Array.of(group.rank, group.rank * 2 + 1);
        await group.broadcast(data, { root });
        expect([...data]).toEqual([root, root * 2 + 1]);
      }),
  );
  const reductionName = ({ op, number }: { op: ReduceOp; number: number }): string => `${op}, row ${number}`;
  cases.each('allreduce_basics', simpleReductions, reductionName, ({ op, input, output }) =>
    onRanks(size, async (group) => {
      const data = dataFor(op, input(group.rank));
      await group.allReduce(data, { op });
      expect(data[0]).toBe(output);
    }),
  );
  cases.each('reduce_basics', simpleReductions, reductionName, ({ op, input, output }) =>
    onRanks(size, async (group) => {
      for (const root of ranksOf(size)) {
        const data = dataFor(op, input(group.rank));
        await group.reduce(data, { op, root });
        expect(data[0]).toBe(group.rank === root ? output : input(group.rank));
      }
    }),
  );
  cases.add('allreduce_basics', 'the sum is the default', () =>
    onRanks(size, async (group) => {
      const data = Float32Array.of(group.rank + 1);
      await group.allReduce(data);
      expect(data[0]).toBe(10);
    }),
  );
  cases.add('reduce_scatter', 'parts of different sizes', () =>
    onRanks(size, async (group) => {
      const counts = ranksOf(size);
      const from = triangle(group.rank);
      const output = new Float32Array(group.rank);
      await group.reduceScatter(
        output,
        Float32Array.from({ length: triangle(size) }, (_, i) => i + 0.5),
        { counts },
      );
      expectElements(output, group.rank, (i) => size * (from + i + 0.5), 'part');
    }),
  );
  cases.add('reduce_scatter_tensor', 'equal parts', () =>
    onRanks(size, async (group) => {
      const output = new Float32Array(400);
      await group.reduceScatter(
        output,
        Float32Array.from({ length: 1600 }, (_, i) => i),
      );
      expectElements(output, 400, (i) => size * (400 * group.rank + i), 'part');
    }),
  );
  cases.add('scatter_basics', 'every rank is root once', () =>
    onRanks(size, async (group) => {
      const outputs = ranksOf(size).map(() => Int32Array.of(-1));
      await Promise.all(
        outputs.map((output, root) => group.scatter(output, group.rank === root ? new Int32Array(size).fill(root) : null, { root })),
      );
      expect(outputs.map(([value]) => value)).toEqual(ranksOf(size));
    }),
  );
  const gatherOfEach = async (group: ProcessGroup, input: Int32Array): Promise<void> => {
    const mine = new Int32Array(size).fill(-1);
    await Promise.all(ranksOf(size).map((root) => group.gather(group.rank === root ? mine : null, input, { root })));
    expect([...mine]).toEqual(ranksOf(size));
  };
  cases.add('gather_basics', 'every rank is root once', () => onRanks(size, (group) => gatherOfEach(group, Int32Array.of(group.rank))));
  cases.add('gather_noncontiguous_input', 'a column, copied out of its matrix', () =>
    onRanks(size, (group) =>
      gatherOfEach(
        group,
        Int32Array.of(group.rank, -1).filter((_, i) => i % 2 === 0),
      ),
    ),
  );
  cases.each(
    'allgather_basics',
    [1, 2, 3],
    (count) => `${count} of each rank`,
    (count) =>
      onRanks(size, async (group) => {
        const output = new Int32Array(count * size).fill(-1);
        await group.allGather(
          output,
          integers(count, (i) => count * group.rank + i),
        );
        expectElements(output, count * size, (i) => i, 'gathered');
      }),
  );
  cases.add('allgather_noncontiguous_input', 'a view of a larger array', () =>
    onRanks(size, async (group) => {
      const output = new Int32Array(size).fill(-1);
      await group.allGather(output, Int32Array.of(-1, group.rank, -1).subarray(1, 2));
      expect([...output]).toEqual(ranksOf(size));
    }),
  );
  cases.add('send_recv_all_to_all', 'everybody sends to everybody', () =>
    onRanks(size, async (group) => {
      const others = ranksOf(size).filter((rank) => rank !== group.rank);
      const outputs = ranksOf(size).map(() => Int32Array.of(-1));
      const sends = others.map((rank) => group.send(Int32Array.of(group.rank), rank));
      const receives = others.map((rank) => group.recv(outputs[rank], rank));
      await Promise.all([...sends, ...receives]);
      expect([...sends, ...receives].every(({ done }) => done)).toBe(true);
      for (const rank of others) expect(outputs[rank][0]).toBe(rank);
    }),
  );
  cases.add('barrier_implies_wait', 'works that were started before a barrier have ended after it', () =>
    onRanks(size, async (group) => {
      const tensors = ranksOf(16).map((i) => new Float32Array(10_000).fill(i));
      const works = tensors.map((tensor) => group.allReduce(tensor));
      await group.barrier();
      expect(works.every(({ done }) => done)).toBe(true);
      tensors.forEach((tensor, i) => expectElements(tensor, 10_000, () => i * size, `tensor ${i}`));
    }),
  );
  cases.each(
    'bool_tensors',
    [ReduceOp.Sum, ReduceOp.Product] as const,
    (op) => (op === ReduceOp.Sum ? 'a sum is an or' : 'a product is an and'),
    (op) =>
      onRanks(size, async (group) => {
        const data = group.tensor('bool', [3]);
        data.data.set([1, 0, Number(group.rank % 2 === 0)]);
        await group.allReduce(data, { op });
        expect([...data.data]).toEqual([1, 0, op === ReduceOp.Sum ? 1 : 0]);
        await group.broadcast(data);
        group.release(data);
      }),
  );
}

function stressCases(cases: SuiteCases, onRanks: OnRanks): void {
  const all = async (works: readonly Work[], check: (i: number) => void): Promise<void> => {
    for (const [i, work] of works.entries()) {
      await work;
      check(i);
    }
  };
  const rounds = ranksOf(inFlight);
  cases.add('broadcast_stress', `${inFlight} in flight, of all roots`, () =>
    onRanks(size, async (group) => {
      const inputs = rounds.map((i) => Int32Array.of(i * size + group.rank));
      await all(
        inputs.map((input, i) => group.broadcast(input, { root: i % size })),
        (i) => expect(inputs[i][0]).toBe(i * size + (i % size)),
      );
    }),
  );
  cases.add('allreduce_stress', `${inFlight} in flight`, () =>
    onRanks(size, async (group) => {
      const inputs = rounds.map((i) => Int32Array.of(i + group.rank));
      await all(
        inputs.map((input) => group.allReduce(input)),
        (i) => expect(inputs[i][0]).toBe(i * size + triangle(size)),
      );
    }),
  );
  cases.add('scatter_stress', `${inFlight} in flight, of all roots`, () =>
    onRanks(size, async (group) => {
      const outputs = rounds.map(() => Int32Array.of(-1));
      const input = (i: number): Int32Array | null => (i % size === group.rank ? new Int32Array(size).fill(i + group.rank) : null);
      await all(
        outputs.map((output, i) => group.scatter(output, input(i), { root: i % size })),
        (i) => expect(outputs[i][0]).toBe(i + (i % size)),
      );
    }),
  );
  cases.add('gather_stress', `${inFlight} in flight, to all roots`, () =>
    onRanks(size, async (group) => {
      const outputs = rounds.map((i) => (i % size === group.rank ? new Int32Array(size) : null));
      await all(
        outputs.map((output, i) => group.gather(output, Int32Array.of(i + group.rank), { root: i % size })),
        (i) => outputs[i] && expect([...outputs[i]]).toEqual(ranksOf(size).map((rank) => i + rank)),
      );
    }),
  );
  cases.add('allgather_stress', `${inFlight} in flight`, () =>
    onRanks(size, async (group) => {
      const outputs = rounds.map(() => new Int32Array(size));
      await all(
        outputs.map((output, i) => group.allGather(output, Int32Array.of(i + group.rank))),
        (i) => expect([...outputs[i]]).toEqual(ranksOf(size).map((rank) => i + rank)),
      );
    }),
  );
  cases.add('reduce_stress', `${inFlight} in flight, to all roots`, () =>
    onRanks(size, async (group) => {
      const inputs = rounds.map((i) => Int32Array.of(i + group.rank));
      await all(
        inputs.map((input, i) => group.reduce(input, { root: i % size })),
        (i) => expect(inputs[i][0]).toBe(i % size === group.rank ? i * size + triangle(size) : i + group.rank),
      );
    }),
  );
  cases.add('allreduce_coalesced_stress', `${inFlight / 3} batches of two in flight`, () =>
    onRanks(size, async (group) => {
      const inputs = ranksOf(inFlight / 3).map((i) => [Int32Array.of(i + group.rank), Int32Array.of(i + group.rank)]);
      await all(
        inputs.map((pair) => group.batch(pair.map((data) => ({ call: 'allReduce', data })))),
        (i) => expect(inputs[i].map(([value]) => value)).toEqual(Array<number>(2).fill(i * size + triangle(size))),
      );
    }),
  );
}

function coalescedCases(cases: SuiteCases, onRanks: OnRanks): void {
  const n = size;
  const rows = [
    {
      op: ReduceOp.Sum,
      inputs: (rank: number) => [rank + 1, (rank + 1) ** 2],
      outputs: [triangle(n + 1), (n * (n + 1) * (2 * n + 1)) / 6],
    },
    { op: ReduceOp.Product, inputs: (rank: number) => [rank + 1, rank + 2], outputs: [24, 120] },
    { op: ReduceOp.Min, inputs: (rank: number) => [rank, rank + 1], outputs: [0, 1] },
    { op: ReduceOp.Max, inputs: (rank: number) => [rank + 1, rank + 2], outputs: [n, n + 1] },
  ];
  cases.each(
    'allreduce_coalesced_basics',
    rows,
    ({ op }) => op,
    ({ op, inputs, outputs }) =>
      onRanks(n, async (group) => {
        const tensors = inputs(group.rank).map((value) => Float32Array.of(value));
        await group.batch(tensors.map((data) => ({ call: 'allReduce', data, op })));
        expect(tensors.map(([value]) => value)).toEqual(outputs);
      }),
  );
  cases.add('allreduce_coalesced_async', 'two batches in flight', () =>
    onRanks(n, async (group) => {
      const inputs = [0, 1].map((i) => [Int32Array.of(i + group.rank), Int32Array.of(i + group.rank)]);
      await Promise.all(inputs.map((pair) => group.batch(pair.map((data) => ({ call: 'allReduce', data })))));
      expect(inputs.flat().map(([value]) => value)).toEqual([6, 6, 10, 10]);
    }),
  );
  const counts = [25, 100, 225];
  cases.add('allgather_into_tensor_coalesced', 'three sizes in one batch', () =>
    onRanks(n, async (group) => {
      const outputs = counts.map((count) => new Float32Array(n * count));
      const calls = counts.map((count, k): BatchCall => ({
        call: 'allGather',
        output: outputs[k],
        input: new Float32Array(count).fill(group.rank + 10 * k),
      }));
      await group.batch(calls);
      outputs.forEach((output, k) => expectElements(output, n * counts[k], (i) => Math.floor(i / counts[k]) + 10 * k, `output ${k}`));
    }),
  );
  cases.add('reduce_scatter_tensor_coalesced', 'three sizes in one batch', () =>
    onRanks(n, async (group) => {
      const outputs = counts.map((count) => new Float32Array(count));
      const input = (count: number): Float32Array => Float32Array.from({ length: n * count }, (_, i) => i + group.rank);
      await group.batch(counts.map((count, k) => ({ call: 'reduceScatter', output: outputs[k], input: input(count) })));
      outputs.forEach((output, k) =>
        expectElements(output, counts[k], (i) => n * (group.rank * counts[k] + i) + triangle(n), `output ${k}`),
      );
    }),
  );
  cases.add('allgather_coalesced_async', 'two batches in flight', () =>
    onRanks(n, async (group) => {
      const outputs = [0, 1].map(() => [new Int32Array(n), new Int32Array(n)]);
      const batch = (pair: Int32Array[], i: number): BatchCall[] =>
        pair.map((output) => ({ call: 'allGather', output, input: Int32Array.of(i + group.rank) }));
      await Promise.all(outputs.map((pair, i) => group.batch(batch(pair, i))));
      outputs.forEach((pair, i) => pair.forEach((output) => expect([...output]).toEqual(ranksOf(n).map((rank) => i + rank))));
    }),
  );
  cases.each(
    'broadcast_coalesced_gloo_cpu',
    ranksOf(2),
    (root) => `float32 and float64 from rank ${root}`,
    (root) =>
      onRanks(2, async (group) => {
        const target = (k: number): Float32Array | Float64Array => {
          const numbers = ranksOf(12).map((i) => 12 * k + i);
          return k % 3 === 2 ? Float64Array.from(numbers) : Float32Array.from(numbers);
        };
        const tensors = ranksOf(30).map((k) => (group.rank === root ? target(k) : target(k).fill(0)));
        await group.batch(tensors.map((data) => ({ call: 'broadcast', data, root })));
        tensors.forEach((tensor, k) => expect(tensor).toEqual(target(k)));
      }),
  );
}
