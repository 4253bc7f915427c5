/** A backend carries packets: one interface for threads, ZeroMQ, the fabric and MPI. A backend must not know messages,
 *  addresses or windows; it moves parts from one end of a pipe to the other.
 *
 *  Contract of a pipe (checked on every backend by the conformance suite of the sockets above):
 *  - Packets arrive whole, in order, with the boundaries of their parts, or not at all.
 *  - `send` never blocks and never throws: sockets bound what is on its way (limits.ts). What cannot be sent ends the pipe.
 *  - Parts given to `send` are not changed until the peer has acknowledged them, so a backend need not copy them first.
 *    Parts given to `onParts` belong to the receiver alone.
 *  - One peer that is slow, stopped or dead does not hold up the pipes of others.
 *  - Callbacks run on the thread that made the backend, never inside a call to it. */
import type { Clock } from '../base/clock.ts';
import type { ShoalError } from '../base/errors.ts';
import type { Random } from '../base/random.ts';
import type { MessagingLimits } from './limits.ts';
import type { FramePlace } from './msg.ts';

export interface PipeHandlers {
  /** `pointers`: memory that threads share, from pipes that carry it. `release`: the parts are lent; to be called once
   *  when nobody uses them any more. */
  onParts(parts: Uint8Array[], pointers: readonly Uint8Array[], release?: () => void): void;
  /** Exactly once, unless `close` was called. The peer went (`peer-lost`) or cannot be talked to. */
  onClose(error: ShoalError): void;
}

export interface Pipe {
  /** The pipe's name for people: `tcp://10.0.0.4:7001`. */
  readonly description: string;
  /** Carries references to memory that threads share. */
  readonly pointers: boolean;
  /** Once, in the turn the pipe was received. */
  setHandlers(handlers: PipeHandlers): void;
  /** `pointers` is empty unless `this.pointers`; they are passed by reference, parts by value. `places`, by part: where the
   *  receiver wants it; a pipe that cannot write there sends the part as any other. */
  send(parts: readonly Uint8Array[], pointers?: readonly Uint8Array[], places?: readonly (FramePlace | undefined)[]): void;
  /** Passes on what was sent, for at most `timeoutMs`, then ends. Idempotent. */
  close(timeoutMs: number): Promise<void>;
}

export interface Listener {
  /** The URL that dealers connect to: with the real port, never a wildcard that only this host understands. */
  readonly url: string;
  close(): Promise<void>;
}

export interface PipeConnectOptions {
  readonly timeoutMs: number;
  readonly signal: AbortSignal;
}

export interface BackendOptions {
  /** Separates jobs: nobody of another world is reached. */
  readonly world: string;
  /** Proves membership; never sent. */
  readonly secret: Uint8Array;
  readonly clock: Clock;
  readonly random: Random;
  readonly limits: MessagingLimits;
}

/** One per context. */
export interface Backend {
  /** @throws ShoalError `usage` for a malformed URL, `system` when the address is taken. */
  listen(url: string, onPipe: (pipe: Pipe) => void): Promise<Listener>;
  /** @throws ShoalError `timeout`, `auth`, `peer-lost`, `unsupported`, `aborted`. */
  connect(url: string, options: PipeConnectOptions): Promise<Pipe>;
  close(): Promise<void>;
}
