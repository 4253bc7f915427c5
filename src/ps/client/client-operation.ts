/** An operation of a worker: some requests to some servers, one result, one deadline. */
import { ShoalError } from '../../base/errors.ts';
import { within, type Clock, type Timer } from '../../base/clock.ts';
import type { Msg } from '../../messaging/msg.ts';
import type { ServerConnection } from './server-connection.ts';
import { answered, controlRequest, type ClientRequest } from './client-request.ts';
import { Fields, type ControlFields, type WorkerWait } from '../protocol/wire-control.ts';
import { KVMessage } from '../protocol/wire.ts';

/** Time before the deadline at which servers are asked whom they wait for. */
const inquiryMs = 1000;
/** Time for their answers, for whoever looks at a wait. */
const answerMs = 500;
/** The time after its deadline in which servers may answer that they write nothing more. */
const recallMs = 2000;
/** Parts of an operation that an error describes. */
const reasonsMax = 4;

export interface OperationOptions {
  /** The operation's name for people: `pushPull of 'w1' and 24 more by worker 3`. */
  readonly name: () => string;
  readonly clock: Clock;
  readonly timeoutMs: number;
  /** Workers of each process. */
  readonly localWorkers: number;
  readonly done: (error: ShoalError | undefined) => void;
  /** The deadline has passed. Requests that were sent may still change something.
   *  @returns those whose values a server may still write, until it has answered that it will not. */
  readonly onTimeout: (operation: ClientOperation, error: ShoalError) => Set<ClientRequest>;
  readonly onFinished: (operation: ClientOperation) => void;
}

/** A request of which several servers get the same. */
export interface Question {
  readonly type: number;
  readonly fields: ControlFields;
  /** A server that restarts from a snapshot must hear it again. Default false. */
  readonly repeats?: boolean;
}

export type QuestionEnd = (error: ShoalError | undefined, answer: Msg | undefined) => void;

export class ClientOperation {
  readonly options: OperationOptions;
  /** The requests that it waits for. */
  readonly #requests = new Map<ClientRequest, ServerConnection>();
  /** Requests of others that it waits for too: for errors. */
  readonly #watched = new Map<ClientRequest, ServerConnection>();
  /** The servers' words about its requests, and the workers that these wait for. */
  readonly #reasons = new Map<ClientRequest, WorkerWait>();
  #waiting = 0;
  /** The requests that it still waits for after its deadline. */
  #recalled: Set<ClientRequest> | undefined;
  #error: ShoalError | undefined;
  #timer: Timer | undefined;
  #finished = false;
  readonly #startMs: number;
  /** Describes its wait for other workers of this process. */
  localWait: (() => string | undefined) | undefined;

  constructor(options: OperationOptions) {
    this.options = options;
    const { clock, timeoutMs } = options;
    this.#startMs = clock.now();
    const lead = Math.min(inquiryMs, timeoutMs / 4);
    this.#timer = clock.setTimer(timeoutMs - lead, () => {
      void this.inquire();
      this.#timer = clock.setTimer(lead, () => this.#expire());
    });
  }

  get finished(): boolean {
    return this.#finished;
  }

  /** The time since its start, the reasons why it has not ended, and the ranks of the workers that it waits for, as far as servers have
   *  said. */
  get wait(): { text: string; ranks: readonly number[]; seconds: number } {
    const { clock, name, localWorkers } = this.options;
    const workers = this.#waits.flatMap(([request]) => this.#reasons.get(request)?.workers ?? []);
    const ranks = new Set(workers.map((worker) => Math.floor(worker / localWorkers)));
    return { text: `${name()}: ${this.#reasonsText}`, ranks: [...ranks], seconds: (clock.now() - this.#startMs) / 1000 };
  }

  get #waits(): [ClientRequest, ServerConnection][] {
    return [...this.#requests, ...this.#watched];
  }

  get requests(): ReadonlyMap<ClientRequest, ServerConnection> {
    return this.#requests;
  }

  /** One more thing to wait for. */
  expect(): void {
    this.#waiting++;
  }

  attach(request: ClientRequest, connection: ServerConnection): void {
    this.#waiting++;
    this.#requests.set(request, connection);
  }

  /** Asks several servers the same. @param finish once all have answered: with the first error, or the last answer. Default: they are what
   *  the operation waits for. */
  ask(connections: readonly ServerConnection[], { type, fields, repeats = false }: Question, finish?: QuestionEnd): void {
    let waiting = connections.length;
    let failure: ShoalError | undefined;
    for (const connection of connections) {
      const end: ClientRequest['finish'] = (error, msg) => {
        failure ??= error;
        waiting--;
        if (waiting === 0) finish?.(failure, msg);
        this.arrive(finish === undefined ? error : undefined, request);
      };
      const request: ClientRequest = controlRequest(type, fields, end, { repeats });
      this.attach(request, connection);
      connection.ask(request);
    }
  }

  watch(request: ClientRequest, connection: ServerConnection): void {
    this.#watched.set(request, connection);
  }

  unwatch(request: ClientRequest): void {
    this.#watched.delete(request);
  }

  /** A request is answered, or something that was expected has happened. The first error counts; the result waits for all,
   *  so that no memory is in use afterwards. */
  arrive(error?: ShoalError, request?: ClientRequest): void {
    if (this.#finished) return;
    if (request !== undefined) this.#requests.delete(request);
    if (this.#recalled === undefined) {
      this.#error ??= error;
      this.#waiting--;
      if (this.#waiting === 0) this.end(this.#error);
    } else if (request !== undefined && this.#recalled.delete(request) && this.#recalled.size === 0) this.end(this.#error);
  }

  end(error: ShoalError | undefined): void {
    if (this.#finished) return;
    this.#finished = true;
    this.#timer?.cancel();
    this.options.onFinished(this);
    this.options.done(error);
  }

  /** Asks servers whom they wait for. Resolves when they have answered, or after a while. */
  async inquire(): Promise<void> {
    const asked = this.#waits.slice(0, reasonsMax).flatMap(([request, connection]) => {
      const about = connection.isUp ? (connection.holds(request) ?? (connection.awaitsSnapshot ? 0 : undefined)) : undefined;
      if (about === undefined) return [];
      const answer = new Promise<void>((resolve) => {
        const finish: ClientRequest['finish'] = (error, msg) => {
          if (error === undefined) this.#reasons.set(request, answered(msg, Fields.inquired));
          resolve();
        };
        connection.ask(controlRequest(KVMessage.inquire, { request: about }, finish));
      });
      return [answer];
    });
    await within<unknown>(this.options.clock, answerMs, Promise.all(asked), () => undefined);
  }

  #reasonOf(request: ClientRequest, connection: ServerConnection): string {
    const { name, replayBytes } = connection.options;
    const { text: said } = this.#reasons.get(request) ?? { text: '' };
    if (connection.holds(request) !== undefined) return said === '' ? `${name} has not answered` : said;
    if (!connection.awaitsSnapshot) return `${name} has not taken it`;
    const full = `${name} must save a checkpoint first, the ${replayBytes} bytes for pushes since the last one are full`;
    return said === '' ? full : `${full}; ${said}`;
  }

  get #reasonsText(): string {
    const reasons = new Set<string>();
    for (const [request, connection] of this.#waits) {
      reasons.add(connection.trouble ?? this.#reasonOf(request, connection));
      if (reasons.size === reasonsMax) break;
    }
    const local = this.localWait?.();
    if (local !== undefined) reasons.add(local);
    return [...reasons].join('; ');
  }

  #expire(): void {
    if (this.#finished) return;
    const { timeoutMs, clock } = this.options;
    const name = this.options.name();
    const next = this.wait.ranks.length === 0 ? '' : '; do they run, and make the same calls? shoal status says it';
    const text = `${name} timed out after ${timeoutMs} ms: ${this.#reasonsText}${next}`;
    this.#error = new ShoalError('timeout', text, { timeoutMs, operation: name });
    this.#timer = clock.setTimer(recallMs, () => this.end(this.#error));
    this.#recalled = this.options.onTimeout(this, this.#error);
    if (this.#recalled.size === 0) this.end(this.#error);
  }
}
