/** Wide & deep (Cheng et al., 2016) as a graph: a linear part over all categories beside a network over their embeddings. Tables and
 *  dense parameters live on the parameter servers, what computes is on the worker; only rows, parameters and gradients cross. */
import { add, addN, call, concat, matMul, mean, noOp, relu, reshape, sigmoidCrossEntropyWithLogits, type GraphBuilder } from 'shoal/graph';
import { lookup, Parameters, partition, type Floats, type Ids, type ParameterOptions, type Table } from '../ranking/parameters.ts';
import type { RankingModel, Tower } from '../ranking/train.ts';

export interface ModelOptions extends ParameterOptions {
  readonly vocabularies: readonly number[];
  readonly denseCount: number;
  readonly embedding: number;
  readonly hidden: readonly number[];
  readonly batch: number;
  /** A tower on each. */
  readonly workers: readonly string[];
}

export function wideDeep(g: GraphBuilder, options: ModelOptions): RankingModel {
  const parameters = new Parameters(g, options);
  const { vocabularies, embedding, hidden, denseCount } = options;
  const tables = (name: string, width: number, spread: number, rule: 'ftrl' | 'adagrad'): Table[] =>
    vocabularies.map((rows, column) => parameters.table(`${name}_${column}`, rows, width, { first: column, spread, rule }));
  const wide = tables('wide', 1, 0, 'ftrl');
  const deep = tables('deep', embedding, 0.05, 'adagrad');
  const widths = [denseCount + vocabularies.length * embedding, ...hidden, 1];
  const layers = widths.slice(1).map((width, k) => ({
    weights: parameters.dense(`weights_${k}`, [widths[k], width], Math.sqrt(2 / widths[k])),
    bias: parameters.dense(`bias_${k}`, [width], 0),
  }));
  const towers = options.workers.map((device, k) =>
    g.withDevice(device, () => g.withScope(`tower_${k}`, () => tower(g, options, { wide, deep, layers }))),
  );
  const updates = parameters.updates(
    towers.map(({ loss }) => loss),
    options.workers,
  );
  return {
    init: noOp(g, { name: 'init', controlInputs: parameters.inits }),
    train: noOp(g, { name: 'train', controlInputs: updates, device: options.workers[0] }),
    towers,
  };
}

interface Weights {
  readonly wide: readonly Table[];
  readonly deep: readonly Table[];
  readonly layers: readonly { readonly weights: Floats; readonly bias: Floats }[];
}

/** Its input is a named function of the worker's process. */
function tower(g: GraphBuilder, { batch, denseCount, vocabularies }: ModelOptions, { wide, deep, layers }: Weights): Tower {
  const outputs = call(
    g,
    'nextBatch',
    [],
    [
      { dtype: 'float32', shape: [null, 1] },
      { dtype: 'float32', shape: [null, denseCount] },
      ...vocabularies.map(() => ({ dtype: 'int32', shape: [null] }) as const),
    ],
    { name: `input_of_${batch}` },
  );
  const [labels, dense] = outputs as readonly Floats[];
  const ids = outputs.slice(2) as readonly Ids[];
  const places = ids.map((each) => partition(g, each, deep[0].parts.length));
  const rows = (tables: readonly Table[]): Floats[] => tables.map((table, column) => lookup(g, table, places[column]));
  let hidden: Floats = concat(g, [dense, ...rows(deep)], { axis: 1 });
  layers.forEach(({ weights, bias }, k) => {
    hidden = add(g, matMul(g, hidden, weights), bias);
    if (k < layers.length - 1) hidden = relu(g, hidden);
  });
  const logits = addN(g, [reshape(g, hidden, { shape: [null, 1] }), ...rows(wide)]);
  const loss = mean(g, sigmoidCrossEntropyWithLogits(g, labels, logits));
  return { inputs: outputs, logits, loss };
}
