/** Models that were made with TensorFlow.js, as graph models whose layers are on two and three tasks: what the layers predict, and what
 *  TensorFlow.js gives for the graph model. */
import * as tf from '@tensorflow/tfjs';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { seededRandom } from '../base/random.ts';
import { temporaryFolder } from '../base/testing/temporary-folder.ts';
import { tensorflowKernels } from '../graph/kernels/tensorflow.ts';
import type { DenseValue } from '../graph/structure/value.ts';
import { dense, numbersOf } from '../graph/testing/kernels.ts';
import { startLocalCluster } from '../graph/testing/local-cluster.ts';
import { runByTensorFlow, writeModel } from '../graph/testing/model-files.ts';
import { importModelJson } from './model-json.ts';

const folder = temporaryFolder('graph-models', afterAll);
const random = seededRandom(23);

beforeAll(async () => {
  await tf.setBackend('cpu');
});

const text = (value: string): object => ({ s: Buffer.from(value).toString('base64') });
const list = (...values: readonly number[]): object => ({ list: { i: values.map(String) } });
const T = { T: { type: 'DT_FLOAT' } };
const types = { float32: 'DT_FLOAT', int32: 'DT_INT32' } as const;
const dims = (sizes: readonly (number | null)[]): object => ({ dim: sizes.map((size) => ({ size: String(size ?? -1) })) });

/** A layers model as a graph model, layer k on task k modulo `tasks`. @returns its path, and the name of its last node. */
function converted(name: string, model: tf.Sequential, input: DenseValue, tasks: number): { path: string; output: string } {
  const nodes: object[] = [];
  const weights: { name: string; shape: readonly number[]; dtype: 'float32' | 'int32' }[] = [];
  const bytes: Uint8Array[] = [];
  let device = '/job:worker/task:0';
  const add = (own: string, op: string, inputs: readonly string[], attr: object = {}): string => {
    nodes.push({ name: own, op, input: inputs, device, attr: { ...T, ...attr } });
    return own;
  };
  const constant = (own: string, sizes: readonly number[], data: Float32Array | Int32Array): string => {
    const dtype = data instanceof Float32Array ? 'float32' : 'int32';
    nodes.push({ name: own, op: 'Const', device, attr: { dtype: { type: types[dtype] }, value: { tensor: { dtype: types[dtype] } } } });
    weights.push({ name: own, shape: sizes, dtype });
    bytes.push(new Uint8Array(data.slice().buffer));
    return own;
  };
  const integers = (own: string, ...values: readonly number[]): string => constant(own, [values.length], Int32Array.from(values));
  nodes.push({
    name: 'x',
    op: 'Placeholder',
    attr: { dtype: { type: types[input.dtype as 'float32'] }, shape: { shape: dims([null, ...input.shape.slice(1)]) } },
  });
  let last = 'x';
  model.layers.forEach((layer, k) => {
    device = `/job:worker/task:${k % tasks}`;
    const config = layer.getConfig() as Record<string, never>;
    const scope = layer.name;
    const [first, second, third, fourth] = layer
      .getWeights()
      .map((weight, place) => constant(`${scope}/w${place}`, weight.shape, weight.dataSync() as Float32Array));
    const activated = (from: string): string => {
      const op = { linear: undefined, relu: 'Relu', elu: 'Elu', softmax: 'Softmax', sigmoid: 'Sigmoid', relu6: 'Relu6' }[
        String(config.activation)
      ];
      return op === undefined ? from : add(`${scope}/${op}`, op, [from]);
    };
    const windows = {
      strides: list(1, ...((config.strides ?? []) as number[]), 1),
      padding: text(String(config.padding).toUpperCase()),
      data_format: text('NHWC'),
    };
    const dilated = { ...windows, dilations: list(1, 1, 1, 1) };
    const kind = layer.getClassName();
    if (kind === 'Dense') last = activated(add(`${scope}/BiasAdd`, 'BiasAdd', [add(`${scope}/MatMul`, 'MatMul', [last, first]), second]));
    else if (kind === 'Conv2D')
      last = activated(add(`${scope}/BiasAdd`, 'BiasAdd', [add(`${scope}/Conv2D`, 'Conv2D', [last, first], dilated), second]));
    else if (kind === 'DepthwiseConv2D')
      last = activated(add(`${scope}/BiasAdd`, 'BiasAdd', [add(`${scope}/conv`, 'DepthwiseConv2dNative', [last, first], dilated), second]));
    else if (kind === 'MaxPooling2D' || kind === 'AveragePooling2D')
      last = add(scope, kind === 'MaxPooling2D' ? 'MaxPool' : 'AvgPool', [last], {
        ...windows,
        ksize: list(1, ...(config.poolSize as number[]), 1),
      });
    else if (kind === 'BatchNormalization')
      last = add(scope, 'FusedBatchNormV3', [last, first, second, third, fourth], {
        U: { type: 'DT_FLOAT' },
        epsilon: { f: config.epsilon },
        is_training: { b: false },
      });
    else if (kind === 'Flatten') last = add(scope, 'Reshape', [last, integers(`${scope}/shape`, -1, (layer.outputShape as number[])[1])]);
    else if (kind === 'Embedding')
      last = add(scope, 'GatherV2', [first, last, constant(`${scope}/axis`, [], Int32Array.of(0))], {
        T: undefined,
        Tparams: { type: 'DT_FLOAT' },
        Tindices: { type: 'DT_INT32' },
        Taxis: { type: 'DT_INT32' },
        batch_dims: { i: '0' },
      });
    else if (kind === 'GlobalAveragePooling1D')
      last = add(scope, 'Mean', [last, integers(`${scope}/axes`, 1)], { keep_dims: { b: false } });
    else throw new Error(`${kind} has no conversion`);
  });
  return { path: writeModel(folder, `${name}-${tasks}`, nodes, weights, Uint8Array.from(Buffer.concat(bytes))), output: last };
}

const numbers = (count: number, next: () => number): number[] => Array.from({ length: count }, next);

interface Made {
  readonly model: tf.Sequential;
  readonly input: DenseValue;
}

const models: Readonly<Record<string, () => Made>> = {
  'a convolutional net': () => ({
    model: tf.sequential({
      layers: [
        tf.layers.conv2d({ inputShape: [12, 10, 2], filters: 4, kernelSize: 3, strides: 2, padding: 'same', activation: 'relu' }),
        tf.layers.batchNormalization(),
        tf.layers.depthwiseConv2d({ kernelSize: 3, padding: 'valid', activation: 'relu6' }),
        tf.layers.maxPooling2d({ poolSize: 2, strides: 1, padding: 'same' }),
        tf.layers.averagePooling2d({ poolSize: [2, 1], strides: [1, 1], padding: 'valid' }),
        tf.layers.flatten(),
        tf.layers.dense({ units: 3, activation: 'softmax' }),
      ],
    }),
    input: dense(
      [4, 12, 10, 2],
      numbers(960, () => Math.fround(random.next() - 0.5)),
    ),
  }),
  'a dense net': () => ({
    model: tf.sequential({
      layers: [
        tf.layers.dense({ inputShape: [7], units: 16, activation: 'elu' }),
        tf.layers.dense({ units: 8, activation: 'relu' }),
        tf.layers.dense({ units: 1, activation: 'sigmoid' }),
      ],
    }),
    input: dense(
      [5, 7],
      numbers(35, () => Math.fround(random.next() * 4 - 2)),
    ),
  }),
  'a model with an embedding': () => ({
    model: tf.sequential({
      layers: [
        tf.layers.embedding({ inputDim: 50, outputDim: 6, inputLength: 4 }),
        tf.layers.globalAveragePooling1d({}),
        tf.layers.dense({ units: 5, activation: 'relu' }),
        tf.layers.dense({ units: 2, activation: 'softmax' }),
      ],
    }),
    input: dense(
      [3, 4],
      numbers(12, () => Math.floor(random.next() * 50)),
      'int32',
    ),
  }),
};

describe.each(Object.entries(models))('%s', (name, make) => {
  it.each([2, 3])('on %d tasks predicts what it predicts in TensorFlow.js', async (tasks) => {
    const { model, input } = make();
    // Every weight differs from what it begins with: also means, and variances, which are positive.
    for (const layer of model.layers)
      layer.setWeights(
        layer.getWeights().map((each) =>
          tf.tensor(
            numbers(each.size, () => random.next() * 0.8 + 0.1),
            each.shape,
          ),
        ),
      );
    const predicted = (
      model.predict(tf.tensor(input.data as number[], [...input.shape], input.dtype as 'float32')) as tf.Tensor
    ).dataSync();
    const { path, output } = converted(name.replaceAll(' ', '-'), model, input, tasks);
    const [byGraphModel] = await runByTensorFlow(path, { x: input }, [output]);
    await using cluster = await startLocalCluster({ worker: tasks }, { kernels: tensorflowKernels(tf) });
    const session = await cluster.tasks.worker0.session(await importModelJson(path), { doFuseRecv: true });
    const [value] = await session.run([['x', input]], [`${output}:0`]);
    expect(session.partitions(['x'], [`${output}:0`]).partitions.length).toBe(tasks);
    expect(numbersOf(value)).toEqual(byGraphModel);
    numbersOf(value).forEach((each, k) => expect(each).toBeCloseTo(predicted[k], 5));
  });
});
