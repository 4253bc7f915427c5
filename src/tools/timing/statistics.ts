/** Order statistics of samples. */

export type SampleStatistics = ReturnType<typeof statisticsOf>;

/** @param samples at least one; not changed. The median of an even number of samples is the upper one, as in nccl-tests. */
export function statisticsOf(samples: ArrayLike<number>) {
  const sorted = Float64Array.from(samples).sort();
  const count = sorted.length;
  return {
    min: sorted[0],
    median: sorted[count >> 1],
    p99: sorted[Math.ceil(count * 0.99) - 1],
    max: sorted[count - 1],
    mean: sorted.reduce((sum, value) => sum + value, 0) / count,
  };
}
