/** Checkpoints of a layers model together with the state of its optimiser: rank 0 writes, every rank resumes. The folder is one of
 *  `Checkpoints`, so that a crash at any moment leaves the latest whole. */
import * as tf from '@tensorflow/tfjs';
import { ShoalError } from '../../../base/errors.ts';
import { checkArgument, count, noOptions } from '../../../base/schema.ts';
import { dtypeInfo, viewOf, type DType, type TypedArray } from '../../../memory/dtype.ts';
import { countOf } from '../../../memory/tensor.ts';
import { Checkpoints, type CheckpointGroup, type CheckpointsOptions } from '../../checkpoints/checkpoints.ts';
import type { ParameterSpec } from '../../buckets.ts';
import { atEpochEnd, checkHas } from './callbacks.ts';

type Arrays = Record<string, { readonly data: TypedArray; readonly shape: readonly number[] }>;

/** Saves a model after each epoch of `fit`, and resumes from the latest. All calls are collective.
 *
 *      const saved = new ModelCheckpoints(group, model, 'runs/mine');
 *      await model.fit(x, y, { epochs: 20, initialEpoch: await saved.restore(), callbacks: [saved.callback()] }); */
export class ModelCheckpoints {
  readonly #isWriter: boolean;
  readonly #model: tf.LayersModel;
  readonly #checkpoints: Checkpoints;

  /** @param model compiled; the same on every rank.  @param folder on a file system that all ranks share. */
  constructor(group: CheckpointGroup, model: tf.LayersModel, folder: string, options: CheckpointsOptions = noOptions) {
    checkHas('ModelCheckpoints: the second argument is a layers model', model, 'layers');
    this.#checkpoints = new Checkpoints(group, folder, options);
    this.#isWriter = group.rank === 0;
    this.#model = model;
  }

  /** A callback of `fit` that saves at the end of each epoch. */
  callback(): tf.CustomCallback {
    return atEpochEnd((epoch) => this.save(epoch + 1));
  }

  /** Saves the model as rank 0 has it, and the optimiser's state. @param epochs that are done. @throws as `Checkpoints.save`. */
  async save(epochs: number): Promise<void> {
    checkArgument('save: epochs', epochs, count);
    if (!this.#isWriter) {
      await this.#checkpoints.save({});
      return;
    }
    const optimizer = await this.#model.optimizer.getWeights();
    const described = optimizer.map(({ name, tensor: { shape, dtype } }) => ({ name, shape, dtype }));
    const owned = Object.fromEntries([
      ...this.#model.weights.map((weight) => [`model/${weight.originalName}`, elements(weight.read())] as const),
      ...optimizer.map(({ name, tensor }, index) => [`optimizer/${index}/${name}`, elements(tensor)] as const),
    ]);
    // The count of iterations is made for the caller; the rest are the optimiser's variables.
    tf.dispose(optimizer.map(({ tensor }) => tensor).filter((tensor) => !(tensor instanceof tf.Variable)));
    await this.#checkpoints.save({ owned, state: { epochs, optimizer: described } });
  }

  /** Loads the latest checkpoint into model and optimiser. @returns the epochs done, for `initialEpoch`; 0: there is none.
   *  @throws ShoalError `usage` when it is of another model, naming the first difference; `protocol` when it is damaged. */
  async restore(): Promise<number> {
    const found = await this.#checkpoints.latest();
    if (found === undefined) return 0;
    const { epochs, optimizer } = found.state as unknown as { epochs?: number; optimizer?: readonly ParameterSpec[] };
    if (epochs === undefined || optimizer === undefined)
      throw new ShoalError('usage', 'ModelCheckpoints: the latest checkpoint of this folder is not of a model; use a folder of its own');
    const { weights } = this.#model;
    const model = weights.map(({ originalName, shape, dtype }) =>
      blank({ name: `model/${originalName}`, shape: shape as number[], dtype: dtype as DType }),
    );
    const state = optimizer.map(({ name, shape, dtype }, index) => blank({ name: `optimizer/${index}/${name}`, shape, dtype }));
    await found.load(Object.fromEntries([...model, ...state]));
    const tensors = [...model, ...state].map(([, { data, shape, dtype }]) =>
      tf.tensor(data as Float32Array, [...shape], dtype as tf.DataType),
    );
    for (const [index, weight] of weights.entries()) weight.write(tensors[index]);
    await this.#model.optimizer.setWeights(optimizer.map(({ name }, index) => ({ name, tensor: tensors[weights.length + index] })));
    tf.dispose(tensors);
    return epochs;
  }
}

function elements(tensor: tf.Tensor): Arrays[string] {
  return { data: tensor.dataSync<'float32'>().slice(), shape: tensor.shape };
}

/** A place for the elements of a tensor, by its name. */
function blank({ name, shape, dtype }: ParameterSpec): readonly [string, Arrays[string] & Pick<ParameterSpec, 'dtype'>] {
  const count = countOf(shape);
  return [name, { data: viewOf(dtype, new ArrayBuffer(count * dtypeInfo(dtype).bytes), 0, count), shape, dtype }];
}
