/** Adam (Kingma & Ba, 2014) for trees of jax-js arrays, with linear warm-up and cosine decay of the rate. It knows nothing about
 *  other processes: equal gradients and states give equal parameters, bit for bit. */
import { jit, numpy as np, tree, type JsTree } from '@jax-js/jax';

export interface AdamOptions {
  /** Peak learning rate. */
  readonly rate: number;
  /** Steps from zero to the peak. */
  readonly warmupSteps: number;
  /** Steps in all; the rate falls to a tenth of the peak at the last. */
  readonly steps: number;
}

const [decay1, decay2, epsilon] = [0.9, 0.98, 1e-8];

/** One leaf: parameter, gradient, first and second moment → new parameter and moments. `rate` already holds the bias correction
 *  of the first moment, `correction` is that of the second; both are scalars in arrays, so that nothing is recompiled. */
const updateLeaf = jit((p: np.Array, g: np.Array, m: np.Array, v: np.Array, rate: np.Array, correction: np.Array) => {
  const mean = m.mul(decay1).add(g.ref.mul(1 - decay1));
  const square = v.mul(decay2).add(np.square(g).mul(1 - decay2));
  const step = mean.ref.mul(rate).mul(np.reciprocal(np.sqrt(square.ref.mul(correction)).add(epsilon)));
  return [p.sub(step), mean, square];
});

export class Adam<T extends JsTree<np.Array>> {
  readonly #options: AdamOptions;
  #moments: [np.Array, np.Array][] | undefined;
  #step = 0;

  constructor(options: AdamOptions) {
    this.#options = options;
  }

  /** Its moments, copied, and the number of steps: undefined before the first one. */
  state(): { readonly step: number; readonly moments: Float32Array[] } | undefined {
    if (this.#moments === undefined) return undefined;
    return { step: this.#step, moments: this.#moments.flat().map((each) => each.ref.dataSync() as Float32Array) };
  }

  /** Continues from the state of another one, whose parameters have these shapes. */
  restore(shapes: readonly number[][], { step, moments }: { readonly step: number; readonly moments: readonly Float32Array[] }): void {
    for (const each of this.#moments?.flat() ?? []) each.dispose();
    this.#moments = shapes.map((shape, i) => [np.array(moments[2 * i], { shape }), np.array(moments[2 * i + 1], { shape })]);
    this.#step = step;
  }

  /** The parameters after one step; consumes both trees. */
  update(parameters: T, gradients: T): T {
    const [leaves, structure] = tree.flatten<np.Array>(parameters);
    this.#moments ??= leaves.map((leaf) => [np.zerosLike(leaf.ref), np.zerosLike(leaf.ref)]);
    this.#step++;
    const rate = np.array(this.#rate() / (1 - decay1 ** this.#step));
    const correction = np.array(1 / (1 - decay2 ** this.#step));
    const moments = this.#moments;
    const updated = tree.leaves<np.Array>(gradients).map((gradient, i) => {
      const [parameter, mean, square] = updateLeaf(leaves[i], gradient, ...moments[i], rate.ref, correction.ref);
      moments[i] = [mean, square];
      return parameter;
    });
    rate.dispose();
    correction.dispose();
    return tree.unflatten(structure, updated) as T;
  }

  #rate(): number {
    const { rate, warmupSteps, steps } = this.#options;
    if (this.#step <= warmupSteps) return (rate * this.#step) / warmupSteps;
    const progress = Math.min(1, (this.#step - warmupSteps) / Math.max(1, steps - warmupSteps));
    return rate * (0.1 + 0.45 * (1 + Math.cos(Math.PI * progress)));
  }
}
