/** Data-parallel training with TensorFlow.js: a convolutional network learns to tell drawn digits apart, on several processes.
 *
 *      npx shoal run -n 2 examples/tfjs/train.ts
 *      npx shoal run -n 2 examples/tfjs/train.ts --schedule      the first layers' gradients travel first
 *
 *  Alone it trains in one process. What makes it several: `initProcessGroup`, `distribute`, and each rank's own part of the data.
 *
 *  A run takes about 11 s of CPU time, measured on two CPUs. */
import { parseArgs } from 'node:util';
import * as tf from '@tensorflow/tfjs';
import { setThreadsCount } from '@tensorflow/tfjs-backend-wasm';
import { initProcessGroup } from 'shoal';
import { DistributedSampler, seededRandom, type Random } from 'shoal/ddp';
import { distribute } from 'shoal/ddp/tfjs';

const { values: options } = parseArgs({
  options: {
    schedule: { type: 'boolean', default: false },
    backend: { type: 'string', default: 'wasm' },
    epochs: { type: 'string', default: '3' },
    items: { type: 'string', default: '1024' },
    json: { type: 'boolean', default: false },
  },
});
setThreadsCount(1);
await tf.setBackend(options.backend);
const group = await initProcessGroup({ scheduling: options.schedule });

// ── data: seven-segment digits, moved and noisy. Synthetic, the same on all ranks ──

const segments = ['abcdef', 'bc', 'abged', 'abgcd', 'fgbc', 'afgcd', 'afgedc', 'abc', 'abcdefg', 'abcfgd'];
const places: Record<string, readonly [x: number, y: number, width: number, height: number]> = {
  a: [0, 0, 6, 1],
  b: [5, 0, 1, 6],
  c: [5, 5, 1, 6],
  d: [0, 10, 6, 1],
  e: [0, 5, 1, 6],
  f: [0, 0, 1, 6],
  g: [0, 5, 6, 1],
};
const side = 14;

function draw(digit: number, random: Random): Float32Array {
  const image = Float32Array.from({ length: side * side }, () => random.next() * 0.4);
  const [left, top] = [random.integer(8), random.integer(3)];
  for (const segment of segments[digit]) {
    const [x, y, width, height] = places[segment];
    for (let row = 0; row < height; row++) image.fill(1, (top + y + row) * side + left + x, (top + y + row) * side + left + x + width);
  }
  return image;
}

const random = seededRandom(1);
const labels = Array.from({ length: Number(options.items) }, () => random.integer(10));
const images = labels.map((digit) => draw(digit, random));

// ── model ──

const seed = 7;
const model = tf.sequential({
  layers: [
    tf.layers.conv2d({
      inputShape: [side, side, 1],
      filters: 8,
      kernelSize: 3,
      activation: 'relu',
      kernelInitializer: tf.initializers.glorotUniform({ seed }),
    }),
    tf.layers.maxPooling2d({ poolSize: 2 }),
    tf.layers.flatten(),
    tf.layers.dense({ units: 64, activation: 'relu', kernelInitializer: tf.initializers.glorotUniform({ seed: seed + 1 }) }),
    tf.layers.dense({ units: 10, activation: 'softmax', kernelInitializer: tf.initializers.glorotUniform({ seed: seed + 2 }) }),
  ],
});
const optimizer = distribute(group, tf.train.adam(2e-3));
model.compile({ optimizer, loss: 'sparseCategoricalCrossentropy', metrics: ['accuracy'] });

// ── training, on this rank's part of the data ──

const sampler = new DistributedSampler(images.length, { group, seed: 1 });
const losses: number[] = [];
for (let epoch = 0; epoch < Number(options.epochs); epoch++) {
  sampler.setEpoch(epoch);
  for (const items of sampler.batches(32)) {
    const x = tf.tensor4d(Float32Array.from(items.flatMap((item) => [...images[item]])), [items.length, side, side, 1]);
    const y = tf.tensor1d(items.map((item) => labels[item]));
    const [loss] = (await model.trainOnBatch(x, y)) as number[];
    losses.push(loss);
    tf.dispose([x, y]);
  }
  if (group.rank === 0 && !options.json) console.log(`epoch ${epoch}: loss ${losses.at(-1)?.toFixed(4)}`);
}
const weights = model.getWeights().map((weight) => weight.dataSync().slice());
if (options.json) console.log(JSON.stringify({ losses, weights: weights.map((values) => [...values.slice(0, 50)]) }));
optimizer.dispose();
await group.destroy();
