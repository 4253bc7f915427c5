/** Runs a benchmark on an open process group; every rank calls it with the same options. Rank 0 gathers the results and emits events. */
import { cpus, hostname } from 'node:os';
import { allowedCpus } from '../../base/files/allowed-cpus.ts';
import { ShoalError } from '../../base/errors.ts';
import type { Stopwatch } from '../../base/clock.ts';
import { sum } from '../../base/numbers.ts';
import { packageVersion } from '../../base/packages/version.ts';
import type { ProcessGroup } from '../../group/caller/types.ts';
import { dtypeInfo } from '../../memory/dtype.ts';
import { createKernels } from '../../memory/kernels/create-kernels.ts';
import { loadNative } from '../../memory/native.ts';
import { bandwidthOf, halvesOf, isPairTest, isRooted, layoutOf, type Half } from './collective.ts';
import { countWrong, measure } from './measure.ts';
import { createOperation, type Operation } from './operation.ts';
import type { BenchOptions, SizePoint } from './options.ts';
import { Patterns } from './pattern.ts';
import {
  benchSchemaVersion,
  summaryOf,
  type BenchEvent,
  type BenchHeader,
  type BenchRow,
  type HalfResult,
  type RankPlace,
} from './report.ts';
import { statisticsOf, type SampleStatistics } from './statistics.ts';

export interface BenchContext {
  readonly group: ProcessGroup;
  readonly options: BenchOptions;
  readonly stopwatch: Stopwatch;
  /** Called on rank 0 for each event. */
  readonly emit: (event: BenchEvent) => void;
}

/** @throws ShoalError `usage` for options that this group cannot serve; errors of the collectives. */
export async function runBench(context: BenchContext): Promise<void> {
  const { group, options, emit } = context;
  check(group, options);
  const tell = group.rank === 0 ? emit : (): void => undefined;
  const native = loadNative({ enabled: true });
  const ranks = await gatherPlaces(group);
  tell({ event: 'header', header: headerOf(context, { native: native?.isa ?? null, ranks }) });
  const halves = halvesOf(options.collective, options);
  const kinds = options.kinds ?? [{ dtype: options.dtype, op: options.op }];
  const total = kinds.length * options.sizes.length * halves.length;
  const rows: BenchRow[] = [];
  for (const kind of kinds) {
    const own = { ...context, options: { ...options, ...kind } };
    const patterns = new Patterns({ ...kind, ranks: group.size, kernels: createKernels({ native }) });
    for (const point of options.sizes) {
      const results: Partial<Record<Half, HalfResult>> = {};
      for (const half of halves) {
        tell({ event: 'progress', done: rows.length * halves.length + Object.keys(results).length, total, bytes: point.bytes, half });
        results[half] = await runHalf(own, { point, half, patterns });
      }
      const row = rowOf(group, { options: own.options, point, results });
      rows.push(row);
      tell({ event: 'row', row });
    }
  }
  tell({ event: 'end', summary: summaryOf(rows) });
}

function check(group: ProcessGroup, { collective, root, sizes, parallel, buckets }: BenchOptions): void {
  if (collective === 'send-recv' && group.size < 2) throw new ShoalError('usage', 'send-recv needs at least 2 ranks; use -n 2');
  if (isPairTest(collective) && group.size !== 2)
    throw new ShoalError('usage', `${collective} needs exactly 2 ranks, not ${group.size}; use -n 2`);
  if (isRooted(collective) && root >= group.size) throw new ShoalError('usage', `--root ${root} is not a rank; use 0…${group.size - 1}`);
  if (sizes.length === 0) throw new ShoalError('usage', 'there are no sizes to measure');
  if (parallel < 1 || buckets < 1) throw new ShoalError('usage', '--parallel and --buckets must be at least 1');
}

async function runHalf(
  { group, options, stopwatch }: BenchContext,
  { point, half, patterns }: { point: SizePoint; half: Half; patterns: Patterns },
): Promise<HalfResult> {
  const operations: Operation[] = [];
  try {
    for (let slot = 0; slot < options.buckets; slot++) {
      operations.push(createOperation({ group, options, patterns, bytes: point.bytes, half, slot }));
    }
    const loop = { operations, parallel: options.parallel, wait: options.wait, touch: options.touch, stopwatch };
    if (point.warmup > 0) await measure({ ...loop, iterations: point.warmup });
    await group.barrier();
    const timed = await measure({ ...loop, iterations: point.iterations });
    // A message there and one back.
    const samples = options.collective === 'latency' ? timed.map((us) => us / 2) : timed;
    const wrong = await countWrong(group, operations.slice(0, options.checkedBuckets), options);
    const result = await gatherHalf(group, { options, point, samples, wrong });
    if (options.overlap === undefined) return result;
    const computeUs = result.medianUs;
    const computing = operations.map((operation) => withComputation(operation, { stopwatch, computeUs }));
    const overall = await measure({ ...loop, operations: computing, iterations: point.iterations });
    const { medianUs: overallUs } = await gatherHalf(group, { options, point, samples: overall, wrong });
    // The part of the communication, which alone is as long as the computation, that did not lengthen both together.
    const percent = Math.max(0, 100 * (1 - (overallUs - computeUs) / computeUs));
    return { ...result, overlap: { overallUs, computeUs, percent } };
  } finally {
    for (const operation of operations) operation.release();
  }
}

/** The operation with a computation of so many microseconds between its start and the wait for it. */
function withComputation(operation: Operation, { stopwatch, computeUs }: { stopwatch: Stopwatch; computeUs: number }): Operation {
  return {
    ...operation,
    start: () => {
      const pending = operation.start();
      const endUs = stopwatch.nowUs() + computeUs;
      while (stopwatch.nowUs() < endUs) continue;
      return pending;
    },
  };
}

async function gatherHalf(
  group: ProcessGroup,
  half: { options: BenchOptions; point: SizePoint; samples: Float64Array; wrong: number | null },
): Promise<HalfResult> {
  const { options, point, samples, wrong } = half;
  const kept = options.samples === 'kept';
  const all = await group.allGatherObject({ statistics: statisticsOf(samples), wrong: wrong ?? 0, samples: [...(kept ? samples : [])] });
  const largest = (name: keyof SampleStatistics): number => Math.max(...all.map(({ statistics }) => statistics[name]));
  const timeUs = largest('median');
  const { movedCount } = layoutFor(group, { options, bytes: point.bytes });
  const movedBytes = movedCount * dtypeInfo(options.dtype).bytes;
  const bandwidth = bandwidthOf(options.collective, { movedBytes, timeUs, ranks: group.size });
  return {
    medianUs: timeUs,
    minUs: largest('min'),
    p99Us: largest('p99'),
    meanUs: largest('mean'),
    algorithmBandwidth: bandwidth.algorithm,
    busBandwidth: bandwidth.bus,
    wrong: wrong === null ? null : sum(all.map((own) => own.wrong)),
    ...(kept ? { samplesUs: all.map((own) => own.samples) } : {}),
  };
}

function rowOf(
  group: ProcessGroup,
  { options, point, results }: { options: BenchOptions; point: SizePoint; results: Partial<Record<Half, HalfResult>> },
): BenchRow {
  const { movedCount, paramCount } = layoutFor(group, { options, bytes: point.bytes });
  const { dtype, op } = options;
  return {
    ...{ dtype, op },
    size: movedCount * dtypeInfo(dtype).bytes,
    count: paramCount,
    iterations: point.iterations,
    outOfPlace: results.outOfPlace ?? null,
    inPlace: results.inPlace ?? null,
  };
}

function layoutFor(group: ProcessGroup, { options, bytes }: { options: BenchOptions; bytes: number }): ReturnType<typeof layoutOf> {
  return layoutOf(options.collective, { bytes, elementBytes: dtypeInfo(options.dtype).bytes, ranks: group.size });
}

function headerOf({ group, options, stopwatch }: BenchContext, known: { native: string | null; ranks: readonly RankPlace[] }): BenchHeader {
  const { sizes: _, ...rest } = options;
  return {
    schema: 'shoal-bench',
    version: benchSchemaVersion,
    shoal: packageVersion,
    node: process.version,
    native: known.native,
    ranks: known.ranks,
    hosts: group.hosts,
    options: rest,
    stopwatchUs: readingCostUs(stopwatch),
  };
}

/** Cost of two readings of the clock, after enough of them for the compiler to have done its work. */
function readingCostUs(stopwatch: Stopwatch): number {
  const costs = new Float64Array(20_000);
  for (let i = 0; i < costs.length; i++) {
    const startUs = stopwatch.nowUs();
    costs[i] = stopwatch.nowUs() - startUs;
  }
  return statisticsOf(costs.subarray(costs.length / 2)).median;
}

function gatherPlaces(group: ProcessGroup): Promise<RankPlace[]> {
  return group.allGatherObject({
    rank: group.rank,
    pid: process.pid,
    host: hostname().slice(0, 64),
    cpus: allowedCpus().count,
    processor: (cpus()[0]?.model ?? 'unknown').slice(0, 64),
  });
}
