/** The command `shoal tune --scheduler`: trains with a known model's sizes while scheduled all-reduces are tuned, and prints the points. */
import type { Writable } from 'node:stream';
import { stepsPerPointMin } from '../../../scheduler/tuner/tuner.ts';
import { ShoalError } from '../../../base/errors.ts';
import { formatBytes } from '../../../base/settings/quantity.ts';
import type { Environment } from '../../../base/settings/settings.ts';
import type { ScheduleEvent } from '../../timing/schedule-tuning.ts';
import { modelTrace, type ModelName } from '../../../scheduler/model-traces.ts';
import { detectWorld } from '../../../store/environment.ts';
import { checkHosts, launchBench } from '../bench/launch-bench.ts';

/** Flags as commander gives them. */
export interface SchedulerTuneFlags {
  readonly ranks?: number;
  readonly hosts: number;
  readonly model: ModelName;
  readonly scale?: number;
  readonly stepsPerPoint: number;
  readonly json?: true;
}

/** The document's space is of whole models. */
const million = 4e6;
/** The command tunes once: however unsteady the machine is, no step is so much slower than the best point's that it begins anew. */
const onceOnly = Number.MAX_VALUE;

/** @returns the exit code. @throws ShoalError `usage`. */
export async function runSchedulerTune(
  flags: SchedulerTuneFlags,
  context: { environment: Environment; stdout: Writable },
): Promise<number> {
  const { environment } = context;
  // With --json, standard output is for the result alone; texts for people go to standard error.
  const stdout = flags.json === true ? process.stderr : context.stdout;
  if (detectWorld(environment, { parentPid: process.ppid }).source !== 'none') {
    const message = 'shoal tune --scheduler starts its ranks itself; a job of its own is tuned by scheduling: { tuning: true }';
    throw new ShoalError('usage', message);
  }
  const { ranks = 2, hosts, model, scale = 0.02, stepsPerPoint } = flags;
  if (stepsPerPoint < stepsPerPointMin) {
    const message = `--steps-per-point must be ${stepsPerPointMin} or more, not ${stepsPerPoint}: the first and the last do not count`;
    throw new ShoalError('usage', message);
  }
  checkHosts(hosts, ranks);
  const { layers } = modelTrace(model, scale);
  const scaled = (least: number, most: number): { least: number; most: number } => ({
    least: Math.max(4096, Math.round(least * million * scale)),
    most: Math.max(65_536, Math.round(most * million * scale)),
  });
  const space = { creditBytes: scaled(4, 64), partitionBytes: scaled(2, 32) };
  const tuning = { space, points: 15, stepsPerPoint, stepsAhead: 10, driftShare: onceOnly };
  const bytes = layers.reduce((sum, layer) => sum + layer.bytes, 0);
  stdout.write(`${model} × ${scale}: ${layers.length} layers, ${(bytes / 1e6).toFixed(1)} MB; ranks: ${ranks}, hosts: ${hosts}\n\n`);
  stdout.write(row(['credit', 'partition', 'ms a step', 'steps', '']));
  const points: { creditBytes: number; partitionBytes: number; stepMs: number; steps: number }[] = [];
  let best: { creditBytes: number; partitionBytes: number } | undefined;
  const onEvent = (event: ScheduleEvent): void => {
    const { creditBytes, partitionBytes, tuning: state } = event.status;
    if (event.event === 'tuned') {
      best = { creditBytes, partitionBytes };
      const variables = `SHOAL_SCHEDULE_CREDIT_BYTES=${creditBytes} SHOAL_SCHEDULE_PARTITION_BYTES=${partitionBytes}`;
      stdout.write(`\nuse it with ${variables}; or let the training itself be tuned, with scheduling: { tuning: true }\n`);
      return;
    }
    const isKnown = points.some((point) => point.creditBytes === creditBytes && point.partitionBytes === partitionBytes);
    const first = event.status.sinceStep === 0 ? 'not counted' : '';
    const what = state === 'converged' ? 'the best' : isKnown ? 'again' : first;
    points.push({ creditBytes, partitionBytes, stepMs: event.stepMs, steps: event.steps });
    stdout.write(row([formatBytes(creditBytes), formatBytes(partitionBytes), event.stepMs.toFixed(2), String(event.steps), what]));
  };
  const code = await launchBench({
    ranks,
    job: { kind: 'schedule', hosts, options: { layers, tuning } },
    // The ranks start without the parameters of an earlier tuning.
    environment: { ...environment, SHOAL_SCHEDULE_TUNING_DIR: '-' },
    onEvent,
  });
  if (flags.json === true && code === 0) {
    const report = { schema: 'shoal-scheduler-tuning', model, scale, ranks, hosts, points, best };
    context.stdout.write(`${JSON.stringify(report, undefined, 2)}\n`);
  }
  return code;
}

function row(cells: readonly string[]): string {
  return `${cells
    .map((cell, index) => (index === 4 ? ` ${cell}` : cell.padStart(12)))
    .join('')
    .trimEnd()}\n`;
}
