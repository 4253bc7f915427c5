/** Products of transposed matrices in TensorFlow.js' wasm backend: its own kernels, and those of `shoal/ddp/tfjs`; by themselves, and in
 *  steps of a training. One thread; turns of the two are interleaved.
 *
 *    npx tsx bench/tfjs/products.ts [--turns 9] [--out bench/results/tfjs-products.json] */
import { writeFileSync } from 'node:fs';
import os from 'node:os';
import { fileURLToPath } from 'node:url';
import * as tf from '@tensorflow/tfjs';
import { setThreadsCount } from '@tensorflow/tfjs-backend-wasm';
import { systemClock } from '../../src/base/clock.ts';
import { addTransposedProducts } from '../../src/ddp/adapters/tfjs/matrix-products.ts';
import { programArguments } from '../arguments.ts';
import { denseModel } from './dense-model.ts';

export interface ProductRow {
  readonly name: string;
  readonly ownBestMs: number;
  readonly ownMedianMs: number;
  readonly bestMs: number;
  readonly medianMs: number;
  /** Ratio of the medians: the backend's own kernel to the one here. */
  readonly speedup: number;
}

/** Sizes of a layer: rows of its input, inputs, outputs. */
const layers = [
  [8, 2048, 256],
  [64, 1024, 1024],
  [32, 4096, 1000],
  [2048, 128, 128],
  [4096, 64, 64],
  [1, 1024, 1024],
  [16, 16, 16],
];

type Kernels = 'own' | 'here';

/** @param use puts kernels in force. */
function compare(name: string, turns: number, run: () => void, use: (kernels: Kernels) => void): ProductRow {
  const times: Record<Kernels, number[]> = { own: [], here: [] };
  for (let turn = 0; turn <= turns; turn++) {
    for (const kernels of ['own', 'here'] as const) {
      use(kernels);
      const from = systemClock.now();
      tf.tidy(run);
      // The first turn warms up.
      if (turn > 0) times[kernels].push(systemClock.now() - from);
    }
  }
  const [own, here] = [times.own, times.here].map((list) => list.toSorted((a, b) => a - b));
  const middle = Math.floor(turns / 2);
  return {
    ...{ name, ownBestMs: own[0], ownMedianMs: own[middle], bestMs: here[0], medianMs: here[middle] },
    speedup: own[middle] / here[middle],
  };
}

export async function compareProducts({
  turns,
  small = false,
}: {
  readonly turns: number;
  readonly small?: boolean;
}): Promise<ProductRow[]> {
  setThreadsCount(1);
  await tf.setBackend('wasm');
  const configs = (): tf.KernelConfig[] => ['BatchMatMul', '_FusedMatMul'].map((name) => tf.getKernel(name, 'wasm'));
  const kernels = { own: configs(), here: [] as tf.KernelConfig[] };
  addTransposedProducts();
  kernels.here = configs();
  const use = (which: Kernels): void => {
    for (const config of kernels[which]) {
      tf.unregisterKernel(config.kernelName, 'wasm');
      tf.registerKernel(config);
    }
  };
  const rows: ProductRow[] = [];
  for (const [count, inputs, outputs] of small ? layers.slice(-2) : layers) {
    const [x, weights, gradient] = [
      tf.randomNormal([count, inputs]),
      tf.randomNormal([inputs, outputs]),
      tf.randomNormal([count, outputs]),
    ];
    const name = `${count} × ${inputs} → ${outputs}`;
    rows.push(compare(`${name}: gradient of the input`, turns, () => void tf.matMul(gradient, weights, false, true), use));
    rows.push(compare(`${name}: gradient of the weights`, turns, () => void tf.matMul(x, gradient, true, false), use));
    tf.dispose([x, weights, gradient]);
  }
  const { variables, loss } = denseModel({ batch: 8, positions: small ? 64 : 2048, units: small ? 16 : 256 });
  const optimizer = tf.train.sgd(0.01);
  rows.push(compare('forward pass of the model', turns, () => void loss(), use));
  rows.push(compare('step of training the model', turns, () => void optimizer.minimize(loss, false, variables), use));
  use('own');
  return rows;
}

async function main(): Promise<void> {
  const { values } = programArguments(import.meta.url, { options: { turns: { type: 'string', default: '9' }, out: { type: 'string' } } });
  const loadBefore = os.loadavg()[0];
  const rows = await compareProducts({ turns: Number(values.turns) });
  for (const { name, ownMedianMs, medianMs, speedup } of rows)
    console.log(
      `${name.padEnd(46)} own ${ownMedianMs.toFixed(2).padStart(8)} ms, here ${medianMs.toFixed(2).padStart(7)} ms: ${speedup.toFixed(1)} ×`,
    );
  const machine = { cpu: os.cpus()[0].model, cpus: os.cpus().length, node: process.version, loadBefore, loadAfter: os.loadavg()[0] };
  if (values.out !== undefined) writeFileSync(values.out, `${JSON.stringify({ machine, rows }, null, 2)}\n`);
}

if (process.argv[1] === fileURLToPath(import.meta.url)) await main();
