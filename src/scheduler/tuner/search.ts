/** Finds the minimum of a function with few and noisy measurements: first points that cover the space, then points of the largest
 *  expected improvement. It must not know the measured quantity.
 *
 *  Jones, Schonlau & Welch, "Efficient Global Optimization of Expensive Black-Box Functions", 1998: expected improvement. */
import { ShoalError } from '../../base/errors.ts';
import { shuffled, type Random } from '../../base/random.ts';
import { describeValue } from '../../base/schema.ts';
import { GaussianProcess, type Measured } from './gaussian-process.ts';

/** Range of one coordinate, both ends inclusive. */
export interface Range {
  /** Smallest value. */
  readonly least: number;
  /** Largest value. */
  readonly most: number;
}

export interface SearchOptions {
  readonly ranges: readonly Range[];
  readonly random: Random;
  /** Number of points that cover the space, before any is chosen by measurements. */
  readonly coveringPoints: number;
  /** Expected improvement counts from this much below the best so far, in units of the deviation of the measurements. */
  readonly margin: number;
}

/** Side of the grid of points among which the next one is chosen, with two coordinates. */
const gridSide = 41;
/** Length of that grid with one coordinate. */
const gridLength = 401;
/** Candidates that are closer than this share of each range are one. */
const apart = 0.05;

export class BayesianSearch {
  readonly #options: SearchOptions;
  /** The covering points, with coordinates in [0, 1]. */
  readonly #covering: readonly (readonly number[])[];
  readonly #grid: readonly (readonly number[])[];
  readonly #measured: Measured[] = [];

  constructor(options: SearchOptions) {
    const { ranges, coveringPoints, random } = options;
    if (ranges.length < 1 || ranges.length > 2) throw new ShoalError('usage', `a search has one or two coordinates, not ${ranges.length}`);
    for (const { least, most } of ranges) {
      if (!Number.isFinite(least) || !Number.isFinite(most) || least >= most) {
        const range = `from ${describeValue(least)} to ${describeValue(most)}`;
        throw new ShoalError('usage', `a range goes from a number to a larger one, not ${range}`);
      }
    }
    if (!Number.isSafeInteger(coveringPoints) || coveringPoints < 1) {
      throw new ShoalError('usage', `a search begins with at least one point, not ${describeValue(coveringPoints)}`);
    }
    this.#options = options;
    this.#covering = latinHypercube(ranges.length, coveringPoints, random);
    this.#grid = gridOf(ranges.length);
  }

  /** Number of measurements so far. */
  get count(): number {
    return this.#measured.length;
  }

  /** The next point to measure. */
  next(): number[] {
    const covering = this.#covering.at(this.#measured.length);
    if (covering !== undefined) return this.#fromUnit(covering);
    const process = new GaussianProcess(this.#measured);
    const least = Math.min(...this.#measured.map(({ point }) => process.at(point).mean));
    const margin = this.#options.margin * this.#spread();
    return this.#fromUnit(
      argmin(this.#grid, (point) => {
        const { mean, deviation } = process.at(point);
        return -expectedImprovement(least - margin - mean, deviation);
      }),
    );
  }

  /** Adds the measurement of a point; smaller is better. */
  add(point: readonly number[], value: number): void {
    if (!Number.isFinite(value)) throw new ShoalError('usage', `a measurement is a finite number, not ${describeValue(value)}`);
    this.#measured.push({ point: this.#toUnit(point), value });
  }

  /** The point where the function is likely to be smallest: by the estimate, not by the luckiest measurement. */
  best(): number[] {
    if (this.#measured.length === 0) throw new ShoalError('usage', 'nothing has been measured');
    const process = new GaussianProcess(this.#measured);
    return this.#fromUnit(argmin(this.#grid, (point) => process.at(point).mean));
  }

  /** Points where the function is likely to be small, best first: that of `best`, and measured ones, each apart from those before it. */
  candidates(count: number): number[][] {
    const process = new GaussianProcess(this.#measured);
    const byMean = this.#measured
      .map(({ point }) => ({ point, mean: process.at(point).mean }))
      .toSorted((a, b) => a.mean - b.mean)
      .map(({ point }) => point);
    const chosen: (readonly number[])[] = [];
    for (const point of [this.#toUnit(this.best()), ...byMean]) {
      if (chosen.length === count) break;
      const isNew = chosen.every((other) => point.some((value, index) => Math.abs(value - other[index]) > apart));
      if (isNew) chosen.push(point);
    }
    return chosen.map((point) => this.#fromUnit(point));
  }

  #spread(): number {
    const values = this.#measured.map(({ value }) => value);
    const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
    return Math.sqrt(values.reduce((sum, value) => sum + (value - mean) ** 2, 0) / values.length);
  }

  #toUnit(point: readonly number[]): number[] {
    return point.map((value, index) => (value - this.#options.ranges[index].least) / this.#width(index));
  }

  #fromUnit(point: readonly number[]): number[] {
    return point.map((value, index) => this.#options.ranges[index].least + value * this.#width(index));
  }

  #width(index: number): number {
    const { least, most } = this.#options.ranges[index];
    return most - least;
  }
}

/** Expected improvement of a normal distribution whose mean is `gain` better than the best so far. */
function expectedImprovement(gain: number, deviation: number): number {
  if (deviation <= 1e-12) return Math.max(gain, 0);
  const z = gain / deviation;
  return gain * normalBelow(z) + (deviation * Math.exp(-(z * z) / 2)) / Math.sqrt(2 * Math.PI);
}

/** The share of the standard normal distribution below `z`; Abramowitz & Stegun 7.1.26, to 1.5e-7. */
function normalBelow(z: number): number {
  const x = Math.abs(z) / Math.SQRT2;
  const t = 1 / (1 + 0.3275911 * x);
  const series = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))));
  const erf = 1 - series * Math.exp(-x * x);
  return z < 0 ? (1 - erf) / 2 : (1 + erf) / 2;
}

/** Latin hypercube sample: each coordinate is cut into as many strata as there are points; each stratum has one point. */
function latinHypercube(dimensions: number, count: number, random: Random): number[][] {
  const columns = Array.from({ length: dimensions }, () => shuffled(count, random).map((stratum) => (stratum + random.next()) / count));
  return Array.from({ length: count }, (_, index) => columns.map((column) => column[index]));
}

function gridOf(dimensions: number): number[][] {
  const steps = (length: number): number[] => Array.from({ length }, (_, index) => index / (length - 1));
  if (dimensions === 1) return steps(gridLength).map((value) => [value]);
  return steps(gridSide).flatMap((a) => steps(gridSide).map((b) => [a, b]));
}

function argmin(points: readonly (readonly number[])[], cost: (point: readonly number[]) => number): readonly number[] {
  let best = points[0];
  let least = Infinity;
  for (const point of points) {
    const value = cost(point);
    if (value >= least) continue;
    least = value;
    best = point;
  }
  return best;
}
