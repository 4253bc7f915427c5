/** Graph models of TensorFlow.js as files, for tests: written, and run by TensorFlow.js itself. */
import * as tf from '@tensorflow/tfjs';
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { Value } from '../structure/value.ts';

/** Model, files and all, in a folder of its own: what the converter of TensorFlow.js writes. @returns the path of the `model.json`. */
export function writeModel(
  folder: string,
  name: string,
  nodes: readonly object[],
  weights: readonly object[],
  bytes: Uint8Array,
  shards = 2,
  functions: readonly object[] = [],
): string {
  const path = join(folder, name);
  mkdirSync(path, { recursive: true });
  const cut = Math.floor(bytes.byteLength / shards);
  const paths = Array.from({ length: shards }, (_, k) => `group1-shard${k + 1}of${shards}.bin`);
  paths.forEach((each, k) => writeFileSync(join(path, each), bytes.subarray(k * cut, k === shards - 1 ? undefined : (k + 1) * cut)));
  const model = {
    format: 'graph-model',
    generatedBy: '2.17.0',
    convertedBy: 'TensorFlow.js Converter v4.22.0',
    modelTopology: { node: nodes, library: { function: functions }, versions: { producer: 1482 } },
    weightsManifest: [{ paths, weights }],
  };
  writeFileSync(join(path, 'model.json'), JSON.stringify(model));
  return join(path, 'model.json');
}

/** The numbers of the fetched tensors. */
export async function runByTensorFlow(
  path: string,
  feeds: Readonly<Record<string, Value>>,
  fetches: readonly string[],
): Promise<readonly number[][]> {
  const { modelTopology, weightsManifest } = JSON.parse(readFileSync(path, 'utf8')) as {
    modelTopology: object;
    weightsManifest: readonly { paths: readonly string[]; weights: tf.io.WeightsManifestEntry[] }[];
  };
  const [{ paths, weights }] = weightsManifest;
  const weightData = Uint8Array.from(Buffer.concat(paths.map((each) => readFileSync(join(path, '..', each))))).buffer;
  const model = await tf.loadGraphModel(tf.io.fromMemory({ modelTopology, weightSpecs: weights, weightData }));
  const tensors = Object.fromEntries(
    Object.entries(feeds).map(([name, { data, shape, dtype }]) => [name, tf.tensor(data as number[], [...shape], dtype as 'float32')]),
  );
  const outputs = await model.executeAsync(tensors, [...fetches]);
  return (Array.isArray(outputs) ? outputs : [outputs]).map((each) => Array.from(each.dataSync()));
}
