/** Trains a character-level language model on real text, in one process or in many:
 *
 *    npx tsx examples/char-lm/train.ts                  one process
 *    npx shoal run -n 2 examples/char-lm/train.ts       two processes, each with batches of its own; --schedule: scheduled all-reduces
 *    npx shoal run -n 3 --min 2 --max-restarts 3 examples/char-lm/train.ts --elastic      without lost ranks, and with new ones
 *
 *  --device webgpu computes on a GPU by the package `webgpu`, where there is a Vulkan driver.
 *
 *  What makes it distributed is marked ◆. A run takes about 70 s of CPU time, measured on two CPUs. */
import { numpy as np, tree } from '@jax-js/jax';
import { parseArgs } from 'node:util';
import { initProcessGroup, type ProcessGroup } from 'shoal'; // ◆
import { DistributedSampler, elastic, seededRandom } from 'shoal/ddp'; // ◆
import { distribute } from 'shoal/ddp/jax-js'; // ◆
import { Adam } from './adam.ts';
import { batchesOf, loadCorpus, unigramLoss, windowCount } from './corpus.ts';
import { computeOn } from './device.ts';
import { TrainingState } from './elastic-state.ts';
import { heldOutLossOf } from './held-out.ts';
import { generate } from './generate.ts';
import { createModel, createParameters, type ModelConfig } from './model.ts';
import { writeResult } from './summary.ts';

const { values } = parseArgs({
  options: {
    text: { type: 'string', multiple: true, default: [] },
    /** Device that jax-js computes on: wasm or webgpu. */
    device: { type: 'string', default: 'wasm' },
    /** All-reduces go in parts, by priority. */
    schedule: { type: 'boolean', default: false },
    /** Training goes on when ranks are lost, and when they join. */
    elastic: { type: 'boolean', default: false },
    steps: { type: 'string', default: '150' },
    /** Windows per process and step. */
    batch: { type: 'string', default: '32' },
    rate: { type: 'string', default: '0.006' },
    seed: { type: 'string', default: '1' },
    /** Folder for rank-<n>.json. */
    out: { type: 'string' },
  },
});
const [steps, batch, rate, seed] = [values.steps, values.batch, values.rate, values.seed].map(Number);
const device = await computeOn(values.device);
const corpus = loadCorpus({ patterns: values.text, charactersMax: 400_000, vocabularyMax: 96 });
const config: ModelConfig = { vocabulary: corpus.vocabulary.length, context: 64, width: 64, layers: 2, heads: 4 };
const model = createModel(config);

let group: ProcessGroup = await initProcessGroup(values.schedule ? { scheduling: true } : {}); // ◆
const samplerOf = (ranks?: ProcessGroup) =>
  new DistributedSampler(windowCount(corpus.training, config.context), { group: ranks, seed, dropLast: true }); // ◆
const print = (line: string): void => (group.rank === 0 ? console.log(line) : undefined);
let params = createParameters(config, seededRandom(seed));

const adam = new Adam<typeof params>({ rate, warmupSteps: Math.min(20, steps), steps });
const sample = (): Promise<string> => {
  const how = { vocabulary: corpus.vocabulary, prompt: 'The ', count: 200, temperature: 0.7, random: seededRandom(seed) };
  return generate(model, params, config, how);
};

print(`text: ${corpus.training.length + corpus.heldOut.length} characters of ${corpus.files.length} files: ${corpus.files.join(' ')}`);
if (device.adapter !== undefined) print(`device: ${device.adapter}`);
const before = group.rank === 0 ? await sample() : '';
print(`before: ${JSON.stringify(before)}`);

let losses: [number, number][] = [];
let [seconds, tokensPerSecond, communicating] = [0, 0, 0];
const state = values.elastic ? new TrainingState(params, { sampler: samplerOf().stateDict(), losses }) : undefined;

/** Trains with these ranks, from `state` on if there is one, and checks at the end that all have equal bits. */
async function train(ranks: ProcessGroup, boundary: () => Promise<void>): Promise<string> {
  group = ranks; // ◆
  const ddp = await distribute(group, state?.load(adam) ?? params); // ◆ starts every rank from rank 0's parameters
  ({ params } = ddp);
  const sampler = samplerOf(ranks);
  if (state !== undefined) sampler.loadStateDict(state.extra.sampler);
  losses = [...(state?.extra.losses ?? [])];
  const next = batchesOf(corpus, sampler, { batch, context: config.context });
  const first = (state?.step ?? 0) + 1;
  let [startedMs, waitedMs] = [0, 0];
  for (let step = first; step <= steps; step++) {
    const [inputs, targets] = next.next().value.map((tokens) => np.array(tokens, { shape: [batch, config.context] }));
    const [loss, gradients] = model.gradients(tree.ref(params), inputs, targets);
    const averaged = await ddp.average(gradients); // ◆
    params = adam.update(params, averaged);
    const [ownLoss] = await loss.data();
    const isTold = step === 1 || step % 5 === 0 || step === steps;
    if (isTold) losses.push([step, await ddp.mean(ownLoss)]); // ◆
    state?.save(params, adam, { sampler: sampler.stateDict(), losses: [...losses] });
    // The clock starts with the second step: the first one compiles the model.
    if (step === first) [startedMs, waitedMs] = [performance.now(), ddp.stats.exposedMs];
    else if (isTold) {
      seconds = (performance.now() - startedMs) / 1000;
      tokensPerSecond = ((step - first) * batch * config.context * group.size) / seconds;
      communicating = (ddp.stats.exposedMs - waitedMs) / 1000 / seconds;
    }
    const figures = `loss ${losses.at(-1)?.[1].toFixed(4)} tokens/s ${tokensPerSecond.toFixed(0)} communicating ${(communicating * 100).toFixed(1)}%`;
    if (isTold && step > 1) print(`step ${step}/${steps} ${figures}`);
    await boundary();
  }
  return ddp.verifyReplicas(params); // ◆ equal bits on every rank, or an error
}

let checksum = '';
if (state !== undefined) {
  group = await elastic.run(group, state, async (ranks, _, boundary) => void (checksum = await train(ranks, boundary))); // ◆
} else checksum = await train(group, async () => {}); // ◆
await group.destroy(); // ◆

const heldOutLoss = await heldOutLossOf(model, params, corpus, { batch, context: config.context });
const after = group.rank === 0 ? await sample() : '';
print(`after: ${JSON.stringify(after)}`);
print(`held-out loss ${heldOutLoss.toFixed(4)}, of a unigram model ${unigramLoss(corpus).toFixed(4)}; parameters ${checksum}`);
if (values.out !== undefined) {
  const { rank, size } = group;
  const text = { files: [...corpus.files], characters: corpus.training.length + corpus.heldOut.length, unigramLoss: unigramLoss(corpus) };
  const measured = { seconds, tokensPerSecond, communicating, losses, heldOutLoss, checksum, before, after };
  writeResult(values.out, { rank, size, text, model: config, training: { steps, batch, rate, seed }, ...measured });
}
device.close();
