/** Bytes and transfers from rank to rank, as the ranks have counted them. */
import type { TraceMetadata } from '../../trace/chrome.ts';
import type { ReportLinks } from './data/report-data.ts';
import type { Ends } from './ends.ts';

/** Null where no rank has counted anything. */
export function linksOf(processes: TraceMetadata['processes'], { ends, placeOf }: Ends): ReportLinks | null {
  const hostOf = new Map(processes.map(({ rank, host }) => [rank, host]));
  const square = (): number[][] => ends.map(() => ends.map(() => 0));
  const [bytes, transfers] = [square(), square()];
  const total = { withinHosts: 0, betweenHosts: 0 };
  for (const [from, to, moved, pieces] of processes.flatMap(({ traffic = [] }) => traffic)) {
    const [row, column] = [placeOf.get(from)!, placeOf.get(to)!];
    bytes[row][column] += moved;
    transfers[row][column] += pieces;
    const isWithin = hostOf.get(from) !== undefined && hostOf.get(from) === hostOf.get(to);
    total[isWithin ? 'withinHosts' : 'betweenHosts'] += moved;
  }
  return total.withinHosts + total.betweenHosts === 0 ? null : { bytes, transfers, ...total };
}
