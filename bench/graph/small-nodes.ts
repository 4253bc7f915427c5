/** A step of a graph of small operations against the same operations called in TensorFlow.js, on its CPU backend: short rounds of both in
 *  turn, so that a busy machine is busy for both. Only the ratio in the same round is meaningful.
 *
 *    npx tsx bench/graph/small-nodes.ts                    a table
 *    npx tsx bench/graph/small-nodes.ts --out out.json     and the numbers
 *
 *  Build first. */
import * as tf from '@tensorflow/tfjs';
import { writeFileSync } from 'node:fs';
import { add, assign, constant, GraphBuilder, matMul, mul, placeholder, Session, tanh, variable, type Output } from 'shoal/graph';
import { tensorflowKernels } from 'shoal/graph/tfjs';
import { median } from '../../src/base/numbers.ts';
import { programArguments } from '../arguments.ts';
import { machine, round } from './machine.ts';

type Floats = Output<'float32'>;

const layers = 150;
const size = 8;
const steps = 10;

const { values } = programArguments(import.meta.url, {
  options: { rounds: { type: 'string', default: '60' }, out: { type: 'string' } },
});

/** Milliseconds of a step, by contestant and round. */
async function measure(): Promise<{ readonly graph: number[]; readonly tensorflow: number[] }> {
  await tf.setBackend('cpu');
  const data = (count: number, by: number): Float32Array => Float32Array.from({ length: count }, (_, k) => Math.sin(k * by) / 3);
  const input = { dtype: 'float32', shape: [size, size], data: data(size * size, 1) } as const;
  const weights = { dtype: 'float32', shape: [size, size], data: data(size * size, 2) } as const;
  const bias = { dtype: 'float32', shape: [size], data: data(size, 3) } as const;
  const factor = { dtype: 'float32', shape: [], data: Float32Array.of(0.9) } as const;

  const g = new GraphBuilder();
  const x = placeholder(g, 'float32', [size, size]);
  const [w, b, c] = [weights, bias, factor].map(({ shape }) => variable(g, 'float32', shape));
  const inits = [weights, bias, factor].map((value, k) => assign(g, [w, b, c][k], constant(g, value)));
  let last: Floats = x;
  for (let layer = 0; layer < layers; layer++) last = mul(g, tanh(g, add(g, matMul(g, last, w), b)), c);
  const session = new Session(g.finish(), { devices: ['/job:local/task:0/device:CPU:0'], kernels: tensorflowKernels(tf) });
  await session.run([], inits);
  const graphStep = async (): Promise<ArrayLike<unknown>> => {
    const [y] = await session.run([[x, input]], [last]);
    return (y as unknown as { data: Float32Array }).data;
  };

  const [tw, tb, tc] = [weights, bias, factor].map((value) => tf.variable(tf.tensor(value.data, [...value.shape])));
  const tensorflowStep = (): ArrayLike<unknown> => {
    const y = tf.tidy(() => {
      let last: tf.Tensor = tf.tensor(input.data, [size, size]);
      for (let layer = 0; layer < layers; layer++) last = tf.mul(tf.tanh(tf.add(tf.matMul(last, tw), tb)), tc);
      return last;
    });
    const elements = y.dataSync();
    y.dispose();
    return elements;
  };

  const [own, reference] = [Array.from(await graphStep()), Array.from(tensorflowStep())];
  if (own.some((each, k) => each !== reference[k])) throw new Error('the results differ');
  const graph: number[] = [];
  const tensorflow: number[] = [];
  const tensors = tf.memory().numTensors;
  for (let number = -10; number < Number(values.rounds); number++) {
    const startMs = performance.now();
    for (let step = 0; step < steps; step++) await graphStep();
    const middleMs = performance.now();
    for (let step = 0; step < steps; step++) tensorflowStep();
    const endMs = performance.now();
    if (number < 0) continue;
    graph.push((middleMs - startMs) / steps);
    tensorflow.push((endMs - middleMs) / steps);
  }
  if (tf.memory().numTensors !== tensors) throw new Error(`${tf.memory().numTensors - tensors} tensors are left`);
  return { graph, tensorflow };
}

const { graph, tensorflow } = await measure();
const ratios = graph.map((each, k) => each / tensorflow[k]);
const row = {
  operations: layers * 4,
  graphMs: round(median(graph)),
  tensorflowMs: round(median(tensorflow)),
  ratio: { median: round(median(ratios)), best: round(Math.min(...ratios)) },
};
console.log(`${row.operations} small operations: ${row.graphMs} ms in a graph, ${row.tensorflowMs} ms in TensorFlow.js`);
console.log(`ratio: median ${row.ratio.median}, best ${row.ratio.best}`);
if (values.out !== undefined) writeFileSync(values.out, `${JSON.stringify({ machine: machine(), rows: [row] }, undefined, 2)}\n`);
