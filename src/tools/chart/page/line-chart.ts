/** Curves over numbers, drawn by uPlot: all pages draw them here. Hovering shows the values of all curves below the chart. Labels
 *  are never cut off: axes are as wide as their labels, and a label that would touch the one before it is left out. */
import UPlot from 'uplot';
import type { FigureSeries } from '../data/figure.ts';
import { seriesColours } from '../data/palette.ts';
import { element } from './elements.ts';

export interface Axis {
  readonly label: string;
  /** Formats numbers for people. */
  readonly format: (value: number) => string;
  /** The ticks. Default: round ones. */
  readonly ticks?: readonly number[];
  /** `auto` (default): logarithmic where numbers are positive and the largest is many times the least. */
  readonly scale?: 'auto' | 'linear';
  /** True for ticks that are round in binary units. */
  readonly isBytes?: boolean;
  /** True for a linear axis that begins at zero, however far that is. */
  readonly isFromZero?: boolean;
}

export interface LineChart {
  readonly x: readonly number[];
  readonly xAxis: Axis;
  readonly yAxis: Axis;
  readonly lines: readonly FigureSeries[];
}

const height = 300;
const font = '12px system-ui, sans-serif';
/** Most points of a curve that are marked one by one. */
const markedMax = 40;
/** Ratio of the largest number to the least from which a scale is logarithmic. */
const logarithmicFrom = 8;
const dashes = [[], [9, 4], [3, 3], [12, 3, 3, 3]] as const;

/** Assigns colours and dashes to names, the same on the whole page. */
export class LineStyles {
  readonly #places = new Map<string, number>();

  colourOf({ name, kind, of }: FigureSeries): string {
    return kind === 'bound' ? 'bound' : `series-${this.#placeOf(of ?? name) % seriesColours}`;
  }

  dashOf({ name, kind, of }: FigureSeries): number[] {
    const base = kind === 'bound' ? 2 : this.#placeOf(of ?? name);
    return [...dashes[(base + (of === undefined ? 0 : 2)) % dashes.length]];
  }

  #placeOf(name: string): number {
    const place = this.#places.get(name) ?? this.#places.size;
    this.#places.set(name, place);
    return place;
  }
}

export function lineChart({ x, xAxis, yAxis, lines }: LineChart, styles = new LineStyles()): HTMLElement {
  const place = element('div', { class: 'chart' });
  const drawn = lines.map((line) => ({ ...line, name: nameOf(line, lines), role: styles.colourOf(line), dash: styles.dashOf(line) }));
  const present = lines.flatMap(({ values }) => values.filter((value) => value !== null));
  const [isLogX, isLogY] = [isLogarithmic(xAxis, x), isLogarithmic(yAxis, present)];
  const options: UPlot.Options = {
    width: 300,
    height,
    padding: [14, 32, 0, 0],
    scales: { x: { time: false, ...scaleOf(xAxis, isLogX) }, y: scaleOf(yAxis, isLogY) },
    axes: [axisOf(xAxis, { isX: true, isLog: isLogX }), axisOf(yAxis, { isX: false, isLog: isLogY })],
    cursor: { focus: { prox: 30 }, points: { size: 8 }, drag: { x: false, y: false } },
    focus: { alpha: 0.35 },
    legend: { markers: { width: 3, dash: (_, at) => (drawn[at - 1]?.dash.length ? 'dashed' : 'solid') } },
    series: [
      { label: xAxis.label, value: (_, value) => (value == null ? '–' : xAxis.format(value)) },
      ...drawn.map(({ name, role, dash }) => ({
        label: name,
        stroke: () => colour(role),
        width: 2,
        spanGaps: true,
        dash,
        points: { show: x.length <= markedMax, size: 6, stroke: () => colour(role), fill: () => colour(role) },
        value: (_: UPlot, value: number | null) => (value == null ? '–' : yAxis.format(value)),
      })),
    ],
  };
  const chart = new UPlot(options, [[...x], ...drawn.map(({ values }) => [...values])], place);
  chart.root.setAttribute('role', 'img');
  chart.root.setAttribute('aria-label', `${yAxis.label} by ${xAxis.label}`);
  new ResizeObserver(() => chart.setSize({ width: Math.max(200, Math.floor(place.clientWidth)), height })).observe(place);
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => chart.redraw(false, true));
  return place;
}

/** The name of a line; that of a line that lies on another one says so. */
function nameOf(line: FigureSeries, lines: readonly FigureSeries[]): string {
  const twin = lines.slice(0, lines.indexOf(line)).find(({ values }) => values.every((value, at) => value === line.values[at]));
  return twin === undefined || line.values.every((value) => value === null) ? line.name : `${line.name} (lies on ${twin.name})`;
}

function isLogarithmic({ scale = 'auto' }: Axis, values: readonly number[]): boolean {
  const [least, most] = [Math.min(...values), Math.max(...values)];
  return scale === 'auto' && least > 0 && most / least >= logarithmicFrom;
}

function scaleOf({ isFromZero = false }: Axis, isLog: boolean): UPlot.Scale {
  if (isLog) return { distr: 3, range: (_, from, to) => [from / 1.2, to * 1.2] };
  return { range: (_, from, to) => linearRange(isFromZero ? Math.min(0, from) : from, to) };
}

/** A range that begins at zero if that is near. */
function linearRange(from: number, to: number): [number, number] {
  if (!Number.isFinite(from) || !Number.isFinite(to)) return [0, 1];
  if (from === to) return from === 0 ? [0, 1] : [Math.min(0, from * 2), Math.max(0, to * 2)];
  const room = (to - from) * 0.08;
  return [from >= 0 && from < (to - from) * 2 ? 0 : from - room, to + room];
}

function axisOf(
  { label, format, ticks, isBytes = false }: Axis,
  { isX, isLog }: { readonly isX: boolean; readonly isLog: boolean },
): UPlot.Axis {
  const grid = { stroke: () => colour('line'), width: 1 };
  return {
    label,
    font,
    labelFont: font,
    labelSize: 20,
    gap: 4,
    stroke: () => colour('faint'),
    grid,
    ticks: grid,
    space: isX ? 70 : 32,
    filter: (_, splits) => splits,
    values: (chart, splits) => (isX ? apart(chart, splits, format) : splits.map(format)),
    ...(isX ? { size: 30 } : { size: (_: UPlot, labels: string[] | null) => Math.max(28, ...(labels ?? []).map(widthOf)) + 20 }),
    ...splitsOf({ ticks, isLog, isBytes }),
  };
}

function splitsOf({ ticks, isLog, isBytes }: { ticks: Axis['ticks']; isLog: boolean; isBytes: boolean }): Pick<UPlot.Axis, 'splits'> {
  if (ticks !== undefined) return { splits: () => [...ticks] };
  if (isLog) return { splits: (_, __, from, to) => logarithmicTicks(from, to) };
  return isBytes ? { splits: (_, __, from, to) => byteTicks(from, to) } : {};
}

/** Some five ticks; steps are 1, 2, 4, … of a unit. */
function byteTicks(from: number, to: number): number[] {
  const step = 2 ** Math.max(0, Math.ceil(Math.log2((to - from) / 6)));
  const first = Math.ceil(from / step);
  return Array.from({ length: Math.floor(to / step) - first + 1 }, (_, at) => (first + at) * step);
}

/** The labels that have room beside the one before; null for the others. */
function apart(chart: UPlot, splits: readonly number[], format: (value: number) => string): (string | null)[] {
  let end = -Infinity;
  return splits.map((value) => {
    const text = format(value);
    const [middle, half] = [chart.valToPos(value, 'x'), widthOf(text) / 2];
    if (!(middle - half >= end + 8)) return null;
    end = middle + half;
    return text;
  });
}

/** Ticks at 1, 2, 5, 10, …; over many decades only at their beginnings. */
export function logarithmicTicks(from: number, to: number): number[] {
  const steps = Math.log10(to / from) > 2.5 ? [1] : [1, 2, 5];
  const ticks: number[] = [];
  for (let decade = Math.floor(Math.log10(from)); decade <= Math.log10(to); decade++)
    for (const step of steps) {
      const value = Number((step * 10 ** decade).toPrecision(1));
      if (value >= from && value <= to) ticks.push(value);
    }
  return ticks;
}

const measure = document.createElement('canvas').getContext('2d')!;

function widthOf(text: string): number {
  measure.font = font;
  return measure.measureText(text).width;
}

function colour(role: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${role}`).trim();
}
