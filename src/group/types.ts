/** The public face of process groups, as seen by user code, ddp and adapters. */
import type { ShoalError } from '../base/errors.ts';
import type { DType, TypedArray } from '../memory/dtype.ts';
import type { ReduceOp } from '../memory/reduce-op.ts';
import type { Tensor } from '../memory/tensor.ts';

/** What collectives accept: a tensor (shared memory, no copies) or any typed array (staged: one copy each way). */
export type TensorLike = Tensor | TypedArray;

/** A started operation. `await work` resolves when it is complete and rejects with its `ShoalError`. */
export interface Work extends PromiseLike<void> {
  /** True once the operation has finished, well or not. */
  readonly done: boolean;
  /** The failure, once done; undefined while running or when it succeeded. */
  readonly error: ShoalError | undefined;
  /** Blocks this thread until done; throws the operation's error, or `timeout` after `timeoutMs` (default: the operation's own). */
  waitSync(timeoutMs?: number): void;
}

export interface CallOptions {
  /** Ends the wait for late ranks with an error that names them. Default: the group's. Milliseconds. */
  readonly timeoutMs?: number;
  /** Takes part in the contract: ranks that give different names get a `mismatch`. */
  readonly name?: string;
}

export interface ReduceOptions extends CallOptions {
  /** Default Sum. */
  readonly op?: ReduceOp;
  /** Premul only: this rank's factor. */
  readonly factor?: number;
}

export interface RootOptions extends CallOptions {
  /** Rank in this group. Default 0. */
  readonly root?: number;
}

export interface CountsOptions extends CallOptions {
  /** Elements per rank for uneven operations, the same on every rank. Default: even. */
  readonly counts?: readonly number[];
}

export interface AllToAllOptions extends CallOptions {
  /** Elements this rank sends to each rank. Default: even. */
  readonly inputSplits?: readonly number[];
  /** Elements this rank receives from each rank. Default: even. */
  readonly outputSplits?: readonly number[];
}

export interface PeerOptions extends CallOptions {
  /** Messages match by sender and tag, in order. Default 0. Integer 0…65535. */
  readonly tag?: number;
}

/** A set of ranks that communicate together. Collectives must be called by every rank in the same order. */
export interface ProcessGroup {
  readonly name: string;
  /** This process in the group, 0…size−1. */
  readonly rank: number;
  readonly size: number;
  /** Position among the group's ranks of this host. */
  readonly localRank: number;
  readonly localSize: number;
  /** Group ranks per host, in host order. */
  readonly hosts: readonly (readonly number[])[];
  /** Rank in the world of each group rank. */
  readonly globalRanks: readonly number[];

  /** A zero-filled tensor in memory that communication reads and writes in place. */
  tensor<D extends DType>(dtype: D, shape: readonly number[]): Tensor<D>;
  /** Gives the tensor's memory back now rather than at destroy. */
  release(tensor: Tensor): void;

  /** In place: data := reduction over all ranks' data. */
  allReduce(data: TensorLike, options?: ReduceOptions): Work;
  /** In place: data := the root's data. */
  broadcast(data: TensorLike, options?: RootOptions): Work;
  /** The root's data := reduction over all ranks' data; other ranks' data keeps its values. */
  reduce(data: TensorLike, options?: ReduceOptions & RootOptions): Work;
  /** output := all ranks' inputs in rank order. */
  allGather(output: TensorLike, input: TensorLike, options?: CountsOptions): Work;
  /** The root's output := all ranks' inputs in rank order; other ranks pass null. */
  gather(output: TensorLike | null, input: TensorLike, options?: CountsOptions & RootOptions): Work;
  /** output := this rank's part of the root's input; other ranks pass null. */
  scatter(output: TensorLike, input: TensorLike | null, options?: CountsOptions & RootOptions): Work;
  /** output := this rank's part of the reduction of all inputs. */
  reduceScatter(output: TensorLike, input: TensorLike, options?: ReduceOptions & CountsOptions): Work;
  /** Part q of this rank's input goes to rank q; output := the parts from all ranks in rank order. */
  allToAll(output: TensorLike, input: TensorLike, options?: AllToAllOptions): Work;
  send(data: TensorLike, peer: number, options?: PeerOptions): Work;
  recv(data: TensorLike, peer: number, options?: PeerOptions): Work;
  barrier(options?: CallOptions): Work;
  /** As barrier, but on failure the error names every rank that did not arrive. */
  monitoredBarrier(options?: CallOptions): Work;

  /** One new group per distinct colour, ordered by key then rank; collective. A null colour takes no part and gives null. */
  split(color: number | null, options?: { key?: number; timeoutMs?: number }): Promise<ProcessGroup | null>;
  /** A group of the given ranks of this group; collective over this whole group. Null on ranks not listed.
   *  `backend`, as in `initProcessGroup`, stands before what the world was started with; `auto`: chosen per call. */
  newGroup(ranks: readonly number[], options?: { timeoutMs?: number; name?: string; backend?: string }): Promise<ProcessGroup | null>;
  /** Ends the group: waits (bounded) for work in flight, then closes. Safe to call after a failure. Idempotent. */
  destroy(options?: { timeoutMs?: number }): Promise<void>;
  [Symbol.asyncDispose](): Promise<void>;
}
