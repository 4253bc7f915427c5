import { describe, expect, it } from 'vitest';
import { ShoalError } from '../base/errors.ts';
import { dtypeInfo, viewOf } from '../memory/dtype.ts';
import { Arbiter } from '../scheduler/arbiter.ts';
import type { ClientOptions, TransferEntry } from './client/client-options.ts';
import type { SnapshotStore } from '../checkpoint/snapshot.ts';
import { SimulatedDisk, testCodec } from './testing/simulated-cluster.ts';
import type { KVTopology } from './protocol/topology.ts';
import { adding, Bench, downpour, hogwild, sandblaster, small, type Outcome, type Parameter } from './testing/server-bench.ts';

describe.each([
  { where: 'by reference', mappable: true },
  { where: 'inline', mappable: false },
])('parameter server, values $where', ({ mappable }) => {
  it('who leaves is written to no more, and what it pushed counts', async () => {
    const bench = await Bench.of({ topology: { ...sandblaster, serversPerGroup: 1 }, mappable });
    const large: Parameter = { key: 'large', dtype: 'float32', shape: [4096] };
    await bench.init([large]);
    const { cluster } = bench;
    const both = bench.block(0, new Float32Array(4096).fill(3));
    bench.begin(0, [{ key: 'large', push: both.ref, out: both.ref }]);
    await cluster.settle();
    cluster.servers[0].core.peerLeft(cluster.clients[0].address);
    const push = bench.push(1, 'large', new Float32Array(4096).fill(4));
    await cluster.settle();
    expect(push).toEqual({ done: true, error: undefined });
    expect(new Set(new Float32Array(both.view.buffer))).toEqual(new Set([3]));
    expect(new Set(await bench.pulled(1, 'large', 4096))).toEqual(new Set([7]));
  });

  it('begins with the values of worker 0', async () => {
    const bench = await Bench.of({ topology: sandblaster, mappable });
    await bench.init([small, { key: 'big', dtype: 'float32', shape: [700, 1000] }], (k) => k % 1000);
    expect(await bench.pulled(1, 'w', 4)).toEqual([0, 1, 2, 3]);
    const big = await bench.pulled(1, 'big', 700_000);
    expect(big.every((value, k) => value === k % 1000)).toBe(true);
    // Two servers share a large parameter.
    expect(bench.cluster.servers.map(({ core }) => core !== undefined)).toEqual([true, true]);
  });

  it('completes a version when every worker has pushed, and answers then', async () => {
    const bench = await Bench.of({ topology: sandblaster, mappable });
    await bench.init([small]);
    const first = bench.push(0, 'w', Float32Array.of(1, 2, 3, 4));
    const early = bench.pull(0, 'w', 16);
    await bench.cluster.settle();
    expect([first.done, early.outcome.done]).toEqual([false, false]);
    // A worker that has not pushed sees the version before.
    expect(await bench.pulled(1, 'w', 4)).toEqual([0, 0, 0, 0]);
    const second = bench.push(1, 'w', Float32Array.of(10, 20, 30, 40));
    await bench.cluster.settle();
    expect([first, second, early.outcome]).toEqual(Array.from({ length: 3 }, () => ({ done: true, error: undefined })));
    // Without optimiser the sum is the new value.
    expect([...early.floats]).toEqual([11, 22, 33, 44]);
    expect(await bench.info(0, 'w')).toMatchObject({ version: 1, ahead: 0, dtype: 'float32', shape: [4] });
  });

  it('pushes and pulls many keys in one operation, also into the pushed memory', async () => {
    const bench = await Bench.of({ topology: sandblaster, mappable });
    const parameters = Array.from({ length: 40 }, (_, k): Parameter => ({ key: `k${k}`, dtype: 'float32', shape: [1 + 700 * k] }));
    await bench.init(parameters);
    for (let round = 1; round <= 3; round++) {
      const blocks = [0, 1].map((worker) =>
        parameters.map(({ shape }, k) => bench.block(worker, new Float32Array(shape[0]).fill(round + k + 100 * worker))),
      );
      const outcomes = [0, 1].map((worker) =>
        bench.begin(
          worker,
          parameters.map(({ key }, k) => ({ key, push: blocks[worker][k].ref, out: blocks[worker][k].ref })),
        ),
      );
      await bench.cluster.settle();
      expect(outcomes.map(({ done, error }) => done && error === undefined)).toEqual([true, true]);
      for (const [worker, mine] of blocks.entries()) {
        for (const [k, block] of mine.entries()) {
          const values = new Float32Array(block.view.buffer);
          if (!values.every((value) => value === 2 * (round + k) + 100)) expect.fail(`worker ${worker}, ${k}: ${values.join()}`);
        }
      }
    }
  });

  it('applies the optimiser to the sum; rounds may run ahead', async () => {
    const bench = await Bench.of({ topology: sandblaster, mappable });
    await bench.init([small], () => 1000);
    await bench.setOptimizer();
    const ahead = [1, 2, 3].map((value) => bench.push(0, 'w', new Float32Array(4).fill(value)));
    await bench.cluster.settle();
    expect(ahead.map(({ done }) => done)).toEqual([false, false, false]);
    expect(await bench.info(0, 'w')).toMatchObject({ version: 0, ahead: 3 });
    const follow = [10, 20].map((value) => bench.push(1, 'w', new Float32Array(4).fill(value)));
    await bench.cluster.settle();
    expect([...ahead, ...follow].map(({ done }) => done)).toEqual([true, true, false, true, true]);
    expect(await bench.pulled(1, 'w', 4)).toEqual(Array.from({ length: 4 }, () => 1033));
  });

  it.each([
    { creditBytes: 64, when: 'later, and not at all if it is answered before' },
    { creditBytes: 31, when: 'at once, if less than half of the credit is left' },
  ])('a server says that it has a request $when', async ({ creditBytes }) => {
    const topology: KVTopology = { ...sandblaster, serversPerGroup: 1 };
    const bench = await Bench.of({ topology, mappable, client: { creditBytes } });
    await bench.init([{ ...small, key: 'w' }]);
    const { cluster } = bench;
    const messages = async (after: () => unknown): Promise<number> => {
      const before = cluster.delivered;
      after();
      await cluster.settle();
      return cluster.delivered - before;
    };
    // The servers map their memory.
    const gradients = [0, 1].map((worker) => bench.block(worker, new Float32Array(4)).ref);
    const push = (worker: number): unknown => bench.begin(worker, [{ key: 'w', push: gradients[worker] }]);
    await messages(() => [push(0), push(1)]);
    const early = creditBytes < 32 ? 1 : 0;
    expect(await messages(() => push(0))).toBe(1 + early);
    expect(await messages(() => push(1))).toBe(1 + 2);
    expect(await messages(() => cluster.clock.advance(2))).toBe(0);
    expect(await messages(() => push(0))).toBe(1 + early);
    expect(await messages(() => cluster.clock.advance(2))).toBe(1 - early);
  });

  it('sends what is urgent first; it overtakes what waits, and not what is under way', async () => {
    const count = 1000;
    // Any two exceed the credit: one push is under way at a time.
    const alone = { creditBytes: 4 * count };
    /** Keys in the order in which their pushes end. A push begins at once, or when another has ended. */
    const orderOf = async (
      pushes: readonly { key: string; priority: number; after?: string }[],
      client: Partial<ClientOptions> = alone,
    ): Promise<string> => {
      const place: KVTopology = { ...sandblaster, workersPerGroup: 1, serversPerGroup: 1 };
      const bench = await Bench.of({ topology: place, mappable, client });
      await bench.init(pushes.map(({ key }) => ({ key, dtype: 'float32', shape: [count] })));
      const entries = pushes.map(({ key }) => ({ key, push: bench.block(0, new Float32Array(count)).ref }));
      // The server maps their memory, and nothing waits for that afterwards.
      bench.begin(0, entries);
      await bench.cluster.settle();
      const outcomes = new Map<string, Outcome>();
      const order: string[] = [];
      do {
        for (const [k, { key, priority, after }] of pushes.entries()) {
          if (outcomes.has(key) || (after !== undefined && !order.includes(after))) continue;
          outcomes.set(key, bench.begin(0, [entries[k]], { priority }));
        }
        await bench.cluster.breathe();
        for (const [key, { done }] of outcomes) if (done && !order.includes(key)) order.push(key);
      } while (bench.cluster.deliverOne());
      return order.join('');
    };
    const alike = ['a', 'b', 'c', 'd'].map((key) => ({ key, priority: 0 }));
    expect(await orderOf(alike)).toBe('abcd');
    expect(await orderOf(alike.map(({ key }, k) => ({ key, priority: [0, 1, 3, 2][k] })))).toBe('acdb');
    expect(await orderOf(alike.map(({ key }, k) => ({ key, priority: [0, -2, -1, 7][k] })))).toBe('adcb');
    expect(await orderOf([...alike, { key: 'u', priority: 1, after: 'a' }])).toBe('abucd');

    // Two have room, unless something else of the process has taken it.
    const arbiter = new Arbiter();
    const shared = { creditBytes: 8 * count, arbiter };
    const urgentLast = alike.map(({ key }, k) => ({ key, priority: [0, 1, 3, 2][k] }));
    expect(await orderOf(urgentLast, shared)).toBe('abcd');
    const resource = mappable ? 'memory' : 'network';
    const group = arbiter.open({ creditBytes: () => 8 * count, resource, onRoom: () => undefined });
    group.started(4 * count + 1);
    expect(await orderOf(urgentLast, shared)).toBe('acdb');
  });

  it('is itself the one that fails, when others make room and it cannot send', async () => {
    const arbiter = new Arbiter();
    const place: KVTopology = { ...sandblaster, workersPerGroup: 1, serversPerGroup: 1 };
    const bench = await Bench.of({ topology: place, mappable, client: { creditBytes: 32, arbiter } });
    await bench.init([small, { ...small, key: 'v' }]);
    const blocks = ['w', 'v'].map((key) => ({ key, push: bench.block(0, new Float32Array(4)).ref }));
    bench.begin(0, blocks);
    await bench.cluster.settle();
    const group = arbiter.open({ creditBytes: () => 32, resource: mappable ? 'memory' : 'network', onRoom: () => undefined });
    group.started(32);
    const [, waiting] = blocks.map((block) => bench.begin(0, [block]));
    const full = new ShoalError('out-of-memory', 'no room');
    bench.cluster.failNextSend(full);
    group.finished(32);
    expect(() => group.offerRoom()).not.toThrow();
    expect(waiting).toEqual({ done: true, error: full });
  });

  it('carries every dtype', async () => {
    const bench = await Bench.of({ topology: sandblaster, mappable });
    const all = ['float64', 'float16', 'int64', 'int32', 'int8', 'uint32', 'uint16', 'uint8'] as const;
    await bench.init(all.map((dtype) => ({ key: dtype, dtype, shape: [3, 5] })));
    for (const dtype of all) {
      const values = viewOf(dtype, new ArrayBuffer(15 * dtypeInfo(dtype).bytes), 0, 15) as Int32Array;
      for (let k = 0; k < 15; k++) values[k] = (dtype === 'int64' ? BigInt(k) : dtype === 'float16' ? 0x3c00 : k) as number;
      const outcomes = [bench.push(0, dtype, values), bench.push(1, dtype, values)];
      const out = bench.cluster.clients[1].values.allocate(values.byteLength);
      outcomes.push(bench.begin(1, [{ key: dtype, out: out.ref }]));
      await bench.cluster.settle();
      expect(outcomes.map(({ error }) => error)).toEqual([undefined, undefined, undefined]);
      const expected = Array.from(values, (value) => (dtype === 'float16' ? 0x4000 : value + value));
      expect(Array.from(viewOf(dtype, out.view.buffer, 0, 15) as Int32Array)).toEqual(expected);
    }
  });

  it('pushes rows, sums them over workers and changes no others', async () => {
    const bench = await Bench.of({ topology: sandblaster, mappable, client: { sliceBytes: 512 } });
    await bench.init([{ key: 'table', dtype: 'float32', shape: [100_000, 3] }], () => 5);
    await bench.setOptimizer();
    const outcomes: (ShoalError | undefined)[] = [];
    const rows = [Uint32Array.of(0, 7, 99_999), Uint32Array.of(7, 50_000)];
    for (const worker of [0, 1]) {
      const values = bench.block(worker, new Float32Array(rows[worker].length * 3).fill(worker + 1)).ref;
      bench.cluster.clients[worker].core.rows(worker, 'push', { key: 'table', rows: rows[worker], values, priority: 0 }, (error) =>
        outcomes.push(error),
      );
    }
    await bench.cluster.settle();
    expect(outcomes).toEqual([undefined, undefined]);
    const out = bench.cluster.clients[1].values.allocate(6 * 12);
    const wanted = Uint32Array.of(99_999, 7, 7, 1, 50_000, 0);
    await bench.cluster.run<void>((done) =>
      bench.cluster.clients[1].core.rows(1, 'pull', { key: 'table', rows: wanted, values: out.ref, priority: 0 }, done),
    );
    expect([...new Float32Array(out.view.buffer)].filter((_, k) => k % 3 === 2)).toEqual([6, 8, 8, 5, 7, 6]);
    expect(await bench.info(0, 'table')).toMatchObject({ version: 1 });
  });

  it('sums the workers of one process before anything leaves it', async () => {
    const topology = { ...sandblaster, workersPerGroup: 4, serversPerGroup: 1 };
    const bench = await Bench.of({ topology, localWorkers: 2, mappable });
    const before = bench.cluster.delivered;
    const client = bench.cluster.clients[0];
    const outcomes: (ShoalError | undefined)[] = [];
    for (let worker = 0; worker < 4; worker++) {
      const value = bench.block(worker, Float32Array.of(7, 7)).ref;
      bench.cluster
        .clientOf(worker)
        .core.init(worker, [{ key: 'x', dtype: 'float32', shape: [2], value }], (error) => outcomes.push(error));
    }
    await bench.cluster.settle();
    expect(outcomes).toEqual([undefined, undefined, undefined, undefined]);
    const outs = Array.from({ length: 4 }, (_, worker) => bench.block(worker, Float32Array.of(worker, 10 * worker)));
    const mid = bench.cluster.delivered;
    const results = outs.map((out, worker) => bench.begin(worker, [{ key: 'x', push: out.ref, out: out.ref }]));
    await bench.cluster.settle();
    expect(results.every(({ done, error }) => done && error === undefined)).toBe(true);
    for (const out of outs) expect([...new Float32Array(out.view.buffer)]).toEqual([6, 60]);
    // One update and one answer per process, besides memory being announced and one "accepted".
    expect(bench.cluster.delivered - mid).toBeLessThanOrEqual(mappable ? 9 : 5);
    expect(mid).toBeGreaterThan(before);
    expect(client.values.allocated).toBeGreaterThan(0);
  });

  it('decodes compressed gradients and keeps what compression lost', async () => {
    const bench = await Bench.of({ topology: sandblaster, mappable });
    await bench.init([{ key: 'w', dtype: 'float32', shape: [5] }]);
    await bench.setOptimizer();
    let total = 0;
    for (let round = 0; round < 20; round++) {
      const gradient = 1 + round / 1000;
      total += 2 * gradient;
      const outcomes = [0, 1].map((worker) =>
        bench.begin(worker, [{ key: 'w', push: bench.block(worker, new Float32Array(5).fill(gradient)).ref }], { codec: testCodec }),
      );
      await bench.cluster.settle();
      expect(outcomes.map(({ done, error }) => [done, error])).toEqual([
        [true, undefined],
        [true, undefined],
      ]);
    }
    // Error feedback: never more than one step of the codec (2⁻⁷ of each gradient) is missing.
    for (const value of await bench.pulled(0, 'w', 5)) expect(Math.abs(value - total)).toBeLessThan(2 * 2 ** -6);
  });
});

describe('topologies', () => {
  it('Downpour: worker groups do not wait for each other; staleness is what the others did', async () => {
    const bench = await Bench.of({ topology: downpour });
    await bench.init([small]);
    await bench.setOptimizer();
    expect(await bench.pulled(1, 'w', 4)).toEqual([0, 0, 0, 0]);
    for (let k = 0; k < 3; k++) {
      const outcome = bench.push(0, 'w', Float32Array.of(1, 1, 1, 1));
      await bench.cluster.settle();
      expect(outcome.done).toBe(true);
    }
    expect(await bench.info(1, 'w')).toMatchObject({ version: 3, staleness: 3, ahead: 0 });
    expect(await bench.info(0, 'w')).toMatchObject({ version: 3, staleness: 0 });
    expect(await bench.pulled(1, 'w', 4)).toEqual([3, 3, 3, 3]);
    expect(await bench.info(1, 'w')).toMatchObject({ staleness: 0 });
  });

  it('Downpour without optimiser is refused: groups would overwrite each other', async () => {
    const bench = await Bench.of({ topology: downpour });
    await bench.init([small]);
    const outcome = bench.push(1, 'w', Float32Array.of(1, 1, 1, 1));
    await bench.cluster.settle();
    expect(outcome.error).toMatchObject({ code: 'usage', message: expect.stringContaining('setOptimizer') as string });
  });

  it('Hogwild: no update is lost that is made while server groups exchange', async () => {
    // Updates 1, 10 and 100, the second while the first is on its way: the original ends at 101.
    for (let seed = 0; seed < 30; seed++) {
      const bench = await Bench.of({ topology: hogwild, seed });
      await bench.init([small]);
      await bench.setOptimizer();
      for (const value of [1, 10, 100]) {
        bench.push(0, 'w', new Float32Array(4).fill(value));
        for (let k = 0; k < seed % 7; k++) bench.cluster.deliverOne();
      }
      bench.push(1, 'w', new Float32Array(4).fill(1000));
      await bench.exchanged();
      for (const worker of [0, 1]) expect(await bench.pulled(worker, 'w', 4)).toEqual([1111, 1111, 1111, 1111]);
      expect(bench.cluster.faults).toEqual([]);
    }
  });

  it.each([1, 3, 100])('Hogwild: a group that pushes nothing learns what others push; an exchange every %i updates', async (syncEvery) => {
    const topology = { ...hogwild, workerGroups: 3, serverGroups: 3 };
    const bench = await Bench.of({ topology, server: { syncEvery } });
    // One that each group is the master of.
    const keys = ['a', 'b', 'c', 'd'];
    await bench.init(keys.map((key) => ({ key, dtype: 'float32', shape: [20_000] })));
    await bench.setOptimizer();
    const sums = [0, 0, 0, 0];
    for (const pusher of [0, 1, 2]) {
      for (let step = 1; step <= 4; step++) {
        for (const [k, key] of keys.entries()) {
          sums[k] += step + k;
          bench.push(pusher, key, new Float32Array(20_000).fill(step + k));
        }
        await bench.cluster.settle();
      }
      const other = (pusher + 1) % 3;
      for (const key of keys) await bench.pulled(other, key, 20_000);
      await bench.exchanged();
      for (const worker of [0, 1, 2]) {
        for (const [k, key] of keys.entries()) {
          expect({ worker, key, values: new Set(await bench.pulled(worker, key, 20_000)) }).toEqual({
            worker,
            key,
            values: new Set([sums[k]]),
          });
          expect(await bench.info(worker, key)).toMatchObject({ version: 4 * (pusher + 1), ahead: 0, staleness: 0 });
        }
      }
    }
    bench.push(0, 'a', new Float32Array(20_000).fill(1));
    await bench.exchanged();
    for (const worker of [1, 2]) expect(await bench.info(worker, 'a')).toMatchObject({ staleness: 1 });
    // Nothing is sent when nothing changes.
    const before = bench.cluster.delivered;
    for (let k = 0; k < 5; k++) await bench.exchanged();
    expect(bench.cluster.delivered).toBe(before);
    expect(bench.cluster.faults).toEqual([]);
  });

  it('Hogwild: barriers and leaving span server groups', async () => {
    const bench = await Bench.of({ topology: hogwild });
    await bench.init([small]);
    const reached: number[] = [];
    bench.cluster.clients[0].core.barrier(0, () => reached.push(0));
    await bench.cluster.settle();
    expect(reached).toEqual([]);
    bench.cluster.clients[1].core.barrier(1, () => reached.push(1));
    await bench.cluster.settle();
    expect(reached.toSorted((a, b) => a - b)).toEqual([0, 1]);
    for (const [worker, client] of bench.cluster.clients.entries())
      await bench.cluster.run<void>((done) => client.core.leave(worker, done));
    expect([...bench.cluster.served].toSorted()).toEqual(['0/0', '0/1', '1/0', '1/1']);
  });
});

describe('what can go wrong', () => {
  it('refuses misuse at the worker, in words', async () => {
    const bench = await Bench.of({ topology: sandblaster });
    await bench.init([small]);
    const [client] = bench.cluster.clients;
    const value = bench.block(0, new Float32Array(4)).ref;
    const transfer = bench.cluster.run((done) => client.core.transfer(0, { entries: [{ key: 'v', push: value }], priority: 0 }, done));
    await expect(transfer).rejects.toMatchObject({ code: 'usage', message: expect.stringMatching(/'v' is unknown; call init/) as string });
    const init = bench.cluster.run((done) => client.core.init(0, [{ ...small, value }], done));
    await expect(init).rejects.toMatchObject({ code: 'usage', message: expect.stringMatching(/initialised 'w' already/) as string });
    expect(bench.cluster.faults).toEqual([]);
  });

  it('compares what workers initialise', async () => {
    const bench = await Bench.of({ topology: sandblaster });
    const errors: (ShoalError | undefined)[] = [];
    const value = (worker: number, count: number) => bench.block(worker, new Float32Array(count)).ref;
    bench.cluster.clients[0].core.init(0, [{ key: 'w', dtype: 'float32', shape: [4], value: value(0, 4) }], (error) => errors.push(error));
    bench.cluster.clients[1].core.init(1, [{ key: 'w', dtype: 'float32', shape: [5], value: value(1, 5) }], (error) => errors.push(error));
    await bench.cluster.settle();
    const failed = errors.find((error) => error !== undefined);
    expect(failed).toMatchObject({ code: 'mismatch' });
    expect(failed!.message).toContain("'w' is float32 [5] at worker 1 and float32 [4] at worker 0");
  });

  it('refuses a gradient that is not finite, on all workers, by name', async () => {
    const bench = await Bench.of({ topology: sandblaster });
    await bench.init([small, { key: 'v', dtype: 'float32', shape: [2] }]);
    await bench.setOptimizer({ ...adding, nonFinite: 'refuse' });
    const entries = (worker: number, w: number): TransferEntry[] => [
      { key: 'w', push: bench.block(worker, Float32Array.of(1, w, 1, 1)).ref },
      { key: 'v', push: bench.block(worker, Float32Array.of(1, 1)).ref },
    ];
    const outcomes = [bench.begin(0, entries(0, 1)), bench.begin(1, entries(1, NaN))];
    await bench.cluster.settle();
    for (const { error } of outcomes) {
      expect(error).toMatchObject({ code: 'usage' });
      expect(error!.message).toMatch(/gradient of worker 1 for 'w' holds NaN or infinity/);
    }
    expect(await bench.info(0, 'w')).toMatchObject({ version: 0, ahead: 0 });
    expect(await bench.info(0, 'v')).toMatchObject({ version: 1 });
    // The next round is like any other.
    const next = [bench.begin(0, entries(0, 2)), bench.begin(1, entries(1, 2))];
    await bench.cluster.settle();
    expect(next.map(({ error }) => error)).toEqual([undefined, undefined]);
    expect(await bench.pulled(0, 'w', 4)).toEqual([2, 4, 2, 2]);
  });

  it.each([{ mappable: true }, { mappable: false }])(
    'refuses all slices of a value in which one is not finite, mapped: $mappable',
    async ({ mappable }) => {
      const bench = await Bench.of({ topology: sandblaster, mappable, client: { sliceBytes: 4096 } });
      const count = 10_000;
      await bench.init([{ key: 'cut', dtype: 'float32', shape: [count / 4, 4] }, small], () => 9);
      await bench.setOptimizer({ ...adding, nonFinite: 'refuse' });
      // Worker 0's own call has told it, the barrier tells the others.
      for (const worker of [0, 1]) bench.cluster.clients[worker].core.barrier(worker, () => undefined);
      await bench.cluster.settle();
      const gradients = [0, 1].map(() => new Float32Array(count).fill(1));
      gradients[1][count - 1] = Infinity;
      const begin = (): Outcome[] =>
        gradients.map((gradient, worker) =>
          bench.begin(worker, [
            { key: 'cut', push: bench.block(worker, gradient).ref },
            { key: 'w', push: bench.block(worker, new Float32Array(4).fill(1)).ref },
          ]),
        );
      const refused = begin();
      await bench.cluster.settle();
      for (const { error } of refused) {
        expect(error).toMatchObject({
          code: 'usage',
          message: "the gradient of worker 1 for 'cut' holds NaN or infinity; the push was refused",
        });
      }
      expect(new Set(await bench.pulled(0, 'cut', count))).toEqual(new Set([9]));
      expect(await bench.info(0, 'cut')).toMatchObject({ version: 0, ahead: 0 });
      // Its neighbour in the same push is another value.
      expect(await bench.info(0, 'w')).toMatchObject({ version: 1 });
      // Rows are parts of one push as well.
      const rows = Uint32Array.of(0, 2000);
      const errors: (ShoalError | undefined)[] = [];
      for (const worker of [0, 1]) {
        const values = bench.block(worker, Float32Array.of(1, 1, 1, 1, 1, worker === 1 ? NaN : 1, 1, 1)).ref;
        bench.cluster.clients[worker].core.rows(worker, 'push', { key: 'cut', rows, values, priority: 0 }, (error) => errors.push(error));
      }
      await bench.cluster.settle();
      for (const error of errors) expect(error?.message).toMatch(/gradient of worker 1 for 'cut' holds NaN/);
      expect(errors).toHaveLength(2);
      expect(new Set(await bench.pulled(0, 'cut', count))).toEqual(new Set([9]));
      // The next round is like any other.
      gradients[1][count - 1] = 1;
      const next = begin();
      await bench.cluster.settle();
      expect(next.map(({ error }) => error)).toEqual([undefined, undefined]);
      expect(new Set(await bench.pulled(0, 'cut', count))).toEqual(new Set([11]));
      expect(bench.cluster.faults).toEqual([]);
    },
  );

  it('a timeout says who is awaited; others hear of a push that was given up', async () => {
    const bench = await Bench.of({ topology: { ...sandblaster, workersPerGroup: 3 } });
    await bench.init([{ ...small, key: 'w1' }]);
    const late = bench.begin(0, [{ key: 'w1', push: bench.block(0, new Float32Array(4)).ref }], { timeoutMs: 5000 });
    const other = bench.push(1, 'w1', new Float32Array(4));
    await bench.cluster.settle();
    // Servers say a little later that they have a request.
    bench.cluster.clock.advance(2);
    await bench.cluster.settle();
    const facts = bench.cluster.clientOf(0).core.facts();
    await bench.cluster.settle();
    const wait = { text: expect.stringContaining("round 1 of 'w1': worker 2 has not pushed") as string, ranks: [2] };
    expect(await facts).toMatchObject({ pending: 1, oldest: wait });
    for (let k = 0; k < 6; k++) {
      bench.cluster.clock.advance(1000);
      await bench.cluster.settle();
    }
    expect(late.error).toMatchObject({ code: 'timeout', timeoutMs: 5000 });
    expect(late.error!.message).toMatch(/round 1 of 'w1': worker 2 has not pushed; do they run, and make the same calls\?/);
    expect(other.error!.message).toMatch(/round 1 of 'w1' cannot be completed: worker 0/);
    const after = bench.push(0, 'w1', new Float32Array(4));
    expect(after.error).toMatchObject({ code: 'aborted' });
  });

  it('a barrier that is not complete names the workers that are not there', async () => {
    const bench = await Bench.of({ topology: { ...sandblaster, workersPerGroup: 3 } });
    const errors: (ShoalError | undefined)[] = [];
    for (const worker of [0, 2]) bench.cluster.clientOf(worker).core.barrier(worker, (error) => errors.push(error));
    await bench.cluster.settle();
    for (let k = 0; k < 61; k++) {
      bench.cluster.clock.advance(1000);
      await bench.cluster.settle();
    }
    expect(errors.map((error) => error?.code)).toEqual(['timeout', 'timeout']);
    expect(errors[0]?.message).toMatch(/^barrier of worker 0 timed out after 60000 ms: worker 1 not there; do they run/);
  });

  it.each([
    { topology: sandblaster, reason: 'worker 0 has not initialised the parameter' },
    { topology: hogwild, reason: 'its first value has not come from server group 0' },
  ])('an init of others than worker 0 says what it waits for, on $topology.serverGroups server groups', async ({ topology, reason }) => {
    const bench = await Bench.of({ topology });
    const value = bench.block(1, new Float32Array(4)).ref;
    const errors: (ShoalError | undefined)[] = [];
    bench.cluster.clientOf(1).core.init(1, [{ ...small, value }], (error) => errors.push(error));
    await bench.cluster.settle();
    for (let k = 0; k < 61; k++) {
      bench.cluster.clock.advance(1000);
      await bench.cluster.settle();
    }
    expect(errors).toMatchObject([{ code: 'timeout', message: `init of 'w' by worker 1 timed out after 60000 ms: ${reason}` }]);
    // Nobody else's wait has been taken back with it.
    const [after, first] = [1, 0].map((worker) => {
      const outcome: { error?: ShoalError | undefined; done: boolean } = { done: false };
      const entries = [{ ...small, key: 'later', value: bench.block(worker, new Float32Array(4)).ref }];
      bench.cluster.clientOf(worker).core.init(worker, entries, (error) => Object.assign(outcome, { done: true, error }));
      return outcome;
    });
    await bench.cluster.settle();
    expect([first, after]).toEqual([
      { done: true, error: undefined },
      { done: true, error: undefined },
    ]);
  });

  it('a worker that leaves or is lost is named', async () => {
    const bench = await Bench.of({ topology: sandblaster });
    await bench.init([small]);
    const waiting = bench.push(0, 'w', new Float32Array(4));
    await bench.cluster.settle();
    await bench.cluster.run<void>((done) => bench.cluster.clients[1].core.leave(1, done));
    expect(waiting.error).toMatchObject({ code: 'aborted' });
    expect(waiting.error!.message).toContain("round 1 of 'w' cannot be completed: worker 1: has left the store");
  });

  it('a server that comes back without its state is an error', async () => {
    const bench = await Bench.of({ topology: sandblaster });
    await bench.init([small]);
    const [server] = bench.cluster.servers;
    bench.cluster.kill(server);
    await bench.cluster.restart(server);
    await bench.cluster.settle();
    const outcome = bench.push(0, 'w', new Float32Array(4));
    expect(outcome.error!.message).toContain('server 0 has restarted without its state');
    // Whoever leaves such a server does not wait for what it does not know.
    await bench.cluster.run<void>((done) => bench.cluster.clients[0].core.leave(0, done));
  });

  it('a server whose latest checkpoint is damaged begins with the one before; workers that know of later updates say so', async () => {
    const bench = await Bench.of({ topology: { ...sandblaster, workersPerGroup: 1, serversPerGroup: 1 }, disks: true });
    await bench.init([small]);
    const [server] = bench.cluster.servers;
    const push = async (value: number): Promise<void> => {
      bench.push(0, 'w', new Float32Array(4).fill(value));
      await bench.cluster.settle();
      bench.cluster.clock.advance(60_000);
      await bench.cluster.settle();
    };
    const restart = async (): Promise<void> => {
      bench.cluster.kill(server);
      await bench.cluster.restart(server);
      await bench.cluster.settle();
    };
    await push(1);
    await push(2);
    await restart();
    expect(await bench.pulled(0, 'w', 4)).toEqual([2, 2, 2, 2]);
    await push(3);
    server.disk!.damage();
    await restart();
    const outcome = bench.push(0, 'w', new Float32Array(4));
    expect(outcome.error!.message).toContain('server 0 has come back with an older state than it had saved');
  });
});

it('state is written once, and nobody else writes there meanwhile, however often it is asked for', async () => {
  const disk = new SimulatedDisk();
  const writing: (() => void)[] = [];
  let together = 0;
  // A store of snapshots is, like a folder, another object each time.
  const storeAt = (): SnapshotStore => ({
    save: async (snapshot) => {
      const done = new Promise<void>((resolve) => writing.push(resolve));
      together = Math.max(together, writing.length);
      await done;
      disk.immediate = true;
      await disk.save(snapshot);
    },
    saves: () => disk.saves(),
    load: (save) => disk.load(save),
  });
  const bench = await Bench.of({ topology: { ...sandblaster, serversPerGroup: 1 }, server: { storeAt } });
  await bench.init([small]);
  const { cluster } = bench;
  let saved: ShoalError | 'waits' | undefined = 'waits';
  cluster.clients[0].core.state(0, 'save', 'folder', (error) => (saved = error));
  await cluster.settle();
  for (let k = 0; k < 2; k++) {
    // It asks again for what has not been answered.
    cluster.reconnect(cluster.clients[0], cluster.servers[0]);
    await cluster.settle();
  }
  expect(saved).toBe('waits');
  while (writing.length > 0) {
    writing.shift()?.();
    await cluster.settle();
  }
  expect({ saved, together, written: disk.written }).toEqual({ saved: undefined, together: 1, written: 1 });
});

it('memory that is freed while a server is asked whether it can map it stays mapped nowhere', async () => {
  const bench = await Bench.of({ topology: { ...sandblaster, workersPerGroup: 1, serversPerGroup: 1 } });
  const large: Parameter = { key: 'large', dtype: 'float32', shape: [4096] };
  await bench.init([large]);
  const { cluster } = bench;
  const { core, values, address } = cluster.clients[0];
  const out = values.allocate(4 * 4096);
  const late = bench.begin(0, [{ key: 'large', out: out.ref }], { timeoutMs: 1000 });
  cluster.clock.advance(1000);
  expect(late).toMatchObject({ done: true, error: { code: 'timeout' } });
  core.forgetRegion(out.ref.region);
  out.free();
  await cluster.settle();
  expect(() => cluster.servers[0].remotes.get(address)?.view({ ...out.ref, bytes: 1 })).toThrow('were not announced');
});
