/** Parameters of a ranking model on parameter servers: tables in parts, dense weights, their optimisers. */
import type { IndexedSlices } from 'shoal/graph';
import {
  addN,
  applyAdam,
  assign,
  constant,
  dynamicPartition,
  dynamicStitch,
  floorDiv,
  floorMod,
  gather,
  gradients,
  mul,
  joined,
  range,
  sizeOf,
  sparseApplyAdagrad,
  sparseApplyFtrl,
  variable,
  type GraphBuilder,
  type Output,
} from 'shoal/graph';

export type Floats = Output<'float32'>;
export type Ids = Output<'int32'>;

export interface ParameterOptions {
  /** Devices of parameter servers. */
  readonly servers: readonly string[];
  /** Parts of every table, row r in part r mod parts. */
  readonly parts: number;
  /** A number from 0 to 1 each time. */
  readonly random: () => number;
}

export interface Table {
  readonly parts: readonly Floats[];
}

/** FTRL makes weights zero that say nothing; Adagrad is for embeddings. */
export type TableRule = 'ftrl' | 'adagrad';

export class Parameters {
  readonly inits: Output[] = [];
  readonly #rules = new Map<Floats, TableRule | 'adam'>();
  readonly #g: GraphBuilder;
  readonly #options: ParameterOptions;
  #next = 0;

  constructor(g: GraphBuilder, options: ParameterOptions) {
    this.#g = g;
    this.#options = options;
  }

  /** Without the optimisers' states. */
  get all(): readonly Floats[] {
    return [...this.#rules.keys()];
  }

  /** @param first server of its first part. */
  table(name: string, rows: number, width: number, options: { first: number; spread: number; rule: TableRule }): Table {
    const { parts, servers } = this.#options;
    const { first, spread, rule } = options;
    return {
      parts: Array.from({ length: parts }, (_, part) => {
        const made = this.#variable(
          `${name}_${part}`,
          [Math.ceil((rows - part) / parts), width],
          servers[(first + part) % servers.length],
          spread,
        );
        this.#rules.set(made, rule);
        return made;
      }),
    };
  }

  dense(name: string, shape: readonly number[], spread: number): Floats {
    const { servers } = this.#options;
    const made = this.#variable(name, shape, servers[this.#next++ % servers.length], spread);
    this.#rules.set(made, 'adam');
    return made;
  }

  /** Updates by the mean gradient of the towers' losses. @param workers the device of each tower. */
  updates(losses: readonly Output[], workers: readonly string[]): Output[] {
    const perTower = losses.map((loss, k) =>
      this.#g.withDevice(workers[k], () => gradients(this.#g, loss, this.all, { name: `gradients_${k}` })),
    );
    return this.all.map((x, k) => {
      const towers = perTower.map((made) => made[k]).filter((each) => each !== undefined);
      return this.#g.withDevice(x.node.device, () => {
        const rule = this.#rules.get(x);
        return rule === 'ftrl' || rule === 'adagrad'
          ? this.#updateTable(x, towers as IndexedSlices[], rule)
          : this.#updateDense(x, towers as Floats[]);
      });
    });
  }

  #updateTable(table: Floats, towers: readonly IndexedSlices[], rule: TableRule): Output {
    const g = this.#g;
    const all = joined(g, towers);
    const values = this.#averaged(all.values as Floats, towers.length);
    const slot = (name: string): Floats => this.#slot(table, name);
    return rule === 'ftrl'
      ? sparseApplyFtrl(g, table, slot('z'), slot('n'), values, all.indices, { learning_rate: 0.2, l1: 0.0001, l2: 0 })
      : sparseApplyAdagrad(g, table, slot('history'), values, all.indices, { learning_rate: 0.02 });
  }

  #updateDense(x: Floats, towers: readonly Floats[]): Output {
    const g = this.#g;
    const sum = towers.length === 1 ? towers[0] : addN(g, towers);
    const [m, v] = [this.#slot(x, 'm'), this.#slot(x, 'v')];
    const steps = this.#variable(`${x.node.name}/steps`, [], x.node.device, 0);
    return applyAdam(g, x, m, v, steps, this.#averaged(sum, towers.length), { learning_rate: 0.002 });
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

export interface Places {
  readonly rows: readonly Ids[];
  /** Positions in the batch of each part's ids; undefined where there is one part. */
  readonly of: readonly Ids[] | undefined;
}

/** Row r is row ⌊r / parts⌋ of part r mod parts. */
export function partition(g: GraphBuilder, ids: Ids, parts: number): Places {
  if (parts === 1) return { rows: [ids], of: undefined };
  const count = integer(g, parts);
  const part = floorMod(g, ids, count);
  const positions = range(g, integer(g, 0), sizeOf(g, ids), integer(g, 1));
  return { rows: dynamicPartition(g, floorDiv(g, ids, count), part, parts), of: dynamicPartition(g, positions, part, parts) };
}

/** The gather is where the table is: rows travel, not tables. */
export function lookup(g: GraphBuilder, { parts }: Table, { rows, of }: Places): Floats {
  const found = parts.map((part, k) => gather(g, part, rows[k], { device: part.node.device }));
  return of === undefined ? found[0] : dynamicStitch(g, of, found);
}

export function scalar(value: number): { dtype: 'float32'; shape: readonly number[]; data: Float32Array } {
  return { dtype: 'float32', shape: [], data: Float32Array.of(value) };
}

export function integer(g: GraphBuilder, value: number): Ids {
  return constant(g, { dtype: 'int32', shape: [], data: Int32Array.of(value) });
}
