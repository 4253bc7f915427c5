/** Small nodes as one kernel: which ones belong together, and that a step gives the same as without. */
import { describe, expect, it } from 'vitest';
import { seededRandom, type Random } from '../../base/random.ts';
import { constant, identity, placeholder } from '../ops/array.ts';
import { call } from '../ops/call.ts';
import { cond } from '../ops/control-flow.ts';
import { add, less, mul, neg, sub } from '../ops/math.ts';
import { variable } from '../ops/state.ts';
import { GraphBuilder } from '../structure/builder.ts';
import type { CallFunction } from '../structure/definition.ts';
import { frameTable } from '../structure/frames.ts';
import type { Graph } from '../structure/graph.ts';
import type { Output } from '../structure/graph-node.ts';
import { numbersOf, scalarOf, testKernels } from '../testing/kernels.ts';
import { randomLoop } from '../testing/random-loop.ts';
import { composeKernels } from './composed-kernels.ts';
import type { Kernel, KernelTable } from './kernel.ts';
import { Session, type Feeds } from './session.ts';
import { structuralKernels } from './structural-kernels.ts';
import { VariableStore } from './variable-store.ts';

type F = Output<'float32'>;
const device = '/job:a/task:0/device:CPU:0';
const composable: KernelTable = Object.fromEntries(
  Object.entries(testKernels).map(([name, kernel]) => [
    name,
    Object.assign((...call: Parameters<Kernel>) => kernel(...call), { isSynchronous: true }),
  ]),
);

/** Names of the nodes of a graph that are left, by unit. */
function unitsOf({ nodes }: Graph): string[] {
  const kernels = { ...structuralKernels(new VariableStore()), ...composable };
  return composeKernels(nodes, kernels, frameTable(nodes)).map(({ node }) => node.name);
}

describe('small nodes as one kernel', () => {
  it('takes those together that wait for the same values', () => {
    const g = new GraphBuilder();
    const [x, y] = [0, 1].map((k) =>
      identity(g, placeholder(g, 'float32', []), {
        name: `later${k}`,
        controlInputs: [constant(g, { ...scalarOf(k), dtype: 'float32' }).node],
      }),
    );
    const w = variable(g, 'float32', [], { name: 'w' });
    const first = mul(g, neg(g, x, { name: 'a1' }), w, { name: 'a2' });
    const second = neg(g, y, { name: 'b1' });
    const both = add(g, first, second, { name: 'c1' });
    sub(g, both, w, { name: 'c2' });
    const names = unitsOf(g.finish()).filter((name) => /^[abc]\d$/.test(name));
    expect(names).toEqual(['a1', 'b1', 'c1']);
  });

  it('leaves large tensors, unknown shapes, and nodes with control edges alone', () => {
    const g = new GraphBuilder();
    const large = placeholder(g, 'float32', [1025]);
    neg(g, neg(g, large, { name: 'large1' }), { name: 'large2' });
    const unknown = placeholder(g, 'float32', [null]);
    neg(g, neg(g, unknown, { name: 'unknown1' }), { name: 'unknown2' });
    const small = placeholder(g, 'float32', []);
    const before = neg(g, small, { name: 'before' });
    neg(g, neg(g, small, { name: 'after', controlInputs: [before.node] }), { name: 'behind' });
    const names = unitsOf(g.finish());
    for (const name of ['large1', 'large2', 'unknown1', 'unknown2', 'before', 'after', 'behind']) expect(names).toContain(name);
  });

  it('names the node that fails', async () => {
    const g = new GraphBuilder();
    const x = placeholder(g, 'float32', []);
    const y = add(g, neg(g, x), mul(g, x, x, { name: 'broken' }));
    const broken: Kernel = Object.assign(
      () => {
        throw new Error('no more');
      },
      { isSynchronous: true },
    );
    const wrong: Kernel = Object.assign(() => [scalarOf(1), scalarOf(2)], { isSynchronous: true });
    const graph = g.finish();
    const failing = (Mul: Kernel): Promise<unknown> =>
      new Session(graph, { devices: [device], kernels: { ...composable, Mul } }).run([[x, scalarOf(1)]], [y]);
    await expect(failing(broken)).rejects.toThrow(`Mul 'broken' on ${device}: no more`);
    await expect(failing(wrong)).rejects.toThrow(`Mul 'broken' on ${device}: its kernel must give 1 outputs, not 2`);
  });

  it('is dead as a whole on the branch that is not taken', async () => {
    const g = new GraphBuilder();
    const x = placeholder(g, 'float32', []);
    const [y] = cond(g, less(g, x, neg(g, x)), [x], {
      then: ([a]) => [neg(g, add(g, a as F, a as F))],
      else: ([a]) => [mul(g, mul(g, a as F, a as F), a as F)],
    });
    const session = new Session(g.finish(), { devices: [device], kernels: composable });
    expect(numbersOf((await session.run([[x, scalarOf(3)]], [y]))[0])).toEqual([27]);
    expect(numbersOf((await session.run([[x, scalarOf(-3)]], [y]))[0])).toEqual([6]);
  });

  it('gives what single nodes give, whatever comes late or is dead', async () => {
    let composed = 0;
    for (let seed = 0; seed < 200; seed++) {
      const { graph, fetches } = randomSteps(seededRandom(seed));
      composed += graph.nodes.length - unitsOf(graph).length;
      const [single, several] = await Promise.all([testKernels, composable].map((kernels) => results(graph, fetches, kernels)));
      expect(several, `seed ${seed}`).toEqual(single);
    }
    expect(composed).toBeGreaterThan(1000);
  });

  it('gives what single nodes give, in loops', async () => {
    for (let seed = 0; seed < 60; seed++) {
      const { graph, count, fetches } = randomLoop(seededRandom(seed), () => device);
      for (const iterations of [-1, 0, 3]) {
        const fed = [[count, scalarOf(iterations)]] as const;
        const [single, several] = await Promise.all([testKernels, composable].map((kernels) => results(graph, fetches, kernels, fed)));
        expect(several, `seed ${seed}`).toEqual(single);
      }
    }
  });
});

async function results(graph: Graph, fetches: readonly Output[], kernels: KernelTable, fed: Feeds = []): Promise<(readonly number[])[]> {
  const session = new Session(graph, { devices: [device], kernels });
  const values = await session.run(fed, fetches);
  session.close();
  return values.map(numbersOf);
}

/** Small nodes after constants, values that come late, and branches, of which one is dead. */
function randomSteps(random: Random): { readonly graph: Graph; readonly fetches: readonly F[] } {
  const g = new GraphBuilder();
  const pick = <T>(from: readonly T[]): T => from[random.integer(from.length)];
  const scalar = (value: number): F => constant(g, { ...scalarOf(value), dtype: 'float32' });
  const made: F[] = [scalar(1), scalar(2)];
  const late = (x: F): F => {
    const turns = random.integer(4);
    const compute: CallFunction = async ([value]) => {
      for (let k = 0; k < turns; k++) await new Promise((resolve) => setImmediate(resolve));
      return [scalarOf(numbersOf(value)[0] + 1)];
    };
    return call(g, compute, [x], [{ dtype: 'float32', shape: [] }])[0] as F;
  };
  const compute = (known: readonly F[], count: number): F[] => {
    const values = [...known];
    for (let k = 0; k < count; k++) {
      const dice = random.next();
      const options = random.next() < 0.05 ? { controlInputs: [pick(values)] } : {};
      if (dice < 0.4) values.push(add(g, pick(values), pick(values), options));
      else if (dice < 0.6) values.push(sub(g, pick(values), pick(values), options));
      else if (dice < 0.75) values.push(neg(g, pick(values), options));
      else values.push(dice < 0.9 ? identity(g, pick(values), options) : late(pick(values)));
    }
    return values;
  };
  made.push(...compute(made, 12));
  const [x, y] = [pick(made), pick(made)];
  const branch = ([a, b]: readonly Output[]): readonly F[] => compute([a, b] as F[], 6).slice(-2);
  made.push(...(cond(g, less(g, x, y), [x, y], { then: branch, else: branch }) as F[]));
  const fetches = compute(made, 12);
  return { graph: g.finish(), fetches };
}
