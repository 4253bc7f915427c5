/** Adam, as MXNet's `Adam`:
 *
 *    g = clip(rescale · gradient) + weightDecay · value
 *    mean     = beta1 · mean     + (1 − beta1) · g
 *    variance = beta2 · variance + (1 − beta2) · g²
 *    value −= learningRate · √(1 − beta2ᵗ) / (1 − beta1ᵗ) · mean / (√variance + epsilon)          t = updates so far, this one included
 *
 *  This is the form at the end of section 2 of the paper, whose epsilon is not corrected for the bias: PyTorch's update
 *  follows with epsilon · √(1 − beta2ᵗ) in the place of epsilon.
 *  Source: Kingma & Ba, "Adam: a method for stochastic optimization", ICLR 2015. */
import { fraction, positive, type OptimizerDefinition } from './definition.ts';

export const adam: OptimizerDefinition = {
  name: 'adam',
  options: {
    beta1: { fallback: 0.9, range: fraction },
    beta2: { fallback: 0.999, range: fraction },
    epsilon: { fallback: 1e-8, range: positive },
  },
  states: ['mean', 'variance'],
  rule: () => 'adam',
  parameters: ({ beta1, beta2, epsilon }) => [beta1, 1 - Number(beta1), beta2, 1 - Number(beta2), epsilon].map(Number),
  rateAt: ({ learningRate, beta1, beta2 }, step) =>
    (Number(learningRate) * Math.sqrt(1 - Number(beta2) ** step)) / (1 - Number(beta1) ** step),
};
