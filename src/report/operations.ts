/** What a merged trace says about collectives: who waited for whom, how much of the time went into communication, how fast each kind of
 *  call was. */
import type { ChromeEvent, ChromeTrace } from '../trace/chrome.ts';
import { groupBy } from './group-by.ts';
import type { ReportOperation, ReportRank } from './data/report-data.ts';
import { median } from './median.ts';
import { isCollective, isWait, kindOf, numberOf, textOf } from './span-argument.ts';

/** Rows of the table at most: those that took longest. */
const operationsMax = 500;

export interface Collectives {
  readonly ranks: readonly ReportRank[];
  readonly waits: readonly (readonly number[])[];
  readonly operations: readonly ReportOperation[];
}

export function collectivesOf({ traceEvents, otherData }: ChromeTrace): Collectives {
  const processes = otherData.processes.toSorted((a, b) => a.rank - b.rank);
  const place = new Map(processes.map(({ rank }, at) => [rank, at]));
  const spans = traceEvents.filter((event) => isCollective(event) && place.has(event.pid));
  const waits = processes.map(() => processes.map(() => 0));
  for (const span of spans) {
    const culprit = place.get(numberOf(span, 'waitedFor') ?? NaN);
    if (culprit !== undefined && isWait(span)) waits[place.get(span.pid)!][culprit] += span.dur ?? 0;
  }
  const ranks = processes.map(({ rank, host, pid, dropped }, at) => {
    const own = spans.filter((span) => span.pid === rank);
    return {
      rank,
      host,
      pid,
      dropped,
      communicatingUs: covered(own),
      waitingUs: covered(own.filter(isWait)),
      waitedForUs: waits.reduce((sum, row) => sum + row[at], 0),
    };
  });
  return { ranks, waits, operations: operationsOf(spans) };
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
function operationsOf(spans: readonly ChromeEvent[]): ReportOperation[] {
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
    JSON.stringify([kindOf(span), ...['algorithm', 'path', 'dtype', 'site'].map((name) => textOf(span, name)), numberOf(span, 'bytes')]),
  );
  return [...alike.values()]
    .map(operationOf)
    .sort((a, b) => b.calls * (b.transferUs + b.waitUs) - a.calls * (a.transferUs + a.waitUs))
    .slice(0, operationsMax);
}

function operationOf(calls: readonly Call[]): ReportOperation {
  const [{ span }] = calls;
  const bytes = numberOf(span, 'bytes') ?? 0;
  const transferUs = median(calls.map((call) => call.transferUs));
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
    algorithmBandwidth: transferUs > 0 ? bytes / transferUs / 1e3 : 0,
  };
}
