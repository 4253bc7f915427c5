import * as tf from '@tensorflow/tfjs';
import { setThreadsCount } from '@tensorflow/tfjs-backend-wasm';
import { expect, it } from 'vitest';
import { elementsOf } from './heap-view.ts';

it('sees tensors of the wasm backend in its heap, and reads those of others', async () => {
  setThreadsCount(1);
  await tf.setBackend('wasm');
  const computed = tf.tidy(() => tf.tensor1d([1, 2, 3]).square());
  const heap = (tf.backend() as unknown as { wasm: { HEAPU8: Uint8Array } }).wasm.HEAPU8.buffer;
  const view = elementsOf(tf.backend(), computed);
  expect([...view]).toEqual([1, 4, 9]);
  expect(view.buffer).toBe(heap);
  await tf.setBackend('cpu');
  const elsewhere = tf.tensor1d([5, 6]);
  expect([...elementsOf(tf.backend(), elsewhere)]).toEqual([5, 6]);
  // The tensor is still where it was: reading it from another backend did not move it.
  expect([...elementsOf(tf.backend(), computed)]).toEqual([1, 4, 9]);
});
