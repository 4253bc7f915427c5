/** Trains the character model of examples/char-lm with its parameters on servers. The same script, by the type of its store:
 *
 *    shoal run --workers 2 --servers 2 examples/parameter-server/train.ts                         one version at a time
 *    shoal run --workers 2 --servers 2 examples/parameter-server/train.ts -- --schedule           the first layers travel first, in parts
 *    shoal run --workers 2 --servers 2 examples/parameter-server/train.ts -- --store dist_async   nobody waits
 *    shoal run --workers 4 --worker-groups 2 --servers 2 --server-groups 2 …                      groups with copies of their own
 *    shoal run -n 2 examples/parameter-server/train.ts -- --store collective                      no servers: all-reduce
 *
 *  Servers need no script. What has to do with the store is marked ◆.
 *
 *  A run takes about 13 s of CPU time, measured on two CPUs. */
import { defaultDevice, init, numpy as np, tree } from '@jax-js/jax';
import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { DistributedSampler, seededRandom } from 'shoal/ddp';
import { create, ScheduledKVStore, type KVStoreType } from 'shoal/kvstore'; // ◆
import { loadCorpus, windowCount, windows } from '../char-lm/corpus.ts';
import { createModel, createParameters, type ModelConfig } from '../char-lm/model.ts';

const { values } = parseArgs({
  options: {
    store: { type: 'string', default: 'dist_sync' },
    /** Pushes and pulls go in parts, by priority. */
    schedule: { type: 'boolean', default: false },
    text: { type: 'string', multiple: true, default: [] },
    steps: { type: 'string', default: '60' },
    batch: { type: 'string', default: '8' },
    rate: { type: 'string', default: '0.003' },
    seed: { type: 'string', default: '1' },
    /** Folder for worker-<n>.json. */
    out: { type: 'string' },
  },
});
const [steps, batch, rate, seed] = [values.steps, values.batch, values.rate, values.seed].map(Number);

await init('wasm'); // single-threaded under Node.js
defaultDevice('wasm');
const corpus = loadCorpus({ patterns: values.text, charactersMax: 100_000, vocabularyMax: 96 });
const config: ModelConfig = { vocabulary: corpus.vocabulary.length, context: 32, width: 32, layers: 1, heads: 2 };
const model = createModel(config);
const initial = createParameters(config, seededRandom(seed));
const structure = tree.structure<np.Array>(initial);

const store = await create(values.store as KVStoreType); // ◆
const kv = values.schedule ? new ScheduledKVStore(store) : store; // ◆
const leaves = tree.leaves<np.Array>(initial);
const keys = leaves.map((_, index) => index); // ◆ a parameter per leaf
const shapes = leaves.map((leaf) => [...leaf.shape]);
const parameters = leaves.map((leaf, index) => {
  const shared = kv.tensor('float32', shapes[index]); // ◆ servers of this host write into it
  shared.data.set(leaf.dataSync() as Float32Array);
  return shared;
});
const gradients = shapes.map((shape) => kv.tensor('float32', shape)); // ◆ and read from it
await kv.broadcast(keys, parameters, parameters); // ◆ everyone starts from worker 0's
if (kv.rank === 0) await kv.setOptimizer({ name: 'adam', learningRate: rate, rescale: 1 / kv.workersPerGroup }); // ◆
await kv.barrier(); // ◆

const current = (): Parameters<typeof model.gradients>[0] =>
  tree.unflatten(
    structure,
    parameters.map(({ data }, index) => np.array(data, { shape: shapes[index] })),
  ) as Parameters<typeof model.gradients>[0];
const shaped = (tokens: Int32Array): np.Array => np.array(tokens, { shape: [tokens.length / config.context, config.context] });
const place = { rank: kv.rank, size: kv.numWorkers };
const sampler = new DistributedSampler(windowCount(corpus.training, config.context), { group: place, seed, dropLast: true });

function* batches(): Generator<[np.Array, np.Array]> {
  for (let epoch = 0; ; epoch++) {
    sampler.setEpoch(epoch);
    for (const items of sampler.batches(batch)) {
      if (items.length === batch) yield windows(corpus.training, items, config.context).map(shaped) as [np.Array, np.Array];
    }
  }
}

const losses: number[] = [];
let stalest = 0;
const next = batches();
for (let step = 1; step <= steps; step++) {
  const [inputs, targets] = next.next().value as [np.Array, np.Array];
  const [loss, gradient] = model.gradients(current(), inputs, targets);
  tree.leaves<np.Array>(gradient).forEach((leaf, index) => gradients[index].data.set(leaf.dataSync() as Float32Array));
  // ◆ the first layers first: the next step needs them first
  const works = keys.map((key, index) => kv.pushPull(key, gradients[index], parameters[index], { priority: -index }));
  losses.push(loss.item());
  for (const work of works) await work; // ◆
  stalest = Math.max(stalest, (await kv.info(keys[0])).staleness); // ◆
  if (kv.rank === 0 && step % 10 === 0) console.log(`step ${step}/${steps} loss ${losses.at(-1)?.toFixed(4)}`);
}

await kv.barrier(); // ◆
await kv.pull(keys, parameters); // ◆ what all have made of it
let heldOutLoss = 0;
const blocks = Math.min(8, Math.floor(windowCount(corpus.heldOut, config.context) / batch));
for (let block = 0; block < blocks; block++) {
  const items = Array.from({ length: batch }, (_, i) => block * batch + i);
  const [inputs, targets] = windows(corpus.heldOut, items, config.context).map(shaped);
  heldOutLoss += model.loss(current(), inputs, targets).item() / blocks;
}
if (kv.rank === 0) console.log(`held-out loss ${heldOutLoss.toFixed(4)}`);
if (values.out !== undefined) {
  mkdirSync(values.out, { recursive: true });
  const result = { rank: kv.rank, store: kv.type, losses, heldOutLoss, stalest };
  writeFileSync(join(values.out, `worker-${kv.rank}.json`), JSON.stringify(result));
}
await kv.close(); // ◆
