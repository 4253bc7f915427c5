/** The state from which training goes on when ranks are lost or join, as plain arrays: parameters, both moments of Adam, and the place in the text. */
import { numpy as np, tree, type JsTree } from '@jax-js/jax';
import type { ElasticState, SamplerState } from 'shoal/ddp';
import type { Adam } from './adam.ts';

export interface Progress {
  readonly sampler: SamplerState;
  /** Step and loss. */
  readonly losses: readonly [number, number][];
}

export class TrainingState<T extends JsTree<np.Array>> implements ElasticState {
  step = 0;
  readonly tensors: Float32Array[];
  extra: Progress;
  readonly #shapes: number[][];
  readonly #like: ReturnType<typeof tree.structure>;

  constructor(params: T, extra: Progress) {
    const [arrays, like] = tree.flatten<np.Array>(params);
    const leaves = arrays.map((leaf) => leaf.ref.dataSync() as Float32Array);
    this.#shapes = arrays.map(({ shape }) => shape);
    this.#like = like;
    this.tensors = [...leaves, ...leaves.flatMap(({ length }) => [new Float32Array(length), new Float32Array(length)])];
    this.extra = extra;
  }

  /** One more step has been made. No other code runs in between. */
  save(params: T, adam: Adam<T>, extra: Progress): void {
    const leaves = tree.leaves<np.Array>(params).map((leaf) => leaf.ref.dataSync() as Float32Array);
    [...leaves, ...(adam.state()?.moments ?? [])].forEach((values, index) => this.tensors[index].set(values));
    this.extra = extra;
    this.step++;
  }

  /** The parameters. Adam continues from its moments. */
  load(adam: Adam<T>): T {
    const count = this.#shapes.length;
    adam.restore(this.#shapes, { step: this.step, moments: this.tensors.slice(count).map((each) => each.slice()) });
    const leaves = this.#shapes.map((shape, index) => np.array(this.tensors[index].slice(), { shape }));
    return tree.unflatten(this.#like, leaves) as T;
  }
}
