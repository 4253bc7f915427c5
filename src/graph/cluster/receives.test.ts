/** Receives between tasks by rendezvous' protocol: what they cost, who owns what came, and connections that break. */
import { describe, expect, it } from 'vitest';
import { sleep, systemClock } from '../../base/clock.ts';
import { seededRandom } from '../../base/random.ts';
import { abortConnection } from '../../fabric/abortable.ts';
import type { Connection } from '../../fabric/fabric.ts';
import type { TcpFabric } from '../../fabric/providers/tcp.ts';
import type { TensorCounters } from '../../rendezvous/protocol/counters.ts';
import { placeholder } from '../ops/array.ts';
import { call } from '../ops/call.ts';
import { addN } from '../ops/math.ts';
import { assign, variable } from '../ops/state.ts';
import { GraphBuilder } from '../structure/builder.ts';
import { elementsOf } from '../structure/elements.ts';
import type { Output } from '../structure/graph-node.ts';
import type { Value } from '../structure/value.ts';
import { dense, scalarOf } from '../testing/kernels.ts';
import { startLocalCluster } from '../testing/local-cluster.ts';
import { recordedTcp } from '../testing/recorded-fabric.ts';
import { TaskTensors, type TaskTensorsOptions } from './task-tensors.ts';

type Floats = Output<'float32'>;
const ps = '/job:ps/task:0';
const numbers = (value: Value | undefined): number[] => [...(elementsOf(value as Value) as Float32Array)];
const connections: Connection[] = [];

async function start(
  functions: Record<string, (inputs: readonly Value[]) => readonly Value[] | Promise<readonly Value[]>>,
  recvSome = false,
) {
  const made: TaskTensors[] = [];
  class Tensors extends TaskTensors {
    constructor(options: TaskTensorsOptions) {
      super(options);
      made.push(this);
    }
  }
  const createFabric = (rank: number): TcpFabric => recordedTcp(connections, rank, new Uint8Array(16));
  const cluster = await startLocalCluster({ worker: 1, ps: 1 }, { functions, recvSome, createFabric, Tensors, reconnectMs: 60_000 });
  const [{ counters: worker }, { counters: server }] = made;
  return { cluster, worker, server };
}

const since = (now: TensorCounters, before: TensorCounters, keys: readonly (keyof TensorCounters)[]): number[] =>
  keys.map((key) => now[key] - before[key]);

/** `count` tensors of the sender, of growing sizes, that depend on what is fed; their sum here. */
function fan(count: number): { g: GraphBuilder; x: Floats; total: Output } {
  const g = new GraphBuilder();
  const x = placeholder(g, 'float32', []);
  const outputs = Array.from({ length: count }, (_, k) => ({ dtype: 'float32', shape: [sizeOf(k)] }) as const);
  const sent = call(g, 'make', [x], outputs, { device: ps });
  const [total] = call(g, 'sum', sent, [{ dtype: 'float32', shape: [] }]);
  return { g, x, total };
}

const sizeOf = (k: number): number => 1 + ((k * 997) % 9000);
const make =
  (count: number) =>
  ([x]: readonly Value[]): Value[] =>
    Array.from({ length: count }, (_, k) =>
      dense(
        [sizeOf(k)],
        Array.from({ length: sizeOf(k) }, () => numbers(x)[0] + k),
      ),
    );
const sum = (values: readonly Value[]): Value[] => [scalarOf(values.reduce((total, value) => total + numbers(value).at(-1)!, 0))];

describe('receives between tasks', () => {
  it.each([
    ['one request, a write for each of its tensors', true, false, 1],
    ['a request for each tensor', false, false, 20],
    ['one request at run time', false, true, 1],
  ])('cost %s, and no copies', async (_, doFuseRecv, recvSome, requests) => {
    const { cluster, worker, server } = await start({ make: make(20), sum }, recvSome);
    await using _cluster = cluster;
    const { g, x, total } = fan(20);
    const { worker0 } = cluster.tasks;
    const session = await worker0.session(g.finish(), { doFuseRecv, fuse: { tensorsMax: 1000, bytesMax: 2 ** 30 } });
    // The first step learns what tensors are like.
    await session.run([[x, scalarOf(1)]], [total]);
    const [before, beforeThere, asked] = [{ ...worker }, { ...server }, worker0.stats.requests];
    for (let k = 0; k < 3; k++) expect(numbers((await session.run([[x, scalarOf(k)]], [total]))[0])).toEqual([20 * k + 190]);
    expect(worker0.stats.requests - asked).toBe(3 * requests);
    expect(since(worker, before, ['requests', 'rerequests', 'bytesCopied'])).toEqual([3 * (doFuseRecv ? 1 : 20), 0, 0]);
    expect(since(server, beforeThere, ['writes', 'bytesCopied'])).toEqual([60, 0]);
    // Values that the worker fed went as part of the call.
    if (doFuseRecv) expect(since(server, beforeThere, ['immediates'])).toEqual([3]);
  });

  it('bring values that stay as they are: in variables, with the program, with functions that keep them', async () => {
    const held: [Value, number][] = [];
    const functions = {
      make: ([x]: readonly Value[]) => [
        x,
        dense(
          [5000],
          Array.from({ length: 5000 }, () => numbers(x)[0]),
        ),
      ],
      hold: ([small, large]: readonly Value[]) => {
        const [value] = numbers(small);
        held.push([small, value], [{ ...large, data: (large.data as Float32Array).subarray(7, 9), shape: [2] }, value]);
        return [small];
      },
    };
    const { cluster } = await start(functions);
    await using _cluster = cluster;
    const g = new GraphBuilder();
    const x = placeholder(g, 'float32', []);
    const shapes = [[], [5000]].map((shape) => ({ dtype: 'float32', shape }) as const);
    const [small, large] = call(g, 'make', [x], shapes, { device: ps });
    const [same] = call(g, 'hold', [small, large], [shapes[0]]);
    const [keptSmall, keptLarge] = shapes.map(({ shape }, k) => variable(g, 'float32', [...shape], { name: `kept_${k}` }));
    const steps = [assign(g, keptSmall, small), assign(g, keptLarge, large)].map(({ node }) => node);
    const session = await cluster.tasks.worker0.session(g.finish());
    const fetched: Value[] = [];
    const before = cluster.tasks.worker0.stats.bytesCopied;
    for (let k = 0; k < 40; k++) {
      const [a, b] = await session.run([[x, scalarOf(k)]], [same, large, ...steps]);
      fetched.push(a, b);
    }
    // Four bytes to the variable, and to the program; what is large changed hands.
    expect(cluster.tasks.worker0.stats.bytesCopied - before).toBe(40 * 8);
    fetched.forEach((value, k) => expect(new Set(numbers(value))).toEqual(new Set([k >> 1])));
    for (const [value, expected] of held) expect(new Set(numbers(value))).toEqual(new Set([expected]));
    // A program's value keeps no memory of others.
    for (const { data } of fetched) expect((data as Float32Array).buffer.byteLength).toBeLessThan(2 * (data as Float32Array).byteLength);
    const [a, b] = await session.run([], [keptSmall, keptLarge]);
    expect([new Set(numbers(a)), new Set(numbers(b))]).toEqual([new Set([39]), new Set([39])]);
  });

  it.each([
    ['a request for every tensor', false, false],
    ['fused requests', true, false],
    ['fusion at run time', false, true],
    ['both', true, true],
  ])('survive connections that break: steps run once, and no tensor is lost (%s)', async (_, doFuseRecv, recvSome) => {
    let made = 0;
    const functions = {
      make: async (inputs: readonly Value[]) => {
        made++;
        await sleep(systemClock, (made * 3) % 7);
        return make(12)(inputs);
      },
      sum,
    };
    const { cluster } = await start(functions, recvSome);
    await using _cluster = cluster;
    const { g, x, total } = fan(12);
    const session = await cluster.tasks.worker0.session(g.finish(), { doFuseRecv });
    const random = seededRandom(3);
    let isOver = false;
    let broken = 0;
    const breaking = (async () => {
      while (!isOver && broken < 60) {
        await sleep(systemClock, 5 + random.integer(30));
        // The connection carries calls or tensors.
        const connection = connections.at(-1 - random.integer(2));
        if (connection === undefined || isOver) continue;
        abortConnection(connection);
        broken++;
      }
    })();
    try {
      for (let k = 0; k < 12; k++) {
        const results = await Promise.all([0, 1].map((j) => session.run([[x, scalarOf(k + j)]], [total])));
        expect(results.map(([value]) => numbers(value))).toEqual([[12 * k + 66], [12 * k + 78]]);
      }
    } finally {
      isOver = true;
      await breaking;
    }
    expect(made).toBe(24);
    expect(broken).toBeGreaterThan(0);
  });

  it('are given up one by one: the others of the request come', async () => {
    let release: () => void = () => {};
    const released = new Promise<void>((resolve) => {
      release = resolve;
    });
    const functions = {
      slow: async (inputs: readonly Value[]) => {
        await released;
        return inputs;
      },
    };
    const { cluster } = await start(functions, true);
    await using _cluster = cluster;
    const g = new GraphBuilder();
    const x = placeholder(g, 'float32', []);
    const [y] = call(g, 'slow', [x], [{ dtype: 'float32', shape: [] }], { device: ps });
    const z = addN(g, [y as Floats, x]);
    const session = await cluster.tasks.worker0.session(g.finish());
    const abort = new AbortController();
    const first = session.run([[x, scalarOf(1)]], [z], { signal: abort.signal });
    const second = session.run([[x, scalarOf(2)]], [z]);
    await sleep(systemClock, 20);
    abort.abort();
    await expect(first).rejects.toMatchObject({ code: 'aborted' });
    release();
    expect(numbers((await second)[0])).toEqual([4]);
  });
});
