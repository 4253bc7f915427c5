/** Expected time of an all-reduce between many hosts, by formula: for worlds whose plans take longer to build, for every
 *  candidate and size, than a better choice saves.
 *
 *      overlapping   hops · hop + the busier of a host's port and a rank's thread, and some of the other
 *      in steps      Σ over steps: the port's bytes, or a hop and one rank's share of them + work inside the host
 *
 *  A hop is a latency and two overheads.
 *
 *  Loads are those of the busiest rank and host, to first order; tests compare the choices that follow from them with the cost of plans and
 *  with simulations. An algorithm without a formula here is not considered for such worlds. It must not know who asks. */
import type { CostModel } from '../plan/cost.ts';
import type { PlanRequest } from '../plan/ir.ts';
import { lineCount } from '../plan/ranges.ts';
import { fairringLayout } from './algorithms/fairring-layout.ts';

/** Work of an operation. Bytes and messages in one direction. */
interface Load {
  /** Number of messages between hosts that wait for each other. */
  readonly hops: number;
  /** Bytes out of the busiest host. */
  readonly portBytes: number;
  /** Messages out of the busiest rank; it takes in as many. */
  readonly messages: number;
  /** Messages that busy ranks exchange one after the other beyond one for each step. Default: none. */
  readonly moreMessages?: number;
  /** Bytes that the busiest rank reads and writes in its host, and sums, before, between and after messages. */
  readonly localBytes: number;
  /** Bytes out of the busiest host in steps that wait for each other, during which ports serve only other ranks of the host.
   *  Undefined: messages overlap. */
  readonly stepBytes?: readonly number[];
  /** Number of ranks of a host that send, each its share. */
  readonly senders: number;
}

/** Share of the less busy of port and thread that does not overlap, because ranks that share a port do not reach it evenly: per
 *  rank of a host, and at most; from simulations of 68 to 4,096 ranks. */
const [unevenPerSender, unevenMost] = [1 / 16, 0.5];

/** Messages up to this size leave a port one after the other. */
const sharedBytes = 64 * 1024;

type Estimate = (request: PlanRequest, bytes: number) => Load;

const estimates: Readonly<Record<string, Estimate>> = {
  fairring: (request, bytes) => {
    const { slices, groups, owners, parts, shardMost } = fairringLayout(request);
    const [B, A, D] = [groups[0].length, groups.length, request.topology.hosts[0].length];
    const shardBytes = bytes / slices.length / D / owners;
    // Owners of all rails spread over the hosts of a group, roots over owners.
    const owned = Math.ceil((D * owners) / B);
    const rooted = Math.ceil((owned * parts) / A);
    const within = (D * owners - owned) * shardBytes + owned * (B - 1) * shardBytes;
    const between = A === 1 ? 0 : ((owned * parts - rooted + rooted * (A - 1)) * shardBytes) / parts;
    const perPiece = Math.ceil(shardMost / (request.pieceCount ?? Number.MAX_SAFE_INTEGER));
    const exchanged = A === 1 ? 0 : parts - 1 + Math.ceil(parts / A) * (A - 1);
    const returned = (B - 1) * (A === 1 ? 1 : Math.min(parts, 3));
    return {
      hops: A === 1 ? 2 : 4,
      portBytes: slices.length * (within + between),
      messages: slices.length * (owners - (owners === B ? 1 : 0) + exchanged + returned) * perPiece,
      localBytes: (D === 1 ? bytes / 4 : (3 * bytes) / D) / slices.length,
      senders: D,
    };
  },
  'halving-doubling': ({ topology: { hosts }, pieceCount = Number.MAX_SAFE_INTEGER, elementBytes = 8 }, bytes) => {
    const [M, D] = [hosts.length, Math.max(...hosts.map(({ length }) => length))];
    const rounds = Math.ceil(Math.log2(M));
    const largest = bytes / D / 2;
    const pieces = Math.ceil(largest / elementBytes / pieceCount);
    const uneven = unevenBytes(M);
    // With more ranks than lines, the others' shares take ways of several messages through ranks that own nothing.
    const detours = bytes / elementBytes / lineCount < M * D ? 3 : 1;
    const oneWay = Array.from(
      { length: detours * rounds },
      (_, round) => bytes / 2 ** (round + 1) + (round === 0 ? (uneven * bytes) / 2 : 0),
    );
    return {
      hops: 2 * rounds,
      portBytes: ((2 * (M - 1)) / M + uneven) * bytes,
      messages: 2 * (rounds + pieces - 1),
      moreMessages: 2 * partnersBeyondOne(M),
      localBytes: D === 1 ? bytes / 4 : (2 * bytes * (D - 1)) / D,
      stepBytes: [...oneWay, ...oneWay],
      senders: D,
    };
  },
  tree: ({ topology: { hosts } }, bytes) => {
    const rounds = Math.ceil(Math.log2(hosts.length));
    const stepBytes = Array.from({ length: 2 * rounds }, () => bytes);
    return { hops: 2 * rounds, portBytes: 2 * rounds * bytes, messages: 2 * rounds, localBytes: 2 * rounds * bytes, stepBytes, senders: 1 };
  },
  ring: ({ topology: { hosts } }, bytes) => {
    const n = hosts.reduce((sum, { length }) => sum + length, 0);
    return { hops: 2 * (n - 1), portBytes: (2 * (n - 1) * bytes) / n, messages: 2 * (n - 1), localBytes: bytes / n, senders: 1 };
  },
};

/** Partners beyond one that a rank has in the balanced tree over this many hosts: the left half has a power of two, and fewer
 *  ranks on the right talk to several of them; the same within the right half. */
function partnersBeyondOne(hosts: number): number {
  if (hosts <= 2) return 0;
  const left = leftOf(hosts);
  return Math.ceil(left / (hosts - left)) - 1 + partnersBeyondOne(hosts - left);
}

/** Extra load of the fewer ranks, as a part of all bytes. */
function unevenBytes(hosts: number): number {
  const left = leftOf(hosts);
  return hosts <= 2 || left * 2 === hosts ? 0 : left / hosts / (hosts - left) + unevenBytes(hosts - left);
}

function leftOf(hosts: number): number {
  return 2 ** (Math.ceil(Math.log2(hosts)) - 1);
}

/** Names of the algorithms that can be estimated. */
export const estimated: readonly string[] = Object.keys(estimates);

/** Seconds of an all-reduce of `request.count` elements by one of `estimated`. */
export function estimateSeconds(name: string, request: PlanRequest, model: CostModel): number {
  const { elementBytes = 8 } = request;
  const load = estimates[name](request, request.count * elementBytes);
  const { networkLatency, networkOverhead, networkByte, hostByte, reduceByte } = model;
  const hop = networkLatency + 2 * networkOverhead;
  const others = 1 - 1 / load.senders;
  const local = load.localBytes * (hostByte + reduceByte);
  if (load.stepBytes !== undefined) {
    // While one rank's message is on its way the port sends those of the others; the last one's way shows at the end. Large
    // messages share the port, and all are on their way at the same time.
    const secondsOf = (bytes: number): number =>
      bytes / load.senders > sharedBytes
        ? hop + bytes * networkByte
        : Math.max(bytes * networkByte, hop + (bytes * networkByte) / load.senders);
    const steps = load.stepBytes.reduce((sum, each) => sum + secondsOf(each), 0);
    return steps + others * hop + 2 * (load.moreMessages ?? 0) * networkOverhead + local;
  }
  const port = load.portBytes * networkByte;
  const thread = 2 * load.messages * networkOverhead;
  const uneven = Math.min(unevenMost, load.senders * unevenPerSender);
  return load.hops * hop + Math.max(port, thread, local) + uneven * Math.min(port, thread);
}
