/** Bus bandwidth, as nccl-tests define it: bytes of an operation by its time, times a factor that makes the optimal load of every
 *  rank's link the same number for all collectives and sizes of groups. Also the highest bus bandwidth that measured rates allow.
 *  A pure function of rates and of the sets of ranks that share memory. */
import type { Collective } from '../plan/ir.ts';

export type BusOperation = Collective | 'send-recv';

/** The factor from algorithm bandwidth to bus bandwidth: busbw / algbw. */
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

/** Measured seconds per byte; absent: not measured. */
export interface MeasuredBytes {
  /** Rate out of one host, and into it. */
  readonly link?: number | undefined;
  /** Rate of copies by one rank. */
  readonly copy?: number | undefined;
}

/** @param hosts number of ranks in each set that shares memory.
 *  @returns bytes per second of bus bandwidth that no algorithm passes; undefined where nothing was measured that limits it.
 *
 *  Between hosts, the bytes that must cross the busiest host's link limit it: for an all-reduce 2 (h − 1)/h of the operation on
 *  average, h being hosts; for an all-gather everything but the host's own. Within one host all ranks together must copy the
 *  parts that each needs of others. */
export function busBound(operation: BusOperation, hosts: readonly number[], { link, copy }: MeasuredBytes): number | undefined {
  const ranks = hosts.reduce((sum, each) => sum + each, 0);
  const factor = busFactor(operation, ranks);
  if (factor === 0 || ranks < 2) return undefined;
  if (hosts.length === 1) return copy === undefined ? undefined : (factor * ranks) / (copied(operation, ranks) * copy);
  return link === undefined ? undefined : factor / (link * crossing(operation, hosts, ranks));
}

/** Least number of times that an operation's bytes are copied between ranks of a host. */
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

/** Part of an operation's bytes that crosses one host's link. */
function crossing(operation: BusOperation, hosts: readonly number[], ranks: number): number {
  switch (operation) {
    case 'all-reduce':
      return (2 * (hosts.length - 1)) / hosts.length;
    case 'all-gather':
    case 'reduce-scatter':
      return (ranks - Math.min(...hosts)) / ranks;
    case 'gather':
    case 'scatter':
      // The root's host may be the largest.
      return (ranks - Math.max(...hosts)) / ranks;
    case 'all-to-all':
      // Each of the host's ranks has a buffer of the operation's size.
      return Math.max(...hosts.map((own) => (own * (ranks - own)) / ranks));
    default:
      return 1;
  }
}
