/** The creation of parameters. Worker 0's client places a batch and tells every server: declare, first values, commit. All
 *  other clients ask until the batch is usable, and compare it with the declarations of their own workers. */
import { ShoalError } from '../../base/errors.ts';
import { packBatch, unpackBatch, type DeclaredParameter, type ParameterDirectory } from '../protocol/parameter-directory.ts';
import { Placer } from '../protocol/placement.ts';
import type { ServerConnection } from './server-connection.ts';
import type { ClientOperation } from './client-operation.ts';
import type { InitEntry } from './client-options.ts';
import { answered, controlRequest, type ClientRequest } from './client-request.ts';
import { Plan, type ClientContext } from './client-transfers.ts';
import { Fields } from '../protocol/wire-control.ts';
import { KVMessage } from '../protocol/wire.ts';

/** First values go before everything else but control. */
const putPriority = Number.MAX_VALUE;

interface Waiting {
  readonly worker: number;
  readonly operation: ClientOperation;
  readonly entries: readonly InitEntry[];
}

export class ClientInit {
  readonly #context: ClientContext;
  readonly #directory: ParameterDirectory;
  readonly #connections: readonly ServerConnection[];
  readonly #placer: Placer;
  /** Keys that each local worker has initialised. */
  readonly #initialised: Set<string>[];
  /** Calls of other workers than 0. */
  readonly #waiting: Waiting[] = [];
  /** Calls of worker 0: batches are declared one after the other. */
  readonly #queue: Waiting[] = [];
  #declaring = false;
  /** The questions that others than worker 0 wait for, by server. */
  readonly #asked: (ClientRequest | undefined)[];

  constructor(context: ClientContext) {
    const { options, directory, connections } = context;
    this.#context = context;
    this.#directory = directory;
    this.#connections = connections;
    this.#placer = new Placer({ servers: connections.length, sliceBytes: options.sliceBytes });
    this.#initialised = Array.from({ length: options.localWorkers }, () => new Set<string>());
    this.#asked = connections.map(() => undefined);
  }

  /** @throws ShoalError `usage`; then nothing has changed. */
  start(worker: number, operation: ClientOperation, entries: readonly InitEntry[]): void {
    const known = this.#initialised[worker - this.#context.options.firstWorker];
    const seen = new Set<string>();
    for (const { key } of entries) {
      if (known.has(key) || seen.has(key))
        throw new ShoalError('usage', `worker ${worker} has initialised '${key}' already; init names each key once`);
      seen.add(key);
    }
    for (const key of seen) known.add(key);
    operation.expect();
    if (worker === 0) {
      this.#queue.push({ worker, operation, entries });
      this.#declareNext();
    } else {
      this.#waiting.push({ worker, operation, entries });
      // A server that cannot be reached is not asked.
      operation.localWait = () => this.#connections.find(({ trouble }) => trouble !== undefined)?.trouble;
      for (const [server, request] of this.#asked.entries()) if (request !== undefined) operation.watch(request, this.#connections[server]);
      this.progress();
    }
  }

  /** Something that inits wait for may have happened. */
  progress(): void {
    for (const waiting of [...this.#waiting]) {
      if (waiting.operation.finished || this.#settle(waiting)) this.#waiting.splice(this.#waiting.indexOf(waiting), 1);
    }
    if (this.#waiting.length === 0) return;
    for (const [server, connection] of this.#connections.entries()) {
      const known = server === 0 ? this.#directory.batches : connection.committed;
      const behind = server === 0 ? !this.#knowsAll() : connection.committed < this.#directory.batches;
      if (!connection.isUp || this.#asked[server] !== undefined || !behind) continue;
      this.#ask(connection, server, known);
    }
  }

  #knowsAll(): boolean {
    return (
      this.#waiting.every(({ entries }) => entries.every(({ key }) => this.#directory.find(key) >= 0)) &&
      this.#connections[0].committed >= this.#directory.batches
    );
  }

  /** @returns true when the init is done or has failed. */
  #settle({ worker, operation, entries }: Waiting): boolean {
    if (!entries.every(({ key }) => this.#directory.find(key) >= 0)) return false;
    for (const { key, dtype, shape } of entries) {
      const there = this.#directory.parameter(this.#directory.find(key));
      if (there.dtype === dtype && there.shape.join() === shape.join()) continue;
      const message = `'${key}' is ${dtype} [${shape.join(', ')}] at worker ${worker} and ${there.dtype} [${there.shape.join(', ')}] at worker 0`;
      operation.arrive(new ShoalError('mismatch', `${message}; init must be the same everywhere`));
      return true;
    }
    if (this.#connections.some(({ committed }) => committed < this.#directory.batches)) return false;
    operation.arrive();
    return true;
  }

  #ask(connection: ServerConnection, server: number, known: number): void {
    const request: ClientRequest = controlRequest(KVMessage.lookup, { known }, (error, msg) => {
      this.#asked[server] = undefined;
      for (const { operation } of this.#waiting) operation.unwatch(request);
      if (error !== undefined) return this.#failAll(error);
      try {
        const { committed, batches = [] } = answered(msg, Fields.lookedUp);
        // Worker 0 may be of this process: then the batch is known already.
        for (const [k, batch] of batches.entries()) if (known + k === this.#directory.batches) this.#directory.add(unpackBatch(batch));
        connection.committed = Math.max(connection.committed, committed);
      } catch (thrown) {
        return this.#failAll(ShoalError.from(thrown));
      }
      return this.progress();
    });
    this.#asked[server] = request;
    for (const { operation } of this.#waiting) operation.watch(request, connection);
    connection.ask(request);
  }

  #failAll(error: ShoalError): void {
    for (const { operation } of this.#waiting.splice(0)) operation.arrive(error);
  }

  // ── worker 0 ───────────────────────────────────────────────────────────────────────────────────────────────────

  /** Values follow the declaration on the same connections; `commit` follows when all of them have arrived. */
  #declareNext(): void {
    if (this.#declaring) return;
    const next = this.#queue.shift();
    if (next === undefined) return;
    const { operation, entries } = next;
    const pieces = this.#placer.place(entries);
    const batch = entries.map(({ key, dtype, shape }, k): DeclaredParameter => ({ key, dtype, shape: [...shape], pieces: pieces[k] }));
    this.#directory.add(batch);
    this.#declaring = true;
    const finish = (error: ShoalError | undefined): void => {
      this.#declaring = false;
      operation.arrive(error);
      this.progress();
      this.#declareNext();
    };
    let waiting = 2;
    let failure: ShoalError | undefined;
    const arrive = (error: ShoalError | undefined): void => {
      failure ??= error;
      waiting--;
      if (waiting > 0) return;
      if (failure !== undefined) finish(failure);
      else operation.ask(this.#connections, { type: KVMessage.commit, fields: {}, repeats: true }, committed);
    };
    const committed = (error: ShoalError | undefined): void => {
      if (error === undefined)
        for (const connection of this.#connections) connection.committed = Math.max(connection.committed, this.#directory.batches);
      finish(error);
    };
    operation.ask(this.#connections, { type: KVMessage.declare, fields: { batch: packBatch(batch) }, repeats: true }, arrive);
    const plan = new Plan(this.#context, { priority: putPriority, type: KVMessage.put });
    for (const { key, value } of entries) plan.add({ parameter: this.#directory.find(key), round: 0, push: value });
    waiting += plan.launch([operation], arrive);
    for (const connection of this.#connections) connection.pump();
    arrive(undefined);
  }
}
