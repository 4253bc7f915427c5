/** Loops whose nodes are on several devices: the values of one device, what crosses in an iteration, and what goes wrong in one. */
import { describe, expect, it } from 'vitest';
import { VirtualClock } from '../../base/clock.ts';
import { seededRandom, type Random } from '../../base/random.ts';
import { constant, identity, placeholder } from '../ops/array.ts';
import { call } from '../ops/call.ts';
import { cond, enter, exit, loopCond, merge, nextIteration, switchOn, whileLoop } from '../ops/control-flow.ts';
import { add, less, mul, neg } from '../ops/math.ts';
import { fusePolicies } from '../passes/fuse-policy.ts';
import { GraphBuilder } from '../structure/builder.ts';
import type { Output } from '../structure/graph-node.ts';
import type { Value } from '../structure/value.ts';
import { numbersOf, scalarOf, testKernels } from '../testing/kernels.ts';
import { randomLoop } from '../testing/random-loop.ts';
import type { Kernel, KernelTable } from './kernel.ts';
import { Session, type SessionOptions } from './session.ts';

type Floats = Output<'float32'>;
const devices = ['a', 'b', 'c'].map((job) => `/job:${job}/task:0/device:CPU:0`);
const [a, b, c] = devices;
const one = (g: GraphBuilder): Floats => constant(g, { ...scalarOf(1), dtype: 'float32' });
const scalars = [{ dtype: 'float32', shape: [] }] as const;

/** Some kernels answer late, so that iterations overtake each other. */
function unsteady(random: Random): KernelTable {
  const late =
    (kernel: Kernel): Kernel =>
    (given) =>
      random.next() < 0.7 ? kernel(given) : new Promise<void>((resolve) => void setImmediate(resolve)).then(() => kernel(given));
  return Object.fromEntries(Object.entries(testKernels).map(([name, kernel]) => [name, late(kernel)]));
}

/** A loop on a, and whatever its body is. @returns the variables after `n` iterations. */
function counting(
  body: (g: GraphBuilder, x: Floats, invariant: Floats) => Output,
  options: Partial<SessionOptions> = {},
): { session: Session; run: (n: number) => Promise<readonly Value[]> } {
  const g = new GraphBuilder();
  const [n, x] = ['n', 'x'].map((name) => placeholder(g, 'float32', [], { name, device: a }));
  const after = g.withDevice(a, () =>
    whileLoop(
      g,
      [constant(g, { ...scalarOf(0), dtype: 'float32' }), x],
      {
        cond: ([i], [end]) => less(g, i as Floats, end as Floats),
        body: ([i, y], [, same]) => [add(g, i as Floats, one(g)), body(g, y as Floats, same as Floats)],
      },
      { name: 'loop', invariants: [n, x] },
    ),
  );
  const session = new Session(g.finish(), { devices, kernels: testKernels, ...options });
  return {
    session,
    run: (count) =>
      session.run(
        [
          [n, scalarOf(count)],
          [x, scalarOf(3)],
        ],
        after,
      ),
  };
}

describe('a loop on several devices', () => {
  it.each<[string, Partial<SessionOptions>]>([
    ['a request for every tensor', {}],
    ...fusePolicies.map((policy): [string, Partial<SessionOptions>] => [`fused by ${policy.name}`, { doFuseRecv: true, fuse: { policy } }]),
  ])('computes what one device does, in 40 random loops, by %s', async (_, options) => {
    let requests = 0;
    for (let seed = 0; seed < 40; seed++) {
      const outcomes = [1, 3, 2].map(async (count) => {
        const { graph, count: n, fetches } = randomLoop(seededRandom(seed), (dice) => devices[Math.floor(dice * count)]);
        const kernels = unsteady(seededRandom(seed + count));
        const session = new Session(graph, { devices, kernels, ...(count > 1 && options) });
        const values: (readonly number[])[] = [];
        for (const iterations of [-1, 0, 1, 4])
          values.push(...(await session.run([[n, scalarOf(iterations)]], fetches)).map((value) => numbersOf(value)));
        requests += session.stats.requests;
        return values;
      });
      const [expected, ...others] = await Promise.all(outcomes);
      for (const other of others) expect(other, `seed ${seed}`).toEqual(expected);
    }
    expect(requests).toBeGreaterThan(3000);
  });

  it('sends in every iteration the condition and what the body needs, and what does not change once', async () => {
    const { session, run } = counting((g, x, same) => add(g, mul(g, x, same, { device: b }), same, { device: b }));
    expect((await run(3)).map(numbersOf)).toEqual([[3], [120]]);
    // Once the invariant; three times and once more, for the end: condition and variable there, variable back.
    expect(session.stats.requests).toBe(1 + 4 * 3);
    await run(0);
    expect(session.stats.requests).toBe(1 + 4 * 3 + 1 + 3);
  });

  it('fuses what is received in one iteration', async () => {
    const both = (g: GraphBuilder, x: Floats): Output => {
      const [left, right] = [neg(g, x), add(g, x, x)];
      return add(g, neg(g, left, { device: b }), neg(g, right, { device: b }), { device: b });
    };
    const { session, run } = counting(both, { doFuseRecv: true });
    expect((await run(2)).map(numbersOf)).toEqual([[2], [3]]);
    expect(session.stats.requests).toBe(3 * 3);
  });

  it('is left by what is dead, although that waits for all that enters, however receives are fused', async () => {
    for (let length = 1; length <= 12; length++) {
      const g = new GraphBuilder();
      const x = placeholder(g, 'float32', [], { device: a });
      const [out] = g.withDevice(a, () =>
        cond(g, less(g, x, one(g)), [x], {
          then: ([start]) => {
            let late = start as Floats;
            for (let k = 0; k < length; k++) late = neg(g, late, { device: b });
            const [first, second] = whileLoop(g, [start, late], {
              cond: ([i]) => less(g, i as Floats, one(g)),
              body: ([i, y]) => [add(g, i as Floats, one(g)), neg(g, y as Floats)],
            }) as Floats[];
            return [add(g, neg(g, first, { device: b }), second)];
          },
          else: ([value]) => [value],
        }),
      );
      const session = new Session(g.finish(), { devices, kernels: testKernels, doFuseRecv: true, timeoutMs: 20_000 });
      for (const [value, result] of [
        [5, 5],
        [0, -1],
      ])
        expect((await session.run([[x, scalarOf(value)]], [out])).map(numbersOf), `${length}`).toEqual([[result]]);
    }
  });

  it('may have every node on another device', async () => {
    const g = new GraphBuilder();
    const x = placeholder(g, 'float32', [], { device: c });
    const attributes = { frame_name: 'by hand', parallel_iterations: 2 };
    const limit = enter(g, constant(g, { ...scalarOf(20), dtype: 'float32' }, { device: a }), {
      ...attributes,
      is_constant: true,
      device: a,
    });
    const [first] = merge(g, [enter(g, x, { ...attributes, device: a })], { device: b });
    const go = loopCond(g, less(g, first, limit, { device: c }), { device: a });
    const [whenFalse, whenTrue] = switchOn(g, first, go, { device: c });
    const next = nextIteration(g, add(g, whenTrue, whenTrue, { device: a }), { device: c, controlInputs: [limit] });
    g.connect(first, next);
    const after = neg(g, exit(g, whenFalse, { device: a }), { device: b });
    const session = new Session(g.finish(), { devices, kernels: testKernels });
    for (const [from, to] of [
      [3, 24],
      [20, 20],
    ])
      expect((await session.run([[x, scalarOf(from)]], [after])).map(numbersOf)).toEqual([[-to]]);
  });

  it('needs one condition', () => {
    const g = new GraphBuilder();
    const x = enter(g, placeholder(g, 'float32', [], { device: a }), { frame_name: 'endless', device: a });
    const left = exit(g, neg(g, neg(g, x, { device: b }), { device: a }), { device: a });
    const session = new Session(g.finish(), { devices, kernels: testKernels });
    expect(() => session.partitions(g.nodes[0].outputs, [left])).toThrow(
      expect.objectContaining({
        code: 'unsupported',
        message: "the loop 'endless' is on several devices and has 0 LoopConds; it needs one, or must be on one device",
      }),
    );
  });

  it('ends on all devices with the failure of one', async () => {
    let calls = 0;
    const { run } = counting(
      (g, x) =>
        call(
          g,
          ([value]) => {
            if (++calls === 3) throw new Error('no third time');
            return [value];
          },
          [x],
          scalars,
          { name: 'far', device: b },
        )[0],
    );
    await expect(run(10)).rejects.toMatchObject({ code: 'aborted', message: `step 1 failed: Call 'loop/far' on ${b}: no third time` });
    expect(calls).toBe(3);
    expect((await run(2)).map(numbersOf)).toEqual([[2], [3]]);
  });

  it('names what an iteration waits for', async () => {
    const clock = new VirtualClock();
    let calls = 0;
    const stuck = (g: GraphBuilder, x: Floats): Output =>
      call(g, (given) => (++calls === 3 ? new Promise<never>(() => undefined) : given), [x], scalars, { name: 'far', device: b })[0];
    const { run } = counting((g, x) => identity(g, stuck(g, x)), { clock, timeoutMs: 500 });
    const step = run(5);
    const failed = expect(step).rejects.toMatchObject({
      code: 'timeout',
      message: expect.stringMatching(/'edge_\d+_loop\/far' from \S+ \(\S+;0:2\).*, for Call 'loop\/far' on \/job:b/) as string,
    });
    await expect.poll(() => calls).toBe(3);
    clock.advance(500);
    await failed;
  });
});
