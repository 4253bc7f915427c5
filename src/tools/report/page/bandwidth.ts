/** Bus bandwidth over the size of calls, beside what was measured: charts where calls had several sizes, and where the bound is from. */
import { element, section } from '../../chart/page/elements.ts';
import { lineChart, type LineStyles } from '../../chart/page/line-chart.ts';
import { bytes, digits } from '../../chart/page/units.ts';
import type { ReportData, ReportOperation, ReportRates } from '../data/report-data.ts';

/** Fewer sizes are no curve: the table of operations has them. */
const sizesLeast = 3;

export function bandwidthSection({ operations, rates }: ReportData, styles: LineStyles): HTMLElement[] {
  const measured = operations.filter(({ busBandwidth }) => busBandwidth > 0);
  if (measured.length === 0) return [];
  const note =
    'Bus bandwidth as nccl-tests define it, medians; where a call is said to be synchronous, its wait for others is part of its time.';
  const source = element('p', { class: 'faint', text: `${note} ${boundText(measured, rates)}` });
  const charts = [...Map.groupBy(measured, ({ kind, ranks }) => `${kind} of ${ranks} ranks`)].flatMap(([name, each]) =>
    new Set(each.map((one) => one.bytes)).size < sizesLeast ? [] : [element('h3', { text: name }), chartOf(each, styles)],
  );
  return [section('Bandwidth', source, ...charts)];
}

/** A text about the bound, or about how to get one. */
function boundText(operations: readonly ReportOperation[], { linkBandwidth, linkFrom, copyBandwidth }: ReportRates): string {
  const parts = [
    ...(linkBandwidth === null
      ? []
      : [
          `The bound is what one connection between hosts carried when ${linkFrom === 'tuning' ? 'shoal tune measured it' : 'the run started'}, ${digits(linkBandwidth)} GB/s: several may carry more.`,
        ]),
    ...(copyBandwidth === null
      ? []
      : [`The bound is what the fastest rank copied when the run started, ${digits(copyBandwidth)} GB/s, in pieces of 1 MiB.`]),
  ];
  const missing = operations.some(({ boundBandwidth }) => boundBandwidth === null);
  if (!missing) return parts.join(' ');
  const how =
    'Links between hosts are timed as a run starts, unless SHOAL_CALIBRATION=assume, and by shoal tune, whose file SHOAL_TUNING_FILE names; memory, when a run whose ranks share it writes a trace.';
  return [...parts, `${parts.length === 0 ? 'This run has no measured bound.' : 'Some calls have no measured bound.'} ${how}`].join(' ');
}

function chartOf(operations: readonly ReportOperation[], styles: LineStyles): HTMLElement {
  const x = [...new Set(operations.map((each) => each.bytes))].sort((a, b) => a - b);
  const byWay = Map.groupBy(operations, ({ algorithm, path }) => [algorithm, path].filter((text) => text !== '').join(', ') || 'calls');
  const lines = [...byWay].map(([name, each]) => ({ name, values: x.map((size) => bestOf(each, size, 'busBandwidth')) }));
  const bound = { name: 'bound, measured', kind: 'bound' as const, values: x.map((size) => bestOf(operations, size, 'boundBandwidth')) };
  return lineChart(
    {
      x,
      xAxis: { label: 'bytes', format: bytes, ticks: x },
      yAxis: { label: 'bus bandwidth, GB/s', format: digits },
      lines: bound.values.every((value) => value === null) ? lines : [...lines, bound],
    },
    styles,
  );
}

/** The largest value among several places in the script. */
function bestOf(operations: readonly ReportOperation[], size: number, of: 'busBandwidth' | 'boundBandwidth'): number | null {
  const values = operations.filter((each) => each.bytes === size).flatMap((each) => each[of] ?? []);
  return values.length === 0 ? null : Math.max(...values);
}
