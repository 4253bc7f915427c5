import { element, legend, section, shortened, table } from '../../chart/page/elements.ts';
import { LineStyles } from '../../chart/page/line-chart.ts';
import { bytes, digits, duration, percent } from '../../chart/page/units.ts';
import { bandwidthSection } from './bandwidth.ts';
import { counterChart, lossChart } from './curves.ts';
import { graphTables } from './graph-tables.ts';
import { linkMatrix, waitMatrix } from './matrices.ts';
import { TimelineView } from './timeline-view.ts';
/** Of the table of operations: those that took longest. The others come when they are asked for. */
const operationsShown = 25;
/** Of the table of ranks: beyond, those that were waited for longest come first, and the others when they are asked for. */
const ranksShown = 32;
/** In the section about memory. */
const memoryCounters = ['resident memory', 'registered memory'];
/** From one look to the next, while the run goes on. */
const pauseMs = 1000;
const page = document.querySelector('#page');
const styles = new LineStyles();
const written = JSON.parse(document.querySelector('#data').textContent);
const view = show(written);
if (page.dataset['live'] !== undefined) void follow(view);
/** @param before what was in sight of the timeline. @returns what is. */
function show(data, before) {
  const view = data.ranks.length > 0 ? new TimelineView(data, before) : undefined;
  page.replaceChildren(header(data), ...failure(data), ...warnings(data));
  if (view !== undefined)
    page.append(
      figures(data),
      timeline(data, view),
      rankTable(data),
      ...waitMatrix(data),
      ...linkMatrix(data),
      ...operations(data),
      ...bandwidthSection(data, styles),
      ...graphTables(data),
    );
  if (data.losses.length > 0) page.append(section('Loss', lossChart(data.losses, styles)));
  page.append(...memory(data), ...counters(data));
  return view;
}
/** While the run goes on: what is new. */
async function follow(shown) {
  const state = element('p', { class: 'live', text: 'The run goes on, and this page follows it.' });
  page.before(state);
  for (let etag = ''; ;) {
    try {
      const answer = await fetch(`data${location.search}`, { headers: { 'If-None-Match': etag } });
      if (answer.status === 200) {
        etag = answer.headers.get('ETag') ?? '';
        shown = show(await answer.json(), shown);
      }
    } catch {
      state.textContent = 'The run is over, or its launcher is gone: this is what was seen last. Its folder has the whole page.';
      return;
    }
    await new Promise((resolve) => window.setTimeout(resolve, pauseMs));
  }
}
function header(data) {
  const when = data.startedAt === null ? '' : new Date(data.startedAt).toLocaleString();
  return element('header', { children: [element('h1', { text: data.title }), element('p', { class: 'faint', text: when })] });
}
function failure(data) {
  if (data.failure === null) return [];
  const { headline, lines } = data.failure;
  const more = lines.length === 0 ? [] : [element('pre', { text: lines.join('\n') })];
  return [element('div', { class: 'failure', children: [element('strong', { text: headline }), ...more] })];
}
function warnings(data) {
  if (data.warnings.length === 0) return [];
  return [element('ul', { class: 'warnings', children: data.warnings.map((text) => element('li', { text })) })];
}
function figures(data) {
  const { ranks, operations: kinds, durationUs } = data;
  const mean = (of) => ranks.reduce((sum, rank) => sum + of(rank), 0) / ranks.length;
  const share = (us) => percent(durationUs === 0 ? 0 : us / durationUs);
  const hosts = new Set(ranks.map(({ host }) => host)).size;
  const shown = [
    [String(ranks.length), ranks.length === 1 ? 'rank' : 'ranks'],
    [String(hosts), hosts === 1 ? 'host' : 'hosts'],
    [duration(durationUs), 'from first to last event'],
    [String(kinds.reduce((sum, { calls }) => sum + calls, 0)), 'collectives'],
    [share(mean(({ communicatingUs }) => communicatingUs)), 'of the time in collectives'],
    [share(mean(({ waitingUs }) => waitingUs)), 'of the time waiting for others'],
  ];
  return element('div', {
    class: 'figures',
    children: shown.map(([value, text]) => element('div', { children: [element('b', { text: value }), text] })),
  });
}
function timeline({ rows }, view) {
  const colours = legend([
    ['work', 'an operation at work'],
    ['wait', 'waiting for other ranks'],
    ['other', 'something else'],
    ['mark', 'a moment'],
  ]);
  const help = 'Drag to move, ctrl and wheel to zoom, double click to zoom to a span.';
  const pale = 'Pale: how busy a row was, and how much of that was waiting, where spans are left out.';
  const isShortened = rows.some(({ density }) => density !== undefined);
  const text = isShortened ? `${help} ${pale}` : help;
  const whole = section('Timeline', colours, view.element, element('p', { class: 'faint', text }));
  view.draw();
  return whole;
}
function rankTable(data) {
  const { ranks, durationUs } = data;
  const resident = data.counters.filter(({ name }) => name === memoryCounters[0]);
  const mostBytes = new Map(resident.map(({ rank, most }) => [rank, most]));
  const bar = (us, kind) => {
    const made = element('span', { class: `bar ${kind}` });
    made.style.width = `${Math.round((160 * us) / Math.max(1, durationUs))}px`;
    return made;
  };
  const columns = [
    { title: 'rank' },
    { title: 'host', isText: true },
    { title: 'process' },
    { title: 'in collectives' },
    { title: 'of it waiting' },
    { title: 'share of the run', isText: true },
    { title: 'others waited for it' },
    ...(mostBytes.size === 0 ? [] : [{ title: 'most memory' }]),
  ];
  const rowOf = (rank) => [
    String(rank.rank),
    rank.host,
    String(rank.pid),
    duration(rank.communicatingUs),
    duration(rank.waitingUs),
    element('span', { children: [bar(rank.communicatingUs - rank.waitingUs, 'work'), bar(rank.waitingUs, 'wait')] }),
    duration(rank.waitedForUs),
    ...(mostBytes.size === 0 ? [] : [mostBytes.has(rank.rank) ? bytes(mostBytes.get(rank.rank)) : '–']),
  ];
  const slowest = ranks.reduce((a, b) => (b.waitedForUs > a.waitedForUs ? b : a), ranks[0]);
  const note =
    slowest.waitedForUs === 0
      ? 'No rank waited for another.'
      : `Rank ${slowest.rank} was waited for longest: ${duration(slowest.waitedForUs)} of all ranks' time.`;
  const ordered = ranks.length <= ranksShown ? ranks : ranks.toSorted((a, b) => b.waitedForUs - a.waitedForUs || a.rank - b.rank);
  const rows = (count) => table(columns, ordered.slice(0, count).map(rowOf));
  return section('Ranks', element('p', { text: note }), shortened(ranks.length, ranksShown, rows));
}
function operations(data) {
  if (data.operations.length === 0) return [];
  const columns = [
    { title: 'operation', isText: true },
    { title: 'bytes' },
    { title: 'dtype', isText: true },
    { title: 'algorithm', isText: true },
    { title: 'path', isText: true },
    { title: 'called at', isText: true },
    { title: 'calls' },
    { title: 'transfer' },
    { title: 'wait' },
    { title: 'GB/s' },
    { title: 'bus GB/s' },
    { title: 'of the bound' },
  ];
  const rowOf = (each) => [
    each.kind,
    bytes(each.bytes),
    each.dtype,
    each.algorithm,
    each.path,
    each.site,
    String(each.calls),
    duration(each.transferUs),
    duration(each.waitUs),
    each.algorithmBandwidth < 0.001 ? '' : digits(each.algorithmBandwidth),
    each.busBandwidth < 0.001 ? '' : digits(each.busBandwidth),
    each.boundBandwidth === null || each.busBandwidth === 0 ? '' : percent(each.busBandwidth / each.boundBandwidth),
  ];
  const note = 'Medians over calls, of the slowest rank. GB/s: bytes of the operation by its transfer time.';
  const rows = (count) => table(columns, data.operations.slice(0, count).map(rowOf));
  return [section('Operations', element('p', { class: 'faint', text: note }), shortened(data.operations.length, operationsShown, rows))];
}
function memory(data) {
  const charts = memoryCounters.flatMap((name) => {
    const each = data.counters.filter((counter) => counter.name === name);
    return each.length === 0 ? [] : [counterChart(each, styles)];
  });
  if (charts.length === 0) return [];
  const note =
    "Resident: of the process, with what it has touched of others' shared memory. Registered: tensors, staging and control blocks that other ranks reach.";
  return [section('Memory', element('p', { class: 'faint', text: note }), ...charts)];
}
function counters(data) {
  const byName = Map.groupBy(data.counters, ({ name }) => name);
  const others = [...byName].filter(([name]) => !memoryCounters.includes(name));
  return others.map(([name, each]) => section(name, counterChart(each, styles)));
}
