/** Whole steps: values, branches, loops, variables; on one device and on several, fused or not; and everything that goes wrong. */
import { describe, expect, it } from 'vitest';
import { VirtualClock } from '../../base/clock.ts';
import { seededRandom } from '../../base/random.ts';
import { constant, identity, placeholder } from '../ops/array.ts';
import { call } from '../ops/call.ts';
import { cond, controlTrigger, merge, noOp, switchOn, whileLoop } from '../ops/control-flow.ts';
import { add, less, mul, neg, sub } from '../ops/math.ts';
import { sum } from '../ops/reduction.ts';
import { assign, gather, scatterAdd, variable } from '../ops/state.ts';
import { fusePolicies } from '../passes/fuse-policy.ts';
import { GraphBuilder } from '../structure/builder.ts';
import type { Node, Output } from '../structure/graph-node.ts';
import type { Value } from '../structure/value.ts';
import { dense, numbersOf, scalarOf, testKernels } from '../testing/kernels.ts';
import { randomGraph } from '../testing/random-graph.ts';
import { Session, type SessionOptions } from './session.ts';

type Floats = Output<'float32'>;

const [a, b] = ['a', 'b'].map((job) => `/job:${job}/task:0/device:CPU:0`);

function session<T>(build: (g: GraphBuilder) => T, options: Partial<SessionOptions> = {}): T & { session: Session } {
  const g = new GraphBuilder();
  const made = build(g);
  return { ...made, session: new Session(g.finish(), { devices: [a, b], kernels: testKernels, ...options }) };
}

const scalarInput = (g: GraphBuilder, name: string, device = a): Floats => placeholder(g, 'float32', [], { name, device });
const one = (g: GraphBuilder): Floats => constant(g, { ...scalarOf(1), dtype: 'float32' });

describe('a step', () => {
  it('computes what its fetches need from what it is fed', async () => {
    const {
      session: s,
      x,
      y,
    } = session((g) => {
      const x = scalarInput(g, 'x');
      const y = add(g, x, x, { name: 'y', device: b });
      neg(g, scalarInput(g, 'unused'));
      return { x, y };
    });
    const [first, nothing, node] = await s.run([[x, scalarOf(3)]], [y, y.node, 'y']);
    expect([numbersOf(first), nothing, node]).toEqual([[6], undefined, undefined]);
    expect(numbersOf((await s.run([['x:0', scalarOf(4)]], ['y:0']))[0])).toEqual([8]);
    expect(numbersOf((await s.run([[y, scalarOf(5)]], [y]))[0])).toEqual([5]);
  });

  it('keeps variables from step to step', async () => {
    const { session: s, ...t } = session((g) => {
      const table = variable(g, 'float32', [3, 2], { name: 'table', device: b });
      const init = assign(g, table, constant(g, { ...dense([3, 2], [1, 2, 3, 4, 5, 6]), dtype: 'float32' }));
      const ids = placeholder(g, 'int32', [null], { name: 'ids', device: a });
      const rows = gather(g, table, ids, { name: 'rows', device: b });
      const step = scatterAdd(g, table, ids, rows);
      return { table, init, ids, rows, step, total: sum(g, rows, { device: a }) };
    });
    await expect(s.run([[t.ids, dense([1], [0], 'int32')]], [t.rows])).rejects.toMatchObject({
      code: 'usage',
      message: expect.stringMatching(/GatherV2 'rows' on \S+: VariableV2 'table' on \S+ has no value yet; run an Assign/) as string,
    });
    await s.run([], [t.init]);
    expect(numbersOf((await s.run([[t.ids, dense([2], [2, 0], 'int32')]], [t.total]))[0])).toEqual([14]);
    const [before] = await s.run([], [t.table]);
    await s.run([[t.ids, dense([2], [2, 0], 'int32')]], [t.step.node]);
    expect(numbersOf(before)).toEqual([1, 2, 3, 4, 5, 6]);
    expect(numbersOf((await s.run([], [t.table]))[0])).toEqual([2, 4, 3, 4, 10, 12]);
  });

  it('reads variables of another device by one request, and an assigned one after its assignment', async () => {
    const { session: s, ...t } = session(
      (g) => {
        const [v, w] = ['v', 'w'].map((name) => variable(g, 'float32', [], { name, device: b }));
        const x = scalarInput(g, 'x');
        const init = [v, w].map((each) => assign(g, each, one(g)));
        const after = [v, w].map((each) => assign(g, each, identity(g, x, { device: b })));
        return { x, init, now: sub(g, v, w, { device: a }), sum: add(g, add(g, after[0], after[1], { device: a }), x, { device: a }) };
      },
      { doFuseRecv: true },
    );
    await s.run([], t.init);
    expect(s.stats).toMatchObject({ steps: 1, unfused: [] });
    const { requests } = s.stats;
    for (let step = 1; step <= 10; step++) expect(numbersOf((await s.run([], [t.now]))[0])).toEqual([0]);
    expect(s.stats.requests - requests).toBe(10);
    expect(numbersOf((await s.run([[t.x, scalarOf(5)]], [t.sum]))[0])).toEqual([15]);
    expect(s.stats.requests - requests).toBe(12);
    expect(s.stats.unfused).toEqual([
      { tensor: '_arg_0:0', sendDevice: a, recvDevice: b, why: 'no other dense tensor of wave 0 (source-wave) goes the same way' },
    ]);
  });

  it('takes the branch that is true, whatever device it is on', async () => {
    const runs: string[] = [];
    const {
      session: s,
      x,
      y,
    } = session((g) => {
      const x = scalarInput(g, 'x');
      const seen = (name: string, value: Output, device: string): Output =>
        call(g, ([v]) => (runs.push(name), [v]), [value], [{ dtype: 'float32', shape: [] }], { name, device })[0];
      const [y] = cond(g, less(g, x, constant(g, { ...scalarOf(0), dtype: 'float32' })), [x], {
        then: ([v]) => [neg(g, seen('then', v, b) as Floats, { device: b })],
        else: ([v]) => [add(g, seen('else', v, a) as Floats, one(g))],
      });
      return { x, y: identity(g, y, { device: b }) };
    });
    expect(numbersOf((await s.run([[x, scalarOf(-7)]], [y]))[0])).toEqual([7]);
    expect(numbersOf((await s.run([[x, scalarOf(7)]], [y]))[0])).toEqual([8]);
    expect(runs).toEqual(['then', 'else']);
  });

  it.each([1, 2, 10])('runs loops, with %i iterations at a time', async (parallelIterations) => {
    const {
      session: s,
      n,
      total,
      product,
    } = session((g) => {
      const n = scalarInput(g, 'n');
      const [, total, product] = whileLoop(
        g,
        [one(g), one(g), one(g)],
        {
          cond: ([i], [end]) => less(g, i as Floats, end as Floats),
          body: ([i, sum, product]) => [
            add(g, i as Floats, one(g)),
            add(g, sum as Floats, i as Floats),
            mul(g, product as Floats, i as Floats),
          ],
        },
        { parallelIterations, invariants: [n] },
      );
      return { n, total, product };
    });
    const values = async (end: number): Promise<number[]> => (await s.run([[n, scalarOf(end)]], [total, product])).flatMap(numbersOf);
    expect(await values(6)).toEqual([16, 120]);
    expect(await values(1)).toEqual([1, 1]);
    expect((await values(101))[0]).toBe(5051);
  });

  it('runs loops in loops, and none in a branch that is not taken', async () => {
    const {
      session: s,
      n,
      count,
    } = session(
      (g) => {
        const n = scalarInput(g, 'n', b);
        const below = (i: Output, end: Output): Output<'bool'> => less(g, i as Floats, end as Floats);
        const [count] = cond(g, less(g, one(g), n), [n], {
          then: ([end]) => [
            whileLoop(
              g,
              [identity(g, end), one(g)],
              {
                cond: ([i]) => below(one(g), i),
                body: ([i, c]) => {
                  const [, inner] = whileLoop(
                    g,
                    [one(g), identity(g, c)],
                    {
                      cond: ([j], [outer]) => below(j, outer),
                      body: ([j, d]) => [add(g, j as Floats, one(g)), add(g, d as Floats, one(g))],
                    },
                    { invariants: [i] },
                  );
                  return [sub(g, i as Floats, one(g)), inner];
                },
              },
              { parallelIterations: 3 },
            )[1],
          ],
          else: ([end]) => [neg(g, end as Floats)],
        });
        return { n, count };
      },
      { defaultDevice: b },
    );
    const value = async (end: number): Promise<number> => numbersOf((await s.run([[n, scalarOf(end)]], [count]))[0])[0];
    expect(await value(5)).toBe(1 + 4 + 3 + 2 + 1);
    expect(await value(0)).toBe(-0);
  });

  it('runs a trigger when its control inputs are done, dead or not', async () => {
    const {
      session: s,
      go,
      after,
    } = session((g) => {
      const go = placeholder(g, 'bool', [], { name: 'go' });
      const [whenFalse, whenTrue] = switchOn(g, go, go);
      const dead = [identity(g, whenFalse), identity(g, whenTrue)];
      const trigger = controlTrigger(g, { controlInputs: dead });
      const after = identity(g, go, { controlInputs: [trigger], device: b });
      noOp(g, { name: 'all', controlInputs: dead });
      return { go, after };
    });
    expect(numbersOf((await s.run([[go, scalarOf(1, 'bool')]], [after, 'all']))[0])).toEqual([1]);
  });
});

describe('fused receives', () => {
  const branches = (options: Partial<SessionOptions>): { session: Session; go: Output; outputs: readonly Output[] } =>
    session((g) => {
      const go = placeholder(g, 'bool', [], { name: 'go', device: a });
      const x = scalarInput(g, 'x');
      const [no, yes] = switchOn(g, x, go, { device: a });
      const sent = g.withDevice(a, () => [neg(g, no), neg(g, yes), neg(g, identity(g, x))]);
      const got = g.withDevice(b, () => sent.map((value) => neg(g, value)));
      const [merged] = merge(g, [got[0], got[1]], { device: b });
      return { go, outputs: [merged, got[2], got[1]] };
    }, options);

  it('are dead slot by slot', async () => {
    for (const doFuseRecv of [false, true]) {
      const { session: s, go, outputs } = branches({ doFuseRecv });
      const [merged, third, second] = outputs;
      const { groups } = s.partitions([go, 'x:0'], [merged, third]);
      expect(groups.map(({ length }) => length)).toEqual(doFuseRecv ? [3] : []);
      for (const taken of [0, 1]) {
        const feeds = [
          [go, scalarOf(taken, 'bool')],
          ['x:0', scalarOf(5)],
        ] as const;
        expect((await s.run(feeds, [merged, third])).flatMap(numbersOf)).toEqual([5, 5]);
        const whole = s.run(feeds, [second]);
        if (taken === 1) expect(numbersOf((await whole)[0])).toEqual([5]);
        else await expect(whole).rejects.toThrow(/fetch 'Neg_4:0' is dead: it is on a branch that was not taken/);
      }
    }
  });

  it('change no result of random graphs, under any policy', async () => {
    const devices = ['/job:a/task:0/cpu:0', '/job:a/task:1/cpu:0', '/job:b/task:0/cpu:0'];
    let fused = 0;
    for (let seed = 0; seed < 60; seed++) {
      const graph = randomGraph(seededRandom(seed), { nodes: 30, devices, variableShare: 0 });
      const kernels = {
        ...testKernels,
        GatherV2: testKernels.Neg,
        Neg: ({ inputs: [x] }: { inputs: readonly Value[] }) => [scalarOf(numbersOf(x)[0] * 0.5)],
      };
      const floats = graph.nodes.filter(({ op, outputs }) => op === 'Placeholder' && outputs[0].dtype === 'float32');
      const feeds = [['index:0', scalarOf(0, 'int32')] as const, ...floats.map(({ outputs }, k) => [outputs[0], scalarOf(k + 1)] as const)];
      const fetches = graph.nodes
        .filter(({ op }) => ['AddV2', 'AddN', 'Exit'].includes(op))
        .filter(({ name }) => !name.includes('while'))
        .map(({ outputs }) => outputs[0]);
      const results = async (options: Partial<SessionOptions>): Promise<number[]> =>
        (await new Session(graph, { devices, kernels, ...options }).run(feeds, fetches)).flatMap(numbersOf);
      const expected = await results({});
      for (const policy of fusePolicies) expect(await results({ doFuseRecv: true, fuse: { policy } }), `seed ${seed}`).toEqual(expected);
      const fedFetched = new Session(graph, { devices, kernels, doFuseRecv: true });
      fused += fedFetched.partitions(
        feeds.map(([feed]) => feed),
        fetches,
      ).groups.length;
    }
    expect(fused).toBeGreaterThan(60);
  });
});

describe('what does not fit is refused:', () => {
  const make = (options: Partial<SessionOptions> = {}): { session: Session; x: Output; y: Output } =>
    session((g) => {
      const x = placeholder(g, 'float32', [null, 2], { name: 'x' });
      return { x, y: neg(g, x, { name: 'y' }) };
    }, options);
  const good = dense([1, 2], [1, 2]);
  const stranger = placeholder(new GraphBuilder(), 'float32', []);

  it.each<[string, (s: Session, x: Output, y: Output) => Promise<unknown>, RegExp]>([
    ['fetches that do not exist', (s, x) => s.run([[x, good]], ['z:0']), /the graph has no node 'z'/],
    ['outputs that do not exist', (s, x) => s.run([[x, good]], ['y:1']), /'y:1' is not one of them/],
    ['feeds that do not exist', (s, _, y) => s.run([['w:0', good]], [y]), /the graph has no node 'w'/],
    ['outputs of other graphs', (s, x) => s.run([[x, good]], [stranger]), /is not an output of this session's graph/],
    ['feeds that are missing', (s, _, y) => s.run([], [y]), /Placeholder 'x' must be fed/],
    [
      'feeds of another dtype',
      (s, x, y) => s.run([[x, { ...good, dtype: 'int32' }]], [y]),
      /feed 'x:0' must be float32\[\?, 2\], but is int32\[1, 2\]/,
    ],
    [
      'feeds of another shape',
      (s, x, y) => s.run([[x, dense([2], [1, 2])]], [y]),
      /feed 'x:0' must be float32\[\?, 2\], but is float32\[2\]/,
    ],
    [
      'feeds that are no values',
      (s, x, y) => s.run([[x, 3 as never]], [y]),
      /feed 'x:0' must be a value with dtype, shape and data, not the number 3: put it/,
    ],
    [
      'feeds that are there twice',
      (s, x, y) =>
        s.run(
          [
            [x, good],
            ['x:0', good],
          ],
          [y],
        ),
      /is fed twice/,
    ],
    ['options that do not exist', (s, x, y) => s.run([[x, good]], [y], { timeout: 1 } as never), /did you mean 'timeoutMs'/],
  ])('%s', async (_, run, message) => {
    const { session: s, x, y } = make();
    await expect(run(s, x, y)).rejects.toMatchObject({ code: 'usage', message: expect.stringMatching(message) as string });
  });

  it('operations without a kernel, all of them by name', async () => {
    const {
      session: s,
      x,
      y,
    } = session(
      (g) => {
        const x = scalarInput(g, 'x');
        return { x, y: neg(g, add(g, x, x)) };
      },
      { kernels: {} },
    );
    await expect(s.run([[x, scalarOf(1)]], [y])).rejects.toMatchObject({
      code: 'unsupported',
      message: 'no kernel for AddV2, Neg; pass them as kernels',
    });
  });

  it('session options', () => {
    expect(() => make({ stepsMax: 0 })).toThrow(/option 'stepsMax' must be at least 1/);
    expect(() => make({ devises: [] } as never)).toThrow(/did you mean 'devices'/);
  });
});

describe('failures end the step everywhere, with the first cause:', () => {
  /** `x` on a, through `compute` on b, and back to a. */
  const through = (
    compute: (value: Value, signal: AbortSignal) => readonly Value[] | Promise<readonly Value[]>,
    options: Partial<SessionOptions> = {},
  ) =>
    session((g) => {
      const x = scalarInput(g, 'x');
      const [y] = call(g, ([v], { signal }) => compute(v, signal), [x], [{ dtype: 'float32', shape: [] }], { name: 'far', device: b });
      return { x, z: neg(g, y as Floats, { device: a }) };
    }, options);

  it('a kernel that throws', async () => {
    let isBroken = true;
    const {
      session: s,
      x,
      z,
    } = through(async (value) => {
      if (isBroken) throw new Error('out of luck');
      return [value];
    });
    await expect(s.run([[x, scalarOf(1)]], [z])).rejects.toMatchObject({
      code: 'aborted',
      message: `step 1 failed: Call 'far' on ${b}: out of luck`,
    });
    isBroken = false;
    expect(numbersOf((await s.run([[x, scalarOf(1)]], [z]))[0])).toEqual([-1]);
  });

  it.each<[string, readonly Value[], RegExp]>([
    ['too few outputs', [], /its kernel must give 1 outputs, not 0/],
    ['another dtype', [scalarOf(1, 'int32')], /output 0 must be float32\[\], but is int32\[\]/],
    ['another shape', [dense([2], [1, 2])], /output 0 must be float32\[\], but is float32\[2\]/],
    ['no value', [undefined as never], /gave no value with dtype and shape as output 0/],
  ])('a kernel that gives %s', async (_, outputs, message) => {
    for (const compute of [() => outputs, async () => outputs]) {
      const { session: s, x, z } = through(compute);
      await expect(s.run([[x, scalarOf(1)]], [z])).rejects.toMatchObject({
        code: 'usage',
        message: expect.stringMatching(message) as string,
      });
    }
  });

  it('a time limit, which names what is waited for: the key, its sender, the kernel', async () => {
    const clock = new VirtualClock();
    let stopped: unknown;
    let isRunning = false;
    const {
      session: s,
      x,
      z,
    } = through(
      (_, signal) => {
        isRunning = true;
        signal.addEventListener('abort', () => (stopped = signal.reason));
        return new Promise(() => {});
      },
      { clock, timeoutMs: 500 },
    );
    const step = s.run([[x, scalarOf(1)]], [z]);
    step.catch(() => {});
    await expect.poll(() => isRunning).toBe(true);
    clock.advance(499);
    expect(stopped).toBeUndefined();
    clock.advance(1);
    const key = `${b};0000000000000001;${a};edge_1_far;0:0`;
    await expect(step).rejects.toMatchObject({
      code: 'timeout',
      timeoutMs: 500,
      message: `step 1 did not end within 500 ms: it waits for 'edge_1_far' from ${b} (${key}), for Call 'far' on ${b}`,
    });
    expect(stopped).toMatchObject({ code: 'timeout' });
  });

  it('a time limit, also when nothing ever waits', async () => {
    const clock = new VirtualClock();
    const { session: s, end } = session(
      (g) => {
        const tick = (): Output => call(g, () => (clock.stall(1), [scalarOf(1)]), [], [{ dtype: 'float32', shape: [] }], {})[0];
        const [end] = whileLoop(g, [one(g)], {
          cond: ([i]) => less(g, i as Floats, constant(g, { ...scalarOf(2), dtype: 'float32' })),
          body: () => [tick()],
        });
        return { end };
      },
      { clock, timeoutMs: 1000 },
    );
    await expect(s.run([], [end])).rejects.toMatchObject({ code: 'timeout' });
  });

  it('the signal of the caller, before and while it runs', async () => {
    const { session: s, x, z } = through(() => new Promise(() => {}));
    await expect(s.run([[x, scalarOf(1)]], [z], { signal: AbortSignal.abort(new Error('no more')) })).rejects.toMatchObject({
      code: 'aborted',
    });
    const abort = new AbortController();
    const step = s.run([[x, scalarOf(1)]], [z], { signal: abort.signal });
    abort.abort();
    await expect(step).rejects.toMatchObject({ code: 'aborted', message: 'step 2 was cancelled by its signal' });
  });

  it('one signal for many steps at a time, without a warning of Node.js', async () => {
    const { session: s, x, z } = through(() => new Promise(() => {}));
    const warnings: Error[] = [];
    const onWarning = (warning: Error): void => void warnings.push(warning);
    process.on('warning', onWarning);
    const abort = new AbortController();
    const steps = Array.from({ length: 30 }, () => s.run([[x, scalarOf(1)]], [z], { signal: abort.signal }));
    abort.abort();
    for (const each of await Promise.allSettled(steps)) expect(each).toMatchObject({ status: 'rejected', reason: { code: 'aborted' } });
    await new Promise(setImmediate);
    process.off('warning', onWarning);
    expect(warnings).toEqual([]);
  });

  it('the end of the session', async () => {
    const { session: s, x, z } = through(() => new Promise(() => {}));
    const step = s.run([[x, scalarOf(1)]], [z]);
    s.close();
    await expect(step).rejects.toMatchObject({ code: 'closed' });
    await expect(s.run([[x, scalarOf(1)]], [z])).rejects.toMatchObject({ code: 'closed' });
  });

  it('not what is late: its results are not looked at', async () => {
    const answers: ((values: readonly Value[]) => void)[] = [];
    const { session: s, x, z } = through(() => new Promise((resolve) => answers.push(resolve)));
    const abort = new AbortController();
    const step = s.run([[x, scalarOf(1)]], [z], { signal: abort.signal });
    await expect.poll(() => answers.length).toBe(1);
    abort.abort();
    await expect(step).rejects.toThrow(/cancelled/);
    answers[0]([scalarOf(9)]);
    const next = s.run([[x, scalarOf(1)]], [z]);
    await expect.poll(() => answers.length).toBe(2);
    answers[1]([scalarOf(2)]);
    expect(numbersOf((await next)[0])).toEqual([-2]);
  });
});

describe('steps at a time', () => {
  it('each have values of their own, up to a bound', async () => {
    const waiting: (() => void)[] = [];
    const {
      session: s,
      x,
      y,
    } = session(
      (g) => {
        const x = scalarInput(g, 'x');
        const held = call(g, ([v]) => new Promise((resolve) => waiting.push(() => resolve([v]))), [x], [{ dtype: 'float32', shape: [] }], {
          device: b,
        });
        return { x, y: neg(g, held[0] as Floats, { device: a }) };
      },
      { stepsMax: 3 },
    );
    const steps = [1, 2, 3].map((value) => s.run([[x, scalarOf(value)]], [y]));
    await expect(s.run([[x, scalarOf(4)]], [y])).rejects.toThrow(/3 steps are in flight already/);
    await expect.poll(() => waiting.length).toBe(3);
    for (const go of waiting.toReversed()) go();
    expect((await Promise.all(steps)).flat().flatMap(numbersOf)).toEqual([-1, -2, -3]);
    const again = s.run([[x, scalarOf(4)]], [y]);
    await expect.poll(() => waiting.length).toBe(4);
    waiting[3]();
    expect(numbersOf((await again)[0])).toEqual([-4]);
  });

  it('start kernels in the same order every time, one after the other', async () => {
    const devices = ['/job:a/task:0/cpu:0', '/job:a/task:1/cpu:0'];
    const graph = randomGraph(seededRandom(5), { nodes: 60, devices, variableShare: 0 });
    const order = async (): Promise<string[]> => {
      const started: string[] = [];
      const slow = async ({ node, inputs }: { node: Node; inputs: readonly Value[] }): Promise<readonly Value[]> => {
        started.push(node.name);
        for (let turns = 0; turns < started.length % 5; turns++) await Promise.resolve();
        return [{ ...inputs[0], dtype: node.outputs[0].dtype }];
      };
      const kernels = { GatherV2: slow, Neg: slow, AddV2: slow, AddN: slow, Less: () => [scalarOf(0, 'bool')] };
      const s = new Session(graph, { devices, kernels, interOpParallelism: 1, doFuseRecv: true });
      const placeholders = graph.nodes.filter(({ op }) => op === 'Placeholder');
      const feeds = placeholders.map(({ outputs: [output] }) => [output, scalarOf(1, output.dtype)] as const);
      await s.run(
        feeds,
        graph.nodes.filter(({ op }) => op === 'AddN'),
      );
      return started;
    };
    const first = await order();
    expect(first.length).toBeGreaterThan(10);
    expect(await order()).toEqual(first);
  });
});
