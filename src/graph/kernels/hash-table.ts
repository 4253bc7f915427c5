/** A table of embeddings by key: rows are added for keys that updates name, and removed when they get old. Rows lie side by side, without
 *  holes; the states of optimisers are further columns of them. */
import type { Reals } from '../../memory/parameter-kernels.ts';
import { countOf, elementsOf, elementsValue, emptyElements, realsOf } from '../structure/elements.ts';
import type { DenseValue, Value } from '../structure/value.ts';

/** A bigint only beyond the integers that numbers have. */
type Key = number | bigint;

export interface Admission {
  /** Number of times that updates must name a key before it gets a row. */
  readonly filterFreq: number;
  /** Steps after which a row without an update is removed; 0: rows stay. */
  readonly stepsToLive: number;
}

/** An update since the last eviction. */
const young = -1;

/** Name of the column of the values. */
const values = '';

export class HashTable implements Value {
  readonly dtype: string;
  readonly width: number;
  readonly #defaults: Value;
  readonly #admission: Admission;
  readonly #places = new Map<Key, number>();
  readonly #keys: Key[] = [];
  /** The step at which each row got old, or `young`. */
  readonly #steps: number[] = [];
  readonly #columns = new Map<string, { data: Reals; first: number }>();
  readonly #counts = new Map<Key, number>();

  constructor(defaults: Value, admission: Admission) {
    this.dtype = defaults.dtype;
    this.width = defaults.shape[1];
    this.#defaults = elementsValue(defaults.dtype, defaults.shape, elementsOf(defaults).slice());
    this.#admission = admission;
    this.column(values, 0);
  }

  get shape(): readonly number[] {
    return [this.#keys.length, this.width];
  }

  get data(): Reals {
    return this.column(values, 0).slice(0, countOf(this.shape));
  }

  copy(): HashTable {
    return HashTable.of(this.export(), this.#admission);
  }

  /** A column of all rows; its length is that of the rows that there may be before it grows. */
  column(name: string, first: number): Reals {
    const found = this.#columns.get(name);
    const length = Math.max(8, 2 ** Math.ceil(Math.log2(this.#keys.length + 1))) * this.width;
    if (found !== undefined && found.data.length >= length) return found.data;
    const data = emptyElements(this.dtype, length) as Reals;
    data.fill(first).set(found?.data ?? []);
    this.#columns.set(name, { data, first });
    return data;
  }

  /** Rows of keys, one behind the other. */
  gather(keys: Value): Reals {
    const [own, defaults] = [this.column(values, 0), realsOf(this.#defaults)];
    const list = keysOf(keys);
    const target = emptyElements(this.dtype, list.length * this.width) as Reals;
    list.forEach((key, k) => {
      const row = this.#places.get(key);
      if (row === undefined && this.#admission.filterFreq > 1) return;
      const [from, at] = row === undefined ? [defaults, this.#defaultOf(key)] : [own, row];
      for (let i = 0; i < this.width; i++) target[k * this.width + i] = from[at * this.width + i];
    });
    return target;
  }

  /** Counts the keys, and gives rows to those that were named often enough. @returns the row of each; −1: it has none. */
  admit(keys: Value): Int32Array {
    return Int32Array.from(keysOf(keys), (key) => {
      const row = this.#places.get(key);
      if (row !== undefined) {
        this.#steps[row] = young;
        return row;
      }
      const count = (this.#counts.get(key) ?? 0) + 1;
      if (count < this.#admission.filterFreq) {
        this.#counts.set(key, count);
        return -1;
      }
      this.#counts.delete(key);
      return this.#add(key);
    });
  }

  evict(step: number): void {
    const { stepsToLive } = this.#admission;
    for (let row = this.#keys.length - 1; row >= 0; row--) {
      if (this.#steps[row] === young) this.#steps[row] = step;
      else if (stepsToLive > 0 && step - this.#steps[row] > stepsToLive) this.#remove(row);
    }
  }

  /** The outputs of KvResourceExport. */
  export(): Value[] {
    const names = [...this.#columns.keys()];
    const columns = names.map((name) => this.column(name, 0));
    const rows = emptyElements(this.dtype, this.#keys.length * names.length * this.width) as Reals;
    for (let row = 0, to = 0; row < this.#keys.length; row++)
      for (const column of columns) for (let i = 0; i < this.width; i++) rows[to++] = column[row * this.width + i];
    const firsts = [...this.#columns.values()].map(({ first }) => String(first));
    return [
      this.#defaults,
      integers(this.#keys),
      elementsValue(this.dtype, [this.#keys.length, names.length * this.width], rows),
      integers(this.#steps),
      { dtype: 'string', shape: [2 * names.length], data: [...names, ...firsts] },
      integers([...this.#counts.keys()]),
      integers([...this.#counts.values()]),
    ];
  }

  /** The table that was exported. */
  static of([defaults, keys, rows, steps, columns, candidates, counts]: readonly Value[], admission: Admission): HashTable {
    const table = new HashTable(defaults, admission);
    for (const key of keysOf(keys)) table.#add(key);
    keysOf(steps).forEach((step, row) => (table.#steps[row] = Number(step)));
    const times = keysOf(counts);
    keysOf(candidates).forEach((key, k) => table.#counts.set(key, Number(times[k])));
    const texts = (columns as DenseValue).data as readonly string[];
    const source = realsOf(rows);
    const [count, { width }] = [texts.length / 2, table];
    texts.slice(0, count).forEach((name, place) => {
      const target = table.column(name, Number(texts[count + place]));
      for (let row = 0; row < table.#keys.length; row++)
        for (let i = 0; i < width; i++) target[row * width + i] = source[(row * count + place) * width + i];
    });
    return table;
  }

  #defaultOf(key: Key): number {
    const { shape } = this.#defaults;
    const rest = typeof key === 'bigint' ? Number(key % BigInt(shape[0])) : key % shape[0];
    return rest < 0 ? rest + shape[0] : rest;
  }

  #add(key: Key): number {
    const row = this.#keys.push(key) - 1;
    this.#places.set(key, row);
    this.#steps.push(young);
    const from = this.#defaultOf(key) * this.width;
    for (const [name, { first }] of this.#columns) this.column(name, first).fill(first, row * this.width, (row + 1) * this.width);
    this.column(values, 0).set(realsOf(this.#defaults).subarray(from, from + this.width), row * this.width);
    return row;
  }

  /** The last row takes the place. */
  #remove(row: number): void {
    const last = this.#keys.length - 1;
    for (const { data } of this.#columns.values()) data.copyWithin(row * this.width, last * this.width, (last + 1) * this.width);
    this.#places.delete(this.#keys[row]);
    if (row !== last) this.#places.set(this.#keys[last], row);
    [this.#keys[row], this.#steps[row]] = [this.#keys[last], this.#steps[last]];
    this.#keys.pop();
    this.#steps.pop();
  }
}

function keysOf(value: Value): Key[] {
  return Array.from(elementsOf(value) as ArrayLike<number | bigint>, (key) => {
    const number = Number(key);
    return Number.isSafeInteger(number) ? number : key;
  });
}

function integers(list: readonly Key[]): Value {
  return elementsValue('int64', [list.length], BigInt64Array.from(list, BigInt));
}
