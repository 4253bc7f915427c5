/** The gain by scheduling on models of several sizes, 8 to 64 workers and networks of 10 to 100 Gbit/s: trainings replayed on
 *  virtual time, through the cores that real trainings use. The same figures on every machine.
 *
 *    npx tsx bench/scheduler/replay.ts [--out bench/results/scheduler-replay.json] */
import { writeFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { modelNames, modelTrace, type ModelName } from '../../src/scheduler/model-traces.ts';
import type { Figure, FigurePage } from '../../src/tools/chart/data/figure.ts';
import { planSchedule } from '../../src/tools/simulate/schedule-planner.ts';
import { replay, type ReplayOptions } from '../../src/tools/simulate/training.ts';
import { programArguments } from '../arguments.ts';

export interface ReplayRow {
  readonly model: ModelName;
  readonly exchange: ReplayOptions['exchange'];
  readonly workers: number;
  readonly gbitPerSecond: number;
  readonly fifoMs: number;
  /** Time with the best of the planner's partitions, as the tuner finds it. */
  readonly scheduledMs: number;
  readonly partitionBytes: number;
  readonly speedup: number;
  readonly computeMs: number;
  readonly networkMs: number;
  /** Time that no order makes shorter. */
  readonly boundMs: number;
  /** Gain that no order exceeds. */
  readonly boundSpeedup: number;
}

/** Compares with whole tensors that are on one server each, as TensorFlow's `replica_device_setter` places them by default; hosts
 *  of 8 workers that share a port and add up their gradients before, as published. */
export interface PlacedRow {
  readonly model: ModelName;
  readonly workers: number;
  readonly hosts: number;
  readonly gbitPerSecond: number;
  readonly fifoMs: number;
  readonly scheduledMs: number;
  readonly speedup: number;
  /** Part of the gain that FIFO gets by tensors spread over all servers. */
  readonly byBalance: number;
  readonly boundMs: number;
}

export interface ReplayReport {
  readonly rows: readonly ReplayRow[];
  readonly placed: readonly PlacedRow[];
  /** The largest gain of each model, with parameter servers. */
  readonly best: Readonly<Record<string, number>>;
  /** The smallest gain of each model, of all networks, worlds and exchanges: less than 1 is slower than FIFO. */
  readonly worst: Readonly<Record<string, number>>;
  readonly published: readonly PublishedRow[];
  /** The rate, of 10 to 100 Gbit/s, at which each model's bound is largest, where rates are not given. */
  readonly bounds: readonly BoundRow[];
}

interface BoundRow {
  readonly model: ModelName;
  readonly exchange: ReplayOptions['exchange'];
  readonly gbitPerSecond: number;
  readonly boundSpeedup: number;
}

interface PublishedRow {
  readonly model: ModelName;
  readonly workers: number;
  readonly speedup: number;
}

/** Published gains, read from the charts of ByteScheduler's README: MXNet, parameter servers, GPUs of 8 a host, 100 Gbit/s RoCE. */
const published: readonly PublishedRow[] = [
  { model: 'vgg16', workers: 16, speedup: 1520 / 680 },
  { model: 'vgg16', workers: 64, speedup: 5420 / 2740 },
  { model: 'resnet50', workers: 16, speedup: 2950 / 2550 },
  { model: 'resnet50', workers: 64, speedup: 11_600 / 11_000 },
  { model: 'transformer', workers: 16, speedup: 39_000 / 14_400 },
  { model: 'transformer', workers: 64, speedup: 145_000 / 108_000 },
];

const rates = [10, 25, 40, 100];
const scales = [8, 16, 32, 64];
const perHost = 8;

export function replayAll(
  options: { readonly workers?: readonly number[]; readonly rates?: readonly number[]; readonly steps?: number } = {},
): ReplayReport {
  const rows: ReplayRow[] = [];
  const placed: PlacedRow[] = [];
  const { workers: counts = scales, rates: gbits = rates, steps = 4 } = options;
  for (const model of modelNames) {
    const { layers } = modelTrace(model);
    for (const exchange of ['parameter-server', 'all-reduce'] as const) {
      for (const workers of counts) {
        for (const gbitPerSecond of gbits) {
          const plan = planSchedule({ layers, workers, exchange, gbitPerSecond, steps });
          const { plainOverlapMs: fifoMs, scheduledMs, partitionBytes, computeMs, networkMs, boundMs } = plan;
          const ratios = { speedup: fifoMs / scheduledMs, boundSpeedup: fifoMs / boundMs };
          const found = { fifoMs, scheduledMs, partitionBytes, computeMs, networkMs, boundMs, ...ratios };
          rows.push({ model, exchange, workers, gbitPerSecond, ...found });
        }
      }
    }
    // One host has no network.
    for (const workers of counts.filter((count) => count > perHost)) {
      for (const gbitPerSecond of gbits) {
        const hosts = workers / perHost;
        const world = { layers, workers: hosts, exchange: 'parameter-server', gbitPerSecond, steps } as const;
        const { stepMs: fifoMs } = replay({ ...world, order: 'fifo', placement: 'whole' });
        const { plainOverlapMs, scheduledMs, boundMs } = planSchedule(world);
        const ratios = { speedup: fifoMs / scheduledMs, byBalance: fifoMs / plainOverlapMs };
        placed.push({ model, workers, hosts, gbitPerSecond, fifoMs, scheduledMs, ...ratios, boundMs });
      }
    }
  }
  const best = (model: ModelName): number =>
    Math.max(...rows.filter((row) => row.model === model && row.exchange === 'parameter-server').map(({ speedup }) => speedup));
  const worst = (model: ModelName): number => Math.min(...rows.filter((row) => row.model === model).map(({ speedup }) => speedup));
  const ofEach = (figure: (model: ModelName) => number): Record<string, number> =>
    Object.fromEntries(modelNames.map((model) => [model, figure(model)]));
  return {
    rows,
    placed,
    bounds: options.rates === undefined ? modelNames.flatMap(largestBounds) : [],
    best: ofEach(best),
    worst: ofEach(worst),
    published,
  };
}

/** Searches rates between those of the rows. */
function largestBounds(model: ModelName): BoundRow[] {
  const { layers } = modelTrace(model);
  return (['parameter-server', 'all-reduce'] as const).map((exchange) => {
    const bounds = Array.from({ length: 19 }, (_, index) => {
      const gbitPerSecond = 10 + 5 * index;
      const fifo = replay({ layers, workers: 8, exchange, gbitPerSecond, order: 'fifo', steps: 3 });
      return { model, exchange, gbitPerSecond, boundSpeedup: fifo.stepMs / fifo.boundMs };
    });
    return bounds.reduce((most, each) => (each.boundSpeedup > most.boundSpeedup ? each : most));
  });
}

function figures({ rows }: ReplayReport): Figure[] {
  const at = (model: ModelName, exchange: ReplayRow['exchange'], workers: number, rate: number): number | null =>
    rows.find((row) => row.model === model && row.exchange === exchange && row.workers === workers && row.gbitPerSecond === rate)
      ?.speedup ?? null;
  const byRate = (exchange: ReplayRow['exchange']): Figure => ({
    title: `Step of FIFO over scheduled, ${exchange}, 16 workers, by Gbit/s, replayed`,
    xLabel: 'Gbit/s',
    unit: '×',
    x: rates,
    series: modelNames.map((name) => ({ name, values: rates.map((rate) => at(name, exchange, 16, rate)) })),
  });
  const byWorkers: Figure = {
    title: 'Step of FIFO over scheduled, parameter-server, 25 Gbit/s, by workers, replayed; published: MXNet, 100 Gbit/s RoCE',
    xLabel: 'workers',
    unit: '×',
    x: scales,
    series: [
      ...modelNames.map((name) => ({ name, values: scales.map((workers) => at(name, 'parameter-server', workers, 25)) })),
      ...modelNames.map((name) => ({
        name: `${name}, published`,
        of: name,
        values: scales.map((workers) => published.find((row) => row.model === name && row.workers === workers)?.speedup ?? null),
      })),
    ],
  };
  return [byWorkers, byRate('parameter-server'), byRate('all-reduce')];
}

export function replayPage(report: ReplayReport): FigurePage {
  return { title: 'Scheduling, replayed on virtual time', figures: figures(report) };
}

function main(): void {
  const { values } = programArguments(import.meta.url, { options: { out: { type: 'string' } } });
  const report = replayAll();
  console.log('model        exchange          workers  Gbit/s   FIFO ms  scheduled ms  speed-up   at most');
  for (const { model, exchange, workers, gbitPerSecond, fifoMs, scheduledMs, speedup, boundSpeedup } of report.rows) {
    const cells = [
      String(workers).padStart(7),
      String(gbitPerSecond).padStart(7),
      fifoMs.toFixed(1).padStart(9),
      scheduledMs.toFixed(1).padStart(13),
      speedup.toFixed(2).padStart(9),
      boundSpeedup.toFixed(2).padStart(9),
    ];
    console.log(`${model.padEnd(12)} ${exchange.padEnd(16)} ${cells.join(' ')}`);
  }
  console.log('\nagainst tensors on one server each, hosts of 8 workers');
  for (const { model, workers, gbitPerSecond, fifoMs, scheduledMs, speedup, byBalance } of report.placed) {
    const cells = [String(workers).padStart(7), String(gbitPerSecond).padStart(7), fifoMs.toFixed(1).padStart(9)];
    const ratios = `${speedup.toFixed(2).padStart(9)}, of it by balance ${byBalance.toFixed(2)}`;
    console.log(`${model.padEnd(29)} ${cells.join(' ')} ${scheduledMs.toFixed(1).padStart(13)} ${ratios}`);
  }
  console.log('\nno order gains more, of 10 to 100 Gbit/s');
  for (const { model, exchange, gbitPerSecond, boundSpeedup } of report.bounds)
    console.log(`${model.padEnd(12)} ${exchange.padEnd(16)} ${boundSpeedup.toFixed(2)} at ${gbitPerSecond} Gbit/s`);
  console.log('\nof all networks and worlds    best with parameter servers   worst');
  for (const model of modelNames)
    console.log(`${model.padEnd(29)} ${report.best[model].toFixed(2).padStart(27)} ${report.worst[model].toFixed(3).padStart(7)}`);
  if (values.out !== undefined) writeFileSync(values.out, `${JSON.stringify(report, null, 2)}\n`);
}

if (process.argv[1] === fileURLToPath(import.meta.url)) main();
