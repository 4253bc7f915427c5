/** Trains a wide & deep model whose tables are on parameter servers:
 *
 *    shoal run --ps 2 --workers 3 examples/wide-deep/train.ts                      every worker by itself, a request per tensor
 *    shoal run --ps 2 --workers 3 examples/wide-deep/train.ts --fuse               receives are fused when the graph is partitioned
 *    shoal run --ps 2 --workers 3 examples/wide-deep/train.ts --recv-some          … when they run
 *    shoal run --ps 2 --workers 3 examples/wide-deep/train.ts --sync               one step of all workers at a time
 *    shoal run --ps 2 --workers 3 examples/wide-deep/train.ts --criteo train.txt   your own data
 *
 *  `--checkpoint file` goes on from the file where there is one, and saves to it every 100 steps and at the end; `--save-graph file` is for
 *  `shoal graph file`. Parameter servers run this script as well, as far as `join`. */
import * as tf from '@tensorflow/tfjs';
import { existsSync, writeFileSync } from 'node:fs';
import { parseArgs } from 'node:util';
import { seededRandom } from 'shoal/ddp';
import { elementsOf, encodeGraph, GraphBuilder, Saver, startGraphServer, type Feeds, type Value } from 'shoal/graph';
import { tensorflowKernels } from 'shoal/graph/tfjs';
import { areaUnderCurve, criteo, generator, type Batch, type Source } from './data.ts';
import { wideDeep, type Tower } from './model.ts';

const { values } = parseArgs({
  options: {
    fuse: { type: 'boolean', default: false },
    'recv-some': { type: 'boolean', default: false },
    sync: { type: 'boolean', default: false },
    carrier: { type: 'string', default: 'fabric' },
    steps: { type: 'string', default: '300' },
    batch: { type: 'string', default: '128' },
    columns: { type: 'string', default: '104' },
    vocabulary: { type: 'string', default: '40' },
    dense: { type: 'string', default: '13' },
    embedding: { type: 'string', default: '4' },
    hidden: { type: 'string', default: '32,16' },
    /** Parts of every table. */
    parts: { type: 'string', default: '1' },
    criteo: { type: 'string' },
    evaluation: { type: 'string', default: '8000' },
    seed: { type: 'string', default: '1' },
    checkpoint: { type: 'string' },
    'save-graph': { type: 'string' },
    /** File for the result. */
    out: { type: 'string' },
  },
});
const [steps, batch, columns, vocabulary, dense, embedding, parts, evaluation, seed] = (
  ['steps', 'batch', 'columns', 'vocabulary', 'dense', 'embedding', 'parts', 'evaluation', 'seed'] as const
).map((name) => Number(values[name]));

await tf.setBackend('cpu');
/** Known when the task is. */
const input: { source?: Source } = {};
const server = await startGraphServer({
  carrier: values.carrier as 'fabric' | 'grpc',
  recvSome: values['recv-some'],
  kernels: tensorflowKernels(tf),
  functions: { nextBatch: () => valuesOf((input.source as Source).batch(batch)) },
});
const { worker: workers, ps: servers } = server.cluster;
if (server.job === 'ps') {
  await server.join();
  await server.close();
  process.exit(0);
}

const isChief = server.task === 0;
const sourceOf = (stream: number, shard: number, shards: number): Source =>
  values.criteo === undefined
    ? generator({ columns, vocabulary, dense, truth: seed, stream: seed * 1000 + stream })
    : criteo({ path: values.criteo, shard, shards, vocabulary });
const source = sourceOf(server.task, server.task, workers);
input.source = source;

const tasks = (job: string, count: number): string[] => Array.from({ length: count }, (_, task) => `/job:${job}/task:${task}`);
const random = seededRandom(seed);
const g = new GraphBuilder();
const model = wideDeep(g, {
  vocabularies: source.vocabularies,
  denseCount: source.denseCount,
  embedding,
  hidden: values.hidden.split(',').map(Number),
  batch,
  servers: tasks('ps', servers),
  parts,
  workers: values.sync ? tasks('worker', workers) : [`/job:worker/task:${server.task}`],
  seed,
  random: () => random.next(),
});
if (values.sync && !isChief) {
  // The chief's session runs this worker's tower.
  await server.join();
  await server.close();
  process.exit(0);
}

const saver = new Saver(g);
const graph = g.finish();
if (isChief && values['save-graph'] !== undefined) writeFileSync(values['save-graph'], encodeGraph(graph));
const session = await server.session(graph, { doFuseRecv: values.fuse });
const { checkpoint } = values;
if (isChief) {
  if (checkpoint !== undefined && existsSync(checkpoint)) await saver.restore(session, checkpoint);
  else await session.run([], [model.init]);
}
if (!values.sync) await server.barrier('initialised');

const [tower] = model.towers;
// The first step is prepared before it is timed.
await session.run([], [model.train]);
const before = { ...server.stats, received: session.stats.requests };
const startMs = performance.now();
const losses: number[] = [];
for (let step = 1; step <= steps; step++) {
  const [loss] = await session.run([], [tower.loss, model.train]);
  losses.push(numbersOf(loss)[0]);
  if (isChief && step % 50 === 0) {
    const recent = losses.slice(-50);
    if (checkpoint !== undefined && step % 100 === 0) await saver.save(session, checkpoint);
    console.log(`step ${step}/${steps} loss ${(recent.reduce((sum, each) => sum + each, 0) / recent.length).toFixed(4)}`);
  }
}
const seconds = (performance.now() - startMs) / 1000;
const after = server.stats;
if (!values.sync) await server.barrier('trained');

if (isChief) {
  if (checkpoint !== undefined) await saver.save(session, checkpoint);
  const received = (session.stats.requests - before.received) / steps;
  const control = (after.calls - before.calls - (after.requests - before.requests)) / steps;
  const perStep = values.sync ? workers : 1;
  const held = sourceOf(999, 0, 1).batch(evaluation);
  const [logits] = await session.run(feedsOf(tower, held), [tower.logits]);
  const auc = areaUnderCurve(held.labels, numbersOf(logits));
  const best = held.logits === undefined ? undefined : areaUnderCurve(held.labels, held.logits);
  const result = {
    mode: values.sync ? 'sync' : 'async',
    fuse: values.fuse,
    recvSome: values['recv-some'],
    carrier: values.carrier,
    workers,
    servers,
    batch,
    parts,
    steps,
    auc,
    ...(best !== undefined && { bestAuc: best }),
    loss: losses.slice(-20).reduce((sum, each) => sum + each, 0) / Math.min(20, losses.length),
    examplesPerSecond: (batch * steps * perStep * (values.sync ? 1 : workers)) / seconds,
    stepMs: (1000 * seconds) / steps,
    receivesPerStep: received,
    rpcsPerStep: received + control,
    bytesPerStep: (after.bytes - before.bytes) / steps,
  };
  console.log(`AUC ${auc.toFixed(4)}${best === undefined ? '' : `, of at most ${best.toFixed(4)}`}`);
  console.log(
    `${result.examplesPerSecond.toFixed(0)} examples/s, ${result.rpcsPerStep.toFixed(1)} RPCs per step (${received.toFixed(1)} for tensors), ${(result.bytesPerStep / 1024).toFixed(0)} KiB per step`,
  );
  if (values.out !== undefined) writeFileSync(values.out, JSON.stringify(result, undefined, 2));
}
await server.close();

function valuesOf({ labels, dense, ids }: Batch): Value[] {
  const size = labels.length;
  return [
    { dtype: 'float32', shape: [size, 1], data: labels },
    { dtype: 'float32', shape: [size, dense.length / size], data: dense },
    ...ids.map((each) => ({ dtype: 'int32', shape: [size], data: each })),
  ];
}

function feedsOf({ labels, dense, ids }: Tower, given: Batch): Feeds {
  const [first, second, ...rest] = valuesOf(given);
  return [[labels, first], [dense, second], ...ids.map((each, k) => [each, rest[k]] as const)];
}

function numbersOf(value: Value): Float32Array {
  return elementsOf(value) as Float32Array;
}
