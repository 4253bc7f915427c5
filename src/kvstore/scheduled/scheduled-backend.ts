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
import { createLogger } from '../../base/log.ts';
import { readSettings, type Environment, type Settings } from '../../base/settings/settings.ts';
import { DependencyEngine } from '../../engine/engine.ts';
import type { Variable } from '../../engine/variable.ts';
import { JoinedWork } from '../../comm/caller/joined-work.ts';
import { PendingWork, type WorkHooks, type WorkWaiter } from '../../comm/caller/work.ts';
import { dtypeInfo, type DType } from '../../memory/dtype.ts';
import { createRegionAllocator } from '../../memory/regions/allocator.ts';
import { countOf, Tensor } from '../../memory/tensor.ts';
import { checkBytes, Core, type CoreObserver, type ShutdownMode } from '../../scheduler/core.ts';
import { observeAll, TaskProfiler } from '../../scheduler/profiler.ts';
import type { TuningOptions } from '../../scheduler/tuner/tuner.ts';
import type { SchedulingStatus } from '../../group/caller/types.ts';
import { TimelineFile } from '../../trace/timeline-file.ts';
import type { Backend, FirstValue, Question, RowTransfer, Setting, StorePlace, Transfer } from '../calls/operation.ts';
import type { KVWork, Value } from '../calls/types.ts';
import { copyOf as copyOfElements, elementsOf } from '../calls/values-argument.ts';
import { CallOrder, type Turn } from './call-order.ts';
import { KVStoreTask, type KVOperation } from './kvstore-task.ts';
import { initCalls, runsOf, totalBytes, transferCalls, type KeyTransfer, type PartCall } from './part-calls.ts';
import { rowCalls, type TableKey } from './part-rows.ts';
import { cutKey, type KeyPart, type PartitionedKey } from './partitioned-keys.ts';
import { StoreScheduling } from './store-scheduling.ts';
import { PartTransfers, whenAll } from './part-transfers.ts';
import type { Answer } from '../../ps/client/commands.ts';
import type { KeylessInfo } from '../../ps/client/client-options.ts';

/** The cutting and ordering of pushes and pulls. */
export interface ScheduledKVStoreOptions {
  /** Bytes in flight at most; one larger part may be alone. Default: SHOAL_SCHEDULE_CREDIT_BYTES. Not of `dist_sync` and `collective`
   *  stores of several workers: servers' links have a credit of their own, SHOAL_KV_CREDIT_BYTES. */
  readonly creditBytes?: number;
  /** Parameters are cut into parts of at most so many bytes; the same on all workers. Default: SHOAL_SCHEDULE_PARTITION_BYTES. */
  readonly partitionBytes?: number;
  /** Credit and partition are where tuning starts; the same on all workers. A partition can be no smaller than parameters were cut when
   *  they were initialised: by the least one of the space. Default: SHOAL_SCHEDULE_CREDIT_TUNING, SHOAL_SCHEDULE_PARTITION_TUNING. */
  readonly tuning?: TuningOptions | boolean;
  /** Milliseconds that one part may take. Default: SHOAL_TIMEOUT_MS. */
  readonly timeoutMs?: number;
  /** An engine through which others work on the same values: their operations and the store's keep their order. Default: its own. */
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
/** The core's link that all tasks take. */
const link = 'kvstore';

/** Kinds of tasks, in the words of ByteScheduler. */
const kinds = { push: 'push', pull: 'pull', pushPull: 'push_pull', rowSparsePush: 'row_push', rowSparsePull: 'row_pull' } as const;

/** A push that waits for its pull. */
interface BufferedPush {
  readonly push: KeyTransfer;
  readonly work: PendingWork;
}

export class ScheduledBackend implements Backend {
  readonly place: StorePlace;
  readonly core: Core;
  readonly engine: DependencyEngine;
  readonly #inner: Backend;
  readonly #closeInner: () => Promise<void>;
  /** Parameters that this worker has initialised. */
  readonly #keys = new Map<string, PartitionedKey>();
  readonly #order = new CallOrder();
  /** One push of a key at most. They are let go when the turn of the event loop ends. */
  readonly #buffer = new Map<string, BufferedPush>();
  readonly #variables = new WeakMap<object, Variable>();
  readonly #transfers: PartTransfers;
  /** The limit of an operation that names none. Undefined: the store's. */
  readonly #timeoutMs: number | undefined;
  /** Works of operations that have not ended. */
  readonly #open = new Set<PendingWork>();
  readonly #waiter: WorkWaiter;
  /** Calls are passed on as they are made. */
  readonly #keepsOrder: boolean;
  readonly #timelines: readonly TimelineFile[];
  readonly #scheduling: StoreScheduling;

  /** @param close closes the store underneath. @throws ShoalError `usage` for a credit or partition that cannot be. */
  constructor(inner: Backend, close: () => Promise<void>, options: ScheduledKVStoreOptions) {
    const { place } = inner;
    const settings = readSettings(options.environment ?? process.env);
    const { clock = systemClock, creditBytes = settings.scheduleCreditBytes, partitionBytes = settings.schedulePartitionBytes } = options;
    const { timeoutMs = settings.timeoutMs, observer } = options;
    for (const [name, bytes] of Object.entries({ creditBytes, partitionBytes })) checkBytes(`ScheduledKVStore: ${name}`, bytes, totalmem());
    if (!(timeoutMs > 0)) throw new ShoalError('usage', `ScheduledKVStore: timeoutMs must be positive, not ${timeoutMs}`);
    const needsOthers = place.numWorkers > 1 && (place.type === 'dist_sync' || place.type === 'collective');
    if (needsOthers && options.creditBytes !== undefined) {
      const why = 'whose operations end when other workers have made theirs, cannot hold a credit without waiting for ever';
      const message = `ScheduledKVStore: a store '${place.type}', ${why}; leave creditBytes out, and set SHOAL_KV_CREDIT_BYTES`;
      throw new ShoalError('usage', message);
    }
    this.place = place;
    this.#inner = inner;
    this.#closeInner = close;
    this.#timeoutMs = options.timeoutMs;
    this.#transfers = new PartTransfers(inner);
    this.#timelines = timelinesOf(place, clock, settings);
    const limitMs = Math.ceil(timeoutMs) + laterMs;
    this.core = new Core({
      clock,
      creditBytes,
      partitionBytes,
      timeoutMs: limitMs,
      memoryBytes: totalmem(),
      observer: observeAll([observer, ...this.#timelines.map(({ recorder }) => new TaskProfiler(recorder))]),
    });
    if (needsOthers) this.core.setLink(link, { creditBytes: totalmem() });
    this.core.start();
    this.#keepsOrder = needsOthers && place.type === 'collective';
    this.engine = options.engine ?? new DependencyEngine({ clock, timeoutMs: limitMs });
    this.#scheduling = new StoreScheduling({ inner, core: this.core, clock, settings, tuning: options.tuning, timeoutMs, needsOthers });
    this.#waiter = { now: () => clock.now(), drain: () => void this.#advance(), pump: (leftMs) => this.#pump(leftMs) };
  }

  /** Credit and partition that are in force. */
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

  tensor<D extends DType>(dtype: D, shape: readonly number[]): Tensor<D> {
    return this.#inner.tensor(dtype, shape);
  }

  start(operation: Transfer | RowTransfer): KVWork {
    if (!('lists' in operation)) return this.#rows(operation);
    const { lists, ...rest } = operation;
    // Anything that is no value is refused before the others are used.
    for (const list of [...(lists.values ?? []), ...(lists.outs ?? [])]) for (const value of list) elementsOf(value);
    const works = lists.keys.map((key, k) => this.#transfer({ ...rest, key, values: lists.values?.[k], outs: lists.outs?.[k] }));
    return works.length === 1 ? works[0] : new JoinedWork(works, this.#waiter.now, () => undefined);
  }

  async ask(question: Question): Promise<Answer> {
    if (question.type === 'init') return this.#init(question.entries);
    if (question.type === 'info') return this.#info(question.key);
    // Parts are saved under their own keys.
    if (question.type === 'barrier' || question.type === 'state') await this.#settled();
    return this.#inner.ask(question);
  }

  set(setting: Setting): void {
    this.#inner.set(setting);
  }

  /** `drain`: what was called is done first. `abort`: what has not started fails. */
  async close(mode: ShutdownMode = 'drain'): Promise<void> {
    this.#flushAll();
    try {
      await this.core.shutdown(mode);
    } finally {
      await this.#closeInner();
      for (const timeline of this.#timelines) timeline.write();
    }
  }

  // ── operations ─────────────────────────────────────────────────────────────────────────────────────────────────

  /** Initialises parameters at once, without credit. Values are copied. */
  async #init(entries: readonly FirstValue[]): Promise<undefined> {
    const copies = entries.map((entry) => ({ ...entry, value: copyOf(entry.value) }));
    await this.#scheduling.agree();
    const twice = entries.find(({ key }) => this.#keys.has(key));
    if (twice !== undefined) throw new ShoalError('usage', `init: parameter '${twice.key}' exists already`);
    await Promise.all(
      copies.map(async (entry) => {
        const { key, dtype, shape, value } = entry;
        const parts = cutKey(key, shape, dtypeInfo(dtype).bytes, this.#scheduling.partLimitBytes);
        await this.#run({ name: key, kind: 'init', priority: 0, reached: [value], runs: () => this.#runsOf(initCalls(entry, parts)) });
        this.#keys.set(key, { parts, dtype, shape });
      }),
    );
  }

  /** The least of the versions of its parts. */
  async #info(key: string): Promise<KeylessInfo> {
    await this.#settled();
    const { parts = [{ key }], shape } = this.#keys.get(key) ?? {};
    const infos = await Promise.all(parts.map(async (part) => (await this.#inner.ask({ type: 'info', key: part.key })) as KeylessInfo));
    return {
      dtype: infos[0].dtype,
      shape: shape ?? infos[0].shape,
      version: Math.min(...infos.map(({ version }) => version)),
      ahead: Math.max(...infos.map(({ ahead }) => ahead)),
      staleness: Math.max(...infos.map(({ staleness }) => staleness)),
      workers: Math.min(...infos.map(({ workers }) => workers)),
    };
  }

  /** A push waits for the pull of the same key, to go with it; its value is copied. */
  #transfer(given: KeyTransfer): PendingWork {
    const { key, type, outs } = given;
    if (type === 'pull') {
      const { push, work } = this.#take(key) ?? {};
      if (push === undefined) return this.#start(given);
      return this.#start({ ...given, type: 'pushPull', values: push.values, priority: given.priority ?? push.priority, outs }, work);
    }
    this.#flush(key);
    if (type === 'pushPull') return this.#start(given);
    const flush = (): void => this.#flush(key);
    const work = new PendingWork(this.#waiter, `push of '${key}'`, { onAwaited: flush, onWait: flush });
    if (this.#buffer.size === 0) queueMicrotask(() => this.#flushAll());
    this.#buffer.set(key, { push: { ...given, values: given.values!.map(copyOf) }, work });
    return work;
  }

  /** Every part of a table that was cut is pushed, with the rows that there are: each counts the pushes of every worker. */
  #rows(given: RowTransfer): KVWork {
    const { key, type, priority = 0 } = given;
    this.#flush(key);
    const table = this.#tableOf(type, key);
    const pushes = type === 'rowSparsePush';
    const operation = { ...given, rows: given.rows.slice(), value: pushes ? copyOf(given.value) : given.value };
    const { calls, gather } = rowCalls(table, operation);
    const reached = pushes ? [] : [given.value];
    const runs = (): PartCall[][] => calls.map((call) => [call]);
    return this.#run({ name: key, kind: kinds[type], priority, reached, runs, hooks: { onSuccess: gather } });
  }

  #flushAll(): void {
    for (const key of [...this.#buffer.keys()]) this.#flush(key);
  }

  #flush(key: string): void {
    const { push, work } = this.#take(key) ?? {};
    if (push) this.#start(push, work);
  }

  #take(key: string): BufferedPush | undefined {
    const buffered = this.#buffer.get(key);
    this.#buffer.delete(key);
    return buffered;
  }

  /** @param buffered the work of a push that goes with it. */
  #start(given: KeyTransfer, buffered?: PendingWork): PendingWork {
    const { key, type, values = [], outs = [], priority = 0, timeoutMs = this.#timeoutMs } = given;
    const kind = kinds[type];
    const runs = (): readonly (readonly PartCall[])[] => {
      const calls = transferCalls({ ...given, priority, timeoutMs }, this.#partsOf(given));
      this.#scheduling.begin(kind, key, totalBytes(calls));
      return this.#runsOf(calls);
    };
    return this.#run({ name: key, kind, priority, reached: [...values, ...outs], runs, buffered });
  }

  #runsOf(calls: readonly PartCall[]): readonly (readonly PartCall[])[] {
    return this.#keepsOrder ? [calls] : runsOf(calls, this.core.partitionBytes);
  }

  /** Errors are told by the work: a push that was buffered has no call to throw in. */
  #run(operation: ScheduledOperation): PendingWork {
    const { name, kind, runs, hooks, buffered } = operation;
    const work = new PendingWork(this.#waiter, `${kind} of '${name}'`, hooks);
    this.#open.add(work);
    const settle = (error?: ShoalError): void => {
      this.#open.delete(work);
      work.settle(error);
      buffered?.settle(error);
    };
    try {
      this.#schedule(operation, runs(), settle);
    } catch (thrown) {
      settle(ShoalError.from(thrown));
    }
    return work;
  }

  /** Parts start in the order of the calls for a parameter, and by priority beside those of others. */
  #schedule(
    { name, kind, priority, reached }: ScheduledOperation,
    runs: readonly (readonly PartCall[])[],
    settle: (error?: ShoalError) => void,
  ): void {
    const values = new Set(reached);
    const onEnd = (error?: ShoalError): void => {
      if (error) for (const value of values) this.#variables.delete(value);
      settle(error);
    };
    if (this.#keepsOrder) {
      const onComplete = whenAll(runs.length, onEnd);
      for (const run of runs) this.#transfers.start(run, onComplete);
      return;
    }
    let turn: Turn | undefined;
    const task = new KVStoreTask({
      name,
      operation: kind,
      partBytes: runs.map(totalBytes),
      // The store's larger ones are sooner.
      priority: priority === 0 ? 0 : -priority,
      link,
      engine: this.engine,
      real: [...values].map((value) => this.variableOf(value)),
      inOrder: (ready) => (turn ? this.#order.whenOpen(turn, ready) : ready()),
      communicate: (index, onComplete) => {
        this.#transfers.start(runs[index], onComplete);
        if (turn) this.#order.started(turn, 'one');
      },
      onEnd: (error) => {
        if (turn) this.#order.started(turn, 'all');
        onEnd(error);
      },
    });
    // A task that is refused has no turn that others would wait for.
    if (kind !== 'init') turn = this.#order.enter(name, runs.length);
    try {
      this.core.post(task);
    } catch (thrown) {
      if (turn) this.#order.started(turn, 'all');
      throw thrown;
    }
    // Now, not when the turn of the event loop ends: who calls may compute for long.
    this.#goOn();
  }

  /** Parts of a key; one that others initialised is whole. */
  #partsOf({ key, values = [], outs = [] }: KeyTransfer): readonly KeyPart[] {
    const known = this.#keys.get(key)?.parts;
    if (known !== undefined) return known;
    const count = elementsOf([...values, ...outs][0]).data.length;
    return [{ key, offset: 0, count, shape: [count] }];
  }

  /** Undefined for a table that others initialised. @throws ShoalError `unsupported` for one whose rows were cut. */
  #tableOf(call: string, key: string): TableKey | undefined {
    const known = this.#keys.get(key);
    const isWhole = known === undefined || known.parts.length === 1 || known.shape.length === 1 || known.parts[0].shape.length > 1;
    if (isWhole) return known && { ...known, key, count: countOf(known.shape) };
    const message = `${call}: rows of '${key}' are larger than a partition, and were cut; use a larger partition for tables with sparse rows`;
    throw new ShoalError('unsupported', message);
  }

  // ── waiting ────────────────────────────────────────────────────────────────────────────────────────────────────

  /** Everything that was called has ended, well or not. */
  async #settled(): Promise<void> {
    this.#flushAll();
    await Promise.allSettled(this.#open);
  }

  /** Takes what has arrived, for a caller that does not return to the event loop. @returns whether there was anything. */
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
}

/** Something to be done in parts, with the values that it reads and writes. */
interface ScheduledOperation {
  readonly name: string;
  readonly kind: KVOperation;
  readonly priority: number;
  readonly reached: readonly Value[];
  /** The calls of each part of the task. */
  readonly runs: () => readonly (readonly PartCall[])[];
  readonly hooks?: WorkHooks;
  /** A work that ends with it. */
  readonly buffered?: PendingWork | undefined;
}

/** SHOAL_TRACE: of each worker, beside the traces of ranks. SHOAL_SCHEDULE_TIMELINE: of the first one. */
function timelinesOf({ rank }: StorePlace, clock: Clock, settings: Settings): TimelineFile[] {
  const { traceDir, traceEvents: eventsMax, scheduleTimeline, logLevel: level } = settings;
  const paths = [
    ...(traceDir === '' ? [] : [join(traceDir, `trace-worker-${rank}.json`)]),
    ...(scheduleTimeline === '' || rank !== 0 ? [] : [scheduleTimeline]),
  ];
  const place = { rank, host: hostname(), pid: process.pid };
  const log = createLogger({ level, clock, speaker: `store of worker ${rank}` });
  return paths.map((path) => new TimelineFile({ path, clock, log, thread: 'scheduler', eventsMax, process: place }));
}

/** A copy of the same dtype: an array of 16-bit numbers alone does not say which. */
function copyOf(value: Value): Value {
  const { dtype, shape, data } = elementsOf(value);
  if (!(value instanceof Tensor)) return copyOfElements(dtype, data);
  const copy = new Tensor(dtype, shape, createRegionAllocator().create(data.byteLength), 0);
  copy.data.set(data as never);
  return copy;
}
