/** Trains a model like DIEN, of sequences, attention and loops, whose tables are on parameter servers:
 *
 *    shoal run --ps 1 --workers 2 examples/dien-like/train.ts                a request per tensor
 *    shoal run --ps 1 --workers 2 examples/dien-like/train.ts --fuse         receives are fused when the graph is partitioned
 *    shoal run --ps 1 --workers 2 examples/dien-like/train.ts --recv-some    … when they run
 *    shoal run --ps 1 --workers 2 examples/dien-like/train.ts --loops        trains the GRUs as loops, not unrolled
 *    shoal run --ps 1 --workers 2 examples/dien-like/train.ts --server-cells … which go over to the server in each iteration
 *
 *  The other options are those of examples/wide-deep. Examples are scored twice, by GRUs that are loops and by GRUs that are unrolled; `--out`
 *  says how far they differ (`otherwise`).
 *
 *  A run takes about 55 s of CPU time, measured on two CPUs, and several times as long with --loops: the gradient of a loop makes its body
 *  again, and in each iteration a gradient of the whole sequence. */
import { readOptions } from '../ranking/options.ts';
import { trainingNumbers, trainingOptions, trainRanking } from '../ranking/train.ts';
import { generator, type Batch, type Source } from './data.ts';
import { dienLike } from './model.ts';

const { values, numbers } = readOptions(
  {
    ...trainingOptions,
    items: { type: 'string', default: '60' },
    categories: { type: 'string', default: '6' },
    /** Steps of the history. */
    length: { type: 'string', default: '8' },
    embedding: { type: 'string', default: '6' },
    units: { type: 'string', default: '12' },
    hidden: { type: 'string', default: '16' },
    /** The GRUs multiply where their weights are. */
    'server-cells': { type: 'boolean', default: false },
    /** Trains the loops, not the unrolled GRUs. */
    loops: { type: 'boolean', default: false },
  },
  { ...trainingNumbers, items: 1, categories: 1, length: 1, embedding: 1, units: 1, hidden: 1 },
);
const { items, categories, length, embedding, units, hidden, seed } = numbers;

await trainRanking<Batch, Source>(
  { ...values, ...numbers },
  {
    sourceOf: (stream) => generator({ items, categories, length, truth: seed, stream: seed * 1000 + stream }),
    build: (g, options, { vocabularies }) =>
      dienLike(g, {
        ...options,
        vocabularies,
        length,
        embedding,
        units,
        hidden,
        serverCells: values['server-cells'],
        loops: values.loops || values['server-cells'],
      }),
    valuesOf: ({ labels, history, target }) => [
      { dtype: 'float32', shape: [labels.length, 1], data: labels },
      ...[...history, ...target].map((each) => ({ dtype: 'int32', shape: [each.length], data: each })),
    ],
  },
);
