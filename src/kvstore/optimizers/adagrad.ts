/** AdaGrad, as MXNet's `AdaGrad` (2.0: the decay is part of the gradient, epsilon stands outside the root):
 *
 *    g = clip(rescale · gradient) + weightDecay · value
 *    history += g²
 *    value −= learningRate · g / (√history + epsilon)
 *
 *  Source: Duchi, Hazan & Singer, "Adaptive subgradient methods for online learning and stochastic optimization", JMLR 2011. */
import { positive, type OptimizerDefinition } from './definition.ts';

export const adagrad: OptimizerDefinition = {
  name: 'adagrad',
  options: { epsilon: { fallback: 1e-6, range: positive } },
  states: ['history'],
  rule: () => 'adagrad',
  parameters: ({ epsilon }) => [Number(epsilon)],
};
