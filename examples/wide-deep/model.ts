/** Wide & deep (Cheng et al., 2016) as a graph: a linear part over all categories beside a network over their embeddings. Tables and
 *  dense parameters live on the parameter servers, what computes is on the worker; only rows, parameters and gradients cross. */
import type { IndexedSlices } from 'shoal/graph';
import {
  addN,
  applyAdam,
  assign,
  add,
  call,
  concat,
  constant,
  dynamicPartition,
  dynamicStitch,
  floorDiv,
  floorMod,
  gather,
  gradients,
  joined,
  matMul,
  mean,
  mul,
  noOp,
  range,
  relu,
  reshape,
  sigmoidCrossEntropyWithLogits,
  sizeOf,
  sparseApplyAdagrad,
  sparseApplyFtrl,
  variable,
  type GraphBuilder,
  type Node,
  type Output,
} from 'shoal/graph';

type Floats = Output<'float32'>;
type Ids = Output<'int32'>;

export interface ModelOptions {
  readonly vocabularies: readonly number[];
  readonly denseCount: number;
  readonly embedding: number;
  readonly hidden: readonly number[];
  readonly batch: number;
  /** Devices of parameter servers. */
  readonly servers: readonly string[];
  /** Parts of every table, row r in part r mod parts. */
  readonly parts: number;
  /** A tower on each. */
  readonly workers: readonly string[];
  readonly seed: number;
  /** A number from 0 to 1 each time. */
  readonly random: () => number;
}

export interface Tower {
  /** What the step's batch consists of; may be fed. */
  readonly labels: Floats;
  readonly dense: Floats;
  readonly ids: readonly Ids[];
  readonly logits: Floats;
  readonly loss: Floats;
}

export interface WideDeep {
  readonly init: Node;
  readonly train: Node;
  readonly towers: readonly Tower[];
  /** All parameters, without the optimisers' states. */
  readonly variables: readonly Output[];
}

interface Table {
  readonly parts: readonly Floats[];
}

export function wideDeep(g: GraphBuilder, options: ModelOptions): WideDeep {
  const parameters = new Parameters(g, options);
  const { vocabularies, embedding, hidden, denseCount } = options;
  const wide = vocabularies.map((rows, column) => parameters.table(`wide_${column}`, rows, 1, column, 0));
  const deep = vocabularies.map((rows, column) => parameters.table(`deep_${column}`, rows, embedding, column, 0.05));
  const widths = [denseCount + vocabularies.length * embedding, ...hidden, 1];
  const layers = widths.slice(1).map((width, k) => ({
    weights: parameters.dense(`weights_${k}`, [widths[k], width], Math.sqrt(2 / widths[k])),
    bias: parameters.dense(`bias_${k}`, [width], 0),
  }));
  const towers = options.workers.map((device, k) =>
    g.withDevice(device, () => g.withScope(`tower_${k}`, () => tower(g, options, { wide, deep, layers }))),
  );
  const all = [...wide, ...deep].flatMap(({ parts }) => parts);
  const dense = layers.flatMap(({ weights, bias }) => [weights, bias]);
  const xs = [...all, ...dense];
  const perTower = towers.map(({ loss }, k) => g.withDevice(options.workers[k], () => gradients(g, loss, xs, { name: `gradients_${k}` })));
  const updates = xs.map((x, k) => {
    const parts = perTower.map((made) => made[k]).filter((each) => each !== undefined);
    return k < all.length ? parameters.updateTable(x, parts as IndexedSlices[]) : parameters.updateDense(x, parts as Floats[]);
  });
  return {
    init: noOp(g, { name: 'init', controlInputs: parameters.inits }),
    train: noOp(g, { name: 'train', controlInputs: updates, device: options.workers[0] }),
    towers,
    variables: xs,
  };
}

class Parameters {
  readonly inits: Output[] = [];
  readonly #g: GraphBuilder;
  readonly #options: ModelOptions;
  #next = 0;

  constructor(g: GraphBuilder, options: ModelOptions) {
    this.#g = g;
    this.#options = options;
  }

  table(name: string, rows: number, width: number, column: number, spread: number): Table {
    const { parts, servers } = this.#options;
    return {
      parts: Array.from({ length: parts }, (_, part) =>
        this.#variable(`${name}_${part}`, [Math.ceil((rows - part) / parts), width], servers[(column + part) % servers.length], spread),
      ),
    };
  }

  dense(name: string, shape: readonly number[], spread: number): Floats {
    const { servers } = this.#options;
    return this.#variable(name, shape, servers[this.#next++ % servers.length], spread);
  }

  /** FTRL for the wide part, whose weights become zero where they say nothing; Adagrad for embeddings. */
  updateTable(table: Output, towers: readonly IndexedSlices[]): Output {
    const g = this.#g;
    return g.withDevice(table.node.device, () => {
      const all = joined(g, towers);
      const values = this.#averaged(all.values as Floats, towers.length);
      const slot = (name: string): Floats => this.#slot(table as Floats, name);
      return table.node.name.startsWith('wide')
        ? sparseApplyFtrl(g, table as Floats, slot('z'), slot('n'), values, all.indices, { learning_rate: 0.2, l1: 0.0001, l2: 0 })
        : sparseApplyAdagrad(g, table as Floats, slot('history'), values, all.indices, { learning_rate: 0.02 });
    });
  }

  updateDense(x: Output, towers: readonly Floats[]): Output {
    const g = this.#g;
    return g.withDevice(x.node.device, () => {
      const sum = towers.length === 1 ? towers[0] : addN(g, towers);
      const [m, v] = [this.#slot(x as Floats, 'm'), this.#slot(x as Floats, 'v')];
      const steps = this.#variable(`${x.node.name}/steps`, [], x.node.device, 0);
      return applyAdam(g, x as Floats, m, v, steps, this.#averaged(sum, towers.length), { learning_rate: 0.002 });
    });
  }

  #averaged(value: Floats, count: number): Floats {
    return count === 1 ? value : mul(this.#g, value, constant(this.#g, scalar(1 / count)));
  }

  #slot(of: Floats, name: string): Floats {
    return this.#variable(`${of.node.name}/${name}`, of.shape as readonly number[], of.node.device, 0);
  }

  #variable(name: string, shape: readonly number[], device: string, spread: number): Floats {
    const g = this.#g;
    const made = variable(g, 'float32', shape, { name, device });
    const { random } = this.#options;
    const length = shape.reduce((product, each) => product * each, 1);
    const data = Float32Array.from({ length }, () => (spread === 0 ? 0 : spread * (2 * random() - 1)));
    const value = constant(g, { dtype: 'float32', shape, data }, { name: `${name}/initial`, device });
    this.inits.push(assign(g, made, value, { name: `${name}/init` }));
    return made;
  }
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
  return { labels, dense, ids, logits, loss };
}

interface Places {
  readonly rows: readonly Ids[];
  /** Which of the batch they are; undefined where there is one part. */
  readonly of: readonly Ids[] | undefined;
}

/** Row r is row ⌊r / parts⌋ of part r mod parts. */
function partition(g: GraphBuilder, ids: Ids, parts: number): Places {
  if (parts === 1) return { rows: [ids], of: undefined };
  const count = integer(g, parts);
  const part = floorMod(g, ids, count);
  const positions = range(g, integer(g, 0), sizeOf(g, ids), integer(g, 1));
  return { rows: dynamicPartition(g, floorDiv(g, ids, count), part, parts), of: dynamicPartition(g, positions, part, parts) };
}

/** The gather is where the table is: rows travel, not tables. */
function lookup(g: GraphBuilder, { parts }: Table, { rows, of }: Places): Floats {
  const found = parts.map((part, k) => gather(g, part, rows[k], { device: part.node.device }));
  return of === undefined ? found[0] : dynamicStitch(g, of, found);
}

function scalar(value: number): { dtype: 'float32'; shape: readonly number[]; data: Float32Array } {
  return { dtype: 'float32', shape: [], data: Float32Array.of(value) };
}

function integer(g: GraphBuilder, value: number): Ids {
  return constant(g, { dtype: 'int32', shape: [], data: Int32Array.of(value) });
}
