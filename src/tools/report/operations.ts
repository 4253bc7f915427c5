/** Facts about collectives, gathered while traces are read: waits of ranks for each other, the share of time that went into communication,
 *  and the speed of each kind of call. */
import type { ChromeEvent, TraceMetadata } from '../../trace/chrome.ts';
import { getOrMake } from '../../base/collections/lists.ts';
import { Bandwidths } from './bandwidth.ts';
import type { Ends } from './ends.ts';
import type { ReportData, ReportOperation } from './data/report-data.ts';
import { median } from '../../base/numbers.ts';
import { stragglerOf, TrainingSteps } from './steps.ts';
import { isCollective, isWait, kindOf, numberOf, textOf } from './span-argument.ts';

/** Rows of the table at most: those that took longest; and of kinds of calls that are told apart. */
const operationsMax = 500;
const kindsMax = 20_000;
/** Calls that are looked at one by one; of more, every second, fourth, …, by their numbers, which are alike on all ranks. */
const callsMax = 500_000;

type Collectives = Pick<ReportData, 'ranks' | 'straggler' | 'trainingStep' | 'waits' | 'operations' | 'rates'> & {
  /** One call of this many was looked at. */
  readonly every: number;
};

interface Call {
  kind: number;
  /** The kind is that of a transfer, which knows more than a wait. */
  isTransfer: boolean;
  transferUs: number;
  waitUs: number;
}

export class CollectivesBuilder {
  readonly #processes: TraceMetadata['processes'];
  readonly #ends: Ends;
  readonly #bandwidths: Bandwidths;
  readonly #waits: number[][];
  readonly #waitedForUs = new Map<number, number>();
  readonly #communicating = new Map<number, CoveredTime>();
  readonly #waiting = new Map<number, CoveredTime>();
  /** Calls by group and kind, then by number. */
  readonly #calls = new Map<string, Map<number, Call>>();
  /** The first of those that are alike. */
  readonly #kinds: ChromeEvent[] = [];
  readonly #kindIds = new Map<string, number>();
  readonly #steps = new TrainingSteps();
  #callCount = 0;
  #every = 1;

  constructor(processes: TraceMetadata['processes'], ends: Ends) {
    this.#processes = processes.toSorted((a, b) => a.rank - b.rank);
    this.#ends = ends;
    this.#bandwidths = new Bandwidths(processes);
    this.#waits = ends.ends.map(() => ends.ends.map(() => 0));
    for (const { rank } of processes) {
      this.#communicating.set(rank, new CoveredTime());
      this.#waiting.set(rank, new CoveredTime());
    }
  }

  add(span: ChromeEvent): void {
    if (!isCollective(span)) return;
    const { pid, tid, ts, dur = 0 } = span;
    const communicating = this.#communicating.get(pid);
    if (communicating === undefined) return;
    communicating.add(tid, ts, ts + dur);
    if (isWait(span)) this.#addWait(span, dur);
    this.#addCall(span, dur);
    this.#steps.add(span);
  }

  /** All of its events have been added: what is needed of each is let go. */
  endRank(rank: number): void {
    const [communicating, waiting] = [this.#communicating.get(rank), this.#waiting.get(rank)];
    if (communicating === undefined || waiting === undefined) return;
    this.#steps.endRank(rank, communicating, waiting);
    communicating.end();
    waiting.end();
  }

  finish(): Collectives {
    const ranks = this.#processes.map(({ rank, host, pid, dropped }) => ({
      rank,
      host,
      pid,
      dropped,
      communicatingUs: this.#communicating.get(rank)!.end(),
      waitingUs: this.#waiting.get(rank)!.end(),
      waitedForUs: this.#waitedForUs.get(rank) ?? 0,
    }));
    return {
      ranks,
      straggler: stragglerOf(this.#waitedForUs, Math.max(ranks.length, this.#waitedForUs.size)),
      trainingStep: this.#steps.finish(),
      waits: this.#waits,
      operations: this.#operations(),
      rates: this.#bandwidths.rates,
      every: this.#every,
    };
  }

  #addWait(span: ChromeEvent, dur: number): void {
    this.#waiting.get(span.pid)!.add(span.tid, span.ts, span.ts + dur);
    const culprit = numberOf(span, 'waitedFor') ?? NaN;
    const place = this.#ends.placeOf.get(culprit);
    if (place === undefined) return;
    this.#waits[this.#ends.placeOf.get(span.pid)!][place] += dur;
    this.#waitedForUs.set(culprit, (this.#waitedForUs.get(culprit) ?? 0) + dur);
  }

  /** One call is what all ranks have of one number of one group. */
  #addCall(span: ChromeEvent, dur: number): void {
    const number = numberOf(span, 'sequence') ?? -1;
    if (number % this.#every !== 0) return;
    const key = `${textOf(span, 'group')} ${kindOf(span)}`;
    const calls = getOrMake(this.#calls, key, () => new Map<number, Call>());
    let call = calls.get(number);
    if (call === undefined) {
      call = { kind: this.#kindOf(span), isTransfer: !isWait(span), transferUs: 0, waitUs: 0 };
      calls.set(number, call);
      this.#callCount++;
    }
    if (isWait(span)) call.waitUs = Math.max(call.waitUs, dur);
    else {
      call.transferUs = Math.max(call.transferUs, dur);
      if (!call.isTransfer) call.kind = this.#kindOf(span);
      call.isTransfer = true;
    }
    while (this.#callCount > callsMax && this.#every < Number.MAX_SAFE_INTEGER) this.#thin();
  }

  #thin(): void {
    this.#every *= 2;
    this.#callCount = 0;
    for (const calls of this.#calls.values()) {
      for (const number of calls.keys()) if (number % this.#every !== 0) calls.delete(number);
      this.#callCount += calls.size;
    }
  }

  #kindOf(span: ChromeEvent): number {
    const args = span.args as Readonly<Record<string, unknown>> | undefined;
    const { algorithm, path, dtype, site, bytes, peers } = args ?? {};
    const shape = typeof peers === 'string' ? this.#bandwidths.shapeOf(span.pid, peers) : undefined;
    const shapeText = shape === undefined ? '' : `${shape.ranks} ${shape.hosts?.join() ?? ''}`;
    const key = [kindOf(span), algorithm, path, dtype, site, bytes, shapeText].map(keyOf).join('\n');
    const known = this.#kindIds.get(key);
    if (known !== undefined) return known;
    if (this.#kinds.length >= kindsMax) return kindsMax - 1;
    const id = this.#kinds.push(span) - 1;
    this.#kindIds.set(key, id);
    return id;
  }

  #operations(): ReportOperation[] {
    const alike: Call[][] = this.#kinds.map(() => []);
    for (const calls of this.#calls.values()) for (const call of calls.values()) alike[call.kind].push(call);
    return alike
      .flatMap((calls, kind) => (calls.length === 0 ? [] : [this.#operationOf(calls, this.#kinds[kind])]))
      .sort((a, b) => b.calls * (b.transferUs + b.waitUs) - a.calls * (a.transferUs + a.waitUs))
      .slice(0, operationsMax);
  }

  #operationOf(calls: readonly Call[], span: ChromeEvent): ReportOperation {
    const bytes = numberOf(span, 'bytes') ?? 0;
    const transferUs = median(calls.map((call) => call.transferUs));
    const peers = textOf(span, 'peers');
    const shape = peers === undefined ? undefined : this.#bandwidths.shapeOf(span.pid, peers);
    const bandwidth = shape && this.#bandwidths.of(kindOf(span), shape, bytes, transferUs);
    return {
      kind: kindOf(span),
      algorithm: textOf(span, 'algorithm') ?? '',
      path: textOf(span, 'path') ?? '',
      dtype: textOf(span, 'dtype') ?? '',
      site: textOf(span, 'site') ?? '',
      bytes,
      calls: calls.length * this.#every,
      transferUs,
      waitUs: median(calls.map((call) => call.waitUs)),
      ranks: shape?.ranks ?? 0,
      algorithmBandwidth: transferUs > 0 ? bytes / transferUs / 1e3 : 0,
      busBandwidth: bandwidth?.bus ?? 0,
      boundBandwidth: bandwidth?.bound ?? null,
    };
  }
}

/** Files that are not ours may have anything there. */
function keyOf(value: unknown): string {
  return value === undefined ? '' : JSON.stringify(value);
}

/** Time in which at least one of a rank's spans was open. Spans of a thread come in order, so that only the gaps between them are held. */
class CoveredTime {
  readonly #threads = new Map<number, { starts: number[]; ends: number[] }>();
  #totalUs = 0;

  add(thread: number, start: number, end: number): void {
    const { starts, ends } = getOrMake(this.#threads, thread, () => ({ starts: [], ends: [] }));
    const last = ends.length - 1;
    if (last >= 0 && start >= starts[last] && start <= ends[last]) ends[last] = Math.max(ends[last], end);
    else {
      starts.push(start);
      ends.push(end);
    }
  }

  /** @returns all of it until now. */
  end(): number {
    this.#totalUs += this.within(-Infinity, Infinity);
    this.#threads.clear();
    return this.#totalUs;
  }

  /** @returns the part between these two, of what was added since `end`. */
  within(fromUs: number, toUs: number): number {
    const all = [...this.#threads.values()];
    const starts = Float64Array.from(all.flatMap((thread) => thread.starts));
    const ends = Float64Array.from(all.flatMap((thread) => thread.ends));
    const order = Uint32Array.from(starts.keys()).sort((a, b) => starts[a] - starts[b]);
    let open = fromUs;
    let total = 0;
    for (const at of order) {
      total += Math.max(0, Math.min(ends[at], toUs) - Math.max(starts[at], open));
      open = Math.max(open, ends[at]);
    }
    return total;
  }
}
