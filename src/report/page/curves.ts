/** Curves of a run: losses over steps, counters over time. */
import { lineChart, type LineStyles } from '../../chart/page/line-chart.ts';
import { digits, number } from '../../chart/page/units.ts';
import type { ReportCounter, ReportCurve } from '../data/report-data.ts';

export function lossChart(curves: readonly ReportCurve[], styles: LineStyles): HTMLElement {
  const steps = [...new Set(curves.flatMap(({ points }) => points.map(([step]) => step)))].sort((a, b) => a - b);
  const lines = curves.map(({ name, points }) => {
    const at = new Map(points);
    return { name, values: steps.map((step) => at.get(step) ?? null) };
  });
  const xAxis = { label: 'step', format: number, scale: 'linear' as const };
  return lineChart({ x: steps, xAxis, yAxis: { label: 'loss, nats', format: digits, scale: 'linear' }, lines }, styles);
}

/** Counters of one name, a line per rank; seconds of the run. */
export function counterChart(counters: readonly ReportCounter[], styles: LineStyles): HTMLElement {
  const times = [...new Set(counters.flatMap((counter) => counter.times))].sort((a, b) => a - b);
  const lines = counters.map(({ rank, times: own, values }) => {
    const at = new Map(own.map((time, index) => [time, values[index]]));
    return { name: `rank ${rank}`, values: times.map((time) => at.get(time) ?? null) };
  });
  const x = times.map((time) => time / 1e6);
  const xAxis = { label: 'seconds', format: number, scale: 'linear' as const };
  return lineChart({ x, xAxis, yAxis: { label: counters[0].name, format: number, scale: 'linear' }, lines }, styles);
}
