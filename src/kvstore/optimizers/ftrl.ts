/** Follow the regularised leader, per coordinate, as MXNet's `Ftrl`; sparse solutions for linear models:
 *
 *    g = clip(rescale · gradient)
 *    z += g − (√(n + g²) − √n) / learningRate · value
 *    n += g²
 *    value = 0                                                              where |z| ≤ lambda1
 *            (sign(z) · lambda1 − z) / ((beta + √n) / learningRate + weightDecay)      elsewhere
 *
 *  The weight decay is the paper's lambda2: it shrinks in closed form and is not part of the gradient.
 *  Source: McMahan, "Follow-the-regularized-leader and mirror descent", AISTATS 2011; McMahan et al., "Ad click prediction:
 *  a view from the trenches", KDD 2013, algorithm 1. */
import { notNegative, positive, type OptimizerDefinition } from './definition.ts';

export const ftrl: OptimizerDefinition = {
  name: 'ftrl',
  options: {
    lambda1: { fallback: 0.01, range: notNegative },
    beta: { fallback: 1, range: positive },
  },
  states: ['z', 'n'],
  rule: () => 'ftrl',
  parameters: ({ lambda1, beta }) => [Number(lambda1), Number(beta)],
};
