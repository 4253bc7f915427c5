/** Another worker, over one connection after the other. While a broken connection is made again, what was asked for and what was sent wait:
 *
 *      connected ──breaks──▶ reconnecting ──▶ connected       receives are asked for again, in their order; values that had not left
 *          │                      │                           are given again
 *          │ ends in order        │ not within `reconnectMs`, or by another process; or the process, on this host, has ended
 *          ▼                      ▼
 *        lost: everything fails with `peer-lost`, now and later
 *
 *  The end that dialled dials again; the other one waits for it. When both have dialled, there are two connections, and each end asks over
 *  the one that it knew first. */
import { retry } from '../../base/connections/retry.ts';
import type { Clock } from '../../base/clock.ts';
import { ShoalError } from '../../base/errors.ts';
import { areOfOneHost, hasEnded, ownProcess, type ProcessIdentity } from '../../base/files/process-identity.ts';
import type { Random } from '../../base/random.ts';
import type { StandingRequest } from '../protocol/standing-request.ts';
import { unanswered, type FusedWaiter, type PieceSink, type TensorCarrier, type Unanswered } from '../protocol/tensor-carrier.ts';
import { describeKey } from '../table/rendezvous-key.ts';
import type { Asker, Cancel, Waiter } from '../table/rendezvous.ts';
import type { SentValue } from '../value/staged-tensor.ts';
import type { TensorValue } from '../value/tensor-value.ts';
import type { TensorConnection, WorkerIdentity } from './tensor-connection.ts';
import { nothingToCancel } from '../protocol/tensor-response.ts';

/** Makes a connection to the worker; resolves when the worker has greeted over it. */
export type Dial = (timeoutMs: number, signal?: AbortSignal) => Promise<WorkerIdentity>;

export interface RemoteWorkerOptions {
  readonly clock: Clock;
  readonly random: Random;
  /** The name of the worker, for messages. */
  readonly name: string;
  /** Makes the first connection when something is asked for. Default: it is there. */
  readonly dial?: Dial;
  /** Time limit of the first connection, where it is dialled from here. */
  readonly connectMs: number;
  /** Time limit of each later one. */
  readonly reconnectMs: number;
  /** The tensors that are sent from here. */
  readonly sent: {
    take(stepId: number, key: string, waiter: Waiter<SentValue>, asker: Asker): Cancel;
    giveBack(stepId: number, key: string, value: SentValue): boolean;
  };
  /** The worker will not come back. Called before its receives fail. */
  readonly onLost: (cause: ShoalError) => void;
}

/** A standing request, over however many connections. */
interface Standing {
  readonly key: string;
  readonly depth: number;
  /** The first step that the next connection asks for, unless `request` says. */
  firstStep: number;
  request: StandingRequest | undefined;
  connection: TensorConnection | undefined;
  /** The request of the earlier connection, with tensors that had come and were not read. */
  before: StandingRequest | undefined;
}

/** The accepting end hears of a loss and of the next connection later than the dialling one. */
const acceptFactor = 1.5;
export class RemoteWorker implements TensorCarrier {
  /** Undefined before its first greeting. */
  identity: WorkerIdentity | undefined;
  /** The process that has greeted. */
  process: ProcessIdentity | undefined;
  readonly #options: RemoteWorkerOptions;
  /** Open connections, with what makes each again; undefined: the other worker has made it. */
  readonly #connections = new Map<TensorConnection, Dial | undefined>();
  /** The one that is asked. */
  #asked: TensorConnection | undefined;
  /** Requests that wait for a connection, in their order. */
  readonly #waiting = new Set<Unanswered>();
  readonly #standing = new Map<string, Standing>();
  /** Connections that have ended, and over which something may still leave. */
  #unsettled = 0;
  /** Requests of the worker that wait until nothing leaves over its earlier connections. */
  readonly #deferred = new Set<() => void>();
  /** The way to the worker, where this end has made a connection. */
  #way: Dial | undefined;
  #dialling: AbortController | undefined;
  /** Aborted when there is a connection again. */
  #awaiting: AbortController | undefined;
  #lost: ShoalError | undefined;

  constructor(options: RemoteWorkerOptions) {
    this.#options = options;
  }

  recv(stepId: number, key: string, waiter: Waiter<TensorValue>, sink?: PieceSink): Cancel {
    if (this.#standing.size > 0) {
      const { before, request } = this.#standing.get(key) ?? {};
      if (before?.covers(stepId) === true) return before.recv(stepId, waiter);
      if (request?.covers(stepId) === true) return request.recv(stepId, waiter);
    }
    if (this.#asked !== undefined) return this.#asked.recv(stepId, key, waiter, sink);
    return this.#wait(unanswered([key], stepId, waiter, (carrier) => carrier.recv(stepId, key, waiter, sink)));
  }

  recvFused(stepId: number, keys: readonly string[], waiter: FusedWaiter): Cancel {
    if (this.#asked !== undefined) return this.#asked.recvFused(stepId, keys, waiter);
    return this.#wait(unanswered(keys, stepId, waiter, (carrier) => carrier.recvFused(stepId, keys, waiter)));
  }

  /** Asks for a key in every step from `firstStep` on, `depth` steps ahead. @throws ShoalError as `TensorReceiver.stand`. */
  stand(key: string, firstStep: number, depth: number): { stop(): void } {
    if (this.#lost !== undefined) throw this.#lost;
    if (this.#standing.has(key)) throw new ShoalError('usage', `${describeKey(key)} has a standing request already`);
    const connection = this.#asked;
    const request = connection?.stand(key, firstStep, depth);
    const standing: Standing = { key, depth, firstStep, request, connection, before: undefined };
    this.#standing.set(key, standing);
    return {
      stop: () => {
        if (this.#standing.get(key) === standing) this.#standing.delete(key);
        standing.request?.stop();
      },
    };
  }

  endStep(stepId: number): void {
    for (const connection of this.#connections.keys()) connection.endStep(stepId);
    for (const { before } of this.#standing.values()) before?.endStep(stepId);
  }

  /** Ends the connections in order. */
  async close(): Promise<void> {
    this.#end(new ShoalError('closed', `the connection to ${this.#options.name} was closed`));
    await Promise.all([...this.#connections.keys()].map((connection) => connection.close()));
  }

  /** It will not come back: what waits for it fails. */
  lose(cause: ShoalError): void {
    if (this.#lost !== undefined) return;
    this.#options.onLost(cause);
    this.#end(cause);
    for (const connection of [...this.#connections.keys()]) connection.abort(cause);
  }

  // ── connections ────────────────────────────────────────────────────────────────────────────────────────────────

  /** The worker has greeted over a connection. */
  attach(connection: TensorConnection, dial: Dial | undefined): void {
    this.#awaiting?.abort();
    const replaced = dial === undefined ? [...this.#connections].filter(([, each]) => each === undefined) : [];
    this.#connections.set(connection, dial);
    this.#way ??= dial;
    this.#asked ??= connection;
    this.#standAgain();
    // The worker has dialled again: its connection before has broken, which this end may not know yet.
    for (const [before] of replaced) before.break(new ShoalError('peer-lost', `${this.#options.name} has connected anew`));
    for (const asked of this.#waiting) asked.cancel = asked.ask(this.#asked);
    this.#waiting.clear();
  }

  /** A connection is over. @returns what takes over the requests that it leaves; undefined: they fail. */
  detach(connection: TensorConnection, error: ShoalError | undefined): ((asked: Unanswered) => void) | undefined {
    this.#connections.delete(connection);
    if (this.#asked === connection) this.#asked = [...this.#connections.keys()].at(-1);
    this.#unsettled++;
    if (this.#lost !== undefined) return undefined;
    if (error?.code !== 'peer-lost') {
      this.lose(error ?? new ShoalError('closed', `the connection to ${this.#options.name} was closed by that worker`));
      return undefined;
    }
    if (this.#asked === undefined) {
      void this.#await(error);
      // Connections that either end has made may break together, in any order.
      if (this.#way !== undefined) void this.#dial(this.#way, this.#options.reconnectMs, error);
    } else this.#standAgain();
    return (asked) => void this.#wait(asked);
  }

  /** Nothing leaves any more over a connection that is over. */
  settled(): void {
    if (--this.#unsettled > 0) return;
    const deferred = [...this.#deferred];
    this.#deferred.clear();
    for (const take of deferred) take();
  }

  // ── tensors that are sent to it ────────────────────────────────────────────────────────────────────────────────

  /** The worker asks for a tensor: not before it is known which ones have left over its earlier connections. */
  take(stepId: number, key: string, waiter: Waiter<SentValue>, asker: Asker): Cancel {
    const { sent } = this.#options;
    if (this.#unsettled === 0) return sent.take(stepId, key, waiter, asker);
    let cancel: Cancel = () => this.#deferred.delete(take);
    const take = (): void => {
      cancel = sent.take(stepId, key, waiter, asker);
    };
    this.#deferred.add(take);
    return () => cancel();
  }

  giveBack(stepId: number, key: string, value: SentValue): boolean {
    return this.#lost === undefined && this.#options.sent.giveBack(stepId, key, value);
  }

  // ── requests without a connection ──────────────────────────────────────────────────────────────────────────────

  #wait(asked: Unanswered): Cancel {
    if (this.#lost !== undefined) {
      asked.fail(this.#lost);
      return nothingToCancel;
    }
    if (this.#asked === undefined) {
      asked.cancel = () => this.#waiting.delete(asked);
      this.#waiting.add(asked);
      const { dial, connectMs } = this.#options;
      if (dial !== undefined && this.identity === undefined) void this.#dial(dial, connectMs, undefined);
    } else asked.cancel = asked.ask(this.#asked);
    return () => asked.cancel();
  }

  /** Standing requests of connections that are over go on with the present one. */
  #standAgain(): void {
    const connection = this.#asked!;
    for (const standing of this.#standing.values()) {
      const { key, depth, request } = standing;
      if (standing.connection !== undefined && this.#connections.has(standing.connection)) continue;
      try {
        standing.request = connection.stand(key, request?.firstAsked ?? standing.firstStep, depth);
        standing.connection = connection;
        standing.before = request;
      } catch {
        // Without memory for it, its tensors are asked for one by one.
        this.#standing.delete(key);
      }
    }
  }

  /** Gives up when the other process has ended, or has not connected again in time. */
  async #await(broken: ShoalError): Promise<void> {
    const stop = new AbortController();
    this.#awaiting = stop;
    const { clock, random, reconnectMs } = this.#options;
    const other = this.process!;
    const isHere = areOfOneHost(other, ownProcess());
    const limits = { timeoutMs: reconnectMs * acceptFactor, signal: stop.signal };
    const outcome = await retry({ clock, random, ...limits, isFinal: () => false, begin: 'pause' }, async () => {
      if (!isHere || !hasEnded(other)) throw broken;
    });
    if (!stop.signal.aborted)
      this.#giveUp(broken, 'value' in outcome ? 'its process has ended' : `it was not connected again within ${reconnectMs} ms`);
  }

  async #dial(dial: Dial, timeoutMs: number, broken: ShoalError | undefined): Promise<void> {
    if (this.#dialling !== undefined) return;
    const stop = new AbortController();
    this.#dialling = stop;
    const { clock, random } = this.#options;
    const begin = broken === undefined ? 'attempt' : 'pause';
    const ends = { timeoutMs, signal: stop.signal, isFinal: (error: ShoalError) => isFinal(error, broken) };
    const outcome = await retry({ clock, random, ...ends, begin }, (signal, leftMs) => dial(leftMs, signal));
    this.#dialling = undefined;
    if (this.#lost !== undefined || this.#asked !== undefined) return;
    const cause = 'value' in outcome ? undefined : outcome.error;
    const after = `within ${timeoutMs} ms${cause === undefined ? '' : `: ${cause.message}`}`;
    if (broken !== undefined) return this.#giveUp(broken, `it was not connected again ${after}`);
    const code = cause === undefined || cause.code === 'timeout' ? 'peer-lost' : cause.code;
    this.lose(new ShoalError(code, `${this.#options.name} cannot be reached ${after}`, { cause }));
  }

  /** @param broken the end of the last connection. @param why there is no other. */
  #giveUp(broken: ShoalError, why: string): void {
    this.lose(new ShoalError('peer-lost', `${broken.message}; ${why}`, { ...broken.toData(), cause: broken }));
  }

  #end(cause: ShoalError): void {
    if (this.#lost !== undefined) return;
    this.#lost = cause;
    this.#awaiting?.abort();
    this.#dialling?.abort();
    this.#standing.clear();
    const waiting = [...this.#waiting];
    this.#waiting.clear();
    for (const asked of waiting) asked.fail(cause);
  }
}

/** Connections break in the handshake, and another program may have the port of a worker that is down; of one that was never reached, a
 *  refusal is the answer. */
function isFinal({ code }: ShoalError, broken: ShoalError | undefined): boolean {
  return code !== 'peer-lost' && code !== 'timeout' && (broken === undefined || code !== 'auth');
}
