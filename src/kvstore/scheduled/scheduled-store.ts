/** A store over another one, with pushes and pulls that are scheduled. Parameters are cut into parts when they are initialised,
 *  a push waits for its pull, and both go as one task; more urgent tasks start first, within a credit.
 *
 *      push(k) ─▶ buffered ─┐
 *      pull(k) ─────────────┴▶ push_pull ─▶ core: parts, priority, credit ─▶ pushPull of the store underneath
 *
 *  A push without a pull is sent at the end of the event loop's turn, or when the caller waits for it. Operations on one parameter keep the
 *  order of their calls; priorities order different parameters.
 *
 *  There is no deadlock: an operation holds credit only if its end needs no other worker. In `dist_sync` stores it does, so there
 *  the store's own links have the credit, which returns when a server has received a request. All workers must make calls of `collective`
 *  stores in the same order, so these are passed on unchanged. */
import { hostname, totalmem } from 'node:os';
import { join } from 'node:path';
import { systemClock, type Clock } from '../../base/clock.ts';
import { ShoalError } from '../../base/errors.ts';
import { must } from '../../base/assert.ts';
import { noOptions } from '../../base/schema.ts';
import { createLogger } from '../../base/log.ts';
import { readSettings, type Environment, type Settings } from '../../base/settings/settings.ts';
import { DependencyEngine } from '../../engine/engine.ts';
import type { Variable } from '../../engine/variable.ts';
import { JoinedWork } from '../../comm/caller/joined-work.ts';
import { PendingWork, type WorkWaiter } from '../../comm/caller/work.ts';
import { dtypeInfo, type DType, type TypedArray } from '../../memory/dtype.ts';
import { createRegionAllocator } from '../../memory/regions/allocator.ts';
import { countOf, Tensor } from '../../memory/tensor.ts';
import { checkBytes, Core, type CoreObserver, type ShutdownMode } from '../../scheduler/core.ts';
import { observeAll, TaskProfiler } from '../../scheduler/profiler.ts';
import type { TuningOptions } from '../../scheduler/tuner/tuner.ts';
import type { SchedulingStatus } from '../../group/caller/types.ts';
import { TimelineFile } from '../../trace/timeline-file.ts';
import type { CompressionSpec } from '../compression/codec.ts';
import type { OptimizerSpec } from '../optimizers/optimizer.ts';
import type {
  Blob,
  Key,
  KVStore,
  KVStoreType,
  KVWork,
  ParameterInfo,
  RowSparse,
  RowSparsePullOptions,
  TransferOptions,
  Updater,
  Value,
  Values,
} from '../values/types.ts';
import { copyOf as copyOfElements, elementsOf, firstValues, keysOf, nameOf, outsPerKey, valuesPerKey } from '../values/values-argument.ts';
import { CallOrder, type Turn } from './call-order.ts';
import { KVStoreTask, type Communicate, type KVOperation } from './kvstore-task.ts';
import { rowPulls, rowPushes, wholeRowCall, type RowCall, type TableKey } from './part-rows.ts';
import { PartitionedKeys, type KeyPart } from './partitioned-keys.ts';
import { PushBuffer } from './push-buffer.ts';
import { runsOf, totalBytes, viewsOf, type PartViews, type StoreOperation } from './store-operation.ts';
import { StoreScheduling } from './store-scheduling.ts';
import { Transfers, whenAll } from './transfers.ts';

/** How pushes and pulls are cut and ordered. */
export interface ScheduledKVStoreOptions {
  /** Bytes in flight at most; one larger part may be alone. Default: SHOAL_SCHEDULE_CREDIT_BYTES. Not of `dist_sync` and `collective`
   *  stores of several workers: servers' links have a credit of their own, SHOAL_KV_CREDIT_BYTES. */
  readonly creditBytes?: number;
  /** Parameters are cut into parts of at most so many bytes; the same on all workers. Default: SHOAL_SCHEDULE_PARTITION_BYTES. */
  readonly partitionBytes?: number;
  /** Credit and partition are where tuning starts; the same on all workers. A partition can be no smaller than parameters were cut when
   *  they were initialised: by the least one of the space. Default: SHOAL_SCHEDULE_CREDIT_TUNING, SHOAL_SCHEDULE_PARTITION_TUNING. */
  readonly tuning?: TuningOptions | boolean;
  /** How long one part may take. Default: SHOAL_TIMEOUT_MS. */
  readonly timeoutMs?: number;
  /** Of operations on the same values by others: what they push to it keeps its order with pushes and pulls. Default: its own. */
  readonly engine?: DependencyEngine;
  /** Told of every part when it is queued, started and ended; for tests and pictures. */
  readonly observer?: CoreObserver;
  /** Default: the system's. */
  readonly clock?: Clock;
  /** Instead of `process.env`. */
  readonly environment?: Environment;
}

/** The store's own limit comes first: it knows whom it waits for. */
const laterMs = 5000;
/** Of the core. */
const link = 'kvstore';

export class ScheduledStore implements KVStore {
  readonly type: KVStoreType;
  readonly role: 'worker' | 'server';
  readonly rank: number;
  readonly numWorkers: number;
  readonly numServers: number;
  readonly workerGroup: number;
  readonly workersPerGroup: number;
  readonly core: Core;
  readonly engine: DependencyEngine;
  readonly #store: KVStore;
  readonly #keys: PartitionedKeys;
  readonly #order = new CallOrder();
  readonly #buffer = new PushBuffer(() => this.#flushAll());
  readonly #variables = new WeakMap<object, Variable>();
  readonly #transfers: Transfers;
  /** Called, and not ended. */
  readonly #open = new Set<PendingWork>();
  readonly #waiter: WorkWaiter;
  /** Calls are passed on as they are made. */
  readonly #keepsOrder: boolean;
  readonly #timelines: readonly TimelineFile[];
  readonly #scheduling: StoreScheduling;
  #closed: Promise<void> | undefined;

  /** @throws ShoalError `usage` for a credit or partition that cannot be. */
  constructor(store: KVStore, options: ScheduledKVStoreOptions = noOptions) {
    const settings = readSettings(options.environment ?? process.env);
    const { clock = systemClock, creditBytes = settings.scheduleCreditBytes, partitionBytes = settings.schedulePartitionBytes } = options;
    const { timeoutMs = settings.timeoutMs, observer } = options;
    for (const [name, bytes] of Object.entries({ creditBytes, partitionBytes })) checkBytes(`ScheduledKVStore: ${name}`, bytes, totalmem());
    if (!(timeoutMs > 0)) throw new ShoalError('usage', `ScheduledKVStore: timeoutMs must be positive, not ${timeoutMs}`);
    const needsOthers = store.numWorkers > 1 && (store.type === 'dist_sync' || store.type === 'collective');
    if (needsOthers && options.creditBytes !== undefined) {
      const why = 'whose operations end when other workers have made theirs, cannot hold a credit without waiting for ever';
      throw new ShoalError(
        'usage',
        `ScheduledKVStore: a store '${store.type}', ${why}; leave creditBytes out, and set SHOAL_KV_CREDIT_BYTES`,
      );
    }
    this.#transfers = new Transfers(store, options.timeoutMs);
    this.#timelines = timelinesOf(store, clock, settings);
    this.core = new Core({
      clock,
      creditBytes,
      partitionBytes,
      timeoutMs: Math.ceil(timeoutMs) + laterMs,
      memoryBytes: totalmem(),
      observer: observeAll([observer, ...this.#timelines.map(({ recorder }) => new TaskProfiler(recorder))]),
    });
    if (needsOthers) this.core.setLink(link, { creditBytes: totalmem() });
    this.core.start();
    this.#keepsOrder = needsOthers && store.type === 'collective';
    this.engine = options.engine ?? new DependencyEngine({ clock, timeoutMs: Math.ceil(timeoutMs) + laterMs });
    this.#scheduling = new StoreScheduling({ store, core: this.core, clock, settings, tuning: options.tuning, timeoutMs, needsOthers });
    this.#keys = new PartitionedKeys(this.#scheduling.partLimitBytes);
    this.#store = store;
    this.type = store.type;
    this.role = store.role;
    this.rank = store.rank;
    this.numWorkers = store.numWorkers;
    this.numServers = store.numServers;
    this.workerGroup = store.workerGroup;
    this.workersPerGroup = store.workersPerGroup;
    this.#waiter = {
      now: () => clock.now(),
      drain: () => void this.#advance(),
      pump: (leftMs) => this.#pump(leftMs),
    };
  }

  /** What is in force. */
  get scheduling(): SchedulingStatus {
    return this.#scheduling.status;
  }

  /** The engine's variable of a value that pushes read and pulls write. After a failure a value has a new one. */
  variableOf(value: Value): Variable {
    const known = this.#variables.get(value);
    if (known) return known;
    const variable = this.engine.newVariable();
    this.#variables.set(value, variable);
    return variable;
  }

  // ── what is scheduled ──────────────────────────────────────────────────────────────────────────────────────────

  /** At once, without credit. Values are copied. */
  async init(keys: Key | readonly Key[], values: Values, options: { readonly shape?: readonly number[] } = noOptions): Promise<void> {
    this.#checkOpen('init');
    const names = keysOf(keys);
    const list = firstValues(names, values).map((value) => ({ ...elementsOf(value, options.shape), copy: copyOf(value) }));
    await this.#scheduling.agree();
    const twice = names.find((key) => this.#keys.partsOf(key));
    if (twice !== undefined) throw new ShoalError('usage', `init: parameter '${twice}' exists already`);
    await Promise.all(
      names.map(async (key, index) => {
        const { dtype, shape, copy } = list[index];
        const parts = this.#keys.cut(key, shape, dtypeInfo(dtype).bytes);
        const init = { key, kind: 'init', values: [copy], outs: [], priority: 0, timeoutMs: undefined, shape: [...shape] } as const;
        await this.#start(init, [], parts);
        this.#keys.register(key, { parts, dtype, shape: [...shape] });
      }),
    );
  }

  /** Waits for the pull of the same key, to go with it. The value is copied. */
  push(keys: Key | readonly Key[], values: Values, options: TransferOptions = noOptions): KVWork {
    this.#checkOpen('push');
    const names = keysOf(keys);
    const { priority = 0, timeoutMs } = options;
    const works = checked(valuesPerKey(names, values)).map((list, index) => {
      const key = names[index];
      this.#flush(key);
      const flush = (): void => this.#flush(key);
      const work = new PendingWork(this.#waiter, `push of '${key}'`, { onAwaited: flush, onWait: flush });
      this.#buffer.add({ push: { key, kind: 'push', values: list.map(copyOf), outs: [], priority, timeoutMs }, work });
      return work;
    });
    return this.#joined(works);
  }

  /** With the push of the same key that waits for it, if there is one. */
  pull(keys: Key | readonly Key[], outs: Values, options: TransferOptions = noOptions): KVWork {
    this.#checkOpen('pull');
    const names = keysOf(keys);
    const { timeoutMs } = options;
    const works = checked(outsPerKey(names, outs)).map((list, index) => {
      const key = names[index];
      const buffered = this.#buffer.take(key);
      const { values = [], priority: pushed = 0 } = buffered?.push ?? {};
      const kind = buffered === undefined ? 'pull' : 'push_pull';
      const operation = { key, kind, values, outs: list, priority: options.priority ?? pushed, timeoutMs } as const;
      return this.#start(operation, buffered && [buffered.work]);
    });
    return this.#joined(works);
  }

  pushPull(keys: Key | readonly Key[], values: Values, outs: Values = values, options: TransferOptions = noOptions): KVWork {
    this.#checkOpen('pushPull');
    const names = keysOf(keys);
    const { priority = 0, timeoutMs } = options;
    const places = checked(outsPerKey(names, outs));
    const works = checked(valuesPerKey(names, values)).map((list, index) => {
      const key = names[index];
      this.#flush(key);
      return this.#start({ key, kind: 'push_pull', values: list, outs: places[index], priority, timeoutMs });
    });
    return this.#joined(works);
  }

  async broadcast(keys: Key | readonly Key[], values: Values, outs: Values, options: TransferOptions = noOptions): Promise<void> {
    await this.init(keys, values);
    await this.pull(keys, outs, options);
  }

  /** Every part of a parameter that was cut is pushed, with the rows that there are: each counts the pushes of every worker. */
  rowSparsePush(key: Key, rows: RowSparse, options?: TransferOptions): KVWork {
    const { name, table } = this.#tableOf('rowSparsePush', key);
    const values = copyOf(rows.values);
    const indices = rows.indices.slice();
    const calls = table
      ? rowPushes(table, indices, values, options)
      : [wholeRowCall(values, (store) => store.rowSparsePush(key, { indices, values }, options))];
    return this.#startRows({ name, kind: 'row_push', priority: options?.priority, reached: [], calls });
  }

  rowSparsePull(key: Key, out: Value, options: RowSparsePullOptions): KVWork {
    const { name, table } = this.#tableOf('rowSparsePull', key);
    const kept = { ...options, rowIds: options.rowIds.slice() };
    const { calls, gather } = table
      ? rowPulls(table, out, kept)
      : { calls: [wholeRowCall(out, (store) => store.rowSparsePull(key, out, kept))], gather: undefined };
    return this.#startRows({ name, kind: 'row_pull', priority: options.priority, reached: [out], calls, onSuccess: gather });
  }

  // ── what is not ────────────────────────────────────────────────────────────────────────────────────────────────

  tensor<D extends DType>(dtype: D, shape: readonly number[]): Tensor<D> {
    return this.#store.tensor(dtype, shape);
  }

  async barrier(): Promise<void> {
    await this.#settled();
    return this.#store.barrier();
  }

  setOptimizer(spec: OptimizerSpec): Promise<void> {
    return this.#store.setOptimizer(spec);
  }

  setUpdater(updater: Updater): void {
    this.#store.setUpdater(updater);
  }

  setGradientCompression(spec: CompressionSpec): void {
    this.#store.setGradientCompression(spec);
  }

  /** Parts are saved under their own keys. */
  async saveState(folder: string): Promise<void> {
    await this.#settled();
    return this.#store.saveState(folder);
  }

  async loadState(folder: string): Promise<void> {
    await this.#settled();
    return this.#store.loadState(folder);
  }

  /** Of parts: the least of their versions. */
  async info(key: Key): Promise<ParameterInfo> {
    await this.#settled();
    const [name] = keysOf(key);
    const { parts, shape } = this.#keys.find(name) ?? {};
    if (shape === undefined || parts === undefined || parts.length === 1) return this.#store.info(key);
    const infos = await Promise.all(parts.map((part) => this.#store.info(part.key)));
    return {
      ...infos[0],
      key: name,
      shape,
      version: Math.min(...infos.map(({ version }) => version)),
      ahead: Math.max(...infos.map(({ ahead }) => ahead)),
      staleness: Math.max(...infos.map(({ staleness }) => staleness)),
    };
  }

  sendBlob(worker: number, blob: Blob): Promise<void> {
    return this.#store.sendBlob(worker, blob);
  }

  receiveBlob(worker: number, name: string, options?: { readonly timeoutMs?: number }): Promise<TypedArray> {
    return this.#store.receiveBlob(worker, name, options);
  }

  served(): Promise<void> {
    return this.#store.served();
  }

  /** `drain`: what was called is done first. `abort`: what has not started fails. */
  close(mode: ShutdownMode = 'drain'): Promise<void> {
    this.#closed ??= this.#shutDown(mode);
    return this.#closed;
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  async #shutDown(mode: ShutdownMode): Promise<void> {
    this.#flushAll();
    try {
      await this.core.shutdown(mode);
    } finally {
      await this.#store.close();
      for (const timeline of this.#timelines) timeline.write();
    }
  }

  // ── tasks ──────────────────────────────────────────────────────────────────────────────────────────────────────

  /** Pushes without a pull. */
  #flushAll(): void {
    for (const key of this.#buffer.keys) this.#flush(key);
  }

  #flush(key: string): void {
    const buffered = this.#buffer.take(key);
    if (buffered) this.#start(buffered.push, [buffered.work]);
  }

  /** What is wrong is told by its work: a push that was buffered has no call to throw in.
   *  @param more works that end with it. */
  #start(operation: StoreOperation, more: readonly PendingWork[] = [], parts?: readonly KeyPart[]): PendingWork {
    const work = new PendingWork(this.#waiter, `${operation.kind} of '${operation.key}'`);
    this.#open.add(work);
    const settle = (error?: ShoalError): void => {
      this.#open.delete(work);
      for (const each of [work, ...more]) each.settle(error);
    };
    try {
      this.#post(operation, viewsOf(operation, parts ?? this.#partsOf(operation)), settle);
    } catch (thrown) {
      settle(ShoalError.from(thrown));
    }
    return work;
  }

  #post(operation: StoreOperation, views: readonly PartViews[], settle: (error?: ShoalError) => void): void {
    const { key, kind, values, outs, priority } = operation;
    this.#scheduling.begin(operation, views);
    const runs = this.#keepsOrder ? [views] : runsOf(views, this.core.partitionBytes);
    const begin: Communicate = (index, onComplete) => this.#transfers.start(operation, runs[index], onComplete);
    this.#schedule({ name: key, kind, priority, reached: [...values, ...outs], partBytes: runs.map(totalBytes), begin, settle });
  }

  #startRows({ name, kind, priority, reached, calls, onSuccess }: RowOperation): KVWork {
    const work = new PendingWork(this.#waiter, `${kind} of '${name}'`, onSuccess === undefined ? {} : { onSuccess });
    const begin: Communicate = (index, onComplete) => this.#transfers.begin((store) => calls[index].begin(store), onComplete);
    const settle = (error?: ShoalError): void => {
      this.#open.delete(work);
      work.settle(error);
    };
    this.#open.add(work);
    try {
      this.#schedule({ name, kind, priority: priority ?? 0, reached, partBytes: calls.map(({ bytes }) => bytes), begin, settle });
    } catch (thrown) {
      this.#open.delete(work);
      throw thrown;
    }
    return work;
  }

  /** Parts start in the order of the calls for a parameter, and by priority beside those of others. */
  #schedule({ name, kind, priority, reached, partBytes, begin, settle }: ScheduledOperation): void {
    const values = new Set(reached);
    const onEnd = (error?: ShoalError): void => {
      if (error) for (const value of values) this.#variables.delete(value);
      settle(error);
    };
    if (this.#keepsOrder) {
      const onComplete = whenAll(partBytes.length, onEnd);
      for (const index of partBytes.keys()) begin(index, onComplete);
      return;
    }
    let turn: Turn | undefined;
    const task = new KVStoreTask({
      name,
      operation: kind,
      partBytes,
      // The store's larger ones are sooner.
      priority: priority === 0 ? 0 : -priority,
      link,
      engine: this.engine,
      real: [...values].map((value) => this.variableOf(value)),
      inOrder: (ready) => must(turn, () => 'a task is prepared when it has its turn').whenOpen(ready),
      communicate: (index, onComplete) => {
        begin(index, onComplete);
        turn?.partStarted();
      },
      onEnd: (error) => {
        turn?.end();
        onEnd(error);
      },
    });
    // What is refused has no turn that others would wait for.
    if (kind !== 'init') turn = this.#order.enter(name, partBytes.length);
    try {
      this.core.post(task);
    } catch (thrown) {
      turn?.end();
      throw thrown;
    }
    // Now, not when the turn of the event loop ends: who calls may compute for long.
    this.#goOn();
  }

  /** Parts of a key; one that others initialised is whole. */
  #partsOf({ key, values, outs }: StoreOperation): readonly KeyPart[] {
    const [first] = [...values, ...outs];
    return this.#keys.partsOf(key) ?? [{ key, offset: 0, count: elementsIn(first), shape: [elementsIn(first)] }];
  }

  // ── waiting ────────────────────────────────────────────────────────────────────────────────────────────────────

  /** Done when all are. */
  #joined(works: readonly PendingWork[]): KVWork {
    return works.length === 1 ? works[0] : new JoinedWork(works, this.#waiter.now, () => undefined);
  }

  /** Everything that was called has ended, well or not. */
  async #settled(): Promise<void> {
    this.#flushAll();
    await Promise.allSettled(this.#open);
  }

  /** What has arrived, and what follows from it; who looks does not return to the event loop. @returns whether there was anything. */
  #advance(): boolean {
    this.#flushAll();
    this.core.endOverdue();
    return this.#goOn();
  }

  #goOn(): boolean {
    for (let advanced = false; ; advanced = true) {
      const hasRun = this.engine.runReady();
      if (!this.#transfers.advance() && !hasRun) return advanced;
    }
  }

  /** Blocks for the oldest of what is under way. */
  #pump(leftMs: number): boolean {
    if (this.#advance()) return true;
    if (!this.#transfers.waitSync(leftMs)) return false;
    this.#advance();
    return true;
  }

  // ── checks ─────────────────────────────────────────────────────────────────────────────────────────────────────

  #checkOpen(call: string): void {
    if (this.#closed) throw new ShoalError('closed', `${call}: the store was closed`);
  }

  /** @returns the table, unless others initialised it. @throws ShoalError `unsupported` for one whose rows were cut. */
  #tableOf(call: string, key: Key): { name: string; table: TableKey | undefined } {
    this.#checkOpen(call);
    const name = nameOf(key);
    this.#flush(name);
    const known = this.#keys.find(name);
    const isWhole = known === undefined || known.parts.length === 1 || known.shape.length === 1 || known.parts[0].shape.length > 1;
    if (isWhole) return { name, table: known && { ...known, key: name, count: countOf(known.shape) } };
    throw new ShoalError(
      'unsupported',
      `${call}: rows of '${name}' are larger than a partition, and were cut; use a larger partition for tables with sparse rows`,
    );
  }
}

/** Something to be done in parts, with the values that it reads and writes. */
interface ScheduledOperation {
  readonly name: string;
  readonly kind: KVOperation;
  readonly priority: number;
  readonly reached: readonly Value[];
  readonly partBytes: readonly number[];
  readonly begin: Communicate;
  readonly settle: (error?: ShoalError) => void;
}

interface RowOperation extends Pick<ScheduledOperation, 'name' | 'kind' | 'reached'> {
  readonly priority: number | undefined;
  readonly calls: readonly RowCall[];
  readonly onSuccess?: (() => void) | undefined;
}

/** SHOAL_TRACE: of each worker, beside the traces of ranks. SHOAL_SCHEDULE_TIMELINE: of the first one. */
function timelinesOf({ rank }: KVStore, clock: Clock, settings: Settings): TimelineFile[] {
  const { traceDir, traceEvents: eventsMax, scheduleTimeline, logLevel: level } = settings;
  const paths = [
    ...(traceDir === '' ? [] : [join(traceDir, `trace-worker-${rank}.json`)]),
    ...(scheduleTimeline === '' || rank !== 0 ? [] : [scheduleTimeline]),
  ];
  const place = { rank, host: hostname(), pid: process.pid };
  const log = createLogger({ level, clock, speaker: `store of worker ${rank}` });
  return paths.map((path) => new TimelineFile({ path, clock, log, thread: 'scheduler', eventsMax, process: place }));
}

function elementsIn(value: Value): number {
  return elementsOf(value).data.length;
}

/** Of the same dtype: an array of 16-bit numbers alone does not say which. */
function copyOf(value: Value): Value {
  const { dtype, shape, data } = elementsOf(value);
  if (!(value instanceof Tensor)) return copyOfElements(dtype, data);
  const copy = new Tensor(dtype, shape, createRegionAllocator().create(data.byteLength), 0);
  copy.data.set(data as never);
  return copy;
}

/** What is no value is refused before anything is done with the others. */
function checked(lists: (readonly Value[])[]): (readonly Value[])[] {
  for (const list of lists) for (const value of list) elementsOf(value);
  return lists;
}
