/** Arithmetic that several layers need: a sum, a median, a value kept within limits. */

export function sum(values: readonly number[]): number {
  return values.reduce((total, each) => total + each, 0);
}

/** The middle value, or the mean of the two in the middle; NaN of no values. */
export function median(values: readonly number[]): number {
  const sorted = values.toSorted((a, b) => a - b);
  return (sorted[(sorted.length - 1) >> 1] + sorted[sorted.length >> 1]) / 2;
}

export function clamp(value: number, least: number, most: number): number {
  return Math.max(least, Math.min(most, value));
}
