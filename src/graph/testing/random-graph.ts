/** Graphs from dice, for tests of passes and for benchmarks: data and control edges, variables, tables, loops, on several devices. */
import type { Random } from '../../base/random.ts';
import { identity, placeholder } from '../ops/array.ts';
import { noOp, whileLoop } from '../ops/control-flow.ts';
import { add, addN, less, neg } from '../ops/math.ts';
import { gather, variable } from '../ops/state.ts';
import { GraphBuilder, type NodeOptions } from '../structure/builder.ts';
import type { Graph } from '../structure/graph.ts';
import type { Node, Output } from '../structure/graph-node.ts';

export interface RandomGraphOptions {
  readonly nodes: number;
  readonly devices: readonly string[];
  /** Inputs come from this many nodes before; what a real model's layers do. Default: all. */
  readonly reach?: number;
  /** Default 0.05, each. */
  readonly loopShare?: number;
  readonly variableShare?: number;
}

type Floats = Output<'float32'>;

export function randomGraph(
  random: Random,
  { nodes, devices, reach = Infinity, loopShare = 0.05, variableShare = 0.05 }: RandomGraphOptions,
): Graph {
  const g = new GraphBuilder();
  const values: Floats[] = [];
  const made: Node[] = [];
  const index = placeholder(g, 'int32', 'unknown', { name: 'index', device: devices[0] });
  const pick = <T>(from: readonly T[]): T => from[from.length - 1 - random.integer(Math.min(from.length, reach))];
  const options = (): NodeOptions => ({
    device: devices[random.integer(devices.length)],
    controlInputs: made.length > 0 && random.next() < 0.15 ? [pick(made)] : [],
  });
  const keep = (value: Floats): void => {
    values.push(value);
    made.push(value.node);
  };
  while (made.length < nodes) {
    const dice = random.next();
    if (values.length < 2 || dice < 0.1) keep(placeholder(g, 'float32', 'unknown', options()));
    else if (dice < 0.1 + variableShare) keep(variable(g, 'float32', 'unknown', options()));
    else if (dice < 0.25) keep(gather(g, pick(values), index, options()));
    else if (dice < 0.3) made.push(noOp(g, options()));
    else if (dice < 0.3 + loopShare)
      for (const value of loop(g, [pick(values), pick(values)], devices[random.integer(devices.length)])) keep(value);
    else if (dice < 0.65) keep(neg(g, pick(values), options()));
    else if (dice < 0.85) keep(add(g, pick(values), pick(values), options()));
    else
      keep(
        addN(
          g,
          Array.from({ length: 1 + random.integer(4) }, () => pick(values)),
          options(),
        ),
      );
  }
  return g.finish();
}

/** Ends by its first variable, which the second changes: what leaves first depends on what the other one enters with. */
function loop(g: GraphBuilder, from: readonly Floats[], device: string): Floats[] {
  return g.withDevice(device, () => {
    const start = from.map((value) => identity(g, value));
    const after = whileLoop(g, start, {
      cond: ([i]) => less(g, i as Floats, i as Floats),
      body: ([i, x]) => [add(g, i as Floats, x as Floats), x],
    });
    return after as Floats[];
  });
}
