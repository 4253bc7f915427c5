/** Random programs against a plain model: every worker runs the same calls in the same order with values of its own, knows what
 *  the others push, and compares whatever it reads with what a few lines of arithmetic say.
 *
 *  KV_MODEL_SEEDS=n runs n programs, KV_MODEL_SEED=s begins with s. A failure names its seed. */
import assert from 'node:assert/strict';
import { join } from 'node:path';
import { seededRandom, type Random } from '../../base/random.ts';
import { dtypes, type DType } from '../../memory/dtype.ts';
import { countOf, type Tensor } from '../../memory/tensor.ts';
import type { KVStore, KVWork, Value } from '../calls/types.ts';
import { allTypes as all, refuses, syncTypes as sync, type KVCheck } from './kv-check.ts';
import { expectAll, filled, valueAt } from './known-values.ts';

const seeds = Number(process.env.KV_MODEL_SEEDS ?? 2);
const firstSeed = Number(process.env.KV_MODEL_SEED ?? 1);
const callsPerSeed = 25;

interface Parameter {
  readonly key: string;
  readonly dtype: DType;
  readonly shape: readonly number[];
  values: number[];
  version: number;
}

/** The effect of a push: the sum takes the value's place, or is subtracted from it. */
type Mode = 'assigned' | 'subtracted';

const shapes: readonly (readonly number[])[] = [[1], [7], [0], [5, 3], [40, 2], [0, 4], [4, 0], [300], [60, 3]];
/** Large enough to lie on several servers; one per program. */
const cut = [70_001];
const modes: readonly Mode[] = ['assigned', 'subtracted'];

class Program {
  readonly #kv: KVStore;
  readonly #mode: Mode;
  readonly #folder: string;
  readonly #parameters: Parameter[] = [];
  #random: Random;
  #saved: Map<string, { readonly values: number[]; readonly version: number }> | undefined;
  #calls = 0;
  readonly #works: KVWork[] = [];

  constructor(kv: KVStore, mode: Mode, folder: string) {
    this.#kv = kv;
    this.#mode = mode;
    this.#folder = folder;
    this.#random = seededRandom(0);
  }

  async run(seed: number): Promise<void> {
    this.#random = seededRandom(seed);
    await this.#init();
    for (let call = 0; call < callsPerSeed; call++) {
      this.#calls++;
      const what = this.#random.integer(20);
      if (what < 1) await this.#init();
      else if (what < 5) this.#works.push(this.#push());
      else if (what < 9) await this.#pull();
      else if (what < 12) await this.#pushPull();
      else if (what < 14) this.#works.push(this.#pushRows());
      else if (what < 16) await this.#pullRows();
      else if (what < 17) await this.#kv.barrier();
      else if (what < 18) await this.#save();
      else if (what < 19) await this.#load();
      else await this.#info();
    }
    await Promise.all(this.#works.splice(0));
    await this.#quiet(async () => {
      for (const parameter of this.#parameters) await this.#compare([parameter]);
    });
  }

  // ── calls ──────────────────────────────────────────────────────────────────────────────────────────────────────

  async #init(): Promise<void> {
    const added = Array.from({ length: 1 + this.#random.integer(3) }, (_, k): Parameter => {
      const dtype = this.#mode === 'assigned' ? this.#pick(dtypes).name : this.#pick(['float32', 'float64'] as const);
      const shape = this.#parameters.length + k === 2 ? cut : this.#pick(shapes);
      const values = Array.from({ length: countOf(shape) }, (_each, i) => valueAt(0, i));
      return { key: `p${this.#calls}/${this.#parameters.length + k}/${this.#mode}`, dtype, shape, values, version: 0 };
    });
    for (const { key, dtype, shape, values } of added) {
      const at = (i: number): number => valueAt(this.#kv.rank, i);
      if (this.#random.integer(2) === 0) await this.#kv.init(key, this.#tensor(dtype, shape, at));
      else if (dtype === 'float16' || dtype === 'bfloat16' || dtype === 'bool') await this.#kv.init(key, this.#tensor(dtype, shape, at));
      else await this.#kv.init(key, filled(dtype, values.length, at), { shape });
    }
    this.#parameters.push(...added);
  }

  #push(): KVWork {
    const chosen = this.#some();
    const values = this.#pushed(chosen);
    const keys = chosen.map(({ key }) => key);
    return this.#kv.push(keys, values, { priority: this.#random.integer(5) });
  }

  async #pull(): Promise<void> {
    await this.#quiet(() => this.#compare(this.#some()));
  }

  async #pushPull(): Promise<void> {
    const chosen = this.#some();
    const keys = chosen.map(({ key }) => key);
    const values = this.#pushed(chosen);
    const apart = this.#random.integer(2) === 0;
    const outs = apart ? chosen.map((parameter) => this.#outs(parameter)) : values;
    if (apart) await this.#kv.pushPull(keys, values, outs);
    else await this.#kv.pushPull(keys, values);
    // Where nobody waits for others, they may be ahead or behind.
    if (this.#kv.type !== 'dist_async') this.#expect(chosen, outs, 'pushPull');
  }

  /** Another number of rows on every worker, often none. */
  #pushRows(): KVWork {
    const parameter = this.#matrix();
    if (parameter === undefined) return this.#push();
    const { key, dtype, shape } = parameter;
    const [count, width] = [shape[0], countOf(shape.slice(1))];
    const rowsOf = this.#workers().map(() => {
      const density = this.#random.integer(4);
      return Array.from({ length: count }, (_, row) => row).filter(() => this.#random.integer(4) < density);
    });
    const touched = new Map<number, number[]>();
    rowsOf.forEach((rows, worker) => {
      rows.forEach((row, at) => {
        const sum = touched.get(row) ?? Array.from({ length: width }, () => 0);
        for (let j = 0; j < width; j++) sum[j] += valueAt(worker, at * width + j + this.#calls);
        touched.set(row, sum);
      });
    });
    for (const [row, sum] of touched) sum.forEach((value, j) => this.#change(parameter, row * width + j, value));
    this.#applied(parameter);
    const own = rowsOf[this.#kv.rank];
    const values = filled(dtype, own.length * width, (i) => valueAt(this.#kv.rank, i + this.#calls));
    return this.#kv.rowSparsePush(key, { indices: Uint32Array.from(own), values: this.#given(dtype, values) });
  }

  async #pullRows(): Promise<void> {
    const parameter = this.#matrix();
    if (parameter === undefined) return;
    const { key, dtype, shape, values } = parameter;
    const width = countOf(shape.slice(1));
    const rowIds = Uint32Array.from({ length: shape[0] === 0 ? 0 : this.#random.integer(9) }, () => this.#random.integer(shape[0]));
    await this.#quiet(async () => {
      const out = this.#kv.tensor(dtype, [rowIds.length, width]);
      await this.#kv.rowSparsePull(key, out, { rowIds });
      expectAll(out, dtype, (i) => values[rowIds[Math.floor(i / width)] * width + (i % width)], `rows of ${key}`);
    });
  }

  async #save(): Promise<void> {
    await this.#lead(() => this.#kv.saveState(this.#folder));
    this.#saved = new Map(this.#parameters.map(({ key, values, version }) => [key, { values: [...values], version }]));
  }

  async #load(): Promise<void> {
    const saved = this.#saved;
    if (saved === undefined) return this.#lead(() => refuses('usage', /no saved state/, () => this.#kv.loadState(this.#folder)));
    if (saved.size < this.#parameters.length)
      return this.#lead(() => refuses('mismatch', /is not in the files/, () => this.#kv.loadState(this.#folder)));
    await this.#lead(() => this.#kv.loadState(this.#folder));
    for (const parameter of this.#parameters) {
      const { values, version } = saved.get(parameter.key)!;
      parameter.values = [...values];
      parameter.version = version;
    }
    return undefined;
  }

  async #info(): Promise<void> {
    const { key, dtype, shape, version } = this.#pick(this.#parameters);
    await this.#quiet(async () => {
      const { staleness, workers, ...info } = await this.#kv.info(key);
      assert.deepEqual(info, { key, dtype, shape, version, ahead: 0 });
      assert.ok(workers <= this.#kv.workersPerGroup);
      if (this.#kv.type !== 'dist_async') assert.equal(staleness, 0);
    });
  }

  // ── parts ──────────────────────────────────────────────────────────────────────────────────────────────────────

  /** The values pushed, by key and device; the model has them. */
  #pushed(chosen: readonly Parameter[]): Value[][] {
    return chosen.map((parameter) => {
      const { values } = parameter;
      const devices = 1 + (this.#random.integer(3) === 0 ? this.#random.integer(3) : 0);
      const at = (worker: number, device: number, i: number): number => valueAt(worker, i + device + this.#calls);
      for (let i = 0; i < values.length; i++) {
        let sum = 0;
        for (const worker of this.#workers()) for (let device = 0; device < devices; device++) sum += at(worker, device, i);
        this.#change(parameter, i, sum);
      }
      this.#applied(parameter);
      return Array.from({ length: devices }, (_, device) => this.#tensorOrArray(parameter, (i) => at(this.#kv.rank, device, i)));
    });
  }

  #change(parameter: Parameter, i: number, sum: number): void {
    parameter.values[i] = this.#mode === 'assigned' ? sum : parameter.values[i] - sum;
  }

  #applied(parameter: Parameter): void {
    parameter.version += this.#kv.type === 'dist_async' ? this.#kv.numWorkers : 1;
  }

  async #compare(chosen: readonly Parameter[]): Promise<void> {
    const outs = chosen.map((parameter) => this.#outs(parameter));
    await this.#kv.pull(
      chosen.map(({ key }) => key),
      outs,
    );
    this.#expect(chosen, outs, 'pull');
  }

  #expect(chosen: readonly Parameter[], outs: readonly (readonly Value[])[], what: string): void {
    chosen.forEach(({ key, dtype, values }, k) => {
      for (const out of outs[k]) expectAll(out, dtype, (i) => values[i], `${what} of ${key}, call ${this.#calls}`);
    });
  }

  #outs(parameter: Parameter): Value[] {
    return Array.from({ length: 1 + (this.#random.integer(3) === 0 ? 1 : 0) }, () => this.#tensorOrArray(parameter, () => 0));
  }

  #tensorOrArray({ dtype, shape }: Parameter, at: (i: number) => number): Value {
    return this.#random.integer(2) === 0 ? this.#tensor(dtype, shape, at) : filled(dtype, countOf(shape), at);
  }

  #tensor(dtype: DType, shape: readonly number[], at: (i: number) => number): Tensor {
    const tensor = this.#kv.tensor(dtype, shape);
    tensor.data.set(filled(dtype, tensor.count, at) as never);
    return tensor;
  }

  #given(dtype: DType, values: ReturnType<typeof filled>): Value {
    if (this.#random.integer(2) === 0) return values;
    const tensor = this.#kv.tensor(dtype, [values.length]);
    tensor.data.set(values as never);
    return tensor;
  }

  /** Nobody pushes meanwhile, where values would show it. */
  async #quiet(read: () => Promise<void>): Promise<void> {
    if (this.#kv.type !== 'dist_async') return read();
    await Promise.all(this.#works.splice(0));
    await this.#kv.barrier();
    await read();
    return this.#kv.barrier();
  }

  async #lead(action: () => Promise<void>): Promise<void> {
    await Promise.all(this.#works.splice(0));
    await this.#kv.barrier();
    if (this.#kv.rank === 0) await action();
    await this.#kv.barrier();
  }

  #workers(): number[] {
    return Array.from({ length: this.#kv.numWorkers }, (_, worker) => worker);
  }

  #some(): Parameter[] {
    const most = 1 + this.#random.integer(5);
    const chosen = new Set(Array.from({ length: most }, () => this.#pick(this.#parameters)));
    return [...chosen];
  }

  #matrix(): Parameter | undefined {
    const matrices = this.#parameters.filter(({ shape }) => shape.length > 1);
    return matrices.length === 0 ? undefined : this.#pick(matrices);
  }

  #pick<T>(list: readonly T[]): T {
    return list[this.#random.integer(list.length)];
  }
}

export const modelChecks: readonly KVCheck[] = modes.map((mode) => ({
  name: `random programs, pushes are ${mode}`,
  // A store that applies pushes at once does not let them take each other's place.
  types: mode === 'assigned' ? sync : all,
  fresh: true,
  async run(kv, folder) {
    if (mode === 'subtracted') {
      if (kv.rank === 0) await kv.setOptimizer({ name: 'sgd', learningRate: 1 });
      await kv.barrier();
    }
    const program = new Program(kv, mode, join(folder, mode));
    for (let seed = firstSeed; seed < firstSeed + seeds; seed++) {
      try {
        await program.run(seed);
      } catch (error) {
        throw new Error(`KV_MODEL_SEED=${firstSeed} KV_MODEL_SEEDS=${seed - firstSeed + 1}: ${(error as Error).message}`, { cause: error });
      }
    }
  },
}));
