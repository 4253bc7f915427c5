/** Facts about the steps of graphs, gathered from traces: requests per step, tensors per request, and each tensor's wait at its sender and
 *  time on the way. */
import { median, sum } from '../../base/numbers.ts';
import type { ChromeEvent } from '../../trace/chrome.ts';
import type { ReportData, ReportReceive, ReportRequests, ReportSteps } from './data/report-data.ts';
import { groupBy } from '../../base/collections/lists.ts';
import { numberOf, textOf } from './span-argument.ts';

/** Rows of the table at most: those that took longest. */
const receivesMax = 500;

/** @param spans of graphs, of all ranks. */
export function receivesOf(spans: readonly ChromeEvent[]): Pick<ReportData, 'steps' | 'requests' | 'receives'> {
  const called = (verb: string): ChromeEvent[] => spans.filter(({ name }) => name.startsWith(`${verb} `));
  return {
    steps: stepsOf(spans.filter(({ name }) => name === 'step')),
    requests: requestsOf(spans.filter((span) => numberOf(span, 'tensors') !== undefined)),
    receives: tensorsOf(called('recv'), called('wait')),
  };
}

function stepsOf(spans: readonly ChromeEvent[]): ReportSteps[] {
  return [...groupBy(spans, ({ pid }) => pid)].map(([rank, own]) => ({
    rank,
    steps: own.length,
    stepUs: median(own.map(({ dur = 0 }) => dur)),
    requestsPerStep: sum(own.map((span) => numberOf(span, 'requests') ?? 0)) / own.length,
  }));
}

function requestsOf(spans: readonly ChromeEvent[]): ReportRequests[] {
  return [...groupBy(spans, (span) => JSON.stringify([span.pid, textOf(span, 'from'), span.name])).values()].map((own) => {
    const sizes = own.map((span) => numberOf(span, 'tensors') ?? 0);
    return {
      rank: own[0].pid,
      from: textOf(own[0], 'from') ?? '',
      method: own[0].name,
      requests: own.length,
      tensorsMean: sum(sizes) / sizes.length,
      tensorsMost: sizes.reduce((most, each) => Math.max(most, each), 0),
    };
  });
}

type Waited = Pick<ReportReceive, 'waitUs' | 'heldUs'>;

/** A receive and what its sender says of it are of one tensor and one step. */
function tensorsOf(received: readonly ChromeEvent[], waited: readonly ChromeEvent[]): ReportReceive[] {
  const waits = new Map<string, Waited>();
  for (const span of waited) {
    const { dur = 0 } = span;
    const readyUs = 1000 * (numberOf(span, 'readyMs') ?? 0);
    waits.set(`${numberOf(span, 'step')} ${tensorOf(span)}`, { waitUs: Math.min(dur, readyUs), heldUs: Math.max(0, dur - readyUs) });
  }
  return [...groupBy(received, tensorOf).values()]
    .map((own): ReportReceive => {
      const at = own.map((span) => waits.get(`${numberOf(span, 'step')} ${tensorOf(span)}`));
      return {
        tensor: textOf(own[0], 'tensor') ?? '',
        from: textOf(own[0], 'from') ?? '',
        to: textOf(own[0], 'to') ?? '',
        receives: own.length,
        bytes: median(own.map((span) => numberOf(span, 'bytes') ?? 0)),
        waitUs: median(at.map((each) => each?.waitUs ?? 0)),
        heldUs: median(at.map((each) => each?.heldUs ?? 0)),
        transferUs: median(own.map(({ dur = 0 }, k) => Math.max(0, dur - (at[k]?.waitUs ?? 0) - (at[k]?.heldUs ?? 0)))),
      };
    })
    .sort((a, b) => totalOf(b) - totalOf(a))
    .slice(0, receivesMax);
}

function tensorOf(span: ChromeEvent): string {
  return ['tensor', 'from', 'to'].map((name) => textOf(span, name)).join(' ');
}

function totalOf({ receives, waitUs, heldUs, transferUs }: ReportReceive): number {
  return receives * (waitUs + heldUs + transferUs);
}
