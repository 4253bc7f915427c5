/** The interface in which a Send meets its receive, in one step, whether the other end is local or remote. One suite
 *  checks it, within one worker and between two (conformance.ts).
 *
 *  - A key is sent once and received once in a step, in either order. A receive that was cancelled before its key was sent may
 *    be repeated; later the value may have gone with it, and the repeated one fails.
 *  - `undefined` is a dead tensor: it travels like a value, and says that the sender's branch was not taken.
 *  - Values of different steps never meet.
 *  - `startAbort` fails what waits, and whatever is asked or sent later, with its cause; the first cause stays.
 *  - The value given to `send` must not change until it was received, or its step has ended. */
import type { ShoalError } from '../../base/errors.ts';

/** Options of a receive. */
export interface RecvOptions {
  /** Gives up with `aborted`. */
  readonly signal?: AbortSignal;
}

/** `Sent`: what may be sent for the value to be received. */
export interface Rendezvous<V, Sent = V> {
  /** The value, or that it is dead, for whoever receives this key; does not wait.
   *  @throws ShoalError `usage` when the key has been sent already, `mismatch` when it names another incarnation of the sending device. */
  send(key: string, value: Sent | undefined): void;
  /** Waits until the key is sent. Rejects with `mismatch` when the sending device has restarted since the key was made. */
  recvAsync(key: string, options?: RecvOptions): Promise<V | undefined>;
  /** One request for several keys of one sender: waits for all. A slot is dead when its own value is. An error names its slot and key. */
  recvFused(keys: readonly string[], options?: RecvOptions): Promise<readonly (V | undefined)[]>;
  startAbort(cause: ShoalError): void;
}

/** A caller that waits for a key. Exactly one of the two is called, once, unless it is cancelled. */
export interface Waiter<V> {
  receive(value: V | undefined): void;
  fail(cause: ShoalError): void;
}

/** A connection over which another worker asks for tensors. */
export interface Asker {
  /** The worker: one object for all of its connections. */
  readonly worker: object;
  /** The connection has ended: what was on its way over it may be asked for again. */
  readonly isOver: boolean;
}

/** Takes no further part in what it asked for. Idempotent. */
export type Cancel = () => void;
