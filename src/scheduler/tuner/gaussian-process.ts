/** A Gaussian process: an estimate of a function, everywhere, from a few noisy measurements. Matérn kernel with ν = 5/2, with the
 *  length scale and noise of maximum likelihood.
 *
 *  Rasmussen & Williams, "Gaussian Processes for Machine Learning", 2006, algorithm 2.1 and equation 4.17. */

export interface Measured {
  /** Each coordinate in [0, 1]. */
  readonly point: readonly number[];
  readonly value: number;
}

export interface Estimate {
  readonly mean: number;
  readonly deviation: number;
}

/** Length scales that are tried, in units of the range of a coordinate. */
const lengthScales = [0.1, 0.15, 0.2, 0.3, 0.45, 0.7, 1, 1.5, 2.2, 3.3];
/** Variances of the noise that are tried, in units of the variance of the measurements. */
const noises = [1e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1, 0.3, 0.6];

interface Fit {
  readonly lengthScale: number;
  readonly likelihood: number;
  /** Lower triangle of the covariance's Cholesky factor, row by row. */
  readonly factor: readonly number[][];
  /** Inverse covariance times values. */
  readonly weights: readonly number[];
}

export class GaussianProcess {
  readonly #measured: readonly Measured[];
  readonly #mean: number;
  readonly #deviation: number;
  readonly #fit: Fit;

  /** @param measured at least one. */
  constructor(measured: readonly Measured[]) {
    this.#measured = measured;
    const values = measured.map(({ value }) => value);
    this.#mean = values.reduce((sum, value) => sum + value, 0) / values.length;
    const variance = values.reduce((sum, value) => sum + (value - this.#mean) ** 2, 0) / values.length;
    // When all values are alike, any scale will do.
    this.#deviation = variance > 0 ? Math.sqrt(variance) : 1;
    const scaled = values.map((value) => (value - this.#mean) / this.#deviation);
    const points = measured.map(({ point }) => point);
    const fits = lengthScales.flatMap((lengthScale) => noises.map((noise) => fit(points, scaled, lengthScale, noise)));
    this.#fit = fits.reduce((best, each) => (each.likelihood > best.likelihood ? each : best));
  }

  /** Estimate of the function itself, without the noise of a measurement. */
  at(point: readonly number[]): Estimate {
    const { lengthScale, factor, weights } = this.#fit;
    const covariances = this.#measured.map((each) => matern(point, each.point, lengthScale));
    const mean = covariances.reduce((sum, covariance, index) => sum + covariance * weights[index], 0);
    const solved = solveLower(factor, covariances);
    const variance = 1 - solved.reduce((sum, value) => sum + value * value, 0);
    return { mean: this.#mean + mean * this.#deviation, deviation: Math.sqrt(Math.max(variance, 0)) * this.#deviation };
  }
}

function fit(points: readonly (readonly number[])[], values: readonly number[], lengthScale: number, noise: number): Fit {
  const covariance = points.map((a, i) => points.map((b, j) => matern(a, b, lengthScale) + (i === j ? noise : 0)));
  const factor = cholesky(covariance);
  const solved = solveLower(factor, values);
  const weights = solveUpper(factor, solved);
  const surprise = solved.reduce((sum, value) => sum + value * value, 0) / 2;
  const volume = factor.reduce((sum, row, index) => sum + Math.log(row[index]), 0);
  return { lengthScale, factor, weights, likelihood: -surprise - volume };
}

function matern(a: readonly number[], b: readonly number[], lengthScale: number): number {
  const distance = Math.sqrt(a.reduce((sum, value, index) => sum + (value - b[index]) ** 2, 0));
  const scaled = (Math.sqrt(5) * distance) / lengthScale;
  return (1 + scaled + (scaled * scaled) / 3) * Math.exp(-scaled);
}

function cholesky(matrix: readonly (readonly number[])[]): number[][] {
  const factor: number[][] = [];
  for (const [i, row] of matrix.entries()) {
    const lower: number[] = [];
    for (let j = 0; j < i; j++) lower.push((row[j] - dot(lower, factor[j], j)) / factor[j][j]);
    // The noise keeps it positive in theory; rounding may not.
    lower.push(Math.sqrt(Math.max(row[i] - dot(lower, lower, i), 1e-12)));
    factor.push(lower);
  }
  return factor;
}

function solveLower(factor: readonly (readonly number[])[], values: readonly number[]): number[] {
  const solved: number[] = [];
  for (const [i, row] of factor.entries()) solved.push((values[i] - dot(row, solved, i)) / row[i]);
  return solved;
}

/** Solves with the transposed factor. */
function solveUpper(factor: readonly (readonly number[])[], values: readonly number[]): number[] {
  const solved = [...values];
  for (let i = factor.length - 1; i >= 0; i--) {
    for (let j = i + 1; j < factor.length; j++) solved[i] -= factor[j][i] * solved[j];
    solved[i] /= factor[i][i];
  }
  return solved;
}

function dot(a: readonly number[], b: readonly number[], length: number): number {
  let sum = 0;
  for (let index = 0; index < length; index++) sum += a[index] * b[index];
  return sum;
}
