/** Tables about graphs: steps, requests for tensors, tensors. */
import type { ReportData, ReportReceive, ReportRequests, ReportSteps } from '../data/report-data.ts';
import { element, section, shortTable, table, type Column } from '../../chart/page/elements.ts';
import { bytes, digits, duration } from '../../chart/page/units.ts';

/** Rows of the table of tensors at first: those that took longest. The others come when they are asked for. */
const receivesShown = 25;

const stepColumns: readonly Column<ReportSteps>[] = [
  { title: 'rank', cell: ({ rank }) => String(rank) },
  { title: 'steps', cell: ({ steps }) => String(steps) },
  { title: 'median', cell: ({ stepUs }) => duration(stepUs) },
  { title: 'RPCs per step', cell: ({ requestsPerStep }) => digits(requestsPerStep) },
];
const requestColumns: readonly Column<ReportRequests>[] = [
  { title: 'rank', cell: ({ rank }) => String(rank) },
  { title: 'from', class: 'text', cell: ({ from }) => from },
  { title: 'request', class: 'text', cell: ({ method }) => method },
  { title: 'requests', cell: ({ requests }) => String(requests) },
  { title: 'tensors each', cell: ({ tensorsMean }) => digits(tensorsMean) },
  { title: 'at most', cell: ({ tensorsMost }) => String(tensorsMost) },
];
const receiveColumns: readonly Column<ReportReceive>[] = [
  { title: 'tensor', class: 'text', cell: ({ tensor }) => tensor },
  { title: 'from', class: 'text', cell: ({ from }) => from },
  { title: 'to', class: 'text', cell: ({ to }) => to },
  { title: 'receives', cell: ({ receives }) => String(receives) },
  { title: 'bytes', cell: (each) => bytes(each.bytes) },
  { title: 'wait', cell: ({ waitUs }) => duration(waitUs) },
  { title: 'held', cell: ({ heldUs }) => duration(heldUs) },
  { title: 'transfer', cell: ({ transferUs }) => duration(transferUs) },
];

export function graphTables({ steps, requests, receives }: ReportData): HTMLElement[] {
  if (steps.length + requests.length + receives.length === 0) return [];
  const note = 'Medians. Wait: until the tensor was there, at its sender; held: for those it is fused with; transfer: the rest.';
  return [
    section('Steps of graphs', table(stepColumns, steps)),
    section('Requests for tensors', table(requestColumns, requests)),
    section('Tensors', element('p', { class: 'faint', text: note }), shortTable(receiveColumns, receives, receivesShown)),
  ];
}
