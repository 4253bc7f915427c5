/** Like DIEN (Zhou et al., 2019): one GRU finds interests in what a user looked at, attention weighs them by the item that is shown, a second
 *  GRU whose update gate is attended follows how they evolve; a network over that and over the embeddings gives the logit.
 *
 *      items ─▶ rows ─▶ GRU ─▶ h1 … hT ─▶ attention ─▶ GRU, attended ─▶ last ─┐
 *      shown ─▶ row ──────────────────────────┴──────────────────────────────┴─▶ network ─▶ logit
 *
 *  The GRUs are there twice, as loops and unrolled, with the same weights: one of both is trained, and examples are scored by both. With
 *  `serverCells` the loops are on several devices: the products with the weights of a cell are where these weights are, so that states
 *  travel in each iteration and weights stay. */
import {
  add,
  call,
  concat,
  constant,
  gather,
  identity,
  less,
  matMul,
  mean,
  mul,
  noOp,
  relu,
  reshape,
  sigmoid,
  sigmoidCrossEntropyWithLogits,
  slice,
  softmax,
  split,
  sub,
  sum,
  tanh,
  transpose,
  whileLoop,
  type GraphBuilder,
  type Output,
} from 'shoal/graph';
import { integer, lookup, Parameters, partition, type Floats, type Ids, type ParameterOptions, type Table } from '../ranking/parameters.ts';
import type { RankingModel, Tower } from '../ranking/train.ts';

export interface ModelOptions extends ParameterOptions {
  /** Sizes of the vocabularies that give an item its embeddings: items, categories. */
  readonly vocabularies: readonly number[];
  readonly length: number;
  readonly embedding: number;
  /** Units of the GRUs, and of the network's layer. */
  readonly units: number;
  readonly hidden: number;
  readonly batch: number;
  /** A tower on each. */
  readonly workers: readonly string[];
  readonly serverCells: boolean;
  /** The loops are trained, not the unrolled GRUs. */
  readonly loops: boolean;
}

interface Cell {
  /** Weights from the input to update gate, reset gate and candidate, side by side. */
  readonly input: Floats;
  readonly bias: Floats;
  /** Weights from the state to the gates. */
  readonly gates: Floats;
  /** … to the candidate. */
  readonly candidate: Floats;
}

interface Weights {
  readonly tables: readonly Table[];
  readonly interest: Cell;
  readonly evolution: Cell;
  readonly attention: Floats;
  readonly layers: readonly { readonly weights: Floats; readonly bias: Floats }[];
}

export function dienLike(g: GraphBuilder, options: ModelOptions): RankingModel {
  const parameters = new Parameters(g, options);
  const weights = makeWeights(parameters, options);
  const towers = options.workers.map((device, k) =>
    g.withDevice(device, () => g.withScope(`tower_${k}`, () => tower(g, options, weights))),
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

function makeWeights(parameters: Parameters, { vocabularies, embedding, units, hidden }: ModelOptions): Weights {
  const width = vocabularies.length * embedding;
  const dense = (name: string, from: number, to: number): Floats => parameters.dense(name, [from, to], Math.sqrt(3 / from));
  const cell = (name: string, from: number): Cell => ({
    input: dense(`${name}_input`, from, 3 * units),
    bias: parameters.dense(`${name}_bias`, [3 * units], 0),
    gates: dense(`${name}_gates`, units, 2 * units),
    candidate: dense(`${name}_candidate`, units, units),
  });
  const widths = [3 * width + units, hidden, 1];
  return {
    tables: vocabularies.map((rows, k) => parameters.table(`embedding_${k}`, rows, embedding, { first: k, spread: 0.5, rule: 'adagrad' })),
    interest: cell('interest', width),
    evolution: cell('evolution', units),
    attention: dense('attention', width, units),
    layers: widths.slice(1).map((to, k) => ({
      weights: dense(`weights_${k}`, widths[k], to),
      bias: parameters.dense(`bias_${k}`, [to], 0),
    })),
  };
}

/** Its input is a named function of the worker's process. */
function tower(g: GraphBuilder, options: ModelOptions, weights: Weights): Tower {
  const { batch, vocabularies, length, embedding } = options;
  const list = { dtype: 'int32', shape: [null] } as const;
  const lists = vocabularies.map(() => list);
  const inputs = call(g, 'nextBatch', [], [{ dtype: 'float32', shape: [null, 1] }, ...lists, ...lists], { name: `input_of_${batch}` });
  const labels = inputs[0] as Floats;
  const count = vocabularies.length;
  const rows = (ids: readonly Output[]): Floats =>
    concat(
      g,
      ids.map((each, k) => lookup(g, weights.tables[k], partition(g, each as Ids, weights.tables[k].parts.length))),
      { axis: 1 },
    );
  const history = rows(inputs.slice(1, 1 + count));
  const target = rows(inputs.slice(1 + count));
  const pooled = mean(g, reshape(g, history, { shape: [length, null, count * embedding] }), { axis: [0] });
  const logitsBy = (scan: Scan): Floats => {
    const states = scan(g, options, weights.interest, history).states;
    const { last } = scan(g, options, weights.evolution, states, attentionOf(g, options, weights.attention, states, target));
    return head(g, weights, [target, pooled, mul(g, target, pooled), last]);
  };
  const byLoops = g.withScope('looped', () => logitsBy(looped));
  const byCopies = g.withScope('unrolled', () => logitsBy(unrolled));
  const [logits, otherLogits] = options.loops ? [byLoops, byCopies] : [byCopies, byLoops];
  return { inputs, logits, loss: mean(g, sigmoidCrossEntropyWithLogits(g, labels, logits)), otherLogits };
}

/** Share of each state in what is shown: [length, batch, 1], 1 in all for each example. */
function attentionOf(g: GraphBuilder, { length, units }: ModelOptions, weights: Floats, states: Floats, target: Floats): Floats {
  const wanted = matMul(g, target, weights);
  const scores = sum(g, mul(g, reshape(g, states, { shape: [length, null, units] }), wanted), { axis: [-1] });
  const shares = softmax(g, transpose(g, scores, { perm: [1, 0] }));
  return reshape(g, transpose(g, shares, { perm: [1, 0] }), { shape: [length, null, 1] });
}

function head(g: GraphBuilder, { layers }: Weights, features: readonly Floats[]): Floats {
  let hidden: Floats = concat(g, features, { axis: 1 });
  layers.forEach(({ weights, bias }, k) => {
    hidden = add(g, matMul(g, hidden, weights), bias);
    if (k < layers.length - 1) hidden = relu(g, hidden);
  });
  return reshape(g, hidden, { shape: [null, 1] });
}

interface Scanned {
  /** [length · batch, units], the first step first. */
  readonly states: Floats;
  /** [batch, units] */
  readonly last: Floats;
}

/** A GRU over a sequence. @param inputs [length · batch, …]. @param attention [length, batch, 1]. */
type Scan = (g: GraphBuilder, options: ModelOptions, cell: Cell, inputs: Floats, attention?: Floats) => Scanned;

const unrolled: Scan = (g, { length, units }, cell, inputs, attention) => {
  const { forGates, forCandidate } = projected(g, units, cell, inputs);
  const steps = [split(g, forGates, length), split(g, forCandidate, length)];
  const shares = attention === undefined ? undefined : split(g, attention, length).map((each) => reshape(g, each, { shape: [null, 1] }));
  let state: Floats = constant(g, { dtype: 'float32', shape: [1, units], data: new Float32Array(units) });
  const states = Array.from({ length }, (_, k) => (state = next(g, cell, state, steps[0][k], steps[1][k], shares?.[k])));
  return { states: concat(g, states, { axis: 0 }), last: state };
};

const looped: Scan = (g, { length, units, serverCells }, { gates, candidate, ...cell }, inputs, attention) => {
  const places = [gates, candidate].map(({ node }) => (serverCells ? { device: node.device } : {}));
  const { forGates, forCandidate } = projected(g, units, { gates, candidate, ...cell }, inputs);
  const steps = [
    reshape(g, forGates, { shape: [length, null, 2 * units] }),
    reshape(g, forCandidate, { shape: [length, null, units] }),
    ...(attention === undefined ? [] : [attention]),
  ];
  // Both become longer in the loop: their shapes are not known.
  const open = (rows: number): Floats =>
    reshape(g, constant(g, { dtype: 'float32', shape: [rows, units], data: new Float32Array(rows * units) }), { shape: 'unknown' });
  const known = (x: Output): Floats => reshape(g, x as Floats, { shape: [null, units] });
  const [, last, states] = whileLoop(
    g,
    [integer(g, 0), open(1), open(0)],
    {
      cond: ([k]) => less(g, k as Ids, integer(g, length)),
      body: ([k, state, before], [ownGates, ownCandidate, ...all]) => {
        const [first, second, share] = all.map((each) => gather(g, each as Floats, k as Ids));
        const weights = { ...cell, gates: ownGates as Floats, candidate: ownCandidate as Floats };
        const made = next(g, weights, known(state), first, second, share, places);
        return [add(g, k as Ids, integer(g, 1)), made, concat(g, [known(before), made], { axis: 0 })];
      },
    },
    { name: 'gru', invariants: [identity(g, gates, places[0]), identity(g, candidate, places[1]), ...steps] },
  );
  return { states: known(states), last: known(last) };
};

/** Multiplies the inputs of all steps for gates and candidates at once. */
function projected(g: GraphBuilder, units: number, { input, bias }: Cell, inputs: Floats): { forGates: Floats; forCandidate: Floats } {
  const all = add(g, matMul(g, inputs, input), bias);
  return {
    forGates: slice(g, all, { begin: [0, 0], size: [-1, 2 * units] }),
    forCandidate: slice(g, all, { begin: [0, 2 * units], size: [-1, units] }),
  };
}

/** h + z · (c − h), with update gate z (attended: times its share), reset gate r, candidate c = tanh(x + (r · h) U).
 *  @param places of the products with gates and candidate. */
function next(
  g: GraphBuilder,
  { gates, candidate }: Cell,
  state: Floats,
  forGates: Floats,
  forCandidate: Floats,
  share?: Floats,
  [atGates, atCandidate]: readonly { readonly device?: string }[] = [],
): Floats {
  const both = sigmoid(g, add(g, forGates, matMul(g, state, gates, atGates)));
  const [own, reset] = split(g, both, 2, { axis: 1 });
  const update = share === undefined ? own : mul(g, own, share);
  const wanted = tanh(g, add(g, forCandidate, matMul(g, mul(g, reset, state), candidate, atCandidate)));
  return add(g, state, mul(g, update, sub(g, wanted, state)));
}
