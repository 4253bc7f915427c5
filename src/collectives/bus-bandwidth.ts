/** Bus bandwidth, as nccl-tests define it: bytes of an operation by its time, times a factor by which what every rank's link carries at the
 *  optimum is the same number for all collectives and sizes of groups. And what measured rates allow of it at most.
 *  A pure function of rates and of who shares memory with whom. */
import type { Collective } from '../plan/ir.ts';

export type BusOperation = Collective | 'send-recv';

/** busbw / algbw. */
export function busFactor(operation: BusOperation, ranks: number): number {
  const share = (ranks - 1) / ranks;
  switch (operation) {
    case 'all-reduce':
      return 2 * share;
    case 'all-gather':
    case 'reduce-scatter':
    case 'all-to-all':
    case 'gather':
    case 'scatter':
      return share;
    case 'barrier':
      return 0;
    default:
      return 1;
  }
}

/** Seconds per byte, measured; absent: they were not. */
export interface MeasuredBytes {
  /** Out of one host, and into it. */
  readonly link?: number | undefined;
  /** Copied by one rank. */
  readonly copy?: number | undefined;
}

/** @param hosts how many of the ranks share memory, for each set of those.
 *  @returns bytes per second of bus bandwidth that no algorithm passes; undefined where nothing was measured that limits it.
 *
 *  Between hosts, what must cross the busiest host's link limits: of an all-reduce 2 (h − 1)/h of it on average, h being hosts; of an
 *  all-gather, say, everything but the host's own. Within one host all ranks together must copy what each needs of others. */
export function busBound(operation: BusOperation, hosts: readonly number[], { link, copy }: MeasuredBytes): number | undefined {
  const ranks = hosts.reduce((sum, each) => sum + each, 0);
  const factor = busFactor(operation, ranks);
  if (factor === 0 || ranks < 2) return undefined;
  if (hosts.length === 1) return copy === undefined ? undefined : (factor * ranks) / (copied(operation, ranks) * copy);
  return link === undefined ? undefined : factor / (link * crossing(operation, hosts, ranks));
}

/** How often an operation's bytes are copied between ranks of a host, at least. */
function copied(operation: BusOperation, ranks: number): number {
  switch (operation) {
    case 'all-reduce':
      return 2 * (ranks - 1);
    case 'gather':
    case 'scatter':
      return (ranks - 1) / ranks;
    case 'send-recv':
      return ranks;
    default:
      return ranks - 1;
  }
}

/** Of an operation's bytes, the part that crosses one host's link. */
function crossing(operation: BusOperation, hosts: readonly number[], ranks: number): number {
  switch (operation) {
    case 'all-reduce':
      return (2 * (hosts.length - 1)) / hosts.length;
    case 'all-gather':
    case 'reduce-scatter':
      return (ranks - Math.min(...hosts)) / ranks;
    case 'gather':
    case 'scatter':
      // The root's host, which may be the largest.
      return (ranks - Math.max(...hosts)) / ranks;
    case 'all-to-all':
      // Each of the host's ranks has a buffer of the operation's size.
      return Math.max(...hosts.map((own) => (own * (ranks - own)) / ranks));
    default:
      return 1;
  }
}
