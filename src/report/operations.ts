/** What a merged trace says about collectives: who waited for whom, how much of the time went into communication, how fast each kind of
 *  call was. */
import type { ChromeEvent, ChromeTrace } from '../trace/chrome.ts';
import { Bandwidths, type CallShape } from './bandwidth.ts';
import type { Ends } from './ends.ts';
import { groupBy } from './group-by.ts';
import type { ReportOperation, ReportRank, ReportRates } from './data/report-data.ts';
import { median } from './median.ts';
import { isCollective, isWait, kindOf, numberOf, textOf } from './span-argument.ts';

/** Rows of the table at most: those that took longest. */
const operationsMax = 500;

export interface Collectives {
  readonly ranks: readonly ReportRank[];
  readonly waits: readonly (readonly number[])[];
  readonly operations: readonly ReportOperation[];
  readonly rates: ReportRates;
}

export function collectivesOf({ traceEvents, otherData }: ChromeTrace, { ends, placeOf }: Ends): Collectives {
  const processes = otherData.processes.toSorted((a, b) => a.rank - b.rank);
  const known = new Set(processes.map(({ rank }) => rank));
  const spans = traceEvents.filter((event) => isCollective(event) && known.has(event.pid));
  const waits = ends.map(() => ends.map(() => 0));
  const waitedForUs = new Map<number, number>();
  for (const span of spans) {
    const culprit = numberOf(span, 'waitedFor') ?? NaN;
    const place = placeOf.get(culprit);
    if (place === undefined || !isWait(span)) continue;
    waits[placeOf.get(span.pid)!][place] += span.dur ?? 0;
    waitedForUs.set(culprit, (waitedForUs.get(culprit) ?? 0) + (span.dur ?? 0));
  }
  const ranks = processes.map(({ rank, host, pid, dropped }) => {
    const own = spans.filter((span) => span.pid === rank);
    return {
      rank,
      host,
      pid,
      dropped,
      communicatingUs: covered(own),
      waitingUs: covered(own.filter(isWait)),
      waitedForUs: waitedForUs.get(rank) ?? 0,
    };
  });
  const bandwidths = new Bandwidths(processes);
  return { ranks, waits, operations: operationsOf(spans, bandwidths), rates: bandwidths.rates };
}

/** How long at least one of the spans was open. */
function covered(spans: readonly ChromeEvent[]): number {
  let total = 0;
  let end = -Infinity;
  for (const { ts, dur = 0 } of spans.toSorted((a, b) => a.ts - b.ts)) {
    total += Math.max(0, ts + dur - Math.max(ts, end));
    end = Math.max(end, ts + dur);
  }
  return total;
}

interface Call {
  transferUs: number;
  waitUs: number;
  span: ChromeEvent;
}

/** One call is what all ranks have of one number of one group. */
function operationsOf(spans: readonly ChromeEvent[], bandwidths: Bandwidths): ReportOperation[] {
  const calls = new Map<string, Call>();
  for (const span of spans) {
    const key = `${textOf(span, 'group')} ${numberOf(span, 'sequence')} ${kindOf(span)}`;
    const call = calls.get(key) ?? { transferUs: 0, waitUs: 0, span };
    calls.set(key, call);
    if (isWait(span)) call.waitUs = Math.max(call.waitUs, span.dur ?? 0);
    else {
      call.transferUs = Math.max(call.transferUs, span.dur ?? 0);
      call.span = span;
    }
  }
  const alike = groupBy(calls.values(), ({ span }) =>
    JSON.stringify([
      kindOf(span),
      ...['algorithm', 'path', 'dtype', 'site'].map((name) => textOf(span, name)),
      numberOf(span, 'bytes'),
      shapeOf(span, bandwidths),
    ]),
  );
  return [...alike.values()]
    .map((each) => operationOf(each, bandwidths))
    .sort((a, b) => b.calls * (b.transferUs + b.waitUs) - a.calls * (a.transferUs + a.waitUs))
    .slice(0, operationsMax);
}

function shapeOf(span: ChromeEvent, bandwidths: Bandwidths): CallShape | undefined {
  const peers = textOf(span, 'peers');
  return peers === undefined ? undefined : bandwidths.shapeOf(span.pid, peers);
}

function operationOf(calls: readonly Call[], bandwidths: Bandwidths): ReportOperation {
  const [{ span }] = calls;
  const shape = shapeOf(span, bandwidths);
  const bytes = numberOf(span, 'bytes') ?? 0;
  const transferUs = median(calls.map((call) => call.transferUs));
  const bandwidth = shape && bandwidths.of(kindOf(span), shape, bytes, transferUs);
  return {
    kind: kindOf(span),
    algorithm: textOf(span, 'algorithm') ?? '',
    path: textOf(span, 'path') ?? '',
    dtype: textOf(span, 'dtype') ?? '',
    site: textOf(span, 'site') ?? '',
    bytes,
    calls: calls.length,
    transferUs,
    waitUs: median(calls.map((call) => call.waitUs)),
    ranks: shape?.ranks ?? 0,
    algorithmBandwidth: transferUs > 0 ? bytes / transferUs / 1e3 : 0,
    busBandwidth: bandwidth?.bus ?? 0,
    boundBandwidth: bandwidth?.bound ?? null,
  };
}
