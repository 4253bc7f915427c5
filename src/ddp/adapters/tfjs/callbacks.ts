/** Callbacks of `model.fit` and `fitDataset` for models that several ranks train: Horovod's, of Keras. They are instances of TensorFlow.js'
 *  `CustomCallback`, and are called in the order of the list: `metricAverage` before those that read metrics, `agreedStop` last. */
import * as tf from '@tensorflow/tfjs';
import { ShoalError } from '../../../base/errors.ts';
import { anyNumber, anyText, checkArgument, checkFields, count, describeValue, optionTable } from '../../../base/schema.ts';
import type { ProcessGroup } from '../../../group/caller/types.ts';
import { ReduceOp } from '../../../memory/reduce-op.ts';
import { checkGroup } from '../../../group/caller/call-arguments.ts';
import { SummaryWriter } from '../../summary-writer.ts';

/** The part of a process group that callbacks use. */
export type CallbackGroup = Pick<ProcessGroup, 'rank' | 'size' | 'allReduce' | 'broadcast'>;

/** Options of `learningRateWarmup`. */
export interface WarmupOptions {
  /** The rate after the warm-up, for all ranks together: usually the rate of one process times the number of ranks. */
  readonly initialLearningRate: number;
  /** Epochs, over which the rate grows from a `size`-th of it. Default 5. */
  readonly warmupEpochs?: number;
  /** Batches of an epoch. Default: those of `fit`, or of a dataset that knows its size. */
  readonly stepsPerEpoch?: number;
}

const warmupOptions = optionTable<WarmupOptions>({ initialLearningRate: anyNumber, warmupEpochs: count, stepsPerEpoch: count });

/** Collective at the end of each epoch: every metric becomes its mean over all ranks, for the history and for callbacks behind this one.
 *  Each rank counts alike. Ranks with different metrics get a `mismatch`. */
export function metricAverage(group: CallbackGroup): tf.CustomCallback {
  checkGroup('metricAverage', group, 'allReduce');
  return atEpochEnd(async (_, logs) => {
    const names = Object.keys(logs).sort();
    const values = Float64Array.from(names, (name) => logs[name]);
    await group.allReduce(values, { op: ReduceOp.Avg, name: `metrics ${names.join(', ')}` });
    for (const [index, name] of names.entries()) logs[name] = values[index];
  });
}

/** Sets the learning rate before each batch of the first epochs (Goyal et al. 2017): in a line from `initialLearningRate / size` to
 *  `initialLearningRate` at the end of epoch `warmupEpochs`. Momentum needs no correction: TensorFlow.js applies the rate to it, not
 *  before. With a scheduled group, these steps wait for the averages of the one before.
 *  @throws ShoalError `usage`, in `fit` where the number of batches is not known. */
export function learningRateWarmup(group: CallbackGroup, optimizer: { learningRate: number }, options: WarmupOptions): tf.CustomCallback {
  checkGroup('learningRateWarmup', group, 'allReduce');
  checkHas('learningRateWarmup: the second argument is an optimizer made by distribute', optimizer, 'verifyReplicas');
  checkFields('learningRateWarmup', options, warmupOptions);
  const { initialLearningRate, warmupEpochs = 5 } = options;
  if (initialLearningRate === undefined) throw new ShoalError('usage', 'learningRateWarmup: initialLearningRate is missing');
  const { size } = group;
  let current = 0;
  const warmup: tf.CustomCallback = new tf.CustomCallback(
    {
      onEpochBegin: (epoch) => void (current = epoch),
      onBatchBegin: (batch) => {
        if (current >= warmupEpochs) return;
        const { steps, samples, batchSize } = warmup.params as Record<string, number | null | undefined>;
        const stepsPerEpoch = options.stepsPerEpoch ?? steps ?? Math.ceil((samples ?? 0) / (batchSize ?? 1));
        if (stepsPerEpoch === 0) throw new ShoalError('usage', 'learningRateWarmup: this dataset has no size; give stepsPerEpoch');
        const epochs = current + (batch + 1) / stepsPerEpoch;
        optimizer.learningRate = (initialLearningRate * ((epochs * (size - 1)) / warmupEpochs + 1)) / size;
      },
    },
    'never',
  );
  return warmup;
}

/** Collective at the end of each epoch: when `model.stopTraining` is set on one rank, by an `earlyStopping` or by the program, training
 *  ends on all. */
export function agreedStop(group: CallbackGroup, model: tf.LayersModel): tf.CustomCallback {
  checkGroup('agreedStop', group, 'allReduce');
  checkHas('agreedStop: the second argument is a layers model', model, 'layers');
  return atEpochEnd(async () => {
    const stops = Uint8Array.of(model.stopTraining ? 1 : 0);
    await group.allReduce(stops, { op: ReduceOp.Max, name: 'stopTraining' });
    model.stopTraining = stops[0] === 1;
  });
}

/** Collective at the end of each epoch: weights that are not trained, such as running statistics, become rank 0's. Before, each rank has
 *  those of its own part of the data. torch's `broadcast_buffers` does so in each step. */
export function broadcastBuffers(group: CallbackGroup, model: tf.LayersModel): tf.CustomCallback {
  checkGroup('broadcastBuffers', group, 'broadcast');
  checkHas('broadcastBuffers: the second argument is a layers model', model, 'layers');
  return atEpochEnd(async () => {
    for (const weight of model.nonTrainableWeights) {
      const values = weight.read().dataSync<'float32'>().slice();
      await group.broadcast(values, { name: `buffer ${weight.originalName}` });
      tf.tidy(() => void weight.write(tf.tensor(values, weight.shape as number[], weight.dtype)));
    }
  });
}

/** Rank 0 writes the metrics of each epoch for TensorBoard, by the names of Keras' callback: `epoch_loss` in the folders `train` and
 *  `validation`. */
export function tensorBoard(group: CallbackGroup, folder: string): tf.CustomCallback {
  checkGroup('tensorBoard', group, 'allReduce');
  checkArgument('tensorBoard: folder', folder, anyText);
  const writers =
    group.rank === 0 ? { train: new SummaryWriter(`${folder}/train`), validation: new SummaryWriter(`${folder}/validation`) } : undefined;
  return atEpochEnd((epoch, logs) => {
    for (const [name, value] of Object.entries(logs)) {
      const part = name.startsWith('val_') ? 'validation' : 'train';
      writers?.[part].addScalar(`epoch_${name.replace(/^val_/, '')}`, value, epoch);
    }
  });
}

/** A callback of the end of an epoch; numbers of `logs` that it changes are changed for all callbacks behind it. */
export function atEpochEnd(run: (epoch: number, logs: Record<string, number>) => void | Promise<void>): tf.CustomCallback {
  return new tf.CustomCallback({ onEpochEnd: (epoch, logs) => run(epoch, logs ?? {}) }, 'never');
}

/** @throws ShoalError `usage` for a value without this member. */
export function checkHas(rule: string, value: unknown, member: string): void {
  if (typeof value !== 'object' || value === null || !(member in value))
    throw new ShoalError('usage', `${rule}, not ${describeValue(value)}`);
}
