/** Data-parallel training with jax-js of a model in stages: a small network learns to tell the arms of a spiral apart.
 *
 *      npx shoal run -n 2 examples/jax-js-stages/train.ts
 *      npx shoal run -n 2 examples/jax-js-stages/train.ts --schedule      the first stages' gradients travel first
 *
 *  Each stage is jitted with its vjp, so that the gradients of the last ones travel while those of the first ones are computed, and the
 *  next forward pass waits for each stage by itself.
 *
 *  A run takes about 4 s of CPU time, measured on two CPUs. */
import { parseArgs } from 'node:util';
import { defaultDevice, init, nn, numpy as np } from '@jax-js/jax';
import { initProcessGroup } from 'shoal';
import { DistributedSampler, seededRandom } from 'shoal/ddp';
import { distributeStages, type Stage } from 'shoal/ddp/jax-js';
import { Adam } from '../char-lm/adam.ts';

const { values: options } = parseArgs({
  options: {
    schedule: { type: 'boolean', default: false },
    epochs: { type: 'string', default: '12' },
    items: { type: 'string', default: '768' },
    width: { type: 'string', default: '64' },
    json: { type: 'boolean', default: false },
  },
});
const [epochs, items, width] = [options.epochs, options.items, options.width].map(Number);
await init('wasm');
defaultDevice('wasm');
const group = await initProcessGroup({ scheduling: options.schedule });

// ── data: points on three arms, the same on all ranks ──

const random = seededRandom(1);
const arms = 3;
const points = Array.from({ length: items }, (_, item) => {
  const [arm, radius] = [item % arms, 0.1 + 0.9 * random.next()];
  const angle = 4 * radius + (2 * Math.PI * arm) / arms + 0.2 * (random.next() - 0.5);
  return { x: [radius * Math.cos(angle), radius * Math.sin(angle)], arm };
});

// ── model: a list of stages ──

type Dense = { weight: np.Array; bias: np.Array };

function dense(from: number, to: number): Dense {
  const values = Float32Array.from({ length: from * to }, () => (2 * random.next() - 1) * Math.sqrt(6 / (from + to)));
  return { weight: np.array(values, { shape: [from, to] }), bias: np.zeros([to]) };
}

const affine = ({ weight, bias }: Dense, x: np.Array): np.Array => np.matmul(x, weight).add(bias);
const hidden = (name: string, from: number): Stage<Dense> => ({
  name,
  parameters: dense(from, width),
  forward: (parameters, x) => np.tanh(affine(parameters, x)),
});
const last: Stage<Dense> = {
  name: 'head',
  parameters: dense(width, arms),
  forward: (parameters, x, targets) => nn.logSoftmax(affine(parameters, x), -1).mul(targets).sum(-1).mean().mul(-1),
};
const stages = [hidden('first', 2), hidden('second', width), hidden('third', width), last];

// ── training, on this rank's part of the data ──

const sampler = new DistributedSampler(items, { group, seed: 1, dropLast: true });
const steps = epochs * Math.floor(sampler.length / 32);
const model = await distributeStages(group, stages, { optimizer: () => new Adam({ rate: 0.01, warmupSteps: 5, steps }) });
const losses: number[] = [];
for (let epoch = 0; epoch < epochs; epoch++) {
  sampler.setEpoch(epoch);
  for (const batch of sampler.batches(32)) {
    if (batch.length < 32) continue;
    const x = np.array(Float32Array.from(batch.flatMap((item) => points[item].x)), { shape: [32, 2] });
    const y = np.array(Float32Array.from(batch.flatMap((item) => [0, 1, 2].map((arm) => Number(points[item].arm === arm)))), {
      shape: [32, 3],
    });
    losses.push(model.step(x, y));
  }
  if (group.rank === 0 && !options.json) console.log(`epoch ${epoch}: loss ${losses.at(-1)?.toFixed(4)}`);
}
const checksum = await model.verifyReplicas();
if (options.json) console.log(JSON.stringify({ losses, checksum }));
model.close();
await group.destroy();
