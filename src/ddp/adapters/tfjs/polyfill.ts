/** Adds the kernels that a backend of TensorFlow.js lacks: wasm has no gradients of convolutions and embeddings. The cpu backend
 *  computes them; inputs and outputs are copied from one memory to the other. */
import * as tf from '@tensorflow/tfjs';

interface Backend {
  readSync(dataId: object): tf.backend_util.BackendValues;
  write(values: tf.backend_util.BackendValues, shape: number[], dtype: tf.DataType): object;
  disposeData(dataId: object): unknown;
}

/** Adds the kernels that the wasm backend lacks, when it is in use. @returns their names. */
export function addMissingKernels(): readonly string[] {
  const name = tf.getBackend();
  if (name !== 'wasm') return [];
  const cpu = tf.findBackend('cpu') as unknown as Backend | null;
  if (cpu === null) return [];
  const added: string[] = [];
  for (const { kernelName, kernelFunc } of tf.getKernelsForBackend('cpu')) {
    if (tf.getKernel(kernelName, name)) continue;
    tf.registerKernel({ kernelName, backendName: name, kernelFunc: (call) => runOn(cpu, kernelFunc, call) });
    added.push(kernelName);
  }
  return added;
}

type KernelCall = Parameters<tf.KernelFunc>[0];

function runOn(cpu: Backend, kernel: tf.KernelFunc, { inputs, attrs, backend }: KernelCall): tf.TensorInfo | tf.TensorInfo[] {
  const own = backend as Backend;
  const moved: tf.TensorInfo[] = [];
  const move = (from: Backend, to: Backend, { dataId, shape, dtype }: tf.TensorInfo): tf.TensorInfo => ({
    dataId: to.write(from.readSync(dataId), shape, dtype),
    shape,
    dtype,
  });
  const there = Object.entries(inputs).map(([name, input]) => {
    if (input === undefined || input === null) return [name, input] as const;
    const info = move(own, cpu, input);
    moved.push(info);
    return [name, info] as const;
  });
  const given = Array.isArray(inputs) ? there.map(([, info]) => info) : Object.fromEntries(there);
  const results = kernel({ inputs: given as KernelCall['inputs'], attrs, backend: cpu });
  const list = Array.isArray(results) ? results : [results];
  const back = list.map((result) => move(cpu, own, result));
  for (const { dataId } of [...moved, ...list]) cpu.disposeData(dataId);
  return Array.isArray(results) ? back : back[0];
}
