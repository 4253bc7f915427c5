/** Data-parallel training with jax-js: trees of arrays in and out of the reducer. Only files whose names begin as this one's import
 *  `@jax-js/jax` (an optional peer dependency). It must not know the model, the optimiser or how gradients were computed.
 *
 *   gradients (wasm memory) ─ dataSync: one copy ─▶ array ─ one copy ─▶ bucket (shared memory) ─ all-reduce ─▶
 *   ─ np.array: one copy ─▶ averaged gradients (wasm memory)
 *
 *  On device `webgpu` gradients are read out of jax-js' own buffers, through proxies, several at a time; the averages are uploaded by
 *  jax-js, which takes no buffers of others. Reading them needs the event loop: what does not await is refused there.
 *
 *  Ownership follows jax-js: a method consumes the arrays it is given, as every jax-js function does, and what it returns is the
 *  caller's. Pass `tree.ref(x)` to keep a tree. Exception, as for reads in jax-js: `verifyReplicas` and `checksum` only
 *  look and consume nothing.
 *
 *  A jitted step computes all gradients before the first can be read, so buckets overlap with the reading of later
 *  gradients, not with the backward pass itself. Models of several stages overlap with it: jax-js-stages.ts.
 *
 *  @module */
import { defaultDevice, DType, getWebGPUDevice, tree, type JsTreeDef, type numpy as np } from '@jax-js/jax';
import { ShoalError } from '../../base/errors.ts';
import { anyNumber, checkOptions, describeValue, noOptions, optionTable } from '../../base/schema.ts';
import { DeviceCopies } from '../../memory/device/device-copies.ts';
import type { GpuBuffer, GpuDevice } from '../../memory/device/gpu.ts';
import { ReduceOp } from '../../memory/reduce-op.ts';
import type { ParameterSpec } from '../buckets.ts';
import { checksum } from '../checksum.ts';
import type { CommHook } from '../hooks/comm-hook.ts';
import { Reducer } from '../reducer.ts';
import { checkGroup } from '../../group/caller/call-arguments.ts';
import type { ReducerGroup, ReducerOptions, ReducerStats } from '../reducer-options.ts';

import { arrayOf, checkHost, isOnWebGpu, leafSpecs, readOnce, type ArrayTree, type Elements } from './jax-js-trees.ts';

export { distributeStages, StagedModel, type Stage, type StageOptimizer, type StagesOptions } from './jax-js-stages.ts';
export * from './jax-js-multihost.ts';
export type { ArrayTree };
export { initWebGpu, type WebGpuSession } from './jax-js-webgpu.ts';

/** Options of one average. */
export interface AverageOptions {
  /** Samples behind these gradients; needed, and only allowed, with weighting 'samples'. */
  readonly samples?: number;
}

const averageOptions = optionTable<AverageOptions>({ samples: anyNumber });

/** Makes every rank start from rank 0's parameters and returns the model, which averages their gradients. Collective. Consumes
 *  `params`; the broadcast ones are `params` of the result.
 *  @throws ShoalError `mismatch` on every rank when their trees differ in names, order, shapes or dtypes; `unsupported` for
 *          leaves that are not float32 or float64 arrays. */
export async function distribute<T extends ArrayTree>(
  group: ReducerGroup,
  params: T,
  options: ReducerOptions = noOptions,
): Promise<DistributedModel<T>> {
  checkGroup('distribute', group, 'allReduce');
  const specs = leafSpecs(params);
  const structure = tree.structure<np.Array>(params);
  const reducer = new Reducer(group, specs, options);
  try {
    // Copies of our own: what a read returns may be shared with other arrays, and the broadcast overwrites it.
    const leaves = tree.leaves<np.Array>(params);
    const devices = leaves.map(({ device }) => device);
    const values = (await readAll(leaves)).map((value) => value.slice());
    await reducer.broadcastParameters(values);
    const arrays = values.map((value, index) => arrayOf(value, specs[index], devices[index]));
    return new DistributedModel(group, reducer, specs, structure, tree.unflatten(structure, arrays) as T);
  } catch (thrown) {
    reducer.close();
    throw thrown;
  }
}

/** The replicas of one model. Made by `distribute`. */
export class DistributedModel<T extends ArrayTree> {
  /** Rank 0's initial parameters. Owned by the caller: read it once, or keep it with `tree.ref`. */
  readonly params: T;
  readonly #group: ReducerGroup;
  readonly #reducer: Reducer;
  readonly #specs: readonly ParameterSpec[];
  readonly #structure: JsTreeDef;
  /** Device of each parameter's gradient, where its average goes as well. */
  #devices: readonly np.Array['device'][];
  /** Copies of gradients that are on device `webgpu`; made when the first one is. */
  #copies: DeviceCopies | undefined;

  /** Use `distribute`. */
  constructor(group: ReducerGroup, reducer: Reducer, specs: readonly ParameterSpec[], structure: JsTreeDef, params: T) {
    this.#group = group;
    this.#reducer = reducer;
    this.#specs = specs;
    this.#structure = structure;
    this.#devices = specs.map(() => defaultDevice());
    this.params = params;
  }

  /** Like `Reducer.registerCommHook`; call it before the first gradients. */
  registerCommHook<S>(state: S, hook: CommHook<S>): void {
    this.#reducer.registerCommHook(state, hook);
  }

  /** The cost of communication so far. */
  get stats(): ReducerStats {
    return this.#reducer.stats;
  }

  /** Collective. Consumes this rank's gradients; gives their average over all ranks. The backward pass has already finished
   *  or runs now, on this thread. */
  async average(gradients: T, options: AverageOptions = noOptions): Promise<T> {
    const leaves = this.#checked(gradients, options);
    if (leaves.some(isOnWebGpu)) await this.#giveFromDevice(leaves, options);
    else this.#give(leaves, options);
    await this.#reducer.finish();
    return this.#take();
  }

  /** Like `average`, but blocks this thread instead of returning to the event loop. */
  averageSync(gradients: T, options: AverageOptions = noOptions): T {
    this.#give(this.#checked(gradients, options), options);
    this.#reducer.finishSync();
    return this.#take();
  }

  /** Consumes the gradients of a micro-batch and adds them up locally, without communication; the next `average` includes
   *  them. Divide each micro-batch's loss by their number, unless weighting is 'samples'. */
  accumulate(gradients: T, options: AverageOptions = noOptions): void {
    const leaves = this.#checked(gradients, options);
    this.#reducer.noSync(() => this.#give(leaves, options));
  }

  /** Collective, weighting 'samples': takes part in a step for which this rank has no samples left. Gives the gradients of
   *  the others, or undefined when no rank had any: training is over. */
  async averageWithout(): Promise<T | undefined> {
    this.#reducer.begin({ samples: 0 });
    const { weight } = await this.#reducer.finish();
    return weight === 0 ? undefined : this.#take();
  }

  /** Collective. The mean of one number per rank, for losses and metrics: each rank counts alike. */
  async mean(value: number): Promise<number> {
    if (typeof value !== 'number') throw new ShoalError('usage', `ddp: mean takes a number, not ${describeValue(value)}`);
    const one = Float64Array.of(value);
    await this.#group.allReduce(one, { op: ReduceOp.Avg, name: 'ddp/mean' });
    return one[0];
  }

  /** Collective. The checksum of `params`, equal on every rank. Consumes nothing.
   *  @throws ShoalError `mismatch` on every rank, naming the ranks that differ and the first parameter in which they do. */
  async verifyReplicas(params: T): Promise<string> {
    return this.#reducer.verifyReplicas(await readAll(this.#leaves(tree.ref(params))));
  }

  /** 16 hex digits over the bits of `params`. Consumes nothing, does not communicate. */
  checksum(params: T): string {
    return checksum(this.#leaves(tree.ref(params)).map((leaf) => readOnce(leaf)));
  }

  /** Gives the buckets back. Idempotent. */
  close(): void {
    this.#copies?.close();
    this.#reducer.close();
  }

  #checked(gradients: T, options: AverageOptions): np.Array[] {
    checkOptions('average', options, averageOptions);
    const leaves = this.#leaves(gradients);
    this.#devices = leaves.map(({ device }) => device);
    return leaves;
  }

  /** Reads gradients last to first, the order in which buckets fill, so that the first bucket is on its way early. */
  #give(leaves: readonly np.Array[], { samples }: AverageOptions): void {
    checkHost(leaves);
    if (samples !== undefined) this.#reducer.begin({ samples });
    for (let index = leaves.length - 1; index >= 0; index--) this.#reducer.gradientReady(index, readOnce(leaves[index]));
  }

  /** Reads gradients in the same order from the device, while the copies of the next ones are on their way. */
  async #giveFromDevice(leaves: readonly np.Array[], { samples }: AverageOptions): Promise<void> {
    if (samples !== undefined) this.#reducer.begin({ samples });
    this.#copies ??= new DeviceCopies(getWebGPUDevice() as unknown as GpuDevice);
    const take = (values: Elements, index: number): void => this.#reducer.gradientReady(leaves.length - 1 - index, values);
    await readEach(leaves.toReversed(), take, this.#copies);
  }

  #take(): T {
    const arrays = this.#specs.map((spec, index) =>
      arrayOf(this.#reducer.gradient(index) as Float32Array | Float64Array, spec, this.#devices[index]),
    );
    return tree.unflatten(this.#structure, arrays) as T;
  }

  #leaves(given: T): np.Array[] {
    const [leaves, structure] = tree.flatten<np.Array>(given);
    if (structure.equals(this.#structure)) return leaves;
    const message = `ddp: the tree ${structure.toString()} differs from that of the parameters, ${this.#structure.toString()}`;
    throw new ShoalError('usage', message);
  }
}

/** The elements of each leaf; consumes the leaves. */
async function readAll(leaves: readonly np.Array[]): Promise<Elements[]> {
  const all: Elements[] = [];
  const copies = leaves.some(isOnWebGpu) ? new DeviceCopies(getWebGPUDevice() as unknown as GpuDevice) : undefined;
  await readEach(leaves, (values) => all.push(values), copies);
  copies?.close();
  return all;
}

/** Gives the elements of each leaf in their order, as they come; consumes the leaves.
 *  @param copies several at a time, of leaves on jax-js' device; undefined when no leaf is there. */
async function readEach(
  leaves: readonly np.Array[],
  take: (values: Elements, index: number) => void,
  copies: DeviceCopies | undefined,
): Promise<void> {
  const reads = leaves.map((leaf) => {
    const read = isOnWebGpu(leaf) && copies ? readFromDevice(leaf, copies) : Promise.resolve(readOnce(leaf));
    // The loop below awaits each one in its turn, so an early rejection is not unhandled.
    read.catch(() => undefined);
    return read;
  });
  for (const [index, read] of reads.entries()) take(await read, index);
}

/** The elements of the leaf's own buffer, copied through a proxy. */
async function readFromDevice(leaf: np.Array, copies: DeviceCopies): Promise<Elements> {
  // Once jax-js has given the buffer it lets go of the array, and could write another one there: this reference keeps it.
  const kept = leaf.ref;
  try {
    const values = leaf.dtype === DType.Float64 ? new Float64Array(leaf.size) : new Float32Array(leaf.size);
    const buffer = (await leaf.gpuBuffer()) as unknown as GpuBuffer;
    await copies.read({ buffer, byteOffset: 0 }, new Uint8Array(values.buffer));
    return values;
  } finally {
    kept.dispose();
  }
}
