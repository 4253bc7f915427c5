/** The wide & deep example: reads its options, and trains. */
import { existsSync } from 'node:fs';
import type { startGraphServer } from 'shoal/graph';
import { generator, criteo, type Batch, type Source } from './data.ts';
import { wideDeep } from './model.ts';
import { readOptions, refuse } from '../ranking/options.ts';
import { trainingNumbers, trainingOptions, trainRanking } from '../ranking/train.ts';

/** @param start default: as programs start a task. */
export async function trainWideDeep(start?: typeof startGraphServer): Promise<void> {
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
    start,
  );
}
