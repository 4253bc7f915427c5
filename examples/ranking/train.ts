/** Trains a ranking model on workers and parameter servers, and says what it has learnt and what that took: AUC, examples/s, RPCs and bytes
 *  per step. Parameter servers run it as well, as far as `join`. */
import { existsSync, writeFileSync } from 'node:fs';
import { seededRandom } from 'shoal/ddp';
import { elementsOf, encodeGraph, GraphBuilder, Saver, startGraphServer, type Node, type Output, type Value } from 'shoal/graph';
import { tensorflowKernels } from 'shoal/graph/tfjs';
import { areaUnderCurve } from './area-under-curve.ts';
import { refuse } from './options.ts';

/** Options of `parseArgs` that every ranking example takes; its model's options come on top. */
export const trainingOptions = {
  fuse: { type: 'boolean', default: false },
  'recv-some': { type: 'boolean', default: false },
  sync: { type: 'boolean', default: false },
  steps: { type: 'string', default: '300' },
  batch: { type: 'string', default: '128' },
  /** Parts of every table. */
  parts: { type: 'string', default: '1' },
  evaluation: { type: 'string', default: '8000' },
  seed: { type: 'string', default: '1' },
  checkpoint: { type: 'string' },
  'save-graph': { type: 'string' },
  /** File for the result. */
  out: { type: 'string' },
} as const;

/** Least values of the options that are whole numbers. */
export const trainingNumbers = { steps: 1, batch: 1, parts: 1, evaluation: 1, seed: 0 } as const;

export interface TrainingValues {
  readonly fuse: boolean;
  readonly 'recv-some': boolean;
  readonly sync: boolean;
  readonly steps: number;
  readonly batch: number;
  readonly parts: number;
  readonly evaluation: number;
  readonly seed: number;
  readonly checkpoint?: string;
  readonly 'save-graph'?: string;
  readonly out?: string;
}

export interface Examples {
  /** [size] 0 or 1 */
  readonly labels: Float32Array;
  /** The logit that the generator drew each example's label by. */
  readonly logits?: Float32Array;
}

export interface Tower {
  /** Outputs that the step's batch consists of; may be fed. */
  readonly inputs: readonly Output[];
  readonly logits: Output<'float32'>;
  readonly loss: Output<'float32'>;
  /** The logits computed another way. */
  readonly otherLogits?: Output<'float32'>;
}

export interface RankingModel {
  readonly init: Node;
  readonly train: Node;
  readonly towers: readonly Tower[];
}

interface BuildOptions {
  readonly servers: readonly string[];
  readonly workers: readonly string[];
  readonly parts: number;
  readonly batch: number;
  readonly random: () => number;
}

interface Example<Batch extends Examples, Source extends { batch(size: number): Batch }> {
  /** @param stream every worker's own, or that of examples held back. */
  sourceOf(stream: number, shard: number, shards: number): Source;
  /** A tower on each worker; `nextBatch` is the function that its input calls. */
  build(g: GraphBuilder, options: BuildOptions, source: Source): RankingModel;
  /** Values of a batch, in the order of a tower's inputs. */
  valuesOf(batch: Batch): Value[];
}

export async function trainRanking<Batch extends Examples, Source extends { batch(size: number): Batch }>(
  values: TrainingValues,
  { sourceOf, build, valuesOf }: Example<Batch, Source>,
  start: typeof startGraphServer = startGraphServer,
): Promise<void> {
  const { steps, batch, parts, evaluation, seed } = values;
  // Wrong options are refused before this is loaded, which takes a second or two.
  const tf = await import('@tensorflow/tfjs');
  // Keeps every rank from printing advice on other packages.
  tf.enableProdMode();
  await tf.setBackend('cpu');
  /** Known when the task is. */
  const input: { source?: Source } = {};
  await using server = await start({
    recvSome: values['recv-some'],
    kernels: tensorflowKernels(tf),
    functions: { nextBatch: () => valuesOf((input.source as Source).batch(batch)) },
  });
  const { worker: workers, ps: servers } = server.cluster;
  if (server.job === 'ps') {
    await server.join();
    return;
  }

  // Without servers, variables are on the worker whose session it is.
  if (servers === undefined && workers > 1 && !values.sync)
    refuse(`${workers} workers need a parameter server, or --sync: shoal run --ps 1 --workers ${workers} …`);

  const isChief = server.task === 0;
  const source = sourceOf(server.task, server.task, workers);
  input.source = source;
  const tasks = (job: string, count: number): string[] => Array.from({ length: count }, (_, task) => `/job:${job}/task:${task}`);
  const random = seededRandom(seed);
  const g = new GraphBuilder();
  const model = build(
    g,
    {
      servers: tasks('ps', servers),
      workers: values.sync ? tasks('worker', workers) : [`/job:worker/task:${server.task}`],
      parts,
      batch,
      random: () => random.next(),
    },
    source,
  );
  // The chief's session runs this worker's tower.
  if (values.sync && !isChief) {
    await server.join();
    return;
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
  if (!isChief) return;

  if (checkpoint !== undefined) await saver.save(session, checkpoint);
  const received = (session.stats.requests - before.received) / steps;
  const control = (after.calls - before.calls - (after.requests - before.requests)) / steps;
  const held = sourceOf(999, 0, 1).batch(evaluation);
  const feeds = valuesOf(held).map((value, k) => [tower.inputs[k], value] as const);
  const other = tower.otherLogits;
  const [logits, others] = await session.run(feeds, [tower.logits, ...(other === undefined ? [] : [other])]);
  const auc = areaUnderCurve(held.labels, numbersOf(logits));
  const best = held.logits === undefined ? undefined : areaUnderCurve(held.labels, held.logits);
  const result = {
    mode: values.sync ? 'sync' : 'async',
    fuse: values.fuse,
    recvSome: values['recv-some'],
    workers,
    servers,
    batch,
    parts,
    steps,
    auc,
    ...(best !== undefined && { bestAuc: best }),
    ...(others !== undefined && { otherwise: largestDifference(numbersOf(logits), numbersOf(others)) }),
    loss: losses.slice(-20).reduce((sum, each) => sum + each, 0) / Math.min(20, losses.length),
    // Either way every worker has computed this many.
    examplesPerSecond: (batch * steps * workers) / seconds,
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

function numbersOf(value: Value): Float32Array {
  return elementsOf(value) as Float32Array;
}

function largestDifference(a: Float32Array, b: Float32Array): number {
  return a.reduce((largest, each, k) => Math.max(largest, Math.abs(each - b[k])), a.length === b.length ? 0 : Infinity);
}
