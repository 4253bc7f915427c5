/** The cases that are told from one suite of another project. */
import { expect, it } from 'vitest';
import { namesOf, type ForeignSuite } from './foreign-suite.ts';

/** The cases of one suite, counted while they are declared. */
export class SuiteCases {
  readonly #suite: ForeignSuite;
  readonly #known: ReadonlySet<string>;
  readonly #used = new Set<string>();
  #count = 0;

  constructor(suite: ForeignSuite) {
    this.#suite = suite;
    this.#known = new Set(namesOf(suite.covered));
  }

  /** Declares a case of the original's test. */
  add(original: string, what: string, run: () => unknown): void {
    if (!this.#known.has(original)) throw new Error(`${this.#suite.name} has no test '${original}' that is covered`);
    this.#used.add(original);
    this.#count += 1;
    it(`${original}: ${what}`, async () => {
      await run();
    });
  }

  /** Declares a case for each row of a table. */
  each<Row>(original: string, rows: readonly Row[], what: (row: Row) => string, run: (row: Row) => unknown): void {
    for (const row of rows) this.add(original, what(row), () => run(row));
  }

  /** After the last case: the description of the suite must be that of the cases. */
  complete(): void {
    it('has the cases that its description promises', () => {
      const covered = namesOf(this.#suite.covered);
      const leftOut = this.#suite.leftOut.flatMap(({ tests }) => namesOf(tests));
      expect(covered.filter((name) => !this.#used.has(name))).toEqual([]);
      expect([...covered, ...leftOut].filter((name, at, all) => all.indexOf(name) !== at)).toEqual([]);
      expect(this.#count).toBe(this.#suite.cases);
    });
  }
}
