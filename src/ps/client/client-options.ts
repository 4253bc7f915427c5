/** The options of a client core, and the requests of its callers. */
import type { Clock } from '../../base/clock.ts';
import type { ShoalError } from '../../base/errors.ts';
import type { DType } from '../../memory/dtype.ts';
import type { Kernels } from '../../memory/kernels.ts';
import type { ParameterKernels } from '../../memory/parameter-kernels.ts';
import type { Address } from '../../messaging/address.ts';
import type { Msg } from '../../messaging/msg.ts';
import type { GradientCodec } from '../compression/codec.ts';
import type { Arbiter } from '../../scheduler/arbiter.ts';
import type { KVTopology } from '../protocol/topology.ts';
import type { OwnValues, ValueCounters, ValueRef } from '../protocol/value-space.ts';
import type { Placeable } from '../protocol/placement.ts';

/** Aim for messages of many small parameters; a slice of a large one is mostly larger and goes alone. */
export const unitBytes: number = 2 ** 20;

/** Below it a frame of its own costs more than two copies. */
export const frameBytesDefault: number = 256 * 1024;

export interface ClientOptions {
  readonly topology: KVTopology;
  readonly workerGroup: number;
  /** Number of this process's first worker among all workers; the others follow it. */
  readonly firstWorker: number;
  readonly localWorkers: number;
  /** Where workers come and go: the number of this process in its address, which no other has had, and whether it has come later than the
   *  others. Default: they do not. */
  readonly presence?: { readonly id: number; readonly joins: boolean } | undefined;
  readonly clock: Clock;
  readonly kernels: Kernels;
  readonly parameterKernels: ParameterKernels;
  /** Memory of this process; values of callers lie in it. */
  readonly values: OwnValues;
  /** Sends to a server of this client's server group. Fire and forget: a lost message is sent again after `serverUp`. */
  readonly send: (server: Address, msg: Msg) => void;
  /** The timeout of calls that name none. */
  readonly timeoutMs: number;
  /** Bytes of pushes kept for servers that restart from a checkpoint, all servers together. */
  readonly replayBytes: number;
  /** Bytes on their way to one server that it has not taken yet; one larger message goes alone. */
  readonly creditBytes: number;
  /** The arbiter of what else this process sends. Default: its own. */
  readonly arbiter?: Arbiter;
  /** Larger parameters are cut. */
  readonly sliceBytes: number;
  /** Counts what is copied. Default: its own. */
  readonly counters?: ValueCounters;
  /** Values from it on are frames of their own. Default 256 KiB. */
  readonly frameBytes?: number;
}

/** Called once, at the end of an operation. */
export type Done = (error: ShoalError | undefined) => void;

export interface InitEntry extends Placeable {
  readonly key: string;
  /** First value; read until `done`, and only that of worker 0. */
  readonly value: ValueRef;
}

export interface TransferEntry {
  readonly key: string;
  /** A gradient (or value), whole; must not change until `done`. */
  readonly push?: ValueRef;
  /** Where the new value goes, whole; may be `push` itself. */
  readonly out?: ValueRef;
}

export interface TransferRequest {
  readonly entries: readonly TransferEntry[];
  /** Operations with a larger priority go first. */
  readonly priority: number;
  readonly timeoutMs?: number | undefined;
  /** Encodes the sums of this process's gradients of float32. Default: they travel as they are. */
  readonly codec?: GradientCodec | undefined;
}

export interface RowsRequest {
  readonly key: string;
  /** Row numbers; those of a push are distinct and ascending. Not changed until `done`. */
  readonly rows: Uint32Array;
  /** `rows.length × width` elements: of a push the gradients, of a pull where the rows go. */
  readonly values: ValueRef;
  readonly priority: number;
  readonly timeoutMs?: number | undefined;
}

/** Facts of a parameter that are known without asking for its values. */
export interface ParameterInfo {
  /** The key as text, also when it was given as a number. */
  readonly key: string;
  /** Element type, as of the value that `init` was given. */
  readonly dtype: DType;
  /** Dimensions, as `init` was given; the values are one row-major array. */
  readonly shape: readonly number[];
  /** Updates applied so far; of a parameter in slices, the fewest of any slice. */
  readonly version: number;
  /** Own pushes that this version does not contain yet. */
  readonly ahead: number;
  /** Applied updates by others since this worker's last pull; 0 before the first. */
  readonly staleness: number;
  /** Workers whose pushes were summed for the last update; of a parameter in slices, the fewest of any. 0: none yet, or the server has
   *  begun again. */
  readonly workers: number;
}

export type KeylessInfo = Omit<ParameterInfo, 'key'>;

export type InfoDone = (error: ShoalError | undefined, info?: KeylessInfo) => void;
