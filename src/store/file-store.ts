/** A store in a directory that all ranks can reach: an append-only log with one file per record. No locks, hence none
 *  that a killed process could leave behind: link(2) fails when the name exists, on NFS too, and so decides who writes
 *  record n. Whoever loses reads that record and tries n + 1. Every process replays the same records into its own table.
 *
 *      write tmp-5f1c… (complete) ──link──▶ 0000000042      EEXIST: read 42, apply it, try 43
 *                │                             apply it here too, the result is the operation's
 *                └──unlink
 *
 *  A process killed at any point leaves at most an unread `tmp-` file. Nobody is told that another process died: this
 *  store reports no `peer-lost`. The directory must be new for each job, and is removed by whoever made it. */
import { link, mkdir, stat, unlink, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { Clock, Timer } from '../base/clock.ts';
import { messageOf, ShoalError } from '../base/errors.ts';
import { codeOf } from '../base/exhaustion.ts';
import { readRegularFile } from '../base/files/read-file.ts';
import type { Random } from '../base/random.ts';
import { apply, found, keysOf, resultOf } from './apply-operation.ts';
import { KeyWaits } from './key-waits.ts';
import { checkOperation, defaultStoreLimits, defaultStoreTimeoutMs } from './store-limits.ts';
import { StoreTable } from './store-table.ts';
import { decodeRequest, encodeRequest } from './store-wire.ts';
import {
  closedStore,
  isImmediate,
  Store,
  type ImmediateOperation,
  type StoreOperation,
  type StoreResult,
  type StoreWait,
  type WaitingOperation,
} from './store.ts';

export interface FileStoreOptions {
  readonly clock: Clock;
  readonly random: Random;
  /** Timeout of waits that give none. Default 5 minutes. */
  readonly timeoutMs?: number;
  /** Records in the log, which only grows. Default 1 million. */
  readonly maxRecords?: number;
  /** Gives a complete file its name. For tests. Default: the system's. */
  readonly link?: typeof link;
}

type QueuePop = Extract<WaitingOperation, { op: 'queuePop' }>;
/** Operations that change the table, and so are records. */
type LoggedOperation = ImmediateOperation | QueuePop;

/** Longest pause between looks for new records while somebody waits. */
const pauseMostMs = 20;

export class FileStore extends Store {
  readonly #directory: string;
  readonly #name: string;
  readonly #options: FileStoreOptions;
  readonly #table: StoreTable;
  readonly #waits: KeyWaits;
  /** Calls run one after the other: the order called is the order applied. */
  #queue: Promise<unknown> = Promise.resolve();
  #queued = 0;
  #next = 0;
  #closed = false;
  #polling: Timer | undefined;

  private constructor(directory: string, options: FileStoreOptions) {
    super();
    this.#directory = directory;
    this.#name = `file store ${directory}`;
    this.#options = options;
    this.#table = new StoreTable(defaultStoreLimits);
    this.#waits = new KeyWaits(this.#table, {
      clock: options.clock,
      name: this.#name,
      timeoutMs: options.timeoutMs ?? defaultStoreTimeoutMs,
    });
  }

  /** Makes the directory (0700) when it is not there. @throws ShoalError `system`. */
  static async open(directory: string, options: FileStoreOptions): Promise<FileStore> {
    try {
      await mkdir(directory, { recursive: true, mode: 0o700 });
    } catch (error) {
      throw new ShoalError('system', `file store ${directory} cannot be made: ${messageOf(error)}`, { cause: error });
    }
    return new FileStore(directory, options);
  }

  async start(operation: StoreOperation, wait?: StoreWait): Promise<StoreResult> {
    checkOperation(operation, this.#table.limits);
    if (operation.op === 'queuePop') return this.#pop(operation, wait);
    if (!isImmediate(operation)) return this.#await(operation, wait);
    if (!['check', 'count', 'queueLen', 'listKeys'].includes(operation.op)) return this.#append(operation);
    await this.#enqueue(() => this.#catchUp());
    return apply(this.#table, operation);
  }

  async close(): Promise<void> {
    this.#closed = true;
    this.#polling?.cancel();
    this.#waits.end(closedStore(this.#name));
    await this.#queue.catch(() => undefined);
  }

  async #await(operation: WaitingOperation, wait: StoreWait | undefined): Promise<StoreResult> {
    let waiting: Promise<StoreResult> | undefined;
    await this.#enqueue(async () => {
      await this.#catchUp();
      // Registered in the same turn as the last record was applied; the promise itself is awaited outside the queue.
      waiting = this.#waits.wait(keysOf(operation), () => found(this.#table, operation), wait);
      waiting.catch(() => undefined);
    });
    this.#poll(1);
    return waiting!;
  }

  /** The client whose record comes first takes the value; the others go on waiting. */
  async #pop(operation: QueuePop, wait: StoreWait = {}): Promise<StoreResult> {
    const { clock, timeoutMs = defaultStoreTimeoutMs } = this.#options;
    const endMs = clock.now() + (wait.timeoutMs ?? timeoutMs);
    for (;;) {
      await this.#await({ op: 'wait', keys: [operation.key] }, { ...wait, timeoutMs: Math.max(0, Math.ceil(endMs - clock.now())) });
      const result = await this.#append(operation);
      if (result.kind !== 'missing') return result;
    }
  }

  /** Looks for new records as long as somebody waits, less and less often. */
  #poll(pauseMs: number): void {
    this.#polling?.cancel();
    if (this.#closed || this.#waits.pending === 0) return;
    this.#polling = this.#options.clock.setTimer(
      pauseMs,
      () => {
        const before = this.#next;
        this.#enqueue(() => this.#catchUp()).then(
          () => this.#poll(this.#next > before ? 1 : Math.min(pauseMs * 2, pauseMostMs)),
          (error: unknown) => this.#waits.fail(ShoalError.from(error)),
        );
      },
      { keepAlive: true },
    );
  }

  #append(operation: LoggedOperation): Promise<StoreResult> {
    return this.#enqueue(async () => {
      const draft = join(this.#directory, `tmp-${Buffer.from(this.#options.random.bytes(12)).toString('hex')}`);
      try {
        await writeFile(draft, Buffer.concat(encodeRequest(0, operation)), { flag: 'wx', mode: 0o600 });
        return await this.#publish(draft, operation);
      } catch (error) {
        throw ShoalError.from(error);
      } finally {
        await unlink(draft).catch(() => undefined);
      }
    });
  }

  async #publish(draft: string, operation: LoggedOperation): Promise<StoreResult> {
    const maxRecords = this.#options.maxRecords ?? 1_000_000;
    for (;;) {
      await this.#catchUp();
      if (this.#next >= maxRecords) throw new ShoalError('out-of-memory', `${this.#name} has reached ${maxRecords} records`);
      try {
        await (this.#options.link ?? link)(draft, this.#record(this.#next));
      } catch (error) {
        if (codeOf(error) !== 'EEXIST')
          throw new ShoalError('system', `${this.#name} cannot be written: ${messageOf(error)}; it needs a file system with hard links`, {
            cause: error,
          });
        // A server of NFS that was asked again, because its answer got lost, finds what it has made itself.
        if ((await stat(draft)).nlink < 2) continue;
      }
      this.#next++;
      return this.#apply(operation);
    }
  }

  async #catchUp(): Promise<void> {
    for (;;) {
      const path = this.#record(this.#next);
      let bytes: Uint8Array;
      try {
        bytes = await readRegularFile(path, { bytesMax: this.#table.limits.maxTotalBytes });
      } catch (error) {
        if (codeOf(error) === 'ENOENT') return;
        throw new ShoalError('system', `${this.#name} cannot be read: ${messageOf(error)}`, { cause: error });
      }
      const { message } = decodeRequest(bytes.subarray(4), this.#table.limits);
      if (message.op === 'cancel' || !(isImmediate(message) || message.op === 'queuePop'))
        throw new ShoalError('protocol', `${path} is not a record of a file store`);
      this.#next++;
      resultOf(() => this.#apply(message));
    }
  }

  #apply(operation: LoggedOperation): StoreResult {
    return operation.op === 'queuePop' ? found(this.#table, operation) : apply(this.#table, operation);
  }

  #record(index: number): string {
    return join(this.#directory, String(index).padStart(10, '0'));
  }

  #enqueue<T>(step: () => Promise<T>): Promise<T> {
    if (this.#closed) return Promise.reject(closedStore(this.#name));
    if (this.#queued >= this.#table.limits.maxPending) {
      return Promise.reject(new ShoalError('usage', `${this.#name}: more than ${this.#table.limits.maxPending} calls at once`));
    }
    this.#queued++;
    const result = this.#queue.then(step).finally(() => this.#queued--);
    this.#queue = result.catch(() => undefined);
    return result;
  }
}
