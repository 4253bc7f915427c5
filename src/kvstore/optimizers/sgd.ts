/** Stochastic gradient descent, as MXNet's `SGD` without momentum:
 *
 *    g = clip(rescale · gradient) + weightDecay · value
 *    value −= learningRate · g */
import type { OptimizerDefinition } from './definition.ts';

export const sgd: OptimizerDefinition = {
  name: 'sgd',
  options: {},
  states: [],
  rule: () => 'sgd',
  parameters: () => [],
};
