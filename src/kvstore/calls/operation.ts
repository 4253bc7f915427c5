/** Operations of a store: calls whose arguments are checked, as plain data, and the interface of the backends that carry them out.
 *
 *      program ── push, info, … ──▶ CheckedStore, which checks the arguments ── operation ──▶ backend: local, collective, servers, scheduled
 *
 *  Contract: operations take effect in the order in which they are given, per parameter. A backend compares values with its parameters
 *  before anything changes. It is given nothing after `close`. */
import type { Clock } from '../../base/clock.ts';
import type { Logger } from '../../base/log.ts';
import type { DType, TypedArray } from '../../memory/dtype.ts';
import type { Kernels } from '../../memory/kernels.ts';
import type { ParameterKernels } from '../../memory/parameter-kernels.ts';
import type { Tensor } from '../../memory/tensor.ts';
import type { Answer, ClientQuestion, ClientSetting } from '../../ps/client/commands.ts';
import type { KVStore, KVWork, Updater, Value } from './types.ts';
import type { NamedParameter } from './values-argument.ts';

/** The values of each key's devices. */
export type ValueLists = readonly (readonly Value[])[];

/** Keys and values of a push, a pull or both; calls with the same keys and tensors share them. */
export interface TransferLists {
  readonly keys: readonly string[];
  /** Undefined: a pull. */
  readonly values: ValueLists | undefined;
  /** The outputs; `values` itself where results take their place. Undefined: a push. */
  readonly outs: ValueLists | undefined;
  /** These lists, of tensors alone, come again when the same call is made again. */
  readonly recurs: boolean;
}

/** The numbers of a call; each is undefined where the caller left it out. */
interface Urgency {
  readonly priority: number | undefined;
  readonly timeoutMs: number | undefined;
}

export interface Transfer extends Urgency {
  readonly type: 'push' | 'pull' | 'pushPull';
  readonly lists: TransferLists;
}

export interface RowTransfer extends Urgency {
  readonly type: 'rowSparsePush' | 'rowSparsePull';
  readonly key: string;
  readonly rows: Uint32Array | Int32Array;
  /** The rows' elements: what is pushed, or the output. */
  readonly value: Value;
}

/** A parameter to be created. */
export interface FirstValue extends Omit<NamedParameter, 'count'> {
  readonly value: Value;
  readonly data: TypedArray;
}

/** Operations without a work: they end with an answer. */
export type Question = ClientQuestion | { readonly type: 'init'; readonly entries: readonly FirstValue[] };

/** Operations that are done when their call returns. `updater` is for stores without servers, `credit` and `listen` are for those with. */
export type Setting =
  | ClientSetting
  | { readonly type: 'updater'; readonly updater: Updater }
  | { readonly type: 'listen'; readonly worker: number; readonly name: string; readonly onValues: (values: TypedArray) => void };

/** This process's place in the job. */
export type StorePlace = Pick<KVStore, 'type' | 'role' | 'rank' | 'numWorkers' | 'numServers' | 'workerGroup' | 'workersPerGroup'> & {
  /** Milliseconds that a call without a limit may take. */
  readonly timeoutMs: number;
};

/** Kernels, clock and limits of a backend. */
export interface Surroundings {
  readonly kernels: Kernels;
  readonly parameterKernels: ParameterKernels;
  readonly clock: Clock;
  /** The limit of calls that name none. */
  readonly timeoutMs: number;
  /** Told of saved state that is damaged while the state before it is used. Default: nobody. */
  readonly log?: Logger;
}

/** A process that is a server: it can be waited for. */
export interface ServerStore {
  readonly place: StorePlace;
  /** All workers have left. */
  served(): Promise<void>;
  close(): Promise<void>;
}

/** A kind of store, as a worker has it. */
export interface Backend {
  readonly place: StorePlace;
  tensor<D extends DType>(dtype: D, shape: readonly number[]): Tensor<D>;
  /** Begins a push or a pull. Pushed values are the caller's again when it returns, those of a pushPull when its work is done.
   *  @throws ShoalError `usage`, `mismatch` for values that do not fit. */
  start(operation: Transfer | RowTransfer): KVWork;
  ask(question: Question): Promise<Answer>;
  set(setting: Setting): void;
  /** Called once. With `abort`, what has not started fails. */
  close(mode?: 'drain' | 'abort'): Promise<void>;
}
