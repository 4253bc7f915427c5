/** A comparison as one self-contained HTML page: a log-log plot and a table per case. Pure. */
import { formatBytes } from '../../src/base/settings/quantity.ts';
import type { ComparedCase, Comparison, Standing } from './comparison.ts';

const width = 720;
const height = 380;
const margin = { left: 64, right: 16, top: 16, bottom: 44 };
const colours = ['#0b6e99', '#5aa9c9', '#8a63d2', '#d9730d', '#448361', '#c14c8a'];
const boundColour = '#999';

export function formatPage(comparison: Comparison): string {
  const { machine, rounds, commit, startedAt } = comparison;
  const names = Object.keys(comparison.contestants);
  const about = `${machine.processor}, ${machine.cpus} processors, ${machine.system}, Node ${machine.node}; load before: ${machine.loadBefore.toFixed(2)}; ${rounds} interleaved rounds; ${startedAt}; commit ${commit}`;
  const missing = Object.entries(comparison.missing).map(
    ([name, reason]) => `<li>${escape(name)} was not measured: ${escape(reason)}</li>`,
  );
  return `<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Shoal and its peers</title><style>
body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222}
table{border-collapse:collapse;margin:1rem 0 3rem}td,th{padding:.2rem .7rem;text-align:right;border-bottom:1px solid #ddd;font-variant-numeric:tabular-nums}
th:first-child,td:first-child{text-align:left}small{color:#666}svg text{font:11px system-ui,sans-serif;fill:#555}
</style></head><body><h1>Shoal and its peers</h1><p>${escape(about)}</p>
<p>Time per operation in microseconds: median over rounds of each round's median on the slowest rank. In brackets: how many times as long as
${escape(comparison.reference)} in the same round. Less is better.</p>
<ul>${names.map((name) => `<li><b style="color:${colourOf(names, name)}">${escape(name)}</b>: ${escape(comparison.contestants[name])}</li>`).join('')}${missing.join('')}</ul>
${comparison.cases.map((one) => section(one, names)).join('\n')}
</body></html>
`;
}

function section(one: ComparedCase, names: readonly string[]): string {
  const present = names.filter((name) => one.sizes.some(({ standings }) => standings.some(({ contestant }) => contestant === name)));
  const bounded = one.sizes.some(({ boundUs }) => boundUs !== null);
  const head = ['size', ...present, ...(bounded ? [`${one.bound} bound`] : [])].map((cell) => `<th>${escape(cell)}</th>`).join('');
  const rows = one.sizes.map(({ bytes, standings, boundUs }) => {
    const cells = present.map((name) => cell(standings.find(({ contestant }) => contestant === name)));
    return `<tr><td>${bytes < 1024 ? `${bytes} B` : formatBytes(bytes)}</td>${cells.join('')}${bounded ? `<td>${boundUs === null ? '' : formatUs(boundUs)}</td>` : ''}</tr>`;
  });
  const notes = Object.entries(one.skipped).map(([name, reason]) => `<p><small>${escape(name)}: ${escape(reason)}</small></p>`);
  return `<h2>${escape(one.collective)}, ${escape(one.place)}, ${one.ranks} ranks${one.buckets > 1 ? `, ${one.buckets} back to back` : ''}</h2>
${plot(one, names)}
<table><tr>${head}</tr>${rows.join('')}</table>${notes.join('')}`;
}

function cell(standing: Standing | undefined): string {
  if (standing === undefined) return '<td></td>';
  const { medianUs, ratio, wrong } = standing;
  const text =
    ratio === null || ratio === 1
      ? formatUs(medianUs)
      : `${formatUs(medianUs)} <small>(${ratio < 100 ? ratio.toPrecision(2) : ratio.toFixed(0)})</small>`;
  return `<td>${text}${wrong > 0 ? ` <b>${wrong} wrong</b>` : ''}</td>`;
}

/** Size against time, both logarithmic. */
function plot({ sizes }: ComparedCase, names: readonly string[]): string {
  const times = sizes.flatMap(({ standings, boundUs }) => [
    ...standings.map(({ medianUs }) => medianUs),
    ...(boundUs === null ? [] : [boundUs]),
  ]);
  const positive = times.filter((us) => us > 0);
  if (positive.length === 0) return '';
  const x = scale(
    sizes.map(({ bytes }) => Math.max(1, bytes)),
    [margin.left, width - margin.right],
  );
  const y = scale(positive, [height - margin.bottom, margin.top]);
  const line = (colour: string, points: readonly (readonly [number, number])[], dashes = ''): string => {
    const path = points.map(([bytes, us]) => `${x.at(Math.max(1, bytes)).toFixed(1)},${y.at(us).toFixed(1)}`);
    const dots = path.map((at) => `<circle cx="${at.split(',')[0]}" cy="${at.split(',')[1]}" r="3" fill="${colour}"/>`);
    return `<polyline fill="none" stroke="${colour}" stroke-width="2"${dashes} points="${path.join(' ')}"/>${dots.join('')}`;
  };
  const lines = names.map((name) => {
    const points = sizes.flatMap(({ bytes, standings }) =>
      standings.filter(({ contestant, medianUs }) => contestant === name && medianUs > 0).map(({ medianUs }) => [bytes, medianUs] as const),
    );
    return points.length === 0 ? '' : line(colourOf(names, name), points);
  });
  const bound = sizes.flatMap(({ bytes, boundUs }) => (boundUs === null || boundUs <= 0 ? [] : [[bytes, boundUs] as const]));
  const grid = y.ticks.map((us) => {
    const at = y.at(us).toFixed(1);
    return `<line x1="${margin.left}" x2="${width - margin.right}" y1="${at}" y2="${at}" stroke="#eee"/><text x="${margin.left - 8}" y="${at}" dy="4" text-anchor="end">${formatUs(us)}</text>`;
  });
  const labels = sizes.map(
    ({ bytes }) =>
      `<text x="${x.at(Math.max(1, bytes)).toFixed(1)}" y="${height - margin.bottom + 18}" text-anchor="middle">${formatBytes(bytes)}</text>`,
  );
  return `<svg viewBox="0 0 ${width} ${height}" width="${width}" role="img" aria-label="time by size">${grid.join('')}${labels.join('')}
<text x="${width / 2}" y="${height - 6}" text-anchor="middle">bytes</text><text x="12" y="${margin.top + 4}">µs</text>
${bound.length === 0 ? '' : line(boundColour, bound, ' stroke-dasharray="4 4"')}${lines.join('\n')}</svg>`;
}

interface Scale {
  at(value: number): number;
  /** Powers of ten within the range. */
  readonly ticks: readonly number[];
}

function scale(values: readonly number[], [from, to]: readonly [number, number]): Scale {
  const least = Math.log10(Math.min(...values));
  const most = Math.log10(Math.max(...values));
  // A single value lies in the middle.
  const [low, high] = most > least ? [least, most] : [least - 1, most + 1];
  const ticks = Array.from({ length: Math.max(0, Math.floor(high) - Math.ceil(low) + 1) }, (_, i) => 10 ** (Math.ceil(low) + i));
  return { at: (value) => from + ((Math.log10(value) - low) / (high - low)) * (to - from), ticks };
}

function colourOf(names: readonly string[], name: string): string {
  return colours[names.indexOf(name) % colours.length];
}

function formatUs(us: number): string {
  if (us >= 100) return Math.round(us).toLocaleString('en');
  return us >= 10 ? us.toFixed(1) : us.toFixed(2);
}

function escape(text: string): string {
  return text.replaceAll('&', '&amp;').replaceAll('<', '&lt;').replaceAll('>', '&gt;').replaceAll('"', '&quot;');
}
