/** The public interface of the parameter server, in the vocabulary of MXNet's KVStore. The type of a store selects its implementation, one
 *  thread or many processes; the calls are the same.
 *
 *    local        this process alone
 *    collective   no servers: push-pull is an all-reduce of the process group
 *    dist_sync    servers; a version of a parameter is complete when every worker of a worker group has pushed
 *    dist_async   servers; every push is applied at once
 *
 *  Source: MXNet's KVStore API; Li et al., "Scaling distributed machine learning with the parameter server", OSDI 2014. */
import type { DType, TypedArray } from '../../memory/dtype.ts';
import type { Tensor } from '../../memory/tensor.ts';
import type { ParameterInfo } from '../../ps/client/client-options.ts';
import type { CompressionSpec } from '../../ps/compression/codec.ts';
import type { OptimizerSpec } from '../../ps/optimizers/optimizer.ts';
import type { Blob } from '../../ps/values/blob-box.ts';
import type { Work } from '../../comm/caller/work.ts';

/** `local`: this process alone, no servers. `collective`: push-pull is an all-reduce over the job's process group, no servers.
 *  `dist_sync`: servers apply a version of a parameter when every worker of a worker group has pushed. `dist_async`: servers apply every
 *  push at once. */
export type KVStoreType = 'local' | 'collective' | 'dist_sync' | 'dist_async';

/** A number names the same parameter as its decimal text. */
export type Key = string | number;

/** Tensors made by `kv.tensor` are reached in place; any other typed array is copied once each way. */
export type Value = Tensor | TypedArray;

/** Rows of a matrix `[rows, width]`. */
export interface RowSparse {
  /** Numbers of the rows; distinct, ascending. */
  readonly indices: Uint32Array | Int32Array;
  /** `indices.length × width` elements of the parameter's dtype, row by row. */
  readonly values: Value;
}

/** Options of pushes and pulls. */
export interface TransferOptions {
  /** Larger goes first where operations compete for the wire. Default 0; MXNet's idiom is `-index of the layer`. */
  readonly priority?: number;
  /** Default: `SHOAL_TIMEOUT_MS`. */
  readonly timeoutMs?: number;
}

/** Options of pulls of rows. */
export interface RowSparsePullOptions extends TransferOptions {
  /** Numbers of the rows; the output receives them in this order. */
  readonly rowIds: Uint32Array | Int32Array;
}

/** The handle of a started operation. */
export type KVWork = Pick<Work, 'then' | 'done' | 'error' | 'waitSync'>;

/** Applied by `local` and `collective` stores to every push: changes `stored` in place. */
export type Updater = (key: string, pushed: TypedArray, stored: TypedArray) => void;

/** One value per key, or a list of values per key, one for each of several devices: what is pushed is summed first, what is pulled
 *  goes to all of them. `init` takes one. */
export type Values = Value | readonly Value[] | readonly (readonly Value[])[];

/** A parameter server as one worker sees it. Every call names parameters by key; all workers `init` the same keys. Works fail with the
 *  ShoalError of the operation: `mismatch` for values that do not fit the parameter, `timeout`, `peer-lost`, `closed`.
 *
 *      const kv = await create('dist_sync');
 *      await kv.init('w', new Float32Array(1000));
 *      if (kv.rank === 0) await kv.setOptimizer({ name: 'sgd', learningRate: 0.1 });
 *      await kv.pushPull('w', gradient, weights); */
export interface KVStore extends AsyncDisposable {
  /** The type that the store was created as. */
  readonly type: KVStoreType;
  /** The part of this process in the job; servers are started by the launcher and need no code. */
  readonly role: 'worker' | 'server';
  /** This worker's number among all workers, 0…numWorkers − 1. */
  readonly rank: number;
  /** Workers of the job, over all worker groups; 1 for `local`. */
  readonly numWorkers: number;
  /** Servers of the job, over all server groups, without standbys; 0 for `local` and `collective`. */
  readonly numServers: number;
  /** Number of this worker's group, 0-based; 0 where there is one group. */
  readonly workerGroup: number;
  /** Workers whose pushes make up one version of a parameter, in `dist_sync`. */
  readonly workersPerGroup: number;

  /** A tensor in memory that servers of this host reach without copies; zeros. */
  tensor<D extends DType>(dtype: D, shape: readonly number[]): Tensor<D>;

  /** Names parameters and gives their first values; every worker calls it, worker 0's values count. Resolves when the
   *  parameters can be used. @throws `usage` for a key that exists or has several values, `mismatch` when workers disagree about
   *  dtype or shape. */
  init(keys: Key | readonly Key[], values: Values, options?: { readonly shape?: readonly number[] }): Promise<void>;
  /** Hands a gradient (or, without optimiser, a value) over. The value is copied before `push` returns and may be changed
   *  afterwards. Done when it is applied: `dist_sync` when every worker of the group has pushed. Workers that await pushes of
   *  several keys one by one must do so in the same order. */
  push(keys: Key | readonly Key[], values: Values, options?: TransferOptions): KVWork;
  /** Fetches values that contain at least this worker's own pushes so far. */
  pull(keys: Key | readonly Key[], outs: Values, options?: TransferOptions): KVWork;
  /** Push, then pull, as one operation. Without `outs`, into `values`. Neither may be touched until it is done. */
  pushPull(keys: Key | readonly Key[], values: Values, outs?: Values, options?: TransferOptions): KVWork;
  /** `init`, then `pull`. */
  broadcast(keys: Key | readonly Key[], values: Values, outs: Values, options?: TransferOptions): Promise<void>;
  /** Pushes some rows of a matrix, as `push` does the whole of it: rows of several workers are summed, and optimisers touch these rows
   *  only. No rows at all take part in the round like any others. @throws ShoalError `usage` for rows that are not distinct, ascending
   *  and within the parameter; `mismatch` for values that do not fit; `unsupported` when a row is larger than a slice. */
  rowSparsePush(key: Key, rows: RowSparse, options?: TransferOptions): KVWork;
  /** Fetches the rows `rowIds` of a matrix into `out`, side by side in that order; a row may be asked for twice. @throws ShoalError as
   *  `rowSparsePush`. */
  rowSparsePull(key: Key, out: Value, options: RowSparsePullOptions): KVWork;

  /** Waits until all workers have called it. */
  barrier(): Promise<void>;
  /** Servers apply it to every complete push from now on. Worker 0 calls it, before the first push. `collective`: from the
   *  next `barrier` on, which every worker calls.  @throws `usage` on other workers. */
  setOptimizer(spec: OptimizerSpec): Promise<void>;
  /** `local` and `collective` only. */
  setUpdater(updater: Updater): void;
  /** dist types: bytes on their way to each server that it has not taken, from now on; SHOAL_KV_CREDIT_BYTES until then. */
  setCredit?(creditBytes: number): void;
  /** Compresses this worker's pushes from now on; float32 parameters. */
  setGradientCompression(spec: CompressionSpec): void;
  /** Parameters, optimiser state and versions of all servers, as safetensors files in a folder. Worker 0 calls it. */
  saveState(folder: string): Promise<void>;
  /** Replaces all of it; the number of servers may be another. Worker 0 calls it, when no push is under way. `collective`: at
   *  the next `barrier`. Of a damaged state the one before it is loaded.  @throws `usage` when there is no state, `mismatch` when it is
   *  of other parameters, `protocol` when it is damaged; then nothing has changed. */
  loadState(folder: string): Promise<void>;
  /** Facts of a parameter, without its values; a question to its servers, one round trip. @throws ShoalError `usage` for a key
   *  that was not initialised. */
  info(key: Key): Promise<ParameterInfo>;

  /** Sends a blob to another worker: features forward or gradients backward, for models that are split over workers. */
  sendBlob(worker: number, blob: Blob): Promise<void>;
  /** The next blob of this name from that worker, in the order sent. */
  receiveBlob(worker: number, name: string, options?: { readonly timeoutMs?: number }): Promise<TypedArray>;
  /** dist types: all blobs of this name from that worker, until the store is closed, also while this thread waits in `waitSync`. */
  onBlob?(worker: number, name: string, onValues: (values: TypedArray) => void): void;

  /** Servers: resolves when all workers have left. */
  served(): Promise<void>;
  /** Pending operations finish or fail; a worker leaves its group. Idempotent. */
  close(): Promise<void>;
}
