/** The page of figures: curves, explanations of their names, and the numbers. */
import type { Figure, FigurePage } from '../data/figure.ts';
import { element, section, table } from './elements.ts';
import { lineChart, LineStyles } from './line-chart.ts';
import { bytes, number } from './units.ts';

const data = JSON.parse(document.querySelector('#data')!.textContent) as FigurePage;
const page = document.querySelector('#page')!;
const styles = new LineStyles();

page.append(element('header', { children: [element('h1', { text: data.title })] }));
page.append(...(data.about ?? []).map((text) => element('p', { text })));
if (data.names !== undefined) page.append(names(data.names));
for (const figure of data.figures) page.append(drawn(figure));

function names(all: NonNullable<FigurePage['names']>): HTMLElement {
  const each = all.map(([name, text]) => element('li', { children: [element('b', { text: name }), `: ${text}`] }));
  return element('ul', { children: each });
}

function drawn(figure: Figure): HTMLElement {
  const { title, x, xLabel, xUnit, unit = 'ms', series, notes = [] } = figure;
  const xFormat = xUnit === 'bytes' ? bytes : number;
  const chart = lineChart(
    { x, xAxis: { label: xLabel, format: xFormat, ticks: x }, yAxis: { label: unit, format: number }, lines: series },
    styles,
  );
  const hasValues = series.some(({ values }) => values.some((value) => value !== null));
  return section(title, ...(hasValues ? [chart] : []), tableOf(figure), ...notes.map((text) => element('p', { class: 'faint', text })));
}

function tableOf({ x, xLabel, xUnit, unit = 'ms', series, table: given }: Figure): HTMLElement {
  const { head, rows } = given ?? {
    head: [xLabel, ...series.map(({ name }) => `${name}, ${unit}`)],
    rows: x.map((value, at) => [
      xUnit === 'bytes' ? bytes(value) : String(value),
      ...series.map(({ values }) => (values[at] === null ? '' : values[at].toPrecision(4))),
    ]),
  };
  return table<readonly string[]>(
    head.map((title, at) => ({ title, cell: (row) => row[at] })),
    rows,
  );
}
