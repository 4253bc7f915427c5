/** Descent with momentum, as MXNet's `SGD` with momentum and `NAG`:
 *
 *    g = clip(rescale · gradient) + weightDecay · value
 *    velocity = momentum · velocity − learningRate · g
 *    classic   value += velocity
 *    nesterov  value += momentum · velocity − learningRate · g
 *
 *  The velocity holds the learning rate: a change of it acts at once in the new part only. At a constant rate both are
 *  PyTorch's, whose velocity is −1/learningRate of this one.
 *  Source: Sutskever et al., "On the importance of initialization and momentum in deep learning", ICML 2013. */
import { fraction, oneOf, type OptimizerDefinition } from './definition.ts';

export const momentum: OptimizerDefinition = {
  name: 'momentum',
  options: {
    momentum: { fallback: 0.9, range: fraction },
    variant: { fallback: 'classic', range: oneOf('classic', 'nesterov') },
  },
  states: ['velocity'],
  rule: ({ variant }) => (variant === 'nesterov' ? 'nesterov' : 'momentum'),
  parameters: ({ momentum }) => [Number(momentum)],
};
