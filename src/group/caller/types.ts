/** The public face of process groups, as seen by user code, ddp and adapters. */
import type { TuningOptions } from '../../scheduler/tuner/tuner.ts';
import type { SchedulingStatus } from '../../call/group-spec.ts';
import type { Work } from '../../comm/caller/work.ts';
import type { DType, NativeFloat16Array, TypedArray } from '../../memory/dtype.ts';
import type { DeviceTensor } from '../../memory/device/device-tensor.ts';
import type { LogicalOp, ReduceOp } from '../../memory/reduce-op.ts';
import type { Tensor } from '../../memory/tensor.ts';
import type { JobStore } from '../../store/store.ts';

export type { SchedulingStatus, Work };

/** An argument of collectives: a tensor (shared memory, no copies) or any typed array (staged: one copy each way). */
export type TensorLike = Tensor | TypedArray | NativeFloat16Array;

/** An argument of single collectives of a group: also tensors of a device, on all ranks alike. Their work is awaited: it moves
 *  memory of the device by this thread's event loop. */
export type CollectiveData = TensorLike | DeviceTensor;

/** Options of every collective. */
export interface CallOptions {
  /** Ends the wait for late ranks with `timeout`, which names them, and the group with it. Default: the world's. Milliseconds. */
  readonly timeoutMs?: number;
  /** Takes part in the contract: ranks that give different names get a `mismatch`. */
  readonly name?: string;
  /** When it is aborted before the operation is done, the group ends: every rank gets `aborted`, which names this rank and the call. Others
   *  wait for this rank's part, so it cannot be taken back alone. Once the operation is done, it means nothing. */
  readonly signal?: AbortSignal;
}

/** An operator of the program's own, for allReduce, reduce, reduceScatter, scan and exscan; the same on all ranks. Every rank that gets a
 *  result first gets the data of all ranks. */
export interface UserReduceOp {
  /** Takes part in the contract, like the name of a call. */
  readonly name: string;
  /** Combines `value`, a rank's elements, into `accumulator`, the result for all ranks before it: (r0 ⊕ r1) ⊕ r2 …, so that the operator
   *  need not be commutative or associative. Both are views as a tensor's `data` is. A throw is the error of the call on this rank. */
  reduce(accumulator: TypedArray, value: TypedArray): void;
}

/** The operators of single calls; batches and scheduled groups take those of `ReduceOp`. */
export type AnyReduceOp = ReduceOp | LogicalOp | UserReduceOp;

/** Options of collectives that combine values. */
export interface ReduceOptions<Op = ReduceOp> extends CallOptions {
  /** Default Sum. */
  readonly op?: Op;
  /** This rank's factor. Given with Premul, and only then. */
  readonly factor?: number;
  /** Factor of the result, the same on all ranks: Horovod's `postscale_factor`, as `factor` is its `prescale_factor`. Of floats, in single
   *  calls. */
  readonly postscale?: number;
}

/** Options of collectives that have one rank as their source or target. */
export interface RootOptions extends CallOptions {
  /** Rank in this group. Default 0. */
  readonly root?: number;
}

/** Options of collectives whose parts may differ in size. */
export interface CountsOptions extends CallOptions {
  /** Elements of each rank's part, by rank, the same list on every rank; zeros are allowed. Default: as many as this rank's part has,
   *  for each. */
  readonly counts?: readonly number[];
}

/** Options of all-to-all. */
export interface AllToAllOptions extends CallOptions {
  /** Elements this rank sends to each rank, by rank; sums to the input's count. Default: even. */
  readonly inputSplits?: readonly number[];
  /** Elements this rank receives from each rank, by rank; sums to the output's count. Default: even. */
  readonly outputSplits?: readonly number[];
}

/** Options of sends and receives. */
export interface PeerOptions extends CallOptions {
  /** Messages match by sender and tag, in order. Default 0. Integer 0…65535. */
  readonly tag?: number;
}

/** The peer of a receive that takes the first message with its tag, whoever sends it. */
export const anySource = 'any';

/** A started receive. */
export interface ReceiveWork extends Work {
  /** Rank in this group of whoever sent; undefined until done. */
  readonly source: number | undefined;
}

/** One call of a `batch`: the method's name, its arguments by name, and its options.
 *
 *      await group.batch([{ call: 'send', data: mine, peer: next }, { call: 'recv', data: theirs, peer: previous, tag: 1 }]); */
export type BatchCall =
  | ({
      /** The same as `group.send`. */
      readonly call: 'send';
      /** The data to send; free again when the batch is done. */
      readonly data: TensorLike;
      /** The receiver: rank in this group. */
      readonly peer: number;
    } & Pick<PeerOptions, 'tag'>)
  | ({
      /** The same as `group.recv`. */
      readonly call: 'recv';
      /** The place for the message: of the sender's dtype and count. */
      readonly data: TensorLike;
      /** The sender: rank in this group, or `'any'`. */
      readonly peer: number | typeof anySource;
    } & Pick<PeerOptions, 'tag'>)
  | ({
      /** The same as `group.allReduce`. */
      readonly call: 'allReduce';
      /** In place: becomes the reduction over all ranks. */
      readonly data: TensorLike;
    } & BatchOptions<ReduceOptions>)
  | ({
      /** The same as `group.broadcast`. */
      readonly call: 'broadcast';
      /** In place: becomes the root's. */
      readonly data: TensorLike;
    } & BatchOptions<RootOptions>)
  | ({
      /** The same as `group.reduce`. */
      readonly call: 'reduce';
      /** In place at the root; other ranks' keeps its values. */
      readonly data: TensorLike;
    } & BatchOptions<ReduceOptions & RootOptions>)
  | ({
      /** The same as `group.allGather`. */
      readonly call: 'allGather';
      /** Becomes all ranks' inputs in rank order. */
      readonly output: TensorLike;
      /** This rank's part. */
      readonly input: TensorLike;
    } & BatchOptions<CountsOptions>)
  | ({
      /** The same as `group.reduceScatter`. */
      readonly call: 'reduceScatter';
      /** Becomes this rank's part of the reduction. */
      readonly output: TensorLike;
      /** This rank's input, with as many elements as all outputs together. */
      readonly input: TensorLike;
    } & BatchOptions<ReduceOptions & CountsOptions>);

/** Limit, name and signal are those of the batch. */
type BatchOptions<Options extends CallOptions> = Omit<Options, keyof CallOptions>;

/** The options by which a group is divided. */
export interface SubgroupsOptions {
  /** Ranks of each group: the first so many, the next so many, …; divides the group's size. Default: the ranks of each host. */
  readonly groupSize?: number;
  /** The ranks of each group, in their order there; the same lists on every rank. Instead of `groupSize`. */
  readonly ranks?: readonly (readonly number[])[];
  /** Time limit for each of the groups to open. Default: the world's. Milliseconds. */
  readonly timeoutMs?: number;
}

/** The options by which a group goes on without some of its ranks. */
export interface ShrinkOptions {
  /** Ranks of this group that are left out though they may be there, such as one that has stopped. A rank that any other excludes is out.
   *  Default: none, only those that have been lost. */
  readonly exclude?: readonly number[];
  /** Time limit for the others to call it. Default: the world's. Milliseconds. */
  readonly timeoutMs?: number;
}

/** The options by which a group takes in ranks that wait. */
export type GrowOptions = Pick<ShrinkOptions, 'timeoutMs'>;

/** The options by which a group goes on with the ranks that are named. */
export interface ReconfigureOptions extends GrowOptions {
  /** The ranks of this group that go on, in their new order. A rank that any other leaves out is out, and the order is that of the first
   *  rank of this group that goes on. Default: all that are still there, in their order. */
  readonly ranks?: readonly number[];
}

/** The options by which all-reduces are scheduled; the same on all ranks. */
export interface SchedulingOptions {
  /** Bytes in flight at most; one larger part may be alone. Default: SHOAL_SCHEDULE_CREDIT_BYTES. */
  readonly creditBytes?: number;
  /** Tensors are cut into parts of at most so many bytes; at least 4096, because each part costs about as much as a small all-reduce.
   *  Default: SHOAL_SCHEDULE_PARTITION_BYTES. */
  readonly partitionBytes?: number;
  /** Credit and partition are where tuning starts; tensors have names, one for all steps, and are reduced once in each step. Default:
   *  SHOAL_SCHEDULE_CREDIT_TUNING, SHOAL_SCHEDULE_PARTITION_TUNING. */
  readonly tuning?: TuningOptions | boolean;
}

export interface ScheduledReduceOptions extends ReduceOptions {
  /** Smaller is sooner, as in the order of a model's layers; the same on all ranks. Default: 0. */
  readonly priority?: number;
}

/** A collective that is bound to its data and options, as of MPI-4's `MPI_Allreduce_init`. It needs no end of its own. */
export interface PersistentCall {
  /** Calls the collective once more, on the values that the data has now: a call like any other, in the group's order of calls. */
  start(): Work;
}

/** `allReduceInit(data, options)` and so on: the arguments of the collectives, checked once, with the errors of a call. They communicate
 *  nothing. */
export interface PersistentInits {
  /** Checks the arguments of an `allReduce` that `start` of the result calls, any number of times. @throws ShoalError `unsupported` of a
   *  scheduled group, whose all-reduces have priorities. */
  readonly allReduceInit: (...args: Parameters<ProcessGroup['allReduce']>) => PersistentCall;
  /** Checks the arguments of a `broadcast` that `start` of the result calls, any number of times. */
  readonly broadcastInit: (...args: Parameters<ProcessGroup['broadcast']>) => PersistentCall;
  /** Checks the arguments of a `reduce` that `start` of the result calls, any number of times. */
  readonly reduceInit: (...args: Parameters<ProcessGroup['reduce']>) => PersistentCall;
  /** Checks the arguments of an `allGather` that `start` of the result calls, any number of times. */
  readonly allGatherInit: (...args: Parameters<ProcessGroup['allGather']>) => PersistentCall;
  /** Checks the arguments of a `gather` that `start` of the result calls, any number of times. */
  readonly gatherInit: (...args: Parameters<ProcessGroup['gather']>) => PersistentCall;
  /** Checks the arguments of a `scatter` that `start` of the result calls, any number of times. */
  readonly scatterInit: (...args: Parameters<ProcessGroup['scatter']>) => PersistentCall;
  /** Checks the arguments of a `reduceScatter` that `start` of the result calls, any number of times. */
  readonly reduceScatterInit: (...args: Parameters<ProcessGroup['reduceScatter']>) => PersistentCall;
  /** Checks the arguments of an `allToAll` that `start` of the result calls, any number of times. */
  readonly allToAllInit: (...args: Parameters<ProcessGroup['allToAll']>) => PersistentCall;
  /** Checks the options of a `barrier` that `start` of the result calls, any number of times. */
  readonly barrierInit: (...args: Parameters<ProcessGroup['barrier']>) => PersistentCall;
}

/** Collectives that can be persistent. */
export type PersistentMethod = { [K in keyof PersistentInits]: K extends `${infer Method}Init` ? Method : never }[keyof PersistentInits];

/** A set of ranks that communicate together. Collectives must be called by every rank in the same order.
 *
 *  Elements are counted over a tensor's whole shape, which matters to no operation: only counts and dtypes have to agree, between
 *  ranks and between the buffers of a call. Every dtype is moved; `ReduceOp` says which are reduced. Until its work is done, an
 *  operation owns its buffers.
 *
 *  Calls throw ShoalError `usage` for arguments that cannot be, `unsupported` for what Shoal does not do with them, and `closed` after
 *  `destroy`. Works fail with `mismatch`, `timeout`, `peer-lost`, or the error that ended the group before. */
export interface ProcessGroup extends PersistentInits {
  /** Name in messages, traces and reports: `world`, or the name that `newGroup` was given. */
  readonly name: string;
  /** This process in the group, 0…size−1. */
  readonly rank: number;
  /** Number of ranks in the group. */
  readonly size: number;
  /** Position among the group's ranks of this host, 0…localSize−1. */
  readonly localRank: number;
  /** The group's ranks of this host. */
  readonly localSize: number;
  /** Group ranks per host, in host order. */
  readonly hosts: readonly (readonly number[])[];
  /** Rank in the world of each group rank. */
  readonly globalRanks: readonly number[];
  /** The store by which the ranks of the world met, in a part of its own for programs: torch's default store. The same for all groups of
   *  the world, and until that is destroyed; `store.prefix(name)` keeps users apart. */
  readonly store: JobStore;

  /** A zero-filled tensor in memory that communication reads and writes in place. `release` gives it back; what `destroy`
   *  leaves stays readable for as long as something refers to it.
   *  @throws ShoalError `usage` for a shape that cannot be; `unsupported` for more bytes than an ArrayBuffer has; `out-of-memory`. */
  tensor<D extends DType>(dtype: D, shape: readonly number[]): Tensor<D>;
  /** Gives the tensor's memory back now rather than at `destroy`; operations that use it go on, and keep it until they end. No group
   *  takes the tensor any more.
   *  @throws ShoalError `usage` when it has been released before, or is not of this group. */
  release(tensor: Tensor): void;

  /** In place: data := reduction over all ranks' data. */
  allReduce(data: CollectiveData, options?: ReduceOptions<AnyReduceOp>): Work;
  /** In place: data := the root's data. */
  broadcast(data: CollectiveData, options?: RootOptions): Work;
  /** The root's data := reduction over all ranks' data; other ranks' data keeps its values. */
  reduce(data: CollectiveData, options?: ReduceOptions<AnyReduceOp> & RootOptions): Work;
  /** In place: data := reduction of the data of ranks 0…rank, in this order (MPI's `MPI_Scan`). Every rank gets the data of all ranks
   *  first. Op: any but Avg and Premul. */
  scan(data: TensorLike, options?: ReduceOptions<AnyReduceOp>): Work;
  /** In place: data := reduction of the data of ranks 0…rank−1; rank 0's keeps its values (`MPI_Exscan`). Otherwise as `scan`. */
  exscan(data: TensorLike, options?: ReduceOptions<AnyReduceOp>): Work;
  /** In place: values := the largest of all ranks, element by element, and indices := the indices that came with them; of equal values the
   *  smallest index (`MPI_MAXLOC`). Values are ordered as by Max. Indices are of an integer dtype. Every rank gets the data of all ranks
   *  first. */
  maxLoc(values: TensorLike, indices: TensorLike, options?: CallOptions): Work;
  /** The same as `maxLoc` with the smallest values (`MPI_MINLOC`). */
  minLoc(values: TensorLike, indices: TensorLike, options?: CallOptions): Work;
  /** output := all ranks' inputs in rank order. The output has as many elements as all inputs together. */
  allGather(output: CollectiveData, input: CollectiveData, options?: CountsOptions): Work;
  /** The root's output := all ranks' inputs in rank order, as in `allGather`; other ranks pass null. The root may pass null as its input:
   *  its part is at its place in the output already. */
  gather(output: CollectiveData | null, input: CollectiveData | null, options?: CountsOptions & RootOptions): Work;
  /** output := this rank's part of the root's input, which has as many elements as all outputs together; other ranks pass null. The root
   *  may pass null as its output: its part stays in the input. */
  scatter(output: CollectiveData | null, input: CollectiveData | null, options?: CountsOptions & RootOptions): Work;
  /** output := this rank's part of the reduction of all inputs. An input has as many elements as all outputs together. */
  reduceScatter(output: CollectiveData, input: CollectiveData, options?: ReduceOptions<AnyReduceOp> & CountsOptions): Work;
  /** Part q of this rank's input goes to rank q; output := the parts from all ranks in rank order. Without splits all parts are
   *  equal: input and output have equally many elements, and `size` divides their number. */
  allToAll(output: CollectiveData, input: CollectiveData, options?: AllToAllOptions): Work;
  /** The values of all ranks, by rank: whatever structured clone takes (plain objects, maps, dates, typed arrays, errors), of any size on
   *  each rank. As the other calls of objects, for configurations and metrics, not for tensors: values are copied twice. This thread
   *  waits until all ranks have called it.
   *  @throws ShoalError `usage` when the value cannot be cloned; `unsupported` for more than 2 GiB. */
  allGatherObject<T>(value: T, options?: CallOptions): Promise<T[]>;
  /** The same as `allGatherObject`, at the root only; null elsewhere. */
  gatherObject<T>(value: T, options?: RootOptions): Promise<T[] | null>;
  /** The root's value; what other ranks pass is ignored. */
  broadcastObject<T>(value: T | undefined, options?: RootOptions): Promise<T>;
  /** This rank's value of the root's list, which has one for each rank; other ranks pass null. */
  scatterObject<T>(values: readonly T[] | null, options?: RootOptions): Promise<T>;
  /** Sends to another rank of the group. Done when the data may change again. */
  send(data: TensorLike, peer: number, options?: PeerOptions): Work;
  /** data := what that rank sent with this tag, of the same dtype and count, in the order it was sent. From `'any'`: the first message
   *  with this tag that no receive called before takes; `source` then says whose it was. */
  recv(data: TensorLike, peer: number | 'any', options?: PeerOptions): ReceiveWork;
  /** Several calls as one `Work`, with one synchronisation: torch's `batch_isend_irecv` and coalescing. All are checked before any begins.
   *  Collectives with small data that are alike but for it travel as one. Every rank's batches have the same collectives in the same
   *  order; its sends and receives are its own, and match those of batches and of single calls. Bits are those of single calls. */
  batch(calls: readonly BatchCall[], options?: CallOptions): Work;
  /** Done when every rank has called it. */
  barrier(options?: CallOptions): Work;
  /** The same as `barrier`, but on failure the error names every rank that did not arrive. */
  monitoredBarrier(options?: CallOptions): Work;

  /** One new group per distinct colour, ordered by key, then rank; collective over this whole group. Default key: the rank here. A
   *  null colour takes no part and gives null. Milliseconds. */
  split(color: number | null, options?: { key?: number; timeoutMs?: number }): Promise<ProcessGroup | null>;
  /** A group of the given ranks of this group; collective over this whole group. Null on ranks not listed.
   *  `backend`, as in `initProcessGroup`, stands before what the world was started with; `auto`: chosen per call. `name` is for
   *  messages; default: this group's and a number. Milliseconds. */
  newGroup(ranks: readonly number[], options?: { timeoutMs?: number; name?: string; backend?: string }): Promise<ProcessGroup | null>;
  /** This group cut into several, of which this rank's is returned: null when it is in none. Collective over this whole group. torch's
   *  `new_subgroups` and, with `ranks`, `new_subgroups_by_enumeration`. Milliseconds. */
  newSubgroups(options?: SubgroupsOptions): Promise<ProcessGroup | null>;
  /** Runs `fn`, and draws a span of this name on this rank's timeline, from its call until it returns or what it returns resolves. Without
   *  tracing it is a mere call. `details` are its arguments there: texts and numbers. Names and details that differ are kept for each. */
  span<T>(name: string, fn: () => T, details?: Readonly<Record<string, string | number>>): T;
  /** Ends a training step, for `shoal status`, metrics and the timeline, where a step is a span from one call to the next. `shoal/ddp`
   *  calls it by itself. */
  step(): void;
  /** The same ranks, with all-reduces that are scheduled: in parts, what is needed sooner first, in one order on all ranks. Collective
   *  over this whole group, which goes on. Milliseconds. */
  scheduled(options?: SchedulingOptions & { timeoutMs?: number }): Promise<ScheduledGroup>;
  /** The group of the ranks that are still there, in their order, over the links and memory that they have. Called by all of them: after a
   *  failure, or without one and with `exclude`. All get the same group, also when more ranks are lost meanwhile. This group ends: calls
   *  that it has begun fail (on some ranks only, where others had all parts already), its tensors are the new one's, and `destroy` is the
   *  new one's; groups made of it stay as they are. Sums have the bits of a world of those ranks. NCCL's `ncclCommShrink`, MPI's
   *  `MPIX_Comm_shrink`.
   *  @throws ShoalError `closed` on a rank without which the others went on; `timeout` naming ranks that have not called it; `peer-lost`
   *  when
   *          the job's store is gone; `unsupported` with `backend: 'mpi'`, and of a scheduled group. */
  shrink(options?: ShrinkOptions): Promise<ProcessGroup>;
  /** The group of these ranks and of all processes that wait to join the world (`initProcessGroup({ join: true })`), which come after them.
   *  Collective; of the world's group, or of one that it was shrunk or grown to. Everything else is as in `shrink`: ranks that are lost
   *  meanwhile are left out. Without any that wait it is a group of the same ranks.
   *  @throws ShoalError as `shrink`; `unsupported` of a group that was made of another one. */
  grow(options?: GrowOptions): Promise<ProcessGroup>;
  /** `shrink` and `grow` in one call: the group of the named ranks, in the order in which they are named, and then of all processes that
   *  wait. Called by the named ranks that are there; one that has been lost is left out, as in `shrink`. It works after a failure, an
   *  abort, or neither. Of a group that was made of another one, nobody is taken in. torchcomms' `reconfigure`.
   *  @throws ShoalError as `shrink`; `usage` on a rank that is not named. */
  reconfigure(options?: ReconfigureOptions): Promise<ProcessGroup>;
  /** Ends the group on every rank: calls in flight and later ones fail with `aborted`, which names this rank and the reason. Where the
   *  group has failed already, its first error stays. The ranks may then `shrink`, `reconfigure` or `destroy` it; a change of its ranks
   *  that is underway goes on. Other groups go on, except those that are just being made of this one. Returns when the others have heard of
   *  it, after 2 seconds at most. torch's `ProcessGroup.abort`; of NCCL's `ncclCommAbort` only the calling rank hears. @throws ShoalError
   *  `closed` after `destroy`. */
  abort(reason?: unknown): void;
  /** A rank has aborted the group, by `abort` or by the signal of a call, and this rank has heard of it. */
  readonly isAborted: boolean;
  /** Processes that wait to join the world and that this rank is connected with, without communication: ranks may differ for a moment. */
  readonly waiting: number;
  /** SIGTERM has asked this process to leave, as on a machine that is about to be taken away. Once a script has read this, the first
   *  SIGTERM does not end the process: it ends by itself after the step. `elastic.run` of `shoal/ddp` does both. */
  readonly leaving: boolean;
  /** Ends the group, and with the world's group the world: waits for work in flight for `timeoutMs` at most, by default 10,000, then
   *  closes. Safe to call after a failure. Idempotent. */
  destroy(options?: { timeoutMs?: number }): Promise<void>;
  /** The same as `destroy`, for `await using`. */
  [Symbol.asyncDispose](): Promise<void>;
}

/** A process group whose all-reduces are scheduled. Ranks may make them in different orders: tensors are told apart by their names,
 *  and a name that is used again by the order of its calls. Everything else is as in the group that it was made of. */
export interface ScheduledGroup extends ProcessGroup {
  /** In place: data := reduction over all ranks' data, as soon as priorities and credit allow. The bits are those of an all-reduce that
   *  is not scheduled, however it is cut. `name` is the tensor's; default: all calls without a name count, and the n-th of one rank is
   *  the n-th of the others. Ranks that give a tensor different priorities or sizes get a `mismatch`. */
  allReduce(data: TensorLike, options?: ScheduledReduceOptions): Work;
  /** Sets credit and partition of all-reduces that are called from now on. A partition must change before the same call of a tensor on all
   *  ranks; the credit is each rank's own. */
  setScheduling(options: Omit<SchedulingOptions, 'tuning'>): void;
  /** The status that this rank was told last. */
  readonly scheduling: SchedulingStatus;
}
