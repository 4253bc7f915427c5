/** A rank's answer to the question how it is: the call it waits in, its counts, and the values of its metrics. Plain data. */
import { isMainThread } from 'node:worker_threads';
import { anyList, anyText, count, integer, list, number, object, optional, type Shape, type ValueOf } from '../base/schema.ts';
import { threadLoad } from '../base/clock.ts';
import { readBoard, countersIn } from './board.ts';
import type { CallCounters } from './call-counters.ts';
import { sample, type Sample } from './definitions.ts';
import { sum } from '../base/numbers.ts';

/** Links with values of their own; the others of a rank are one. */
const peersMax = 32;

const ranksShape: Shape<readonly number[]> = list(integer());

const waitShape = object({
  text: anyText,
  /** World ranks; empty: all have called. */
  ranks: ranksShape,
  seconds: optional(number()),
  path: optional(anyText),
  group: optional(anyText),
});

export const reportShape = object({
  rank: count,
  pid: count,
  host: anyText,
  /** Ranks of the world now. */
  size: count,
  epoch: count,
  steps: count,
  /** Time since the last step. */
  stepSeconds: optional(number()),
  /** Collectives called, on all groups. */
  calls: count,
  pending: count,
  wait: optional(waitShape as Shape<ReportedWait>),
  /** The error of a group. */
  failure: optional(anyText),
  samples: anyList as Shape<readonly Sample[]>,
});

/** A wait for other ranks or for data. */
export type ReportedWait = Readonly<ValueOf<typeof waitShape>>;

export type RankReport = Readonly<ValueOf<typeof reportShape>>;

/** A world as its comm thread knows it now. */
export interface WorldFacts {
  readonly rank: number;
  readonly pid: number;
  readonly hostName: string;
  readonly size: number;
  readonly epoch: number;
  readonly groups: readonly {
    readonly id: number;
    readonly name: string;
    readonly called: number;
    readonly pending: number;
    readonly failure: string | undefined;
    /** A scheduled group has it. */
    readonly credit: { readonly creditBytes: number; readonly inFlightBytes: number; readonly queued: number } | undefined;
  }[];
  readonly links: readonly {
    readonly rank: number;
    readonly fabric: string;
    readonly bytesSent: number;
    readonly state: 'open' | 'left' | 'lost';
  }[];
  readonly registeredBytes: number;
  /** The oldest wait of the rank, with the time of the clock at which it began. */
  readonly wait: (Omit<ReportedWait, 'seconds'> & { readonly sinceMs?: number | undefined }) | undefined;
}

/** @param counters of the comm thread; undefined: metrics are off. */
export function reportOf(facts: WorldFacts, board: SharedArrayBuffer, counters: CallCounters | undefined, nowMs: number): RankReport {
  const { rank, pid, hostName: host, size, epoch, groups, wait } = facts;
  const { sinceMs, ...waiting } = wait ?? { sinceMs: undefined };
  const { samples, ...steps } = readBoard(board, nowMs);
  const failure = groups.find((group) => group.failure !== undefined)?.failure;
  const seconds = sinceMs === undefined ? {} : { seconds: (nowMs - sinceMs) / 1000 };
  const reported = wait && { ...(waiting as Omit<ReportedWait, 'seconds'>), ...seconds };
  return {
    ...{ rank, pid, host, size, epoch, ...steps },
    calls: sum(groups.map(({ called }) => called)),
    pending: sum(groups.map((each) => each.pending)),
    ...(reported && { wait: reported }),
    ...(failure !== undefined && { failure }),
    samples: counters ? [...samples, ...worldSamples(facts, reported), ...callSamples(facts, board, counters), ...memorySamples()] : [],
  };
}

function worldSamples({ groups, links, registeredBytes, size, epoch }: WorldFacts, wait: ReportedWait | undefined): Sample[] {
  const inState = (state: string): number => links.filter((link) => link.state === state).length;
  const [first, others] = [links.toSorted((a, b) => b.bytesSent - a.bytesSent).slice(0, peersMax), links.length > peersMax];
  const rest = sum(links.map(({ bytesSent }) => bytesSent)) - sum(first.map(({ bytesSent }) => bytesSent));
  return [
    sample('worldSize', size),
    sample('epoch', epoch),
    sample('oldest', wait?.seconds ?? 0),
    sample('failures', groups.filter(({ failure }) => failure !== undefined).length),
    sample('registered', registeredBytes),
    sample('links', inState('open')),
    sample('linksLost', inState('lost')),
    ...first.map(({ rank: peer, fabric, bytesSent }) => sample('linkBytes', bytesSent, { peer, fabric })),
    ...(others ? [sample('linkBytes', rest, { peer: 'other', fabric: 'any' })] : []),
    ...groups.flatMap(({ name: group, pending, credit }) => [
      sample('pending', pending, { group }),
      ...(credit === undefined
        ? []
        : [
            sample('queued', credit.queued, { group }),
            sample('credit', credit.creditBytes, { group }),
            sample('creditUsed', credit.inFlightBytes, { group }),
          ]),
    ]),
  ];
}

function callSamples({ groups }: WorldFacts, board: SharedArrayBuffer, counters: CallCounters): Sample[] {
  const callers = countersIn(board);
  return callers === undefined ? [] : callers.samples(new Map(groups.map(({ id, name }) => [id, name])), counters);
}

/** Memory of the process, and what the thread that calls this takes. */
export function memorySamples(): Sample[] {
  const { rss, heapUsed, heapTotal } = process.memoryUsage();
  const { activeSeconds, idleSeconds } = threadLoad();
  const thread = { thread: isMainThread ? 'main' : 'comm' };
  return [
    sample('resident', rss),
    sample('heap', heapUsed, thread),
    sample('heapTotal', heapTotal, thread),
    sample('active', activeSeconds, thread),
    sample('idle', idleSeconds, thread),
  ];
}
