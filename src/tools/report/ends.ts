/** Rows and columns of matrices: ranks, by host; more than a page can show are summarised, per host where that is enough. */
import type { TraceMetadata } from '../../trace/chrome.ts';
import { groupBy } from '../../base/collections/lists.ts';
import type { ReportEnd } from './data/report-data.ts';

const endsMax = 64;

export interface Ends {
  readonly ends: readonly ReportEnd[];
  /** Into `ends`, by rank. */
  readonly placeOf: ReadonlyMap<number, number>;
}

/** Rows and columns for ranks that left a trace, and for those that others have sent to. */
export function endsOf(processes: TraceMetadata['processes']): Ends {
  const hostOf = new Map(processes.map(({ rank, host }) => [rank, host]));
  for (const { traffic = [] } of processes)
    for (const rank of traffic.flatMap(([from, to]) => [from, to])) if (!hostOf.has(rank)) hostOf.set(rank, '');
  const ranks = [...hostOf.keys()].sort((a, b) => a - b);
  const hosts = [...groupBy(ranks, (rank) => hostOf.get(rank) ?? '')];
  const groups =
    hosts.length > 1 && hosts.length <= endsMax && ranks.length > endsMax
      ? hosts.map(([host, ranks]): Group => ({ name: host || 'unknown', host, ranks }))
      : runsOf(hosts, ranks.length);
  return {
    ends: groups.map(({ name, host }) => ({ name, host })),
    placeOf: new Map(groups.flatMap(({ ranks: members }, place) => members.map((rank) => [rank, place] as const))),
  };
}

interface Group extends ReportEnd {
  readonly ranks: readonly number[];
}

/** Groups of consecutive ranks, in order of their hosts, as large as needed to leave few enough ends. */
function runsOf(hosts: readonly (readonly [string, readonly number[]])[], count: number): Group[] {
  const ordered = hosts.flatMap(([host, ranks]) => ranks.map((rank) => ({ host, rank })));
  const each = Math.ceil(count / endsMax);
  return Array.from({ length: Math.ceil(count / Math.max(1, each)) }, (_, at) => {
    const part = ordered.slice(at * each, (at + 1) * each);
    const [first, last] = [part[0], part[part.length - 1]];
    const name = part.length === 1 ? String(first.rank) : `${first.rank}–${last.rank}`;
    return { name, host: first.host === last.host ? first.host : `${first.host}–${last.host}`, ranks: part.map(({ rank }) => rank) };
  });
}
