/** The addon's interface to Open MPI, typed: one MPI thread per process, endpoints that any JavaScript thread may open. Its
 *  behaviour is described in native/mpi_runtime.h. */
declare const opaque: unique symbol;
/** Handle of an endpoint; only functions of the addon look inside. */
export interface MpiHandle {
  readonly [opaque]: 'mpi';
}

/** Kinds of events by code, as in native/mpi_runtime.h. */
export const mpiEvents = {
  /** MPI is up. a: rank of this process, b: number of ranks, what: version of the library. */
  opened: 0,
  /** MPI cannot be used, or no longer. what: the reason. */
  failed: 1,
  /** A message. a: rank of the sender, b: tag, what: the bytes, which are the receiver's own. */
  message: 2,
  /** A message larger than its port takes was dropped. a: rank of the sender, b: tag. */
  oversize: 3,
  /** An operation is done. a: its id, what: the error, or ''. */
  done: 4,
} as const;

/** Events one after the other, each as `kind, a, b, what`. */
export type MpiEventBatch = readonly (number | string | Uint8Array)[];

/** Functions of the addon. Numbers cross as bytes over an Int32Array. NaN for an id: success is not reported. */
export interface NativeMpi {
  /** The reason why this process cannot load Open MPI; '' when it can. */
  mpiUnavailable(): string;
  /** Starts MPI when it is the first; `opened` or `failed` follows. The endpoint keeps the event loop alive. */
  mpiOpen(onEvents: (events: MpiEventBatch) => void): MpiHandle;
  /** Blocks until no transfer uses the caller's memory any more; after `timeoutMs` MPI is stopped for the whole process. */
  mpiClose(handle: MpiHandle, timeoutMs: number): void;
  /** Sets whether the endpoint keeps the event loop alive. */
  mpiRef(handle: MpiHandle, on: boolean): void;
  /** Messages with tags from 4·port to 4·port+3 and at most `bytesMax` bytes come here. False when the port is taken. */
  mpiClaim(handle: MpiHandle, port: number, bytesMax: number): boolean;
  mpiRelease(handle: MpiHandle, port: number): void;
  /** Sends a message. `copies`: `bytes` is free at once; otherwise it must not change until `done`. */
  mpiSend(handle: MpiHandle, id: number, peer: number, tag: number, bytes: Uint8Array, copies: boolean): void;
  /** Makes a communicator of these ranks of MPI's world, in this order. Collective over them; `done` follows. */
  mpiGroup(handle: MpiHandle, id: number, group: number, ranks: Uint8Array): void;
  mpiFreeGroup(handle: MpiHandle, group: number): void;
  /** Starts a collective; kinds, dtypes and operators by code. The order of a group's calls is the same on all its ranks. Buffers
   *  and counts: native/mpi_tasks.h. */
  mpiCollective(
    handle: MpiHandle,
    id: number,
    group: number,
    kind: number,
    dtype: number,
    op: number,
    root: number,
    input: Uint8Array,
    output: Uint8Array,
    inputCounts: Uint8Array,
    outputCounts: Uint8Array,
  ): void;
}
