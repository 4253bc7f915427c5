/** The part that all kinds of stores share: opening and closing, calls of worker 0 only, and blobs from
 *  worker to worker. Each kind changes values in its own way. */
import { ShoalError } from '../../base/errors.ts';
import type { TypedArray } from '../../memory/dtype.ts';
import type { Blob, Key, KVWork, TransferOptions, Values } from './types.ts';

export abstract class WorkerStore implements AsyncDisposable {
  readonly role = 'worker';
  abstract readonly rank: number;
  abstract readonly numWorkers: number;
  /** Milliseconds; of calls that name no timeout. */
  readonly #timeoutMs: number;
  #closing: Promise<void> | undefined;

  constructor({ timeoutMs }: { readonly timeoutMs: number }) {
    this.#timeoutMs = timeoutMs;
  }

  abstract init(keys: Key | readonly Key[], values: Values): Promise<void>;
  abstract pull(keys: Key | readonly Key[], outs: Values, options?: TransferOptions): KVWork;

  /** To a worker that exists. `values` may change as soon as it returns. */
  protected abstract passBlob(worker: number, blob: Blob): Promise<void>;
  protected abstract awaitBlob(worker: number, name: string, timeoutMs: number): Promise<TypedArray>;
  /** Called once. */
  protected abstract shutDown(): Promise<void>;

  async broadcast(keys: Key | readonly Key[], values: Values, outs: Values, options?: TransferOptions): Promise<void> {
    await this.init(keys, values);
    await this.pull(keys, outs, options);
  }

  async sendBlob(worker: number, blob: Blob): Promise<void> {
    this.checkOpen();
    this.checkWorker(worker);
    await this.passBlob(worker, blob);
  }

  async receiveBlob(worker: number, name: string, { timeoutMs = this.#timeoutMs } = {}): Promise<TypedArray> {
    this.checkOpen();
    this.checkWorker(worker);
    return this.awaitBlob(worker, name, timeoutMs);
  }

  served(): Promise<void> {
    return Promise.reject(new ShoalError('usage', 'served is for servers; this process is a worker'));
  }

  close(): Promise<void> {
    this.#closing ??= this.shutDown();
    return this.#closing;
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  /** @throws ShoalError `closed`. */
  protected checkOpen(): void {
    if (this.#closing !== undefined) throw new ShoalError('closed', 'the store was closed');
  }

  /** @throws ShoalError `usage` on other workers than 0. */
  protected checkLeader(call: string): void {
    if (this.rank !== 0) throw new ShoalError('usage', `worker ${this.rank} called ${call}; worker 0 calls it, for all`);
  }

  /** @throws ShoalError `usage`. */
  protected checkWorker(worker: number): void {
    if (Number.isInteger(worker) && worker >= 0 && worker < this.numWorkers) return;
    throw new ShoalError('usage', `there is no worker ${worker}; workers are 0…${this.numWorkers - 1}`);
  }
}
