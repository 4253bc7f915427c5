/** The command `shoal simulate`: its output and its files. */
import { ShoalError } from '../../../base/errors.ts';
import { formatBytes } from '../../../base/settings/quantity.ts';
import { systemStopwatch } from '../../../base/clock.ts';
import { dtypeInfo } from '../../../memory/dtype.ts';
import { rankCount } from '../../../plan/topology.ts';
import { inColumns } from '../../draw/columns.ts';
import { figuresPage } from '../../chart/document.ts';
import type { Figure } from '../../chart/data/figure.ts';
import { microBenchmarks } from '../../simulate/micro-benchmarks.ts';
import { presets, type SimulationModel } from '../../simulate/model.ts';
import { simulate } from '../../simulate/simulation.ts';
import { StepLog } from '../../simulate/step-log.ts';
import { writeFileAt } from '../../../base/files/write-file.ts';
import type { RequestFlags } from '../plan/request-options.ts';
import { bytesOf, planOf, planRequest } from '../plan/plan-request.ts';

/** Flags as commander gives them. */
export interface SimulateFlags extends RequestFlags {
  readonly algorithms: string;
  readonly operations: number;
  readonly inFlight: number;
  readonly preset: string;
  readonly latency?: number;
  readonly overhead?: number;
  readonly gbit?: number;
  readonly ports?: number;
  readonly microBenchmarks?: true;
  readonly buckets: number;
  readonly json?: string;
  readonly html?: string;
}

interface Row {
  readonly bytes: number;
  readonly asked: string;
  readonly algorithm: string;
  readonly milliseconds: number;
  /** Share of the time in which the busiest port sends. */
  readonly portShare: number;
  readonly threadShare: number;
  readonly messages: number;
  readonly networkBytes: number;
  /** Real time that building the plan and simulating it took here. */
  readonly elapsedSeconds: number;
}

/** @returns what to print.
 *  @throws ShoalError `usage` or `unsupported`; `system` when a file cannot be written. */
export async function runSimulate(
  collective: string | undefined,
  flags: SimulateFlags,
  onProgress?: (text: string) => void,
): Promise<string> {
  if (flags.microBenchmarks === true) {
    if (collective !== undefined) throw new ShoalError('usage', `--micro-benchmarks takes no collective, not '${collective}'`);
    const figures = microBenchmarks({ buckets: flags.buckets, ...(onProgress ? { onProgress } : {}) });
    return publish(flags, {
      result: { version: 1, simulated: true, buckets: flags.buckets, figures },
      figures,
      text: figures.map(figureText).join('\n\n'),
    });
  }
  const model = modelOf(flags);
  const rows = flags.bytes
    .split(',')
    .flatMap((bytes) => simulateSize(collective, { ...flags, bytes: bytes.trim() }, { model, onProgress }));
  const figures = [figureOf(collective ?? '', flags, rows)];
  return publish(flags, {
    result: { version: 1, simulated: true, collective, hosts: flags.hosts, ranksPerHost: flags.ranksPerHost, model, rows },
    figures,
    text: tableOf(rows),
  });
}

function simulateSize(
  collective: string | undefined,
  flags: SimulateFlags,
  { model, onProgress }: { readonly model: SimulationModel; readonly onProgress: ((text: string) => void) | undefined },
): Row[] {
  const { request, dtype } = planRequest(collective, flags);
  const elementBytes = dtypeInfo(dtype).bytes;
  return flags.algorithms.split(',').map((each) => {
    const asked = each.trim();
    onProgress?.(`${request.collective} of ${flags.bytes}, ${asked}`);
    const beginUs = systemStopwatch.nowUs();
    const steps = new StepLog(request.topology, rankCount(request.topology), model, elementBytes);
    const plan = planOf(asked, request, { model, onStep: (...step) => steps.add(...step) });
    const logged = plan.tile === undefined ? { plan, steps } : { plan };
    const result = simulate({ ...logged, elementBytes, operations: flags.operations, inFlight: flags.inFlight }, model);
    const shareOf = (seconds: number): number => (result.seconds > 0 ? seconds / result.seconds : 0);
    return {
      bytes: bytesOf('--bytes', flags.bytes),
      asked,
      algorithm: plan.algorithm,
      milliseconds: result.seconds * 1e3,
      portShare: shareOf(result.busiestPort),
      threadShare: shareOf(result.busiestThread),
      messages: result.messages,
      networkBytes: result.networkBytes,
      elapsedSeconds: (systemStopwatch.nowUs() - beginUs) / 1e6,
    };
  });
}

function modelOf(flags: SimulateFlags): SimulationModel {
  const preset = Object.entries(presets).find(([name]) => name === flags.preset)?.[1];
  if (preset === undefined)
    throw new ShoalError('usage', `unknown preset '${flags.preset}'; use one of ${Object.keys(presets).join(', ')}`);
  if (flags.gbit === 0) throw new ShoalError('usage', '--gbit 0 would never end');
  return {
    ...preset,
    ...(flags.latency === undefined ? {} : { networkLatency: flags.latency / 1e6 }),
    ...(flags.overhead === undefined ? {} : { networkOverhead: flags.overhead / 1e6 }),
    ...(flags.gbit === undefined ? {} : { networkByte: 8 / (flags.gbit * 1e9) }),
    ...(flags.ports === undefined ? {} : { portsPerHost: flags.ports }),
  };
}

function figureOf(collective: string, flags: SimulateFlags, rows: readonly Row[]): Figure {
  const x = [...new Set(rows.map(({ bytes }) => bytes / 2 ** 20))];
  const names = [...new Set(rows.map(({ asked }) => asked))];
  return {
    title: `${flags.operations} × ${collective}, ${flags.hosts} hosts × ${flags.ranksPerHost}, simulated`,
    xLabel: 'MiB',
    x,
    series: names.map((name) => ({ name, values: rows.filter(({ asked }) => asked === name).map(({ milliseconds }) => milliseconds) })),
  };
}

function publish(
  flags: SimulateFlags,
  { result, figures, text }: { readonly result: unknown; readonly figures: readonly Figure[]; readonly text: string },
): string {
  const json = `${JSON.stringify(result, null, 2)}\n`;
  if (flags.json !== undefined && flags.json !== '-') writeFileAt(flags.json, json);
  if (flags.html !== undefined) writeFileAt(flags.html, figuresPage({ title: 'Simulated', figures }));
  return flags.json === '-' ? json : `${text}\n`;
}

function tableOf(rows: readonly Row[]): string {
  const percent = (share: number): string => `${(share * 100).toFixed(0)}%`;
  return inColumns([
    ['size', 'algorithm', 'ms', 'wire busy', 'thread busy', 'messages', 'network bytes', 'took s'],
    ...rows.map((row) => [
      formatBytes(row.bytes),
      row.asked === row.algorithm ? row.algorithm : `${row.asked}: ${row.algorithm}`,
      row.milliseconds.toPrecision(4),
      percent(row.portShare),
      percent(row.threadShare),
      String(row.messages),
      String(row.networkBytes),
      row.elapsedSeconds.toFixed(2),
    ]),
  ]).join('\n');
}

function figureText({ title, xLabel, x, series }: Figure): string {
  const cell = (value: number | null): string => (value === null ? '' : value.toPrecision(4));
  const table = inColumns([
    [xLabel, ...series.map(({ name }) => `${name}, ms`)],
    ...x.map((value, index) => [String(value), ...series.map(({ values }) => cell(values[index]))]),
  ]);
  return [title, ...table].join('\n');
}
