/** The plan: a collective operation as data. One program per rank over named buffers; no code, no memory, no sockets. The proof
 *  (verify), the cost, the simulation, the execution and the drawing all come from a plan.
 *
 *  Units: offsets and counts are elements; the dtype is chosen when the plan runs. */
import type { ReduceTree } from '../memory/kernels.ts';
import type { Topology } from './topology.ts';
import type { Range } from './ranges.ts';

/** All collectives, in the order of the documentation. Their positions are their codes on the wire and in the addon: append only. */
export const collectives = [
  'all-reduce',
  'broadcast',
  'reduce',
  'all-gather',
  'gather',
  'scatter',
  'reduce-scatter',
  'all-to-all',
  'barrier',
] as const;
export type Collective = (typeof collectives)[number];

/** The operation that is asked for; a plan is built for exactly one request. Every rank builds the same plan from the same request.
 *
 *  collective      buffers of rank r (elements)
 *  all-reduce      data: count, in place
 *  broadcast       data: count, in place, from root
 *  reduce          data: count; root's becomes the result, other ranks' data stays unchanged
 *  all-gather      input: counts[r], output: Σ counts, segments in rank order
 *  gather          input: counts[r]; root's output: Σ counts (other ranks: 0)
 *  scatter         root's input: Σ counts (other ranks: 0); output: counts[r]
 *  reduce-scatter  input: Σ counts, output: counts[r]
 *  all-to-all      input: Σ_q splits[r][q] in order of q, output: Σ_q splits[q][r] in order of q
 *  barrier         none */
export interface PlanRequest {
  readonly collective: Collective;
  readonly topology: Topology;
  /** Elements; meaning as above. 0 is allowed. */
  readonly count: number;
  /** Per-rank elements; for all-gather, gather, scatter, reduce-scatter. Their sum is `count`. */
  readonly counts?: readonly number[];
  /** splits[from][to] elements; for all-to-all. Their total is `count`. */
  readonly splits?: readonly (readonly number[])[];
  /** Root rank; for broadcast, reduce, gather, scatter. */
  readonly root?: number;
  /** Largest transfer in elements: larger ones are cut so that pieces pipeline. Default: no limit. */
  readonly pieceCount?: number;
  /** Most pieces to one receiver that may be under way, where the algorithm paces its transfers: with few, no receiver's queue
   *  overflows. Default: as many as the staging holds. */
  readonly window?: number;
  /** Elements of scratch that an algorithm which can work in slices may use per rank; one slice always fits. Default: 50 MiB. */
  readonly stagingCount?: number;
  /** Size of slices in elements, for algorithms that work in slices, as many in flight as the staging holds. Default: 25 MiB at
   *  most, so small that a shard is one piece, and no more in flight than a window. */
  readonly sliceCount?: number;
  /** Smallest shard in elements: less is not spread over more ranks. Default: 16 KiB. */
  readonly shardCount?: number;
  /** Hosts per group, for algorithms that form groups of hosts: a power of two; one group from the number of hosts on. Default:
   *  as many as suit the sizes of messages. */
  readonly groupHosts?: number;
  /** Size in bytes of the elements that the plan will move; decides how many fit the mailbox. Default: 8, the widest. */
  readonly elementBytes?: number;
}

/** Buffers that a program may name. `scratch` is sized by the plan, per rank, and holds garbage at the start. `mailbox` is a little memory
 *  (mailboxBytes) that lies beside the announcement of the call itself: the entry steps fill it, it travels with the announcement to ranks
 *  of other hosts, every rank may read it until the end of the operation without any signal, and no rank may write it after the entry. */
export type BufferName = 'data' | 'input' | 'output' | 'scratch' | 'mailbox';

/** Size of every rank's mailbox in bytes. */
export const mailboxBytes = 8192;

/** Number of elements that fit a mailbox. */
export function mailboxCount({ elementBytes = 8 }: Pick<PlanRequest, 'elementBytes'>): number {
  return Math.floor(mailboxBytes / elementBytes);
}

/** Elements of one of the running rank's buffers. */
export interface Span extends Range {
  readonly buffer: BufferName;
}

/** Like Span, but in another rank's buffer when `rank` is given and differs: only between ranks of one host, mailboxes excepted. */
export interface Location extends Span {
  readonly rank?: number;
}

/** One step of a channel. Steps of a channel run in order; a step starts when the one before has finished, except that
 *  `put` only starts a transfer: its source must not be changed until a `flush`, or until something that happens after the
 *  peer has waited for it. */
export type Step =
  /** Copies `source` into `peer`'s `target`, then adds 1 to `peer`'s `signal`. */
  | { readonly kind: 'put'; readonly peer: number; readonly source: Span; readonly target: Span; readonly signal: number }
  /** Adds 1 to `peer`'s `signal`, after the effects of all earlier steps of this channel are visible. */
  | { readonly kind: 'signal'; readonly peer: number; readonly signal: number }
  /** Waits until own `signal` has been raised at least `value` times since the operation began. */
  | { readonly kind: 'wait'; readonly signal: number; readonly value: number }
  /** Sets every target to the reduction of the sources along `tree` (postfix over the sources' indices). `final` marks that the
   *  result holds every rank's contribution, so that Avg divides here, once. */
  | {
      readonly kind: 'reduce';
      readonly targets: readonly Location[];
      readonly sources: readonly Location[];
      readonly tree: ReduceTree;
      readonly final: boolean;
    }
  | { readonly kind: 'copy'; readonly target: Location; readonly source: Location }
  /** Waits until all puts that this channel has started have left their sources. */
  | { readonly kind: 'flush' };

/** Steps that are made several times, in a program that is only run. Each time, spans of the rank's own `data` lie `by` elements further on,
 *  and waits are for `raises` more than the time before. */
export interface Loop {
  readonly kind: 'loop';
  readonly times: number;
  readonly by: number;
  readonly raises: number;
  readonly steps: readonly Step[];
}

/** The work of one rank. First the entry steps; then the rank announces the call; when all ranks have announced theirs, so that
 *  every entry step of every rank has happened, the channels start and run concurrently. */
export interface Program<Each = Step> {
  readonly rank: number;
  /** Copies from own buffers into the own mailbox. */
  readonly entry: readonly Extract<Step, { kind: 'copy' }>[];
  readonly channels: readonly (readonly Each[])[];
  /** Elements of scratch this rank needs. */
  readonly scratchCount: number;
  /** Signals are numbered 0…signalCount−1. Each signal has exactly one rank (and one channel of it) that raises it. */
  readonly signalCount: number;
}

export interface Plan {
  readonly request: PlanRequest;
  /** Name of the algorithm, for people and traces; the executor never reads it. */
  readonly algorithm: string;
  /** 'canonical': sums follow the canonical tree of the topology, so bits equal those of every canonical plan. */
  readonly association: 'canonical' | 'relaxed' | 'none';
  /** True when partial reductions travel between ranks: 16-bit floats must then be widened to float32 for the operation. */
  readonly partials: boolean;
  /** Programs of all ranks, in order. */
  readonly programs: readonly Program[];
  /** Set when only this rank's program was built: the others are without steps, so that nothing can be proved or timed. */
  readonly onlyRank?: number;
  /** Set when only the programs of the first `tile` ranks were built, because all hosts do the same: the program of rank r + tile is that
   *  of rank r, with every rank in it `tile` later, around the end; offsets differ. It can be timed, but not proved. */
  readonly tile?: number;
}
