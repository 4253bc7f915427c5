/** The benchmark of products of transposed matrices in its smallest form. */
import * as tf from '@tensorflow/tfjs';
import { expect, it } from 'vitest';
import { compareProducts } from '../../bench/tfjs/products.ts';

it('compares products and a step of a training, and puts the backend back as it was', async () => {
  const rows = await compareProducts({ turns: 1, small: true });
  expect(rows.map(({ name }) => name)).toEqual([
    ...['1 × 1024 → 1024: gradient of the input', '1 × 1024 → 1024: gradient of the weights'],
    ...['16 × 16 → 16: gradient of the input', '16 × 16 → 16: gradient of the weights'],
    ...['forward pass of the model', 'step of training the model'],
  ]);
  for (const { ownMedianMs, medianMs } of rows) expect(ownMedianMs * medianMs).toBeGreaterThan(0);
  expect(tf.getBackend()).toBe('wasm');
});
