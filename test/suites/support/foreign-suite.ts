/** Suites of tests that other projects wrote for systems like Shoal. Cases here are told from the descriptions of those tests: they
 *  check the same promise through Shoal's public interface, and have the original's name in their titles. The tables of
 *  docs/suites.md are made of these descriptions, which the cases keep true. */

/** A suite of another project. */
export interface ForeignSuite {
  readonly name: string;
  /** Repository, path, and the commit that was read. */
  readonly source: string;
  /** File of the cases, relative to the repository. */
  readonly file: string;
  /** Cases in the file: one or more for each of `covered`. */
  readonly cases: number;
  /** Tests of the original that have cases, separated by spaces. */
  readonly covered: string;
  /** Tests of the original that have none. */
  readonly leftOut: readonly LeftOut[];
}

/** Tests without cases, for one reason. */
export interface LeftOut {
  readonly reason: string;
  /** Names, separated by spaces. */
  readonly tests: string;
}

export function namesOf(names: string): string[] {
  return names.split(/\s+/).filter((name) => name !== '');
}
