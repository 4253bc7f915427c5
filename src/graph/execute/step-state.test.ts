/** The step machine by itself: any order of completions gives the same values, every node of every iteration runs once, and no more
 *  iterations are open than may be. */
import { describe, expect, it } from 'vitest';
import { seededRandom } from '../../base/random.ts';
import { constant, identity } from '../ops/array.ts';
import { cond, whileLoop } from '../ops/control-flow.ts';
import { add, less, mul } from '../ops/math.ts';
import { GraphBuilder } from '../structure/builder.ts';
import type { Graph } from '../structure/graph.ts';
import type { Output } from '../structure/graph-node.ts';
import type { Value } from '../structure/value.ts';
import { numbersOf, scalarOf, testKernels } from '../testing/kernels.ts';
import { createProgram } from './program.ts';
import { inputAt, StepState, type Flow, type ReadyNode } from './step-state.ts';

type Floats = Output<'float32'>;

function example(parallelIterations: number): Graph {
  const g = new GraphBuilder();
  const number = (value: number): Floats => constant(g, { ...scalarOf(value), dtype: 'float32' });
  const [, even, all] = whileLoop(
    g,
    [number(0), number(0), number(1)],
    {
      cond: ([i], [end]) => less(g, i as Floats, end as Floats),
      body: ([i, even, all]) => {
        const [next] = cond(g, less(g, i as Floats, number(5)), [even], {
          then: ([x]) => [add(g, x as Floats, number(1))],
          else: ([x]) => [x],
        });
        return [add(g, i as Floats, number(1)), next, mul(g, all as Floats, number(2))];
      },
    },
    { parallelIterations, invariants: [number(9)] },
  );
  identity(g, add(g, even as Floats, all as Floats), { name: 'result' });
  return g.finish();
}

function outputsOf(ready: ReadyNode): readonly Flow[] {
  const { node } = ready.program;
  const inputs = node.inputs.map((_, input) => inputAt(ready, input));
  const live = inputs.filter((input) => input !== undefined);
  switch (node.control) {
    case 'switch':
      return numbersOf(inputs[1])[0] !== 0 ? [undefined, inputs[0]] : [inputs[0], undefined];
    case 'merge':
      return [live[0], scalarOf(inputs.indexOf(live[0]), 'int32')];
    default:
  }
  if (node.op === 'Const') return [node.attributes.value as Value];
  const kernel = Object.hasOwn(testKernels, node.op) ? testKernels[node.op] : undefined;
  if (kernel === undefined) return live.slice(0, 1);
  return kernel({ node, inputs: live, atEnd: () => undefined, stepId: 1, signal: new AbortController().signal }) as readonly Flow[];
}

describe('a step machine', () => {
  it.each([1, 2, 10])('gives the same for every order of completions, with %i iterations at a time', (parallelIterations) => {
    for (let seed = 0; seed < 40; seed++) {
      const random = seededRandom(seed);
      const machine = new StepState(createProgram(example(parallelIterations)));
      const running: ReadyNode[] = [];
      const ran = new Map<string, number>();
      let result: readonly number[] = [];
      let openMax = 0;
      while (!machine.done) {
        for (let ready = machine.next(); ready !== undefined; ready = machine.next()) running.push(ready);
        expect(running.length).toBeGreaterThan(0);
        const inLoop = running.filter(({ program }) => program.frame.frame.parent !== undefined).map(({ iteration }) => iteration.number);
        openMax = Math.max(openMax, 1 + Math.max(0, ...inLoop) - Math.min(...inLoop, Math.max(0, ...inLoop)));
        const [ready] = running.splice(random.integer(running.length), 1);
        const { name } = ready.program.node;
        const key = `${name} ${ready.iteration.number}`;
        ran.set(key, (ran.get(key) ?? 0) + 1);
        const outputs = ready.isDead ? [] : outputsOf(ready);
        if (name === 'result') result = numbersOf(outputs[0]);
        machine.complete(ready, outputs);
      }
      expect(running).toEqual([]);
      expect(result, `seed ${seed}`).toEqual([5 + 2 ** 9]);
      expect(Math.max(...ran.values())).toBe(1);
      expect(openMax).toBeLessThanOrEqual(parallelIterations);
      expect(ran.get('while/LoopCond 9')).toBe(1);
      expect(ran.has('while/LoopCond 10')).toBe(false);
    }
  });
});
