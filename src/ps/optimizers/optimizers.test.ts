import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { seededRandom } from '../../base/random.ts';
import { loadNative } from '../../memory/native.ts';
import { createParameterKernels } from '../../memory/parameter-kernels/create-parameter-kernels.ts';
import { goldenGradients, goldens, goldenStart } from '../testing/optimizer-goldens.ts';
import type { Optimizer, OptimizerSpec } from './optimizer.ts';
import { createOptimizer, optimizers } from './registry.ts';

const native = loadNative({ enabled: true });
const kernels = createParameterKernels({ native });
const js = createParameterKernels();
const names = Object.keys(optimizers) as (keyof typeof optimizers)[];

function statesOf({ states }: Optimizer, count: number): Float64Array[] {
  return states.map(() => new Float64Array(count));
}

describe.each(goldens)('$spec.name like the reference', ({ spec, after }) => {
  it.each([{ float: 'float64' }, { float: 'float32' }] as const)('$float', ({ float }) => {
    const make = (values: readonly number[]): Float32Array | Float64Array =>
      float === 'float64' ? Float64Array.from(values) : Float32Array.from(values);
    for (const each of [kernels, js]) {
      const optimizer = createOptimizer(spec, each);
      const value = make(goldenStart);
      const states = optimizer.states.map(() => make([0, 0, 0, 0]));
      goldenGradients.forEach((gradient, k) => {
        optimizer.update(value, make(gradient), states, k + 1);
        value.forEach((actual, i) => expect(Math.abs(actual - after[k][i])).toBeLessThan(float === 'float64' ? 1e-13 : 1e-6));
      });
    }
  });
});

describe('every optimiser', () => {
  it.each(names)('%s goes downhill on a convex function', (name) => {
    const optimizer = createOptimizer({ name, learningRate: 0.1 }, kernels);
    const centre = [0.5, -0.25, 0.75];
    const value = new Float64Array(3);
    const states = statesOf(optimizer, 3);
    const distance = (): number => centre.reduce((sum, c, i) => sum + (value[i] - c) ** 2, 0);
    const before = distance();
    for (let step = 1; step <= 300; step++)
      optimizer.update(
        value,
        value.map((x, i) => x - centre[i]),
        states,
        step,
      );
    expect(distance()).toBeLessThan(before / 50);
  });

  it.each(names)('%s: an array in parts is the array', (name) => {
    fc.assert(
      fc.property(fc.nat(40), fc.nat(40), fc.nat(), (head, tail, seed) => {
        const random = seededRandom(seed);
        const optimizer = createOptimizer({ name, learningRate: 0.3, weightDecay: 0.1, clip: 0.5 }, kernels);
        const [value, gradient] = [0, 1].map(() => Float64Array.from({ length: head + tail }, () => random.next() - 0.5));
        const [parts, states, partStates] = [value.slice(), statesOf(optimizer, head + tail), statesOf(optimizer, head + tail)];
        for (const step of [1, 2]) {
          optimizer.update(value, gradient, states, step);
          for (const [from, to] of [
            [0, head],
            [head, head + tail],
          ]) {
            const cut = (array: Float64Array): Float64Array => array.subarray(from, to);
            optimizer.update(cut(parts), cut(gradient), partStates.map(cut), step);
          }
        }
        expect(parts).toEqual(value);
        expect(partStates).toEqual(states);
      }),
      { numRuns: 50 },
    );
  });

  it('states its defaults', () => {
    const specOf = (spec: OptimizerSpec): OptimizerSpec => createOptimizer(spec, kernels).spec;
    expect(specOf({ name: 'adam', learningRate: 1 })).toEqual({
      name: 'adam',
      learningRate: 1,
      rescale: 1,
      weightDecay: 0,
      nonFinite: 'apply',
      beta1: 0.9,
      beta2: 0.999,
      epsilon: 1e-8,
    });
    expect(specOf({ name: 'momentum', learningRate: 1 })).toMatchObject({ momentum: 0.9, variant: 'classic' });
    expect(specOf({ name: 'adagrad', learningRate: 1 })).toMatchObject({ epsilon: 1e-6 });
    expect(specOf({ name: 'ftrl', learningRate: 1 })).toMatchObject({ lambda1: 0.01, beta: 1 });
    for (const name of names) {
      const once = specOf({ name, learningRate: 0.1, clip: 2 });
      expect(specOf(JSON.parse(JSON.stringify(once)) as OptimizerSpec)).toEqual(once);
    }
  });

  it.each([
    [{ name: 'rmsprop', learningRate: 1 }, "there is no optimizer 'rmsprop'; use one of sgd, momentum, adam, adagrad, ftrl"],
    [{ name: 'sgd' }, "optimizer 'sgd': learningRate must be a number above 0, not undefined"],
    [{ name: 'sgd', learningRate: -1 }, "optimizer 'sgd': option 'learningRate' must be a number above 0, not -1"],
    [{ name: 'sgd', learningRate: '1' }, "optimizer 'sgd': option 'learningRate' must be a number above 0, not '1'"],
    [
      { name: 'sgd', learningRate: 1, beta1: 0.9 },
      "optimizer 'sgd' has no option 'beta1' (options: name, learningRate, rescale, weightDecay, clip, nonFinite)",
    ],
    [{ name: 'adam', learningRate: 1, beta2: 1 }, "optimizer 'adam': option 'beta2' must be a number from 0 and below 1, not 1"],
    [
      { name: 'adam', learningRate: 1, epsilom: 1 },
      "optimizer 'adam' has no option 'epsilom'; did you mean 'epsilon'? (options: name, learningRate, rescale, weightDecay, clip, nonFinite, beta1, beta2, epsilon)",
    ],
    [
      { name: 'momentum', learningRate: 1, variant: 'heavy' },
      "optimizer 'momentum': option 'variant' must be one of 'classic', 'nesterov', not 'heavy'",
    ],
    [
      { name: 'ftrl', learningRate: 1, nonFinite: 'ignore' },
      "optimizer 'ftrl': option 'nonFinite' must be one of 'apply', 'refuse', not 'ignore'",
    ],
    [{ name: 'sgd', learningRate: 1, clip: 0 }, "optimizer 'sgd': option 'clip' must be a number above 0, not 0"],
  ])('refuses %j', (spec, message) => {
    expect(() => createOptimizer(spec as OptimizerSpec, kernels)).toThrow(expect.objectContaining({ code: 'usage', message }));
  });
});
