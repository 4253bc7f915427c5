/** The receiving half, which dealers and routers have in common. It must not know who is at the other end. */
import type { ShoalError } from '../base/errors.ts';
import { abortSignal, anyNumber, callback, checkArgument, checkOptions, noOptions, optionTable } from '../base/schema.ts';
import { Inbox } from './inbox.ts';
import type { Msg } from './msg.ts';

/** Options of the wait for a message. */
export interface ReceiveOptions {
  /** Ends the wait with `aborted`; no message is lost by it. */
  readonly signal?: AbortSignal;
}

/** Options of the end of a socket. */
export interface CloseOptions {
  /** Time to wait until peers have what was sent, in milliseconds. Default 1000. */
  readonly timeoutMs?: number;
}

const defaultCloseMs = 1000;

const receiveOptions = optionTable<ReceiveOptions>({ signal: abortSignal });
const closeOptions = optionTable<CloseOptions>({ timeoutMs: anyNumber });

/** A dealer or a router. All calls are for the thread that made it. */
export abstract class MessageSocket implements AsyncDisposable {
  /** Messages that have arrived and not been taken. */
  protected readonly inbox = new Inbox();
  #closing: Promise<number> | undefined;

  /** Names the socket in this process, for logs. */
  abstract readonly internalId: string;

  /** Takes the message over and queues it; never blocks. See `Msg` for who owns what.
   *  @throws ShoalError `out-of-memory` when its destination does not take what is queued, `closed`, `usage`. */
  abstract send(msg: Msg): void;

  /** Resolves when the peers' processes have everything sent so far, so that its frames may be changed.
   *  @throws ShoalError what ended the socket before. */
  abstract flushed(): Promise<void>;

  /** Waits until everything sent has arrived or the deadline passes, then ends.
   *  @returns how many messages were not delivered. Idempotent. */
  close(options: CloseOptions = noOptions): Promise<number> {
    checkOptions('close', options, closeOptions);
    this.#closing ??= this.end(options.timeoutMs ?? defaultCloseMs);
    return this.#closing;
  }

  /** Closes the socket; called once. */
  protected abstract end(timeoutMs: number): Promise<number>;

  /** A message can be taken without waiting. */
  get ready(): boolean {
    return this.inbox.ready;
  }

  /** Nothing can be taken any more: `receive` throws why. */
  get ended(): boolean {
    return this.inbox.ended;
  }

  /** The next message from any peer, when there is one. */
  tryReceive(): Msg | undefined {
    return this.inbox.take();
  }

  /** The next message from any peer. @throws ShoalError `aborted` by the signal, `closed`, or what ended the socket. */
  receive(options: ReceiveOptions = noOptions): Promise<Msg> {
    checkOptions('receive', options, receiveOptions);
    return this.inbox.receive(options.signal);
  }

  /** Calls back when the socket may have become ready. @returns what ends that. */
  watch(wake: () => void): () => void {
    checkArgument('watch: callback', wake, callback);
    return this.inbox.watch(wake);
  }

  /** Every message until the socket is closed; errors other than that are thrown. */
  async *[Symbol.asyncIterator](): AsyncGenerator<Msg, void, undefined> {
    try {
      for (;;) yield this.tryReceive() ?? (await this.receive());
    } catch (error) {
      if ((error as ShoalError).code !== 'closed') throw error;
    }
  }

  /** Calls `close` with its default limit, for `await using`. */
  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }
}
