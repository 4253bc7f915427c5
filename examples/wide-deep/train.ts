/** Trains a wide & deep model whose tables are on parameter servers:
 *
 *    shoal run --ps 2 --workers 3 examples/wide-deep/train.ts                      every worker by itself, a request per tensor
 *    shoal run --ps 2 --workers 3 examples/wide-deep/train.ts --fuse               receives are fused when the graph is partitioned
 *    shoal run --ps 2 --workers 3 examples/wide-deep/train.ts --recv-some          … when they run
 *    shoal run --ps 2 --workers 3 examples/wide-deep/train.ts --sync               one step of all workers at a time
 *    shoal run --ps 2 --workers 3 examples/wide-deep/train.ts --criteo train.txt   your own data
 *
 *  `--checkpoint file` goes on from the file where there is one, and saves to it every 100 steps and at the end; `--save-graph file` is for
 *  `shoal graph file`. Parameter servers run this script as well, as far as `join`. */
import { existsSync } from 'node:fs';
import { generator, criteo, type Batch, type Source } from './data.ts';
import { wideDeep } from './model.ts';
import { readOptions, refuse } from '../ranking/options.ts';
import { trainingNumbers, trainingOptions, trainRanking } from '../ranking/train.ts';

const { values, numbers } = readOptions(
  {
    ...trainingOptions,
    columns: { type: 'string', default: '104' },
    vocabulary: { type: 'string', default: '40' },
    dense: { type: 'string', default: '13' },
    embedding: { type: 'string', default: '4' },
    hidden: { type: 'string', default: '32,16' },
    criteo: { type: 'string' },
  },
  { ...trainingNumbers, columns: 1, vocabulary: 1, dense: 1, embedding: 1 },
);
const { columns, vocabulary, dense, embedding, seed } = numbers;
if (values.criteo !== undefined && !existsSync(values.criteo)) refuse(`--criteo '${values.criteo}' does not exist`);

await trainRanking<Batch, Source>(
  { ...values, ...numbers },
  {
    sourceOf: (stream, shard, shards) =>
      values.criteo === undefined
        ? generator({ columns, vocabulary, dense, truth: seed, stream: seed * 1000 + stream })
        : criteo({ path: values.criteo, shard, shards, vocabulary }),
    build: (g, options, { vocabularies, denseCount }) =>
      wideDeep(g, { ...options, vocabularies, denseCount, embedding, hidden: values.hidden.split(',').map(Number) }),
    valuesOf: ({ labels, dense: numbers, ids }) => {
      const size = labels.length;
      return [
        { dtype: 'float32', shape: [size, 1], data: labels },
        { dtype: 'float32', shape: [size, numbers.length / size], data: numbers },
        ...ids.map((each) => ({ dtype: 'int32', shape: [size], data: each })),
      ];
    },
  },
);
