/** A model of TensorFlow.js for benchmarks, whose early layers compute much and are small, and whose late layers are large and
 *  compute little, like VGG's: dense layers over all positions of a sample, which are then taken together, and large layers over
 *  the result. As in VGG, the first layer computes most, and its input needs no gradient. */
import * as tf from '@tensorflow/tfjs';

export interface DenseModelSizes {
  /** Number of samples. */
  readonly batch: number;
  /** Positions of a sample. */
  readonly positions: number;
  /** Units of the late layers. */
  readonly units: number;
}

export interface DenseModel {
  /** Variables in the order of the forward pass. */
  readonly variables: tf.Variable[];
  readonly loss: () => tf.Scalar;
}

const [left, wide, features, narrow] = [64, 256, 128, 32];

export function denseModel({ batch, positions, units }: DenseModelSizes): DenseModel {
  const weight = (shape: [number, number], seed: number): tf.Variable<tf.Rank.R2> =>
    tf.variable(tf.initializers.glorotUniform({ seed }).apply(shape)) as tf.Variable<tf.Rank.R2>;
  const early = [weight([wide, features], 1), weight([features, narrow], 2)];
  const late = [weight([left * narrow, units], 4), weight([units, 4 * units], 5), weight([4 * units, units], 6), weight([units, 10], 7)];
  const x = tf.randomUniform([batch * positions, wide], 0, 1, 'float32', 7) as tf.Tensor2D;
  const y = tf.randomUniform([batch, 10], 0, 1, 'float32', 8);
  const loss = (): tf.Scalar => {
    const each = early.reduce<tf.Tensor2D>((input, dense) => input.matMul(dense).relu(), x);
    const taken = each
      .reshape([batch, left, positions / left, narrow])
      .mean(2)
      .reshape<tf.Tensor2D>([batch, left * narrow]);
    const [first, second, third, last] = late;
    return tf.losses.meanSquaredError(y, taken.matMul(first).relu().matMul(second).relu().matMul(third).relu().matMul(last));
  };
  return { variables: [...early, ...late], loss };
}
