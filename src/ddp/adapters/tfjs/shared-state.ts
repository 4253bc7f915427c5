/** The state that an optimiser of TensorFlow.js keeps for all variables together: powers of Adam's betas, counters. When variables are
 *  updated one after the other, each must find it as it was before the step, and afterwards it has moved by one step.
 *
 *      update(a): moves it ─▶ update(b): put back, moves it again ─▶ … ─▶ next step */
import * as tf from '@tensorflow/tfjs';

/** Fields of the optimisers of TensorFlow.js 4 that do not belong to one variable. */
const sharedVariables = ['accBeta1', 'accBeta2', 'iteration'] as const;

type Fields = { iterations_?: number | null } & Partial<Record<(typeof sharedVariables)[number], tf.Variable>>;

/** Optimisers that keep everything else by variable, at its place in the list. */
export const optimizersByVariable: readonly string[] = ['SGD', 'Momentum', 'Adam', 'Adamax', 'Adagrad', 'Adadelta', 'RMSProp'];

export class SharedState {
  readonly #fields: Fields;
  #before: readonly { readonly variable: tf.Variable; readonly value: tf.Tensor }[] = [];
  #iterations: number | null | undefined;

  constructor(optimizer: tf.Optimizer) {
    this.#fields = optimizer as unknown as Fields;
  }

  /** Remembers the shared state, when a step begins. */
  keep(): void {
    this.release();
    this.#iterations = this.#fields.iterations_;
    this.#before = sharedVariables.flatMap((name) => {
      const variable = this.#fields[name];
      return variable === undefined ? [] : [{ variable, value: tf.keep(variable.clone()) }];
    });
  }

  /** Puts the shared state back to where the step began. */
  restore(): void {
    this.#fields.iterations_ = this.#iterations;
    for (const { variable, value } of this.#before) variable.assign(value);
  }

  release(): void {
    for (const { value } of this.#before) value.dispose();
    this.#before = [];
  }
}
