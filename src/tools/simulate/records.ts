/** Records of whole numbers, by number: a large world has millions, too many for objects of their own. */

/** Stands for no record. */
export const none = -1;

/** The numbers, with room for as many more. */
export function doubled<A extends Float64Array | Int32Array>(numbers: A): A {
  const larger = new (numbers.constructor as new (length: number) => A)(2 * numbers.length);
  larger.set(numbers);
  return larger;
}

export class Records {
  readonly #fieldCount: number;
  #numbers: Int32Array;
  #count = 0;

  constructor(fieldCount: number) {
    this.#fieldCount = fieldCount;
    this.#numbers = new Int32Array(fieldCount * 256);
  }

  get(record: number, field: number): number {
    return this.#numbers[this.#fieldCount * record + field];
  }

  set(record: number, field: number, value: number): void {
    this.#numbers[this.#fieldCount * record + field] = value;
  }

  /** Sets the first fields to the values and the others to `rest`. */
  fill(record: number, values: readonly number[], rest: number): void {
    for (let field = 0; field < this.#fieldCount; field++) this.set(record, field, values[field] ?? rest);
  }

  /** @returns a record after all others, whose fields are 0. */
  add(): number {
    if (this.#fieldCount * (this.#count + 1) > this.#numbers.length) this.#numbers = doubled(this.#numbers);
    return this.#count++;
  }
}
