/** Tables about graphs: steps, requests for tensors, tensors. */
import type { ReportData, ReportReceive } from '../data/report-data.ts';
import { element, section, shortened, table } from '../../chart/page/elements.ts';
import { bytes, digits, duration } from '../../chart/page/units.ts';

/** Rows of the table of tensors at first: those that took longest. The others come when they are asked for. */
const receivesShown = 25;

export function graphTables({ steps, requests, receives }: ReportData): HTMLElement[] {
  if (steps.length + requests.length + receives.length === 0) return [];
  const stepTable = table(
    [{ title: 'rank' }, { title: 'steps' }, { title: 'median' }, { title: 'RPCs per step' }],
    steps.map((each) => [String(each.rank), String(each.steps), duration(each.stepUs), digits(each.requestsPerStep)]),
  );
  const requestTable = table(
    [
      { title: 'rank' },
      { title: 'from', isText: true },
      { title: 'request', isText: true },
      { title: 'requests' },
      { title: 'tensors each' },
      { title: 'at most' },
    ],
    requests.map((each) => [
      String(each.rank),
      each.from,
      each.method,
      String(each.requests),
      digits(each.tensorsMean),
      String(each.tensorsMost),
    ]),
  );
  const note = 'Medians. Wait: until the tensor was there, at its sender; held: for those it is fused with; transfer: the rest.';
  return [
    section('Steps of graphs', stepTable),
    section('Requests for tensors', requestTable),
    section('Tensors', element('p', { class: 'faint', text: note }), receiveTable(receives)),
  ];
}

function receiveTable(receives: readonly ReportReceive[]): HTMLElement {
  const columns = [
    { title: 'tensor', isText: true },
    { title: 'from', isText: true },
    { title: 'to', isText: true },
    { title: 'receives' },
    { title: 'bytes' },
    { title: 'wait' },
    { title: 'held' },
    { title: 'transfer' },
  ];
  const rowOf = (each: ReportReceive): string[] => [
    each.tensor,
    each.from,
    each.to,
    String(each.receives),
    bytes(each.bytes),
    duration(each.waitUs),
    duration(each.heldUs),
    duration(each.transferUs),
  ];
  return shortened(receives.length, receivesShown, (count) => table(columns, receives.slice(0, count).map(rowOf)));
}
