/** The command `shoal tune --scheduler --predict`: the gain from scheduling for a training, from the times of its layers and the rate of
 *  its network alone. */
import type { SchedulerTuneFlags } from './run-scheduler-tune.ts';
import { modelTrace } from '../../../scheduler/model-traces.ts';
import { formatBytes } from '../../../base/settings/quantity.ts';
import { readRunFolder } from '../../report/read-folder.ts';
import { wholeTrace } from '../../../trace/trace-file.ts';
import { planSchedule, timesText, type SchedulePlan } from '../../simulate/schedule-planner.ts';
import { tracedTraining } from '../../simulate/traced-training.ts';
import type { ReplayOptions } from '../../simulate/training.ts';

/** Flags as commander gives them. */
export interface SchedulePredictionFlags extends Pick<SchedulerTuneFlags, 'ranks' | 'model' | 'scale' | 'json'> {
  /** The folder of a run; true: --model. */
  readonly predict?: string | true;
  readonly gbit?: number;
  readonly overhead: number;
  readonly exchange: ReplayOptions['exchange'];
}

interface Training extends Pick<ReplayOptions, 'layers' | 'workers' | 'gbitPerSecond'> {
  readonly name: string;
  /** Measured time of a step; undefined when none was made. */
  readonly measuredMs?: number;
  readonly warnings: readonly string[];
}

const defaults = { workers: 8, gbitPerSecond: 10 };

/** @returns what to print. @throws ShoalError `usage` for a folder without a training. */
export function runSchedulePrediction(flags: SchedulePredictionFlags): string {
  const { overhead: overheadUs, exchange } = flags;
  const { warnings, ...training } = trainingOf(flags);
  for (const warning of warnings) process.stderr.write(`shoal: ${warning}\n`);
  const { layers, workers, gbitPerSecond } = training;
  const plan = planSchedule({ layers, workers, gbitPerSecond, exchange, overheadUs });
  if (flags.json !== true) return textOf(training, exchange, plan);
  return `${JSON.stringify({ schema: 'shoal-schedule-prediction', version: 1, ...training, exchange, overheadUs, plan }, null, 2)}\n`;
}

function trainingOf({ predict, model, scale = 1, ranks, gbit }: SchedulePredictionFlags): Training {
  if (typeof predict !== 'string') {
    const { layers } = modelTrace(model, scale);
    const { workers, gbitPerSecond } = defaults;
    return { name: `${model} × ${scale}`, layers, workers: ranks ?? workers, gbitPerSecond: gbit ?? gbitPerSecond, warnings: [] };
  }
  const { traces, warnings } = readRunFolder(predict);
  const { layers, workers, stepMs, gbitPerSecond } = tracedTraining(traces.map(wholeTrace));
  return {
    name: predict,
    layers,
    workers: ranks ?? workers,
    gbitPerSecond: gbit ?? gbitPerSecond ?? defaults.gbitPerSecond,
    measuredMs: stepMs,
    warnings,
  };
}

function textOf(
  { name, layers, workers, gbitPerSecond, measuredMs }: Omit<Training, 'warnings'>,
  exchange: string,
  plan: SchedulePlan,
): string {
  const bytes = layers.reduce((sum, layer) => sum + layer.bytes, 0);
  const row = (what: string, ms: number, note = ''): string => `${what.padEnd(16)}${ms.toFixed(2).padStart(12)}  ${note}`.trimEnd();
  const cut = `partition ${formatBytes(plan.partitionBytes)}, credit ${formatBytes(plan.creditBytes)}`;
  return [
    `${name}: ${layers.length} layers, ${(bytes / 1e6).toFixed(1)} MB; ${workers} workers, ${exchange}, ${Number(gbitPerSecond.toPrecision(4))} Gbit/s`,
    `computation ${plan.computeMs.toFixed(2)} ms, communication ${plan.networkMs.toFixed(2)} ms a step: a ratio of ${plan.ratio.toFixed(2)}`,
    '',
    `${''.padEnd(16)}${'ms a step'.padStart(12)}`,
    ...(measuredMs === undefined ? [] : [row('as it was', measuredMs)]),
    row('no overlap', plan.noOverlapMs, 'the passes, then all bytes, each way at once'),
    row('plain overlap', plan.plainOverlapMs, 'whole tensors, as they become ready'),
    row('scheduled', plan.scheduledMs, `${timesText(plan.gain)} ${plan.baseline}; ${cut}`),
    row('bound', plan.boundMs, `${timesText(plan.gainMax)} ${plan.baseline}; no order is shorter`),
    '',
    plan.verdict,
    '',
  ].join('\n');
}
