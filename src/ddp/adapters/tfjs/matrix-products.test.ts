import * as tf from '@tensorflow/tfjs';
import { setThreadsCount } from '@tensorflow/tfjs-backend-wasm';
import { beforeAll, describe, expect, it } from 'vitest';
import { seededRandom } from '../../../base/random.ts';
import { addTransposedProducts } from './matrix-products.ts';

interface Backend {
  readonly wasm: { readonly HEAPU8: Uint8Array };
  numDataIds(): number;
}

const wasm = (): Backend => tf.backend() as unknown as Backend;

let added: readonly string[] = [];
let original: tf.KernelFunc | undefined;

beforeAll(async () => {
  setThreadsCount(1);
  await tf.setBackend('wasm');
  original = tf.getKernel('BatchMatMul', 'wasm').kernelFunc;
  added = addTransposedProducts();
});

function values(count: number, seed: number): Float32Array {
  const random = seededRandom(seed);
  return Float32Array.from({ length: count }, () => 2 * random.next() - 1);
}

/** The result of the cpu backend. */
async function reference(make: () => tf.Tensor): Promise<Float32Array> {
  await tf.setBackend('cpu');
  try {
    return tf.tidy(() => Float32Array.from(make().dataSync()));
  } finally {
    await tf.setBackend('wasm');
  }
}

/** @param addends number of addends of each element: float32 rounds as often. */
function expectClose(found: ArrayLike<number>, wanted: ArrayLike<number>, addends = 100): void {
  expect(found.length).toBe(wanted.length);
  let worst = 0;
  for (let index = 0; index < wanted.length; index++) worst = Math.max(worst, Math.abs(found[index] - wanted[index]));
  expect(worst).toBeLessThan(1e-5 * Math.sqrt(addends));
}

it('replaces the kernels of the wasm backend, once, and none of another', async () => {
  expect(added).toEqual(['BatchMatMul', '_FusedMatMul']);
  expect(addTransposedProducts()).toEqual([]);
  expect(tf.getKernel('BatchMatMul', 'wasm').kernelFunc).not.toBe(original);
  await tf.setBackend('cpu');
  expect(addTransposedProducts()).toEqual([]);
  await tf.setBackend('wasm');
});

const shapes = [
  // Rows, inner, and columns of the product. Every way of transposing is taken by some; those below 4,096 multiply-adds are left
  // to the backend, and 8,500 addends are summed in parts.
  [3, 4, 5],
  [16, 16, 16],
  [200, 17, 33],
  [17, 200, 33],
  [5, 70, 300],
  [300, 70, 5],
  [1, 300, 90],
  [90, 300, 1],
  [5, 8500, 7],
];

describe.each([
  { transposeA: true, transposeB: false },
  { transposeA: false, transposeB: true },
  { transposeA: true, transposeB: true },
])('$transposeA, $transposeB', ({ transposeA, transposeB }) => {
  it.each(shapes)('%i × %i × %i: what the cpu backend computes, and nothing is left', async (rows, inner, columns) => {
    const aShape = transposeA ? [inner, rows] : [rows, inner];
    const bShape = transposeB ? [columns, inner] : [inner, columns];
    const product = (): tf.Tensor =>
      tf.matMul(tf.tensor(values(rows * inner, 1), aShape), tf.tensor(values(inner * columns, 2), bShape), transposeA, transposeB);
    const wanted = await reference(product);
    const { numTensors } = tf.memory();
    const dataIds = wasm().numDataIds();
    tf.tidy(() => {
      const found = product();
      expect(found.shape).toEqual([rows, columns]);
      expectClose(found.dataSync(), wanted, 100 + inner);
    });
    expect([tf.memory().numTensors, wasm().numDataIds()]).toEqual([numTensors, dataIds]);
  });

  it('with bias and activation, also of more than 48 addends', async () => {
    const [rows, inner, columns] = [7, 200, 5];
    const a = values(rows * inner, 3);
    const b = values(inner * columns, 4);
    const bias = values(columns, 5);
    const aShape: [number, number] = transposeA ? [inner, rows] : [rows, inner];
    const bShape: [number, number] = transposeB ? [columns, inner] : [inner, columns];
    const wanted = await reference(() =>
      tf.matMul(tf.tensor(a, aShape), tf.tensor(b, bShape), transposeA, transposeB).add(tf.tensor1d(bias)).relu(),
    );
    tf.tidy(() => {
      const fused = tf.fused.matMul({
        ...{ a: tf.tensor2d(a, aShape), b: tf.tensor2d(b, bShape), transposeA, transposeB },
        ...{ bias: tf.tensor1d(bias), activation: 'relu' as const },
      });
      expectClose(fused.dataSync(), wanted);
    });
  });
});

it('leaves batches of several matrices to the backend, and keeps outer sides of one', async () => {
  for (const outer of [[2], [1], [1, 1]]) {
    const count = outer.reduce((product, length) => product * length, 1);
    const product = (): tf.Tensor =>
      tf.matMul(tf.tensor(values(count * 600, 6), [...outer, 20, 30]), tf.tensor(values(count * 750, 7), [...outer, 25, 30]), false, true);
    const wanted = await reference(product);
    tf.tidy(() => {
      const found = product();
      expect(found.shape).toEqual([...outer, 20, 25]);
      expectClose(found.dataSync(), wanted);
    });
  }
  expect(() => tf.matMul(tf.zeros([20, 30]), tf.zeros([20, 31]), false, true)).toThrow(/shapes|match/);
});

it('a training has the gradients of the cpu backend, and its memory does not grow', async () => {
  const [batch, features] = [24, 64];
  const make = () => ({
    x: tf.tensor2d(values(batch * features, 8), [batch, features]),
    layers: [features, 96, 10].slice(1).map((to, index) => {
      const from = [features, 96][index];
      return tf.tensor2d(values(from * to, 9 + index), [from, to]);
    }),
  });
  const lossOf = (x: tf.Tensor2D, [first, second]: tf.Tensor2D[]): tf.Scalar =>
    x.matMul(first).relu().matMul(second).square().mean<tf.Scalar>();
  const gradients = (): tf.Tensor => {
    const { x, layers } = make();
    const found = tf.grads((...given: tf.Tensor[]) => lossOf(x, given as tf.Tensor2D[]))(layers);
    return tf.concat(found.map((each) => each.flatten()));
  };
  const wanted = await reference(gradients);
  const { numTensors } = tf.memory();
  const dataIds = wasm().numDataIds();
  for (let step = 0; step < 20; step++) tf.tidy(() => expectClose(gradients().dataSync(), wanted));
  // XNNPACK keeps operators with their weights; they are freed like everything else.
  const { length } = wasm().wasm.HEAPU8;
  for (let step = 0; step < 400; step++) tf.tidy(() => void gradients());
  expect(wasm().wasm.HEAPU8.length).toBe(length);
  expect([tf.memory().numTensors, wasm().numDataIds()]).toEqual([numTensors, dataIds]);
});
