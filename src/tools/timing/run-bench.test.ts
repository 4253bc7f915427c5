/** Whole benchmarks on worlds of several ranks in one process: every collective is called, checked and reported. */
import { describe, expect, it } from 'vitest';
import { systemStopwatch } from '../../base/clock.ts';
import { startRanks } from '../../group/testing/in-process-world.ts';
import type { ProcessGroup } from '../../group/caller/types.ts';
import { collectiveNames, halvesOf, isPairTest, type CollectiveName } from './collective.ts';
import type { BenchOptions } from './options.ts';
import { ReportBuilder, type BenchEvent, type BenchReport } from './report.ts';
import { runBench } from './run-bench.ts';

const base: BenchOptions = {
  collective: 'all-reduce',
  sizes: [
    { bytes: 96, iterations: 3, warmup: 1 },
    { bytes: 8192, iterations: 2, warmup: 0 },
  ],
  dtype: 'float32',
  op: 'sum',
  root: 1,
  checks: 1,
  memory: 'shared',
  touch: 'each',
  wait: 'async',
  parallel: 1,
  buckets: 1,
  backend: 'auto',
  samples: 'dropped',
};

async function report(
  ranks: number,
  options: Partial<BenchOptions>,
  wrap: (group: ProcessGroup) => ProcessGroup = (group) => group,
): Promise<BenchReport> {
  await using world = await startRanks(ranks);
  const builder = new ReportBuilder();
  await world.each((group) =>
    runBench({
      group: wrap(group),
      options: { ...base, ...options },
      stopwatch: systemStopwatch,
      // Events pass through JSON, as between processes.
      emit: (event) => builder.add(JSON.parse(JSON.stringify(event)) as BenchEvent),
    }),
  );
  return builder.report as BenchReport;
}

describe('a benchmark', () => {
  const ranksOf = (collective: CollectiveName): number[] => {
    if (isPairTest(collective)) return [2];
    return collective === 'send-recv' ? [2, 3] : [1, 2, 3, 4];
  };

  it.each(collectiveNames.flatMap((collective) => ranksOf(collective).map((ranks) => ({ collective, ranks }))))(
    '$collective, $ranks ranks: nothing is wrong',
    async ({ collective, ranks }) => {
      const { rows, summary } = await report(ranks, { collective, root: ranks - 1, buckets: isPairTest(collective) ? 3 : 1, parallel: 3 });
      expect(summary.wrong).toBe(0);
      expect(rows).toHaveLength(2);
      for (const row of rows) {
        expect(row.inPlace !== null).toBe(halvesOf(collective).includes('inPlace'));
        for (const half of [row.outOfPlace, row.inPlace]) {
          if (half === null) continue;
          expect(half.wrong).toBe(0);
          expect(half.minUs).toBeLessThanOrEqual(half.medianUs);
          expect(half.medianUs).toBeLessThanOrEqual(half.p99Us);
        }
      }
    },
  );

  it('measures private memory, several operations at once, and other dtypes', async () => {
    const shapes: Partial<BenchOptions>[] = [
      { memory: 'private' },
      { buckets: 5, parallel: 2 },
      { dtype: 'bfloat16', op: 'avg' },
      { dtype: 'int64', op: 'bit-xor' },
      { dtype: 'bool', op: 'max', touch: 'once' },
      { collective: 'all-to-all', memory: 'private', buckets: 2, parallel: 2, dtype: 'uint8' },
    ];
    for (const shape of shapes) expect((await report(3, shape)).summary.wrong).toBe(0);
  });

  it('measures every kind of elements that is asked for', async () => {
    const kinds = [
      { dtype: 'int8', op: 'product' },
      { dtype: 'float64', op: 'avg' },
    ] as const;
    const { rows, summary } = await report(2, { kinds, collective: 'reduce' });
    expect(summary.wrong).toBe(0);
    expect(rows.map(({ dtype, op, size }) => [dtype, op, size])).toEqual([
      ['int8', 'product', 96],
      ['int8', 'product', 8192],
      ['float64', 'avg', 96],
      ['float64', 'avg', 8192],
    ]);
  });

  it('measures computation beside calls: together they take as long as either, and no longer than both', async () => {
    // Every reading of this clock is 1 µs later than the one before: a call alone takes 1 µs, and the computation its share.
    let nowUs = 0;
    const stopwatch = { nowUs: () => nowUs++ };
    await using world = await startRanks(1);
    const builder = new ReportBuilder();
    const options: BenchOptions = { ...base, root: 0, onlyInPlace: true, overlap: true };
    await world.each((group) => runBench({ group, options, stopwatch, emit: (event) => builder.add(event) }));
    const half = builder.report?.rows[0].inPlace;
    expect(half?.medianUs).toBe(1);
    // Two more readings: the start of the computation and its end.
    expect(half?.overlap).toEqual({ overallUs: 3, computeUs: 1, percent: 0 });
  });

  it('measures one half, and checks some of the buckets, on request', async () => {
    let calls = 0;
    const counting = (group: ProcessGroup): ProcessGroup => {
      const allReduce = group.allReduce.bind(group);
      return Object.assign(group, {
        allReduce: (...args: Parameters<typeof allReduce>) => {
          if (group.rank === 0) calls++;
          return allReduce(...args);
        },
      });
    };
    const { rows } = await report(
      2,
      { sizes: [{ bytes: 96, iterations: 1, warmup: 0 }], buckets: 5, checkedBuckets: 2, onlyInPlace: true },
      counting,
    );
    expect(rows[0].outOfPlace).toBeNull();
    expect(rows[0].inPlace?.wrong).toBe(0);
    expect(calls).toBe(5 + 2);
    expect(halvesOf('all-gather', { onlyInPlace: true })).toEqual(['outOfPlace']);
  });

  it('keeps every sample on request', async () => {
    const { rows, ranks } = await report(2, { samples: 'kept' });
    expect(rows[0].inPlace?.samplesUs?.map((samples) => samples.length)).toEqual([3, 3]);
    expect(ranks.map(({ rank, pid }) => ({ rank, pid }))).toEqual([0, 1].map((rank) => ({ rank, pid: process.pid })));
  });

  it('counts the wrong elements of a broken collective', async () => {
    // The second rank's results lose one element, in every call.
    const broken = (group: ProcessGroup): ProcessGroup =>
      group.rank !== 1
        ? group
        : new Proxy(group, {
            get: (target, name) => {
              if (name !== 'allReduce') {
                const value: unknown = Reflect.get(target, name, target);
                return typeof value === 'function' ? value.bind(target) : value;
              }
              return async (...args: Parameters<ProcessGroup['allReduce']>) => {
                await target.allReduce(...args);
                (args[0] as { data: Float32Array }).data[7] += 1;
              };
            },
          });
    const { rows, summary } = await report(2, {}, broken);
    expect(rows.map(({ outOfPlace, inPlace }) => [outOfPlace?.wrong, inPlace?.wrong])).toEqual([
      [1, 1],
      [1, 1],
    ]);
    expect(summary.wrong).toBe(4);
  });

  it('refuses options that cannot be measured', async () => {
    await expect(report(1, { collective: 'send-recv' })).rejects.toMatchObject({ code: 'usage' });
    await expect(report(3, { collective: 'latency' })).rejects.toThrow(/latency needs exactly 2 ranks, not 3; use -n 2/);
    await expect(report(2, { collective: 'broadcast', root: 2 })).rejects.toThrow(/use 0…1/);
    await expect(report(2, { memory: 'private', dtype: 'float16' })).rejects.toThrow(/no typed array of its own/);
  });
});
