/** Parts of a tf.data dataset for the ranks. */
import * as tf from '@tensorflow/tfjs';
import type { ProcessGroup } from '../../../group/caller/types.ts';
import { checkHas } from './callbacks.ts';

/** Every `size`-th element of the dataset, from number `rank` on: tf.data's `shard`. Every rank gets equally many: up to `size − 1`
 *  elements at the end are left out, as a rank with one step more would wait for the others. The order must be the same on all ranks:
 *  shuffle with a seed, before. Batches of B elements behind it are, all ranks' together, the same as batches of B · size elements in one
 *  process. */
export function shard<T extends tf.TensorContainer>(
  dataset: tf.data.Dataset<T>,
  group: Pick<ProcessGroup, 'rank' | 'size' | 'allReduce'>,
): tf.data.Dataset<T> {
  checkHas('shard: the first argument is a dataset of tf.data', dataset, 'iterator');
  checkHas('shard: the second argument is the process group', group, 'allReduce');
  const { rank, size } = group;
  const part = tf.data.generator(async function* () {
    const elements = await dataset.iterator();
    let own: T | undefined;
    for (let index = 0; ; index++) {
      const { value, done } = await elements.next();
      if (done) break;
      if (index % size === rank) own = value;
      else tf.dispose(value);
      if (index % size < size - 1) continue;
      yield own as T;
      own = undefined;
    }
    tf.dispose(own);
  });
  // `batch` and `fitDataset` count with it; a generator's is not known.
  return Object.assign(part, { size: dataset.size === null ? null : Math.floor(dataset.size / size) });
}
