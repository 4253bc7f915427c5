/** One network in two processes: worker 0 has the first layer, worker 1 the second. Features go forward, gradients come
 *  back, and each half keeps its parameters on the servers. Both predict whether a point lies in a ring.
 *
 *      worker 0:  points ─▶ tanh(W1·x + b1) ═══ feature blob ═══▶  worker 1:  σ(w2·h + b2) ─▶ loss
 *                        ◀── W1, b1 −= …    ◀══ gradient blob ═══           ◀── w2, b2 −= …
 *
 *      shoal run --workers 2 --servers 1 examples/split-network/train.ts
 *
 *  A run takes about 4 s of CPU time, measured on two CPUs. */
import { seededRandom } from 'shoal/ddp';
import { create } from 'shoal/kvstore';

const [points, hidden, steps] = [128, 16, 400];

// Worker groups of one: a parameter is pushed by the worker that has it, and nobody waits for the other.
const kv = await create('dist_async');
if (kv.numWorkers !== 2) throw new Error(`this example splits a network over 2 workers, not ${kv.numWorkers}`);
const neighbour = 1 - kv.rank;

const random = seededRandom(7);
const uniform = (): number => random.next() * 2 - 1;
const first = kv.tensor('float32', [hidden * 3]); // W1 and b1
const second = kv.tensor('float32', [hidden + 1]); // w2 and b2
first.data.forEach((_, i) => (first.data[i] = uniform() * 1.5));
second.data.forEach((_, i) => (second.data[i] = uniform() * 0.5));
await kv.broadcast(['first', 'second'], [first, second], [first, second]);
if (kv.rank === 0) await kv.setOptimizer({ name: 'adam', learningRate: 0.02, rescale: 1 / points });
await kv.barrier();

/** The same points for both: worker 0 sees where they are, worker 1 which are inside. */
const xs = Array.from({ length: points }, () => [uniform() * 1.5, uniform() * 1.5] as const);
const inside = xs.map(([x, y]) => (x * x + y * y > 0.3 && x * x + y * y < 1.2 ? 1 : 0));
const gradient = kv.rank === 0 ? kv.tensor('float32', [hidden * 3]) : kv.tensor('float32', [hidden + 1]);

async function firstLayer(): Promise<void> {
  const features = new Float32Array(points * hidden);
  for (let n = 0; n < points; n++) {
    const [x, y] = xs[n];
    for (let h = 0; h < hidden; h++) {
      features[n * hidden + h] = Math.tanh(first.data[3 * h] * x + first.data[3 * h + 1] * y + first.data[3 * h + 2]);
    }
  }
  await kv.sendBlob(neighbour, { kind: 'feature', name: 'hidden', values: features });
  const back = (await kv.receiveBlob(neighbour, 'hidden')) as Float32Array;
  gradient.data.fill(0);
  for (let n = 0; n < points; n++) {
    const [x, y] = xs[n];
    for (let h = 0; h < hidden; h++) {
      const g = back[n * hidden + h] * (1 - features[n * hidden + h] ** 2);
      gradient.data[3 * h] += g * x;
      gradient.data[3 * h + 1] += g * y;
      gradient.data[3 * h + 2] += g;
    }
  }
  await kv.pushPull('first', gradient, first);
}

async function secondLayer(): Promise<{ loss: number; right: number }> {
  const features = (await kv.receiveBlob(neighbour, 'hidden')) as Float32Array;
  const back = new Float32Array(points * hidden);
  gradient.data.fill(0);
  let [loss, right] = [0, 0];
  for (let n = 0; n < points; n++) {
    let z = second.data[hidden];
    for (let h = 0; h < hidden; h++) z += second.data[h] * features[n * hidden + h];
    const p = 1 / (1 + Math.exp(-z));
    loss -= Math.log(Math.max(1e-7, inside[n] === 1 ? p : 1 - p)) / points;
    right += Number(p > 0.5 === (inside[n] === 1));
    const g = p - inside[n];
    for (let h = 0; h < hidden; h++) {
      gradient.data[h] += g * features[n * hidden + h];
      back[n * hidden + h] = g * second.data[h];
    }
    gradient.data[hidden] += g;
  }
  await kv.sendBlob(neighbour, { kind: 'gradient', name: 'hidden', values: back });
  await kv.pushPull('second', gradient, second);
  return { loss, right: right / points };
}

for (let step = 1; step <= steps; step++) {
  if (kv.rank === 0) {
    await firstLayer();
    continue;
  }
  const { loss, right } = await secondLayer();
  if (step === 1 || step % 100 === 0) console.log(`step ${step}/${steps} loss ${loss.toFixed(4)} right ${(right * 100).toFixed(1)}%`);
}
await kv.close();
