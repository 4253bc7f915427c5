/** What an all-reduce between many hosts should take, by formula: for worlds whose plans take longer to build, for every
 *  candidate and size, than a better choice saves.
 *
 *      seconds = hops · (latency + two overheads) + the busiest of: a host's port, a rank's thread + what cannot overlap
 *
 *  Loads are those of the busiest rank and host, to first order; tests compare the choices that follow from them with the cost of
 *  plans and with simulations. An algorithm without a formula here is not considered for such worlds. It must not know who asks. */
import type { CostModel } from '../plan/cost.ts';
import type { PlanRequest } from '../plan/ir.ts';
import { fairringLayout } from './algorithms/fairring-layout.ts';

/** Work of an operation. Bytes and messages in one direction. */
interface Load {
  /** Messages between hosts that wait for each other. */
  readonly hops: number;
  /** Bytes out of the busiest host. */
  readonly portBytes: number;
  /** Messages out of the busiest rank; it takes in as many. */
  readonly messages: number;
  /** Bytes that the busiest rank reads and writes in its host, and sums, before, between and after messages. */
  readonly localBytes: number;
  /** Steps that begin when the one before has ended: ports are idle meanwhile. */
  readonly inSteps: boolean;
}

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
      // Four steps that follow each other leave the port idle in between, unless other rails have use for it.
      portBytes: slices.length * (within + between) * (A === 1 ? 1 : 1 + 0.3 / Math.sqrt(D)),
      messages: slices.length * (owners - (owners === B ? 1 : 0) + exchanged + returned) * perPiece,
      localBytes: (D === 1 ? bytes / 4 : (3 * bytes) / D) / slices.length,
      inSteps: false,
    };
  },
  'halving-doubling': ({ topology: { hosts }, pieceCount = Number.MAX_SAFE_INTEGER, elementBytes = 8 }, bytes) => {
    const [M, D] = [hosts.length, Math.max(...hosts.map(({ length }) => length))];
    const rounds = Math.ceil(Math.log2(M));
    const largest = bytes / D / 2;
    const pieces = Math.ceil(largest / elementBytes / pieceCount);
    // The tree has as many hosts on the left as a power of two; fewer on the right carry more each.
    const left = 2 ** (rounds - 1);
    const uneven = left * 2 === M ? 0 : left / M / (M - left);
    return {
      hops: 2 * rounds,
      portBytes: ((2 * (M - 1)) / M + uneven) * bytes,
      messages: 2 * (rounds + pieces - 1),
      localBytes: D === 1 ? bytes / 4 : (2 * bytes * (D - 1)) / D,
      inSteps: true,
    };
  },
  tree: ({ topology: { hosts } }, bytes) => {
    const rounds = Math.ceil(Math.log2(hosts.length));
    return { hops: 2 * rounds, portBytes: 2 * rounds * bytes, messages: 2 * rounds, localBytes: 2 * rounds * bytes, inSteps: true };
  },
  ring: ({ topology: { hosts } }, bytes) => {
    const n = hosts.reduce((sum, { length }) => sum + length, 0);
    return { hops: 2 * (n - 1), portBytes: (2 * (n - 1) * bytes) / n, messages: 2 * (n - 1), localBytes: bytes / n, inSteps: false };
  },
};

/** Algorithms that can be estimated. */
export const estimated: readonly string[] = Object.keys(estimates);

/** Seconds of an all-reduce of `request.count` elements by one of `estimated`. */
export function estimateSeconds(name: string, request: PlanRequest, model: CostModel): number {
  const { elementBytes = 8 } = request;
  const load = estimates[name](request, request.count * elementBytes);
  const { networkLatency, networkOverhead, networkByte, hostByte, reduceByte } = model;
  const chain = load.hops * (networkLatency + 2 * networkOverhead);
  const port = load.portBytes * networkByte;
  const thread = 2 * load.messages * networkOverhead;
  const local = load.localBytes * (hostByte + reduceByte);
  // What waits for the message before pays for both; what overlaps pays for the busier.
  return load.inSteps ? chain + port + local : chain + Math.max(port, thread) + local;
}
