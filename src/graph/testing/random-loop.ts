/** Loops from dice, for tests: variables, invariants, branches and loops in them, every node on a device of its own choice. */
import type { Random } from '../../base/random.ts';
import { constant, identity, placeholder } from '../ops/array.ts';
import { cond, whileLoop } from '../ops/control-flow.ts';
import { add, less, neg, sub } from '../ops/math.ts';
import { GraphBuilder } from '../structure/builder.ts';
import type { Graph } from '../structure/graph.ts';
import type { Output } from '../structure/graph-node.ts';
import { scalarOf } from './kernels.ts';

type Floats = Output<'float32'>;

export interface RandomLoop {
  readonly graph: Graph;
  /** Fed: the iterations of the outer loop; below 0 the branch that it is in is not taken. */
  readonly count: Floats;
  readonly fetches: readonly Output[];
}

/** @param deviceOf a number below 1 gives the device: the same dice make the same graph, wherever its nodes are. */
export function randomLoop(random: Random, deviceOf: (dice: number) => string): RandomLoop {
  const g = new GraphBuilder();
  const pick = <T>(from: readonly T[]): T => from[random.integer(from.length)];
  const device = (): string => deviceOf(random.next());
  const scalar = (value: number): Floats => constant(g, { ...scalarOf(value), dtype: 'float32' }, { device: device() });
  const count = placeholder(g, 'float32', [], { device: device() });

  const compute = (known: readonly Floats[], depth: number): Floats[] => {
    const made = [...known];
    for (let k = 1 + random.integer(4); k > 0; k--) {
      const dice = random.next();
      const options = { device: device(), controlInputs: random.next() < 0.2 ? [pick(made)] : [] };
      if (dice < 0.3) made.push(neg(g, pick(made), options));
      else if (dice < 0.6) made.push(add(g, pick(made), pick(made), options));
      else if (dice < 0.7) made.push(sub(g, pick(made), scalar(random.integer(5)), options));
      else if (dice < 0.85 || depth === 0) made.push(...branches(made));
      else made.push(...loop(made, scalar(random.integer(4)), depth - 1));
    }
    return made;
  };

  const branches = (known: readonly Floats[]): Floats[] => {
    const [x, y] = [pick(known), pick(known)];
    const pred = less(g, x, y, { device: device() });
    const results = g.withDevice(device(), () =>
      cond(g, pred, [x, y], {
        then: ([a, b]) => [add(g, a as Floats, b as Floats, { device: device() })],
        else: ([a]) => [neg(g, a as Floats, { device: device() })],
      }),
    );
    return results as Floats[];
  };

  const loop = (known: readonly Floats[], limit: Floats, depth: number): Floats[] => {
    const variables = Array.from({ length: 1 + random.integer(3) }, () => identity(g, pick(known), { device: device() }));
    const start = scalar(0);
    const invariants = [limit, pick(known)];
    const parallelIterations = pick([1, 2, 10]);
    return g.withDevice(device(), () => {
      const after = whileLoop(
        g,
        [start, ...variables],
        {
          cond: ([i], [end]) => less(g, i as Floats, end as Floats, { device: device() }),
          body: ([i, ...own], [end, other]) => {
            const made = compute([...own, other, i, end] as Floats[], depth);
            const next = own.map(() => identity(g, pick(made), { device: device() }));
            return [add(g, i as Floats, scalar(1), { device: device() }), ...next];
          },
        },
        { invariants, parallelIterations },
      );
      return after as Floats[];
    });
  };

  const [x, limit] = [identity(g, count, { device: device() }), identity(g, count, { device: device() })];
  const whole = cond(g, less(g, scalar(-1), count, { device: device() }), [x, limit], {
    then: ([a, end]) => loop([a as Floats], end as Floats, 2).slice(0, 2),
    else: ([a, end]) => [a, end],
  });
  const fetches = whole.map((each) => identity(g, each, { device: device() }));
  return { graph: g.finish(), count, fetches };
}
