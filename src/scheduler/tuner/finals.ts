/** The best candidates of a search, measured again in turn, since a single measurement includes other load on the machine and cannot
 *  separate close ones. Each round measures all remaining candidates, and starts with a different one.
 *
 *      round 1   a b c d      round 2   b c d a      … ─▶ the smallest median
 *
 *  After two rounds, a candidate whose best measurement is worse than the leader's worst is dropped; a single remaining one wins. */
import { assert } from '../../base/assert.ts';
import { median } from '../../base/numbers.ts';

/** Number of rounds before any candidate is dropped. */
const sureRounds = 2;

interface Candidate {
  readonly point: readonly number[];
  readonly values: number[];
}

export class Finals {
  readonly #rounds: number;
  #left: readonly Candidate[];
  #round = 0;
  /** Index of the next candidate in this round. */
  #turn = 0;

  /** @param points at least one. */
  constructor(points: readonly (readonly number[])[], rounds: number) {
    assert(points.length > 0, () => 'finals have a candidate');
    this.#left = points.map((point) => ({ point, values: [] }));
    this.#rounds = rounds;
  }

  /** The next point to measure; undefined when one is chosen, or all rounds are over. */
  next(): readonly number[] | undefined {
    return this.#left.length === 1 || this.#round >= this.#rounds ? undefined : this.#current().point;
  }

  /** Adds the measurement of the point that `next` gave; smaller is better. */
  add(value: number): void {
    this.#current().values.push(value);
    this.#turn++;
    if (this.#turn < this.#left.length) return;
    this.#turn = 0;
    this.#round++;
    if (this.#round < sureRounds) return;
    const worst = Math.max(...this.#leader().values);
    this.#left = this.#left.filter(({ values }) => Math.min(...values) <= worst);
  }

  best(): readonly number[] {
    return this.#leader().point;
  }

  #current(): Candidate {
    return this.#left[(this.#turn + this.#round) % this.#left.length];
  }

  /** The candidate of the smallest median; among equals the one that the search has put first. */
  #leader(): Candidate {
    return this.#left.reduce((best, each) => (median(each.values) < median(best.values) ? each : best));
  }
}
