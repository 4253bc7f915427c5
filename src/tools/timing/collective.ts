/** Size, count and bandwidth in the sense of each benchmark of nccl-tests. Pure arithmetic; how a collective is called is not known here.
 *
 *    count = size / bytes of an element;   aligned(c) = c rounded down to a multiple of 16 bytes
 *
 *                      send            receive         count column       algbw counts      busbw / algbw
 *    all-reduce        count           count           count              count             2 (n − 1) / n
 *    all-gather        a               n · a           a = aligned(count / n)   n · a       (n − 1) / n
 *    reduce-scatter    n · a           a               a                  n · a             (n − 1) / n
 *    all-to-all        n · a           n · a           a                  n · a             (n − 1) / n
 *    gather            a               root: n · a     a                  n · a             (n − 1) / n
 *    scatter           root: n · a     a               a                  n · a             (n − 1) / n
 *    broadcast, reduce count           count           count              count             1
 *    send-recv         count           count           count              count             1
 *    latency           count           count           count              count             1: the time of one of two messages
 *    bandwidth         count           count           count              count             1
 *    bidirectional     count           count           count              count             2
 *    barrier           0               0               0                  0                 —
 *
 *  The `-v` forms have parts that grow with the rank: aligned(2 (r + 1) count / (n (n + 1))) of rank r. */
import { busFactor } from '../../collectives/bus-bandwidth.ts';
import { sum } from '../../base/numbers.ts';

/** Tests of two ranks, in the sense and the tables of the OSU micro-benchmarks. */
export const pairTests = ['latency', 'bandwidth', 'bidirectional'] as const;

const evenNames = [
  'all-reduce',
  'all-gather',
  'reduce-scatter',
  'broadcast',
  'reduce',
  'gather',
  'scatter',
  'all-to-all',
  'send-recv',
  ...pairTests,
  'barrier',
] as const;
const unevenNames = ['all-gather-v', 'reduce-scatter-v', 'gather-v', 'scatter-v', 'all-to-all-v'] as const;

export const collectiveNames = [...evenNames, ...unevenNames] as const;

export type CollectiveName = (typeof collectiveNames)[number];
type EvenName = (typeof evenNames)[number];

/** The two halves of a row: results in a buffer of their own, or over the input. */
export type Half = 'outOfPlace' | 'inPlace';

/** Numbers of elements. */
export interface Layout {
  /** Each rank's part, by rank; empty for collectives without parts. */
  readonly parts: readonly number[];
  readonly sendCount: number;
  readonly receiveCount: number;
  /** The count that the table shows: of parts that differ, their mean. */
  readonly paramCount: number;
  /** The count from which bandwidth is computed: the larger of the largest input and output. */
  readonly movedCount: number;
}

export interface Bandwidth {
  /** Algorithm bandwidth, in 10⁹ bytes per second, and in `bus` the bus bandwidth. */
  readonly algorithm: number;
  readonly bus: number;
}

/** A buffer's elements: all of the operation, this rank's part, or all at the root and none elsewhere. */
type Share = 'whole' | 'part' | 'root';

interface Traits {
  readonly send: Share;
  readonly receive: Share;
  readonly divided: boolean;
  readonly reduces: boolean;
  readonly rooted: boolean;
  /** Halves that the interface offers. */
  readonly halves: readonly Half[];
}

const both: readonly Half[] = ['outOfPlace', 'inPlace'];
const whole: Traits = { send: 'whole', receive: 'whole', divided: false, reduces: false, rooted: false, halves: ['outOfPlace'] };

const traits: Readonly<Record<EvenName, Traits>> = {
  'all-reduce': { ...whole, reduces: true, halves: both },
  'all-gather': { ...whole, send: 'part', divided: true },
  'reduce-scatter': { ...whole, receive: 'part', divided: true, reduces: true },
  broadcast: { ...whole, rooted: true, halves: both },
  reduce: { ...whole, reduces: true, rooted: true, halves: both },
  gather: { ...whole, send: 'part', receive: 'root', divided: true, rooted: true, halves: both },
  scatter: { ...whole, send: 'root', receive: 'part', divided: true, rooted: true, halves: both },
  'all-to-all': { ...whole, divided: true },
  'send-recv': whole,
  latency: whole,
  bandwidth: whole,
  bidirectional: whole,
  barrier: whole,
};

/** The name without `-v`. */
export function evenName(collective: CollectiveName): EvenName {
  return collective.replace(/-v$/, '') as EvenName;
}

export function isPairTest(collective: CollectiveName): collective is (typeof pairTests)[number] {
  return pairTests.some((name) => name === collective);
}

export function halvesOf(collective: CollectiveName, { onlyInPlace = false }: { readonly onlyInPlace?: boolean } = {}): readonly Half[] {
  const { halves } = traits[evenName(collective)];
  return onlyInPlace && halves.includes('inPlace') ? ['inPlace'] : halves;
}

export function reduces(collective: CollectiveName): boolean {
  return traits[evenName(collective)].reduces;
}

export function isRooted(collective: CollectiveName): boolean {
  return traits[evenName(collective)].rooted;
}

/** @param place the rank whose buffers are meant, and the root; default: 0 for both. */
export function layoutOf(
  collective: CollectiveName,
  size: { bytes: number; elementBytes: number; ranks: number },
  place: { rank: number; root: number } = { rank: 0, root: 0 },
): Layout {
  const { bytes, elementBytes, ranks } = size;
  const { send, receive, divided } = traits[evenName(collective)];
  const count = collective === 'barrier' ? 0 : Math.floor(bytes / elementBytes);
  if (!divided) return { parts: [], sendCount: count, receiveCount: count, paramCount: count, movedCount: count };
  const granule = 16 / elementBytes;
  const uneven = evenName(collective) !== collective;
  const parts = Array.from({ length: ranks }, (_, rank) => {
    const share = uneven ? (2 * (rank + 1)) / (ranks + 1) : 1;
    return Math.floor(Math.floor((count * share) / ranks) / granule) * granule;
  });
  const all = sum(parts);
  const counts: Record<Share, number> = { whole: all, part: parts[place.rank], root: place.rank === place.root ? all : 0 };
  return { parts, sendCount: counts[send], receiveCount: counts[receive], paramCount: Math.floor(all / ranks), movedCount: all };
}

/** @param timeUs time of one operation. */
export function bandwidthOf(
  collective: CollectiveName,
  { movedBytes, timeUs, ranks }: { movedBytes: number; timeUs: number; ranks: number },
): Bandwidth {
  const algorithm = movedBytes / 1000 / timeUs;
  const name = evenName(collective);
  if (isPairTest(name)) return { algorithm, bus: name === 'bidirectional' ? 2 * algorithm : algorithm };
  return { algorithm, bus: algorithm * busFactor(name, ranks) };
}
