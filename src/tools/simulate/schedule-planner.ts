/** Decides whether scheduling is worth it: one training, replayed with plain overlap and with parts by priority, and a bound that
 *  no order can beat.
 *
 *      no overlap     the passes, then all bytes, each way at once                 ─┐ the shorter one is the baseline
 *      plain overlap  FIFO: whole tensors, as they become ready                    ─┘ that the gain is a ratio to
 *      scheduled      the best of a few partitions
 *      bound          the longest one of passes, communication, and the rest of both after each layer's backward pass
 *
 *  Plain overlap is the longer one where a tensor is a large share of all: a server gives no byte of it back before it has all of it.
 *  Both bounds follow from the ratio of communication to computation: where either is small there is nothing to gain. */
import { ShoalError } from '../../base/errors.ts';
import { describeValue } from '../../base/schema.ts';
import { replay, type ReplayOptions, type ReplayResult } from './training.ts';

export interface PlanOptions extends Omit<ReplayOptions, 'order' | 'partitionBytes' | 'creditBytes'> {
  /** Partitions to try. Default: the default of trainings, and some that cut this model's tensors. */
  readonly partitions?: readonly number[];
  /** The credit, in partitions. Default: 4. */
  readonly creditParts?: number;
}

export interface SchedulePlan extends Pick<ReplayResult, 'computeMs' | 'networkMs' | 'boundMs'> {
  /** Ratio of communication to computation. */
  readonly ratio: number;
  /** Time of the passes and, after them, of the step's bytes, each way at once. */
  readonly noOverlapMs: number;
  /** Time where whole tensors are sent as they become ready. */
  readonly plainOverlapMs: number;
  /** The shorter one of these two. */
  readonly baseline: 'no overlap' | 'plain overlap';
  readonly scheduledMs: number;
  readonly partitionBytes: number;
  readonly creditBytes: number;
  /** Ratio of the baseline to scheduled. */
  readonly gain: number;
  /** Ratio of the baseline to the bound. */
  readonly gainMax: number;
  readonly isWorthIt: boolean;
  /** The judgement as a sentence. */
  readonly verdict: string;
}

/** Least gain that counts: a smaller one is not told from noise, and would not pay for messages about the order. */
const gainMin = 1.05;
const defaultPartitionBytes = 4e6;
/** Approximate numbers of parts of all tensors together. */
const partCounts = [16, 64, 256];
const partitionBytesMin = 4096;

/** @throws ShoalError `usage` for an impossible world or network. */
export function planSchedule({ partitions, creditParts = 4, ...world }: PlanOptions): SchedulePlan {
  const plain = replay({ ...world, order: 'fifo' });
  const candidates = partitions ?? partitionsOf(world.layers.map(({ bytes }) => bytes));
  if (candidates.length === 0) throw new ShoalError('usage', 'planSchedule: there is no partition to try');
  for (const bytes of [...candidates, creditParts]) {
    if (!Number.isSafeInteger(bytes) || bytes < 1)
      throw new ShoalError('usage', `planSchedule: partitions are positive integers, not ${describeValue(bytes)}`);
  }
  const tried = candidates.map((partitionBytes) => {
    const creditBytes = creditParts * partitionBytes;
    return { partitionBytes, creditBytes, stepMs: replay({ ...world, order: 'scheduled', partitionBytes, creditBytes }).stepMs };
  });
  const best = tried.reduce((a, b) => (b.stepMs < a.stepMs ? b : a));
  const { computeMs, networkMs, boundMs, stepMs: plainOverlapMs } = plain;
  const noOverlapMs = computeMs + networkMs;
  const baselineMs = Math.min(noOverlapMs, plainOverlapMs);
  const figures = {
    computeMs,
    networkMs,
    ratio: networkMs / computeMs,
    noOverlapMs,
    plainOverlapMs,
    baseline: noOverlapMs < plainOverlapMs ? ('no overlap' as const) : ('plain overlap' as const),
    scheduledMs: best.stepMs,
    partitionBytes: best.partitionBytes,
    creditBytes: best.creditBytes,
    boundMs,
    gain: baselineMs / best.stepMs,
    gainMax: baselineMs / boundMs,
  };
  return { ...figures, isWorthIt: figures.gain >= gainMin, verdict: verdictOf(figures) };
}

function verdictOf({ baseline, gain, gainMax, computeMs, networkMs, ratio }: Omit<SchedulePlan, 'isWorthIt' | 'verdict'>): string {
  if (gain >= gainMin) return `worth it: ${timesText(gain)} ${baseline}; no order gains more than ${timesText(Math.max(gain, gainMax))}`;
  const passes = `communication takes ${timesText(ratio)} as long as computation (${networkMs.toFixed(1)} and ${computeMs.toFixed(1)} ms)`;
  if (gainMax >= gainMin) return `not worth it: ${timesText(gain)} ${baseline}, though ${timesText(gainMax)} is the bound: ${passes}`;
  const why = networkMs <= computeMs ? 'little of it is left to hide' : 'the network is busy all the time in any order';
  return `not worth it: ${passes}, and ${why}; no order gains more than ${timesText(Math.max(gain, gainMax))}`;
}

/** A ratio rounded down, so that one just below a limit does not look like it. */
export function timesText(value: number): string {
  return `${(Math.floor(value * 100) / 100).toFixed(2)} ×`;
}

function partitionsOf(sizes: readonly number[]): number[] {
  const all = sizes.reduce((a, b) => a + b, 0);
  const largest = Math.max(...sizes);
  const cutting = partCounts
    .map((count) => 2 ** Math.ceil(Math.log2(Math.max(partitionBytesMin, all / count))))
    .filter((bytes) => bytes < largest);
  return [...new Set([defaultPartitionBytes, ...cutting])];
}
