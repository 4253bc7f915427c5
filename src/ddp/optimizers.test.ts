/** SGD by the shared kernels against torch's formulas, element by element. */
import { describe, expect, it } from 'vitest';
import { SGD, type SGDOptions } from './optimizers.ts';

const gradients = [
  [0.1, -0.2, 3, 0.004],
  [-0.3, 0.25, 2.5, -0.02],
  [0.05, 0, -4, 0.008],
];
const rates = [0.1, 0.02, 0.3];

describe('SGD steps as torch.optim.SGD does, also when the rate changes', () => {
  it.each<SGDOptions>([
    {},
    { weightDecay: 0.1 },
    { momentum: 0.9 },
    { momentum: 0.9, nesterov: true },
    { momentum: 0.5, weightDecay: 0.1 },
    { momentum: 0.5, weightDecay: 0.1, nesterov: true },
  ])('%j', (options) => {
    const { momentum = 0, weightDecay = 0, nesterov = false } = options;
    const data = Float64Array.of(0.5, -1.25, 2, 0);
    const expected = Array.from(data);
    const buffer = [0, 0, 0, 0];
    const sgd = new SGD([{ name: 'w', data }], options);
    for (const [k, gradient] of gradients.entries()) {
      sgd.lr = rates[k];
      sgd.step([Float64Array.from(gradient)]);
      for (let i = 0; i < data.length; i++) {
        const decayed = gradient[i] + weightDecay * expected[i];
        buffer[i] = momentum * buffer[i] + decayed;
        expected[i] -= rates[k] * (nesterov ? decayed + momentum * buffer[i] : momentum === 0 ? decayed : buffer[i]);
        expect(data[i]).toBeCloseTo(expected[i], 13);
      }
    }
    if (momentum > 0) for (const [i, value] of sgd.state['w.momentum_buffer'].entries()) expect(value).toBeCloseTo(buffer[i], 13);
  });
});
