/** Curves of a run: losses over steps, counters over time. */
import { lineChart, type LineStyles } from '../../chart/page/line-chart.ts';
import { element } from '../../chart/page/elements.ts';
import { bytes, digits, number } from '../../chart/page/units.ts';
import type { ReportCounter, ReportCurve } from '../data/report-data.ts';

/** Beyond, a chart shows the most, the middle one and the least of the ranks. */
const ranksMax = 8;
/** Moments of such a chart. */
const momentsMax = 300;

export function lossChart(curves: readonly ReportCurve[], styles: LineStyles): HTMLElement {
  const steps = [...new Set(curves.flatMap(({ points }) => points.map(([step]) => step)))].sort((a, b) => a - b);
  const lines = curves.map(({ name, points }) => {
    const at = new Map(points);
    return { name, values: steps.map((step) => at.get(step) ?? null) };
  });
  const xAxis = { label: 'step', format: number, scale: 'linear' as const };
  return lineChart({ x: steps, xAxis, yAxis: { label: 'loss, nats', format: digits, scale: 'linear' }, lines }, styles);
}

/** Counters of one name, a line per rank, or what is most, least and between of many; seconds of the run. */
export function counterChart(counters: readonly ReportCounter[], styles: LineStyles): HTMLElement {
  const isMany = counters.length > ranksMax;
  const all = [...new Set(counters.flatMap(({ times }) => times))].sort((a, b) => a - b);
  const moments = isMany ? everyOf(all, momentsMax) : all;
  const columns = counters.map((counter) => held(counter, moments));
  const lines = isMany ? summaryOf(columns, moments.length) : columns.map((values, at) => ({ name: `rank ${counters[at].rank}`, values }));
  const [{ name, unit }] = counters;
  const xAxis = { label: 'seconds', format: number, scale: 'linear' as const };
  const yAxis = {
    label: name,
    format: unit === 'bytes' ? bytes : number,
    scale: 'linear' as const,
    isBytes: unit === 'bytes',
    isFromZero: true,
  };
  const chart = lineChart({ x: moments.map((time) => time / 1e6), xAxis, yAxis, lines }, styles);
  if (!isMany) return chart;
  return element('div', { children: [element('p', { class: 'faint', text: `Of ${counters.length} ranks, at each moment.` }), chart] });
}

/** The value of the counter at each of the moments; null before its first value. */
function held({ times, values }: ReportCounter, moments: readonly number[]): (number | null)[] {
  let next = 0;
  return moments.map((moment) => {
    while (next < times.length && times[next] <= moment) next++;
    return next === 0 ? null : values[next - 1];
  });
}

function summaryOf(columns: readonly (readonly (number | null)[])[], count: number): { name: string; values: (number | null)[] }[] {
  const rows = Array.from({ length: count }, (_, at) => columns.flatMap((values) => values[at] ?? []).sort((a, b) => a - b));
  const pick = (share: number): (number | null)[] => rows.map((row) => row.at(Math.round(share * (row.length - 1))) ?? null);
  return [
    { name: 'most', values: pick(1) },
    { name: 'median', values: pick(0.5) },
    { name: 'least', values: pick(0) },
  ];
}

function everyOf(moments: readonly number[], count: number): number[] {
  const every = Math.ceil(moments.length / count);
  return moments.filter((_, at) => at % every === every - 1 || at === moments.length - 1);
}
