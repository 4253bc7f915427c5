/** Matrices of waits and of bytes: a cell for each pair of ranks, or of groups of them, by host. */
import type { ReportData, ReportEnd } from '../data/report-data.ts';
import { element, section } from '../../chart/page/elements.ts';
import { bytes, duration, number } from '../../chart/page/units.ts';

/** Beyond, cells have no room for text: their colour says how much, and a title the number. */
const writtenMax = 12;
/** Characters of a host's name for which a small cell has room. */
const charactersPerCell = 1.5;

interface Matrix {
  readonly corner: string;
  readonly ends: readonly ReportEnd[];
  readonly values: readonly (readonly number[])[];
  readonly role: 'wait' | 'work';
  readonly format: (value: number) => string;
  readonly titleOf: (row: number, column: number) => string;
}

export function linkMatrix({ links, ends }: ReportData): HTMLElement[] {
  if (links === null) return [];
  const { withinHosts, betweenHosts, transfers } = links;
  const sent = `${bytes(withinHosts)} within hosts, ${bytes(betweenHosts)} between them: what collectives and messages have moved.`;
  const titleOf = (row: number, column: number): string =>
    `${called(ends[row])} → ${called(ends[column])}: ${bytes(links.bytes[row][column])} in ${number(transfers[row][column])} transfers`;
  const drawn = matrix({ corner: 'from ↓ to →', ends, values: links.bytes, role: 'work', format: bytes, titleOf });
  return [section('Links', element('p', { text: sent }), ...drawn)];
}

export function waitMatrix({ waits, ends }: ReportData): HTMLElement[] {
  if (waits.every((row) => row.every((us) => us === 0))) return [];
  const titleOf = (row: number, column: number): string =>
    `${called(ends[row])} waited for ${called(ends[column])}: ${duration(waits[row][column])}`;
  const drawn = matrix({ corner: 'waits ↓ for →', ends, values: waits, role: 'wait', format: duration, titleOf });
  return [section('Who waited for whom', ...drawn)];
}

function called({ name, host }: ReportEnd): string {
  return name === host ? host : `${name.includes('–') ? 'ranks' : 'rank'} ${name}`;
}

function matrix({ corner, ends, values, role, format, titleOf }: Matrix): HTMLElement[] {
  const most = values.reduce((max, row) => row.reduce((a, b) => Math.max(a, b), max), 0);
  const isWritten = ends.length <= writtenMax;
  // Two digits have room over a small cell.
  const isUpright = isWritten || ends.every(({ name }) => name.length <= 2);
  const isGrouped = new Set(ends.map(({ host }) => host)).size < ends.length;
  const isFirst = (at: number): boolean => isGrouped && at > 0 && ends[at].host !== ends[at - 1].host;
  const classOf = (row: number, column: number): string =>
    ['heat', ...(isFirst(row) ? ['down'] : []), ...(isFirst(column) ? ['right'] : [])].join(' ');
  const head = element('tr', {
    children: [
      element('th', { text: isWritten ? corner : '' }),
      ...ends.map(({ name }, column) =>
        element('th', { text: name, class: `${isUpright ? '' : 'turned'} ${isFirst(column) ? 'right' : ''}` }),
      ),
    ],
  });
  const rows = values.map((row, at) => {
    const cells = row.map((value, column) => {
      const cell = element('td', { class: classOf(at, column), ...(isWritten ? { text: value === 0 ? '·' : format(value) } : {}) });
      cell.title = titleOf(at, column);
      cell.style.background = `color-mix(in srgb, var(--${role}) ${shareOf(value, most, isWritten)}%, transparent)`;
      return cell;
    });
    return element('tr', { children: [element('th', { text: ends[at].name, class: isFirst(at) ? 'down' : '' }), ...cells] });
  });
  const table = element('table', {
    class: isWritten ? 'matrix' : 'matrix small',
    children: [...hostHead(ends, { isWritten }), head, ...rows],
  });
  const scroller = element('div', { class: 'scroll', children: [table] });
  scroller.tabIndex = 0;
  return [...(isWritten ? [] : [scale(`${corner}: nothing`, format(most), role)]), scroller];
}

/** Text must stay legible on cells that have some. */
function shareOf(value: number, most: number, isWritten: boolean): number {
  if (value === 0) return 0;
  return Math.round(isWritten ? (45 * value) / most : 12 + (88 * value) / most);
}

/** Hosts over their ranks, where ranks are shown. */
function hostHead(ends: readonly ReportEnd[], { isWritten }: { readonly isWritten: boolean }): HTMLElement[] {
  if (ends.every(({ name, host }) => name === host) || ends.every(({ host }) => host === ends[0].host)) return [];
  const runs: { host: string; count: number }[] = [];
  for (const { host } of ends) {
    const last = runs.at(-1);
    if (last?.host === host) last.count++;
    else runs.push({ host, count: 1 });
  }
  if (!isWritten && runs.some(({ host, count }) => host.length > charactersPerCell * count)) return [];
  const cells = runs.map(({ host, count }, at) => {
    const cell = element('th', { class: at > 0 ? 'host right' : 'host', children: [element('span', { text: host || 'unknown' })] });
    cell.colSpan = count;
    cell.title = host;
    return cell;
  });
  return [element('tr', { children: [element('th'), ...cells] })];
}

function scale(from: string, to: string, role: string): HTMLElement {
  const bar = element('span', { class: 'scale' });
  bar.style.background = `linear-gradient(90deg, transparent, var(--${role}))`;
  return element('p', { class: 'faint', children: [from, ' ', bar, ` ${to}`] });
}
