/** Wrong arguments of shoal/ddp/tfjs are refused, as in public-api.test.ts. */
import * as tf from '@tensorflow/tfjs';
import { it } from 'vitest';
import { temporaryFolder } from '../../src/base/testing/temporary-folder.ts';
import * as tfjs from '../../src/ddp/adapters/tfjs/index.ts';
import { LocalWorld } from '../../src/ddp/testing/local-world.ts';
import { argument, call, fields, hasAll, options, walk, type CallsOf, type Exports } from '../support/public-calls.ts';

it('shoal/ddp/tfjs', async () => {
  const [alone] = new LocalWorld(1).groups;
  const checkpointing = { rank: 0, size: 1, allGatherObject: async () => [], broadcastObject: async () => undefined as never };
  const model = tf.sequential({ layers: [tf.layers.dense({ inputShape: [1], units: 1 })] });
  const directory = temporaryFolder('public-tfjs');
  const exportedHere: Exports<typeof tfjs> = {
    distribute: call(
      tfjs.distribute,
      argument(alone),
      argument(tf.train.sgd(0.1)),
      options('findUnused', 'bucketBytes', 'firstBucketBytes', 'timeoutMs'),
    ),
    DistributedOptimizer: 'is made by distribute',
    metricAverage: call(tfjs.metricAverage, argument(alone)),
    learningRateWarmup: call(
      tfjs.learningRateWarmup,
      argument(alone),
      argument(tfjs.distribute(alone, tf.train.sgd(0.1))),
      fields({ initialLearningRate: 0.1 }, 'warmupEpochs', 'stepsPerEpoch'),
    ),
    agreedStop: call(tfjs.agreedStop, argument(alone), argument(model)),
    broadcastBuffers: call(tfjs.broadcastBuffers, argument(alone), argument(model)),
    tensorBoard: call(tfjs.tensorBoard, argument(alone), argument(directory, 'string')),
    ModelCheckpoints: call(
      (...given: ConstructorParameters<typeof tfjs.ModelCheckpoints>) => new tfjs.ModelCheckpoints(...given),
      argument(checkpointing),
      argument(model),
      argument(directory, 'string'),
      options('keep'),
    ),
    shard: call(tfjs.shard, argument(tf.data.array([1])), argument(alone)),
  };
  hasAll(tfjs, exportedHere);
  await walk('tfjs', exportedHere);
  const saved = new tfjs.ModelCheckpoints(checkpointing, model, directory);
  const calls: CallsOf<typeof saved> = {
    save: call(saved.save.bind(saved), argument(1)),
    restore: 'takes nothing',
    callback: 'takes nothing',
  };
  await walk('saved', calls);
});
