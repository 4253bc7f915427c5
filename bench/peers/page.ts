/** The page of a comparison: size against time, and a table, per case. Pure. */
import { formatBytes } from '../../src/base/settings/quantity.ts';
import type { Figure, FigurePage, FigureSeries } from '../../src/tools/chart/data/figure.ts';
import type { ComparedCase, Comparison, Standing } from './comparison.ts';

export function comparisonPage(comparison: Comparison): FigurePage {
  const { machine, rounds, commit, startedAt, reference } = comparison;
  const names = Object.keys(comparison.contestants);
  const missing = Object.entries(comparison.missing).map(([name, reason]) => [name, `was not measured: ${reason}`] as const);
  return {
    title: 'Shoal and its peers',
    about: [
      `${machine.processor}, ${machine.cpus} processors, ${machine.system}, Node ${machine.node}; load before: ${machine.loadBefore.toFixed(2)}; ${rounds} interleaved rounds; ${startedAt}; commit ${commit}`,
      `Time per operation in microseconds: median over rounds of each round's median on the slowest rank. In brackets: how many times as long as ${reference} in the same round. Less is better.`,
    ],
    names: [...names.map((name) => [name, comparison.contestants[name]] as const), ...missing],
    figures: comparison.cases.map((one) => figureOf(one, names)),
  };
}

function figureOf(one: ComparedCase, names: readonly string[]): Figure {
  const { sizes, bound } = one;
  const present = names.filter((name) => sizes.some(({ standings }) => standings.some(({ contestant }) => contestant === name)));
  const standingsOf = (name: string): (Standing | undefined)[] =>
    sizes.map(({ standings }) => standings.find(({ contestant }) => contestant === name));
  const measured = present.map((name) => ({ name, standings: standingsOf(name) }));
  const series: FigureSeries[] = measured.map(({ name, standings }) => ({
    name,
    values: standings.map((standing) => (standing !== undefined && standing.medianUs > 0 ? standing.medianUs : null)),
  }));
  const bounds = sizes.map(({ boundUs }) => (boundUs !== null && boundUs > 0 ? boundUs : null));
  const boundName = bounds.some((us) => us !== null) ? `${bound} bound` : undefined;
  if (boundName !== undefined) series.push({ name: boundName, values: bounds, kind: 'bound' });
  return {
    title: `${one.collective}, ${one.place}, ${one.ranks} ranks${one.buckets > 1 ? `, ${one.buckets} back to back` : ''}`,
    xLabel: 'size',
    xUnit: 'bytes',
    unit: 'µs',
    x: sizes.map(({ bytes }) => Math.max(1, bytes)),
    series,
    table: {
      head: ['size', ...present, ...(boundName === undefined ? [] : [boundName])],
      rows: sizes.map(({ bytes }, at) => [
        bytes < 1024 ? `${bytes} B` : formatBytes(bytes),
        ...measured.map(({ standings }) => cell(standings[at])),
        ...(boundName === undefined ? [] : [bounds[at] === null ? '' : formatUs(bounds[at])]),
      ]),
    },
    notes: Object.entries(one.skipped).map(([name, reason]) => `${name}: ${reason}`),
  };
}

function cell(standing: Standing | undefined): string {
  if (standing === undefined) return '';
  const { medianUs, ratio, wrong } = standing;
  const times = ratio === null || ratio === 1 ? '' : ` (${ratio < 100 ? ratio.toPrecision(2) : ratio.toFixed(0)})`;
  return `${formatUs(medianUs)}${times}${wrong > 0 ? `, ${wrong} wrong` : ''}`;
}

function formatUs(us: number): string {
  if (us >= 100) return Math.round(us).toLocaleString('en');
  return us >= 10 ? us.toFixed(1) : us.toFixed(2);
}
