/** Sessions over several tasks: the same values as in one process, however tensors are received; who fails, who waits, who is gone. */
import { describe, expect, it } from 'vitest';
import { sleep, systemClock } from '../../base/clock.ts';
import { seededRandom } from '../../base/random.ts';
import { constant, identity, placeholder } from '../ops/array.ts';
import { call } from '../ops/call.ts';
import { cond, switchOn } from '../ops/control-flow.ts';
import { add, addN, less, neg } from '../ops/math.ts';
import { sum } from '../ops/reduction.ts';
import { assign, gather, scatterAdd, variable } from '../ops/state.ts';
import { Session } from '../execute/session.ts';
import { GraphBuilder } from '../structure/builder.ts';
import type { Output } from '../structure/graph-node.ts';
import type { DenseValue, Value } from '../structure/value.ts';
import { elementsOf } from '../structure/elements.ts';
import { createParameterKernels } from '../../memory/parameter-kernels/create-parameter-kernels.ts';
import { tableKernels } from '../kernels/table-kernels.ts';
import { dense, scalarOf } from '../testing/kernels.ts';
import { arithmetic, startLocalCluster, type LocalClusterOptions } from '../testing/local-cluster.ts';
import { randomGraph } from '../testing/random-graph.ts';

type Floats = Output<'float32'>;
const ps = (task: number): string => `/job:ps/task:${task}`;
const numbers = (value: Value | undefined): number[] => [...(elementsOf(value as DenseValue) as Float32Array)];

/** Eight tables on two tasks, rows of each summed here. */
function tables(): { g: GraphBuilder; ids: Output<'int32'>; inits: Output[]; total: Output; steps: Output[] } {
  const g = new GraphBuilder();
  const ids = placeholder(g, 'int32', [null], { name: 'ids' });
  const made = Array.from({ length: 8 }, (_, k) => {
    const table = variable(g, 'float32', [4, 2], { name: `table_${k}`, device: ps(k % 2) });
    const init = assign(g, table, constant(g, { ...dense([4, 2], [k, 1, 2, 3, 4, 5, 6, 7]), dtype: 'float32' }));
    const rows = gather(g, table, ids, { colocateWith: table, name: `rows_${k}` });
    return { init, step: scatterAdd(g, table, ids, rows), rows: identity(g, rows) };
  });
  const total = addN(
    g,
    made.map(({ rows }) => sum(g, rows)),
  );
  return { g, ids, inits: made.map(({ init }) => init), total, steps: made.map(({ step }) => step) };
}

const ways: readonly [string, LocalClusterOptions, boolean, number][] = [
  ['a request for every tensor', {}, false, 8 + 2],
  ['fused requests', {}, true, 2 + 2],
  ['fusion at run time', { recvSome: true }, false, 2 + 2],
  ['both', { recvSome: true }, true, 2 + 2],
];

describe('a session over several tasks', () => {
  it.each(ways)('gives what one process gives, by %s', async (_, options, doFuseRecv, requests) => {
    await using cluster = await startLocalCluster({ worker: 1, ps: 2 }, options);
    const { g, ids, inits, total, steps } = tables();
    const { worker0 } = cluster.tasks;
    const session = await worker0.session(g.finish(), { doFuseRecv });
    await session.run(
      [],
      inits.map(({ node }) => node),
    );
    const feeds = [[ids, dense([3], [3, 0, 3], 'int32')]] as const;
    const [value] = await session.run(feeds, [total]);
    expect(numbers(value)).toEqual([8 * 26 + 28 + 8]);
    await session.run(
      feeds,
      steps.map(({ node }) => node),
    );
    expect(numbers((await session.run(feeds, [total]))[0])).toEqual([8 * 78 + 2 * (28 + 8) - 0]);
    const before = session.stats.requests;
    await session.run(feeds, [total]);
    expect(session.stats.requests - before).toBe(requests);
    const sent = worker0.stats.requests;
    await session.run(feeds, [total]);
    // At run time: one request to each of two tasks.
    if (options.recvSome === true) expect(worker0.stats.requests - sent).toBe(2);
  });

  it.each(ways.slice(0, 3))('computes random graphs alike, by %s', async (_, options, doFuseRecv) => {
    await using cluster = await startLocalCluster({ worker: 2, ps: 2 }, options);
    const devices = Object.values(cluster.tasks).map(({ device }) => device);
    for (let seed = 0; seed < 12; seed++) {
      const graph = randomGraph(seededRandom(seed), { nodes: 40, devices, loopShare: 0, variableShare: 0 });
      const feeds = graph.nodes
        .filter(({ op }) => op === 'Placeholder')
        .map(({ outputs: [x] }, k) => [x, x.dtype === 'int32' ? dense([1], [0], 'int32') : dense([1], [k])] as const);
      const fetches = graph.nodes.filter(({ outputs, op }) => outputs.length === 1 && op !== 'Placeholder').map(({ outputs: [x] }) => x);
      const local = new Session(graph, { devices, kernels: { ...tableKernels(createParameterKernels()), ...arithmetic } });
      const session = await cluster.tasks.worker1.session(graph, { doFuseRecv });
      const expected = await local.run(feeds, fetches).then((values) => values.map(numbers), String);
      expect(await session.run(feeds, fetches).then((values) => values.map(numbers), String), `seed ${seed}`).toEqual(
        typeof expected === 'string' ? expect.any(String) : expected,
      );
      session.close();
    }
  });

  it('does not wait at a barrier for a task that has left', async () => {
    await using cluster = await startLocalCluster({ worker: 3 });
    const { worker0: a, worker1: b, worker2: c } = cluster.tasks;
    await Promise.all([a, b, c].map((each) => each.barrier('first')));
    const waiting = [a.barrier('second'), b.barrier('second')];
    await c.close();
    for (const each of waiting)
      await expect(each).rejects.toMatchObject({
        code: 'peer-lost',
        message: expect.stringMatching(/^\/job:worker\/task:2 has joined or closed/) as string,
      });
  });

  it('shares variables with the sessions of other tasks', async () => {
    await using cluster = await startLocalCluster({ worker: 2, ps: 2 });
    const [first, second] = [tables(), tables()];
    const [a, b] = [await cluster.tasks.worker0.session(first.g.finish()), await cluster.tasks.worker1.session(second.g.finish())];
    await a.run(
      [],
      first.inits.map(({ node }) => node),
    );
    expect(numbers((await b.run([[second.ids, dense([1], [1], 'int32')]], [second.total]))[0])).toEqual([8 * 5]);
    const other = new GraphBuilder();
    const table = variable(other, 'float32', [9], { name: 'table_0', device: ps(0) });
    const c = await cluster.tasks.worker0.session(other.finish());
    await expect(c.run([], [table])).rejects.toMatchObject({
      code: 'mismatch',
      message: expect.stringMatching(/'table_0' on \S+ holds float32\[4, 2\], and is float32\[9\] in another graph/) as string,
    });
  });

  it.each([
    [false, false],
    [true, false],
    [false, true],
    [true, true],
  ])('takes dead tensors over the wire, slot by slot (fused %s, at run time %s)', async (doFuseRecv, recvSome) => {
    await using cluster = await startLocalCluster({ worker: 1, ps: 1 }, { recvSome });
    const g = new GraphBuilder();
    const x = placeholder(g, 'float32', []);
    const zero = constant(g, { ...scalarOf(0), dtype: 'float32' });
    const [whenFalse, whenTrue] = g.withDevice(ps(0), () => switchOn(g, identity(g, x), less(g, x, zero)));
    const [left, right] = [identity(g, neg(g, whenFalse), { name: 'left' }), identity(g, neg(g, whenTrue), { name: 'right' })];
    const [either] = cond(g, less(g, x, zero), [x], { then: ([v]) => [neg(g, v as Floats, { device: ps(0) })], else: ([v]) => [v] });
    const session = await cluster.tasks.worker0.session(g.finish(), { doFuseRecv });
    expect(numbers((await session.run([[x, scalarOf(3)]], [left]))[0])).toEqual([-3]);
    expect(numbers((await session.run([[x, scalarOf(-3)]], [right]))[0])).toEqual([3]);
    await expect(session.run([[x, scalarOf(3)]], [right])).rejects.toThrow(/fetch 'right:0' is dead/);
    expect(numbers((await session.run([[x, scalarOf(-2)]], [either]))[0])).toEqual([2]);
    expect(numbers((await session.run([[x, scalarOf(2)]], [either]))[0])).toEqual([2]);
  });

  it('runs named functions on other tasks, and refuses functions that are not named', async () => {
    const functions = {
      twice: ([x]: readonly Value[]) => [
        dense(
          x.shape,
          numbers(x).map((each) => 2 * each),
        ),
      ],
    };
    await using cluster = await startLocalCluster({ worker: 1, ps: 1 }, { functions });
    const g = new GraphBuilder();
    const x = placeholder(g, 'float32', []);
    const output = { dtype: 'float32', shape: [] } as const;
    const [y] = call(g, 'twice', [x], [output], { device: ps(0) });
    const [z] = call(g, 'thrice', [x], [output], { device: ps(0), name: 'missing' });
    const [f] = call(g, ([v]) => [v], [x], [output], { device: ps(0), name: 'anonymous' });
    const session = await cluster.tasks.worker0.session(g.finish());
    expect(numbers((await session.run([[x, scalarOf(4)]], [y]))[0])).toEqual([8]);
    await expect(session.run([[x, scalarOf(4)]], [z])).rejects.toThrow(
      /Call 'missing' on \/job:ps\S+ there is no function 'thrice' in this process; it has twice/,
    );
    await expect(session.run([[x, scalarOf(4)]], [f])).rejects.toThrow(
      /Call 'anonymous': its function is a function, which is no data; give it a name/,
    );
  });
});

describe('one tensor that is late', () => {
  /** Sends four tensors from one task, the last of them only when the others have been used. */
  async function run(doFuseRecv: boolean, recvSome: boolean): Promise<unknown> {
    let used = 0;
    let release: () => void = () => {};
    const othersUsed = new Promise<void>((resolve) => {
      release = resolve;
    });
    const functions = {
      late: async (inputs: readonly Value[]) => {
        await othersUsed;
        return inputs;
      },
      prompt: (inputs: readonly Value[]) => inputs,
    };
    await using cluster = await startLocalCluster({ worker: 1, ps: 1 }, { functions, recvSome });
    const g = new GraphBuilder();
    const x = placeholder(g, 'float32', []);
    const output = { dtype: 'float32', shape: [] } as const;
    const sent = ['prompt', 'prompt', 'prompt', 'late'].map((name) => call(g, name, [x], [output], { device: ps(0) })[0]);
    const use = ([value]: readonly Value[]): readonly Value[] => {
      if (++used === 3) release();
      return [value];
    };
    const y = addN(
      g,
      sent.map((value) => call(g, use, [value], [output])[0] as Floats),
    );
    const session = await cluster.tasks.worker0.session(g.finish(), { doFuseRecv });
    const made = session.run([[x, scalarOf(1)]], [y], { timeoutMs: recvSome || !doFuseRecv ? 120_000 : 1000 });
    return await made.then(([value]) => numbers(value), String);
  }

  it.each([
    [false, false],
    [false, true],
  ])('does not hold the others (fused %s, at run time %s)', async (doFuseRecv, recvSome) => {
    expect(await run(doFuseRecv, recvSome)).toEqual([4]);
  });

  it('holds those that it is fused with', async () => {
    expect(await run(true, false)).toMatch(/timeout|did not end within 1000 ms/);
  });
});

describe('a step that fails', () => {
  it.each(ways)('ends on all tasks with the first cause, and the next one runs (%s)', async (_, options, doFuseRecv) => {
    await using cluster = await startLocalCluster({ worker: 1, ps: 2 }, options);
    const { g, ids, inits, total } = tables();
    const session = await cluster.tasks.worker0.session(g.finish(), { doFuseRecv });
    await session.run(
      [],
      inits.map(({ node }) => node),
    );
    for (let k = 0; k < 3; k++) {
      await expect(session.run([[ids, dense([1], [9], 'int32')]], [total])).rejects.toMatchObject({
        code: 'usage',
        message: expect.stringMatching(/GatherV2 'rows_\d' on \/job:ps\S+ index 9 at 0 is outside a table of 4 rows/) as string,
      });
      expect(numbers((await session.run([[ids, dense([1], [1], 'int32')]], [total]))[0])).toEqual([40]);
    }
  });

  it.each([
    [false, false],
    [true, false],
    [false, true],
  ])('for want of time says which keys, and who should send them (fused %s, at run time %s)', async (doFuseRecv, recvSome) => {
    const functions = { never: () => new Promise<never>(() => {}) };
    await using cluster = await startLocalCluster({ worker: 1, ps: 1 }, { functions, recvSome });
    const g = new GraphBuilder();
    const x = placeholder(g, 'float32', []);
    const slow = [0, 1].map((k) => call(g, 'never', [x], [{ dtype: 'float32', shape: [] }], { device: ps(0), name: `slow_${k}` })[0]);
    const y = addN(g, slow as Floats[]);
    const session = await cluster.tasks.worker0.session(g.finish(), { doFuseRecv });
    await expect(session.run([[x, scalarOf(1)]], [y], { timeoutMs: 2000 })).rejects.toMatchObject({
      code: 'timeout',
      message: expect.stringMatching(
        /did not end within 2000 ms: it waits for ('edge_\d_slow_0' from|Call 'slow_0' on) \/job:ps/,
      ) as string,
    });
    const abort = new AbortController();
    const running = session.run([[x, scalarOf(1)]], [y], { signal: abort.signal });
    await sleep(systemClock, 20);
    abort.abort();
    await expect(running).rejects.toMatchObject({ code: 'aborted' });
    const closing = session.run([[x, scalarOf(1)]], [y]);
    await sleep(systemClock, 20);
    session.close();
    await expect(closing).rejects.toMatchObject({ code: 'closed' });
  });

  it('does not end other steps: many are in flight, some fail, some are cancelled', async () => {
    const functions = {
      later: async ([x]: readonly Value[]) => {
        const [value] = numbers(x);
        await sleep(systemClock, (value * 7) % 5);
        if (value % 5 === 1) throw new Error(`no ${value}`);
        return [scalarOf(value + 1)];
      },
    };
    for (const recvSome of [false, true]) {
      await using cluster = await startLocalCluster({ worker: 1, ps: 2 }, { functions, recvSome });
      const g = new GraphBuilder();
      const x = placeholder(g, 'float32', []);
      const parts = [0, 1, 2, 3].map((k) => call(g, 'later', [x], [{ dtype: 'float32', shape: [] }], { device: ps(k % 2) })[0]);
      const y = addN(g, parts as Floats[]);
      const session = await cluster.tasks.worker0.session(g.finish(), { doFuseRecv: true, stepsMax: 100 });
      const results = await Promise.all(
        Array.from({ length: 60 }, (_, k) => {
          const abort = new AbortController();
          if (k % 7 === 0) abort.abort();
          return session.run([[x, scalarOf(k)]], [y], { signal: abort.signal }).then(
            ([value]) => numbers(value)[0],
            (error: { code: string }) => error.code,
          );
        }),
      );
      results.forEach((result, k) => expect(result, `step ${k}`).toBe(k % 7 === 0 ? 'aborted' : k % 5 === 1 ? 'aborted' : 4 * (k + 1)));
    }
  });

  it('for a task that is gone names it', async () => {
    await using cluster = await startLocalCluster({ worker: 1, ps: 2 }, { functions: { never: () => new Promise<never>(() => {}) } });
    const g = new GraphBuilder();
    const x = placeholder(g, 'float32', []);
    const [y] = call(g, 'never', [x], [{ dtype: 'float32', shape: [] }], { device: ps(1) });
    const z = add(g, y as Floats, x);
    const session = await cluster.tasks.worker0.session(g.finish());
    const running = expect(session.run([[x, scalarOf(1)]], [z])).rejects.toThrow(/\/job:ps\/task:1/);
    await sleep(systemClock, 50);
    await cluster.tasks.ps1.close();
    await running;
  });
});
