/** The report's page: from the data in it to what is seen. */
import type { ReportData, ReportOperation, ReportRank } from '../data/report-data.ts';
import { element, legend, section, shortTable, type Column } from '../../chart/page/elements.ts';
import { LineStyles } from '../../chart/page/line-chart.ts';
import { bytes, digits, duration, percent } from '../../chart/page/units.ts';
import { bandwidthSection } from './bandwidth.ts';
import { counterChart, lossChart } from './curves.ts';
import { graphTables } from './graph-tables.ts';
import { linkMatrix, waitMatrix } from './matrices.ts';
import { TimelineView, type SpanKind } from './timeline-view.ts';

/** Rows of the table of operations at first: those that took longest. The others come when they are asked for. */
const operationsShown = 25;
/** Rows of the table of ranks at first. Of more ranks, those that were waited for longest come first, and the others when they are asked
 *  for. */
const ranksShown = 32;
/** Counters in the section about memory. */
const memoryCounters = ['resident memory', 'registered memory'];
/** The meaning of the timeline's colours. */
const spanKinds: readonly (readonly [SpanKind, string])[] = [
  ['work', 'an operation at work'],
  ['wait', 'waiting for other ranks'],
  ['other', "a span of the program's own"],
  ['mark', 'an event without a duration'],
];
const operationColumns: readonly Column<ReportOperation>[] = [
  { title: 'operation', class: 'text', cell: ({ kind }) => kind },
  { title: 'called at', class: 'text', cell: ({ site }) => site },
  { title: 'calls', cell: ({ calls }) => String(calls) },
  { title: 'transfer', cell: ({ transferUs }) => duration(transferUs) },
  { title: 'wait', cell: ({ waitUs }) => duration(waitUs) },
  { title: 'bytes', cell: (each) => bytes(each.bytes) },
  { title: 'GB/s', cell: ({ algorithmBandwidth: rate }) => (rate < 0.001 ? '' : digits(rate)) },
  { title: 'bus GB/s', cell: ({ busBandwidth: rate }) => (rate < 0.001 ? '' : digits(rate)) },
  {
    title: 'of the bound',
    cell: ({ busBandwidth: rate, boundBandwidth: bound }) => (bound === null || rate === 0 ? '' : percent(rate / bound)),
  },
  { title: 'dtype', class: 'text', cell: ({ dtype }) => dtype },
  { title: 'algorithm', class: 'text', cell: ({ algorithm }) => algorithm },
  { title: 'path', class: 'text', cell: ({ path }) => path },
];
/** From one look to the next, while the run goes on. */
const pauseMs = 1000;

const page = document.querySelector<HTMLElement>('#page')!;
const styles = new LineStyles();

const written = JSON.parse(document.querySelector('#data')!.textContent) as ReportData;
const view = show(written);
if (page.dataset['live'] !== undefined) void follow(view);

/** @param before what was in sight of the timeline. @returns what is. */
function show(data: ReportData, before?: TimelineView): TimelineView | undefined {
  const view = data.ranks.length > 0 ? new TimelineView(data, before) : undefined;
  page.replaceChildren(header(data), ...failure(data), ...warnings(data));
  if (view !== undefined)
    page.append(
      figures(data),
      ...(data.advice === null ? [] : [element('p', { class: 'advice', text: data.advice })]),
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
async function follow(shown: TimelineView | undefined): Promise<void> {
  const state = element('p', { class: 'live', text: 'The run goes on, and this page follows it.' });
  page.before(state);
  for (let etag = ''; ;) {
    try {
      const answer = await fetch(`data${location.search}`, { headers: { 'If-None-Match': etag } });
      if (answer.status === 200) {
        etag = answer.headers.get('ETag') ?? '';
        shown = show((await answer.json()) as ReportData, shown);
      }
    } catch {
      state.textContent = 'The run is over, or its launcher is gone: this is what was seen last. Its folder has the whole page.';
      return;
    }
    await new Promise((resolve) => window.setTimeout(resolve, pauseMs));
  }
}

function header(data: ReportData): HTMLElement {
  const when = data.startedAt === null ? '' : new Date(data.startedAt).toLocaleString();
  return element('header', { children: [element('h1', { text: data.title }), element('p', { class: 'faint', text: when })] });
}

function failure(data: ReportData): HTMLElement[] {
  if (data.failure === null) return [];
  const { headline, lines } = data.failure;
  const more = lines.length === 0 ? [] : [element('pre', { text: lines.join('\n') })];
  return [element('div', { class: 'failure', children: [element('strong', { text: headline }), ...more] })];
}

function warnings(data: ReportData): HTMLElement[] {
  if (data.warnings.length === 0) return [];
  return [element('ul', { class: 'warnings', children: data.warnings.map((text) => element('li', { text })) })];
}

function figures(data: ReportData): HTMLElement {
  const { ranks, operations: kinds, durationUs, trainingStep: step } = data;
  const mean = (of: (rank: (typeof ranks)[number]) => number): number => ranks.reduce((sum, rank) => sum + of(rank), 0) / ranks.length;
  const share = (us: number): string => percent(durationUs === 0 ? 0 : us / durationUs);
  const hosts = new Set(ranks.map(({ host }) => host)).size;
  const ofStep: [string, string][] =
    step === null
      ? [
          [share(mean(({ communicatingUs }) => communicatingUs)), 'of the time in collectives'],
          [share(mean(({ waitingUs }) => waitingUs)), 'of the time waiting for others'],
        ]
      : [
          [duration(step.stepUs), `a step, from one ${step.calls} to the next`],
          [percent(step.communicating), 'of a step in collectives'],
          [percent(step.waiting), 'of a step waiting for others'],
        ];
  const shown: [string, string][] = [
    [String(ranks.length), ranks.length === 1 ? 'rank' : 'ranks'],
    [String(hosts), hosts === 1 ? 'host' : 'hosts'],
    [duration(durationUs), 'from first to last event'],
    [String(kinds.reduce((sum, { calls }) => sum + calls, 0)), 'collectives'],
    ...ofStep,
  ];
  return element('div', {
    class: 'figures',
    children: shown.map(([value, text]) => element('div', { children: [element('b', { text: value }), text] })),
  });
}

function timeline({ rows }: ReportData, view: TimelineView): HTMLElement {
  const { kinds } = view;
  const colours = legend(spanKinds.filter(([kind]) => kinds.has(kind)));
  const help = matchMedia('(hover: none), (max-width: 600px)').matches
    ? 'Drag to move, + and − to zoom, double tap to zoom to a span.'
    : 'Drag to move, ctrl and wheel to zoom, double click to zoom to a span.';
  const pale = 'Pale: how busy a row was, and how much of that was waiting, where spans are left out.';
  const isShortened = rows.some(({ density }) => density !== undefined);
  const text = isShortened ? `${help} ${pale}` : help;
  const whole = section('Timeline', colours, view.element, element('p', { class: 'faint', text }));
  view.draw();
  return whole;
}

function rankTable(data: ReportData): HTMLElement {
  const { ranks, durationUs, straggler } = data;
  const resident = data.counters.filter(({ name }) => name === memoryCounters[0]);
  const mostBytes = new Map(resident.map(({ rank, most }) => [rank, most]));
  const bar = (us: number, kind: string): HTMLElement => {
    const made = element('span', { class: `bar ${kind}` });
    made.style.width = `${Math.round((100 * us) / Math.max(1, durationUs))}px`;
    return made;
  };
  const columns: Column<ReportRank>[] = [
    { title: 'rank', cell: ({ rank }) => String(rank) },
    { title: 'waited for', cell: ({ waitedForUs }) => duration(waitedForUs) },
    { title: 'waits', cell: ({ waitingUs }) => duration(waitingUs) },
    { title: 'in collectives', cell: ({ communicatingUs }) => duration(communicatingUs) },
    {
      title: 'share of the run',
      class: 'text',
      cell: ({ communicatingUs: all, waitingUs: wait }) => element('span', { children: [bar(all - wait, 'work'), bar(wait, 'wait')] }),
    },
    { title: 'most memory', cell: ({ rank }) => (mostBytes.has(rank) ? bytes(mostBytes.get(rank)!) : '–') },
    { title: 'host', class: 'text', cell: ({ host }) => host },
    { title: 'process', cell: ({ pid }) => String(pid) },
  ];
  const known = mostBytes.size > 0 ? columns : columns.filter(({ title }) => title !== 'most memory');
  const waitedFor = ranks.map(({ waitedForUs }) => waitedForUs);
  const [least, most] = [Math.min(...waitedFor), Math.max(...waitedFor)];
  const note =
    straggler === null && most === 0
      ? 'No rank waited for another.'
      : straggler === null
        ? `No rank was waited for longer than the others together: ${duration(least)} to ${duration(most)} of all ranks' time.`
        : `Rank ${straggler.rank} was waited for longest: ${duration(straggler.waitedForUs)} of all ranks' time.`;
  const ordered = ranks.length <= ranksShown ? ranks : ranks.toSorted((a, b) => b.waitedForUs - a.waitedForUs || a.rank - b.rank);
  return section('Ranks', element('p', { text: note }), shortTable(known, ordered, ranksShown));
}

function operations(data: ReportData): HTMLElement[] {
  if (data.operations.length === 0) return [];
  const note = 'Medians over calls, of the slowest rank. GB/s: bytes of the operation by its transfer time.';
  const shown = shortTable(operationColumns, data.operations, operationsShown);
  return [section('Operations', element('p', { class: 'faint', text: note }), shown)];
}

function memory(data: ReportData): HTMLElement[] {
  const charts = memoryCounters.flatMap((name) => {
    const each = data.counters.filter((counter) => counter.name === name);
    return each.length === 0 ? [] : [counterChart(each, styles)];
  });
  if (charts.length === 0) return [];
  const note =
    "Resident: of the process, with what it has touched of others' shared memory. Registered: tensors, staging and control blocks that other ranks reach.";
  return [section('Memory', element('p', { class: 'faint', text: note }), ...charts)];
}

function counters(data: ReportData): HTMLElement[] {
  const byName = Map.groupBy(data.counters, ({ name }) => name);
  const others = [...byName].filter(([name]) => !memoryCounters.includes(name));
  return others.map(([name, each]) => section(name, counterChart(each, styles)));
}
