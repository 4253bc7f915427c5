/** Size, count and bandwidth in the sense of each benchmark of nccl-tests. Pure arithmetic; how a collective is called is not known here.
 *
 *    count = size / bytes of an element;   aligned(c) = c rounded down to a multiple of 16 bytes
 *
 *                      send            receive         count column       algbw counts      busbw / algbw
 *    all-reduce        count           count           count              count             2 (n − 1) / n
 *    all-gather        a               n · a           a = aligned(count / n)   n · a       (n − 1) / n
 *    reduce-scatter    n · a           a               a                  n · a             (n − 1) / n
 *    all-to-all        n · a           n · a           a                  n · a             (n − 1) / n
 *    broadcast         count           count           count              count             1
 *    send-recv         count           count           count              count             1
 *    barrier           0               0               0                  0                 — */
import { busFactor } from '../../collectives/bus-bandwidth.ts';

export const collectiveNames = ['all-reduce', 'all-gather', 'reduce-scatter', 'broadcast', 'all-to-all', 'send-recv', 'barrier'] as const;

export type CollectiveName = (typeof collectiveNames)[number];

/** The two halves of a row: results in a buffer of their own, or over the input. */
export type Half = 'outOfPlace' | 'inPlace';

/** Numbers of elements. */
export interface Layout {
  readonly sendCount: number;
  readonly receiveCount: number;
  /** The count that the table shows. */
  readonly paramCount: number;
  /** The count from which bandwidth is computed. */
  readonly movedCount: number;
}

export interface Bandwidth {
  /** Algorithm bandwidth, in 10⁹ bytes per second, and in `bus` the bus bandwidth. */
  readonly algorithm: number;
  readonly bus: number;
}

interface Traits {
  readonly parts: 'whole' | 'perRank';
  readonly reduces: boolean;
  readonly rooted: boolean;
  /** Halves that the interface offers. */
  readonly halves: readonly Half[];
}

const both: readonly Half[] = ['outOfPlace', 'inPlace'];
const apart: readonly Half[] = ['outOfPlace'];

const traits: Readonly<Record<CollectiveName, Traits>> = {
  'all-reduce': { parts: 'whole', reduces: true, rooted: false, halves: both },
  'all-gather': { parts: 'perRank', reduces: false, rooted: false, halves: apart },
  'reduce-scatter': { parts: 'perRank', reduces: true, rooted: false, halves: apart },
  broadcast: { parts: 'whole', reduces: false, rooted: true, halves: both },
  'all-to-all': { parts: 'perRank', reduces: false, rooted: false, halves: apart },
  'send-recv': { parts: 'whole', reduces: false, rooted: false, halves: apart },
  barrier: { parts: 'whole', reduces: false, rooted: false, halves: apart },
};

export function halvesOf(collective: CollectiveName, { onlyInPlace = false }: { readonly onlyInPlace?: boolean } = {}): readonly Half[] {
  const { halves } = traits[collective];
  return onlyInPlace && halves.includes('inPlace') ? ['inPlace'] : halves;
}

export function reduces(collective: CollectiveName): boolean {
  return traits[collective].reduces;
}

export function isRooted(collective: CollectiveName): boolean {
  return traits[collective].rooted;
}

export function layoutOf(collective: CollectiveName, size: { bytes: number; elementBytes: number; ranks: number }): Layout {
  const { bytes, elementBytes, ranks } = size;
  const count = collective === 'barrier' ? 0 : Math.floor(bytes / elementBytes);
  if (traits[collective].parts === 'whole') return { sendCount: count, receiveCount: count, paramCount: count, movedCount: count };
  const granule = 16 / elementBytes;
  const part = Math.floor(Math.floor(count / ranks) / granule) * granule;
  const whole = ranks * part;
  return {
    sendCount: collective === 'all-gather' ? part : whole,
    receiveCount: collective === 'reduce-scatter' ? part : whole,
    paramCount: part,
    movedCount: whole,
  };
}

/** @param timeUs time of one operation. */
export function bandwidthOf(
  collective: CollectiveName,
  { movedBytes, timeUs, ranks }: { movedBytes: number; timeUs: number; ranks: number },
): Bandwidth {
  const algorithm = movedBytes / 1000 / timeUs;
  return { algorithm, bus: algorithm * busFactor(collective, ranks) };
}
