/** Curves over steps and time, drawn by uPlot. */
import UPlot from 'uplot';
import type { ReportCounter, ReportCurve } from '../data/report-data.ts';
import { element } from './elements.ts';

const colours = ['#2f6fb0', '#d9a441', '#3f8f4f', '#8a3fb0', '#b5483b', '#5aa9a1'];

export function lossChart(curves: readonly ReportCurve[]): HTMLElement {
  const steps = [...new Set(curves.flatMap(({ points }) => points.map(([step]) => step)))].sort((a, b) => a - b);
  const lines = curves.map(({ name, points }) => {
    const at = new Map(points);
    return { name, values: steps.map((step) => at.get(step) ?? null) };
  });
  return chart({ x: steps, xLabel: 'step', yLabel: 'loss, nats', lines });
}

/** Counters of one name, a line per rank; seconds of the run. */
export function counterChart(counters: readonly ReportCounter[]): HTMLElement {
  const times = [...new Set(counters.flatMap((counter) => counter.times))].sort((a, b) => a - b);
  const lines = counters.map(({ rank, times: own, values }) => {
    const at = new Map(own.map((time, index) => [time, values[index]]));
    return { name: `rank ${rank}`, values: times.map((time) => at.get(time) ?? null) };
  });
  return chart({ x: times.map((time) => time / 1e6), xLabel: 's', yLabel: counters[0].name, lines });
}

interface ChartOptions {
  readonly x: number[];
  readonly xLabel: string;
  readonly yLabel: string;
  readonly lines: readonly { readonly name: string; readonly values: (number | null)[] }[];
}

function chart({ x, xLabel, yLabel, lines }: ChartOptions): HTMLElement {
  const place = element('div', { class: 'scroll' });
  const style = getComputedStyle(document.documentElement);
  const [faint, line] = ['--faint', '--line'].map((name) => style.getPropertyValue(name).trim());
  const axis = { stroke: faint, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 } };
  const options: UPlot.Options = {
    width: Math.min(760, document.documentElement.clientWidth - 32),
    height: 260,
    scales: { x: { time: false } },
    axes: [
      { ...axis, label: xLabel },
      { ...axis, label: yLabel, size: 64 },
    ],
    series: [
      { label: xLabel },
      ...lines.map(({ name }, at) => ({ label: name, stroke: colours[at % colours.length], width: 2, spanGaps: true, dash: dashOf(at) })),
    ],
  };
  void new UPlot(options, [x, ...lines.map(({ values }) => values)], place);
  return place;
}

/** Lines that lie over each other are told apart. */
function dashOf(at: number): number[] {
  return at % 3 === 0 ? [] : at % 3 === 1 ? [8, 4] : [2, 4];
}
