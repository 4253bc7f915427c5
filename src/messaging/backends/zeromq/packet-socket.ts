/** A socket of ZeroMQ as packets out and packets in. Nothing is ever left pending in the package: it ends the whole process
 *  when a thread goes, by `process.exit` or `terminate`, while the package waits for something there; and every call
 *  passes the gate (thread-gate.ts).
 *
 *      packets ─▶ queue ─▶ send ─┐ (may use up the signal that something has come)
 *                                ▼
 *      bell ────────────▶ is it readable? ─▶ receive ─▶ onPieces, until it is not
 *
 *  The bell is the socket's descriptor, watched by the addon. Without the addon we look: often after something came, then
 *  ever less often.
 *
 *  Parts travel as pieces, so that what a peer may send before it has proved itself is as small as a piece: a part is cut
 *  into pieces of `pieceBytes` and a last one that is shorter, or empty. */
import type * as Zmq from 'zeromq';
import { systemClock, type Timer } from '../../../base/clock.ts';
import { ShoalError } from '../../../base/errors.ts';
import { Fifo } from '../../../base/collections/fifo.ts';
import { loadNative } from '../../../memory/native.ts';
import type { ThreadGate } from '../../thread-gate.ts';

/** Less than the 500 ms after which the package zeromq complains on stderr, of a process that ends while a peer takes nothing. */
export const lingerMs = 300;
/** Largest piece of a part. */
export const pieceBytes: number = 1024 * 1024;

/** The event loop gets its turn after so many packets. */
const packetsPerTurn = 128;
/** Without the addon: looks that follow each other at once, then pauses that double. */
const looksMost = 100;
const pauseLeastMs = 1;
const pauseMostMs = 8;
/** ZMQ_FD */
const descriptorOption = 14;

export interface PacketSocketOptions {
  readonly gate: ThreadGate | undefined;
  /** A packet as it came: `join` makes its parts. */
  onPieces(pieces: Uint8Array[]): void;
  /** Nothing more comes. */
  onError(error: unknown): void;
  /** ZeroMQ has taken everything that was pushed. */
  onIdle?(): void;
}

export class PacketSocket {
  readonly #socket: Zmq.Dealer | Zmq.Router | Zmq.Reply;
  readonly #options: PacketSocketOptions;
  readonly #bell: Bell;
  readonly #waiting = new Fifo<{ readonly parts: readonly Uint8Array[]; readonly onError: (error: unknown) => void }>();
  #sending = false;
  #receiving = false;
  #open = true;

  /** Must be called within the gate. */
  constructor(socket: Zmq.Dealer | Zmq.Router | Zmq.Reply, options: PacketSocketOptions) {
    this.#socket = socket;
    this.#options = options;
    const ring = (): void => this.#look();
    const native = loadNative({ enabled: true });
    if (native === undefined) this.#bell = new Looks(ring);
    else {
      const raw = socket as unknown as { getInt32Option(option: number): number };
      const descriptor = raw.getInt32Option(descriptorOption);
      const watch = native.watchDescriptor(descriptor, ring);
      native.setWatching(watch, true);
      this.#bell = { rung: () => undefined, close: () => native.closeWatch(watch) };
    }
  }

  /** `head` goes before the parts, whole. */
  push(parts: readonly Uint8Array[], onError: (error: unknown) => void, head?: Uint8Array): void {
    if (!this.#open) return;
    const pieces = cut(parts);
    this.#waiting.push({ parts: head === undefined ? pieces : [head, ...pieces], onError });
    // Never rejects: errors belong to their packet.
    if (!this.#sending) void this.#send();
  }

  /** ZeroMQ has not taken everything yet. */
  get isSending(): boolean {
    return this.#sending;
  }

  /** Nothing comes any more. The socket closes, and gives its address back, on ZeroMQ's own time, after `lingerMs` at most. Idempotent. */
  close(lingerMs: number): void {
    if (!this.#open) return;
    this.#open = false;
    this.#bell.close();
    if (this.#options.gate?.enter() === false) return;
    this.#socket.linger = lingerMs;
    this.#socket.close();
    this.#options.gate?.leave();
    this.#options.onIdle?.();
  }

  async #send(): Promise<void> {
    this.#sending = true;
    for (let next = this.#waiting.shift(); next !== undefined && this.#open; next = this.#waiting.shift()) {
      try {
        await this.#give(next.parts);
      } catch (error) {
        next.onError(error);
      }
    }
    this.#sending = false;
    this.#options.onIdle?.();
    if (this.#open) this.#look();
  }

  #look(): void {
    if (this.#receiving) return;
    const first = this.#take();
    if (first !== undefined) void this.#receive(first);
  }

  /** Receives until nothing more is there. */
  async #receive(first: Promise<Uint8Array[]>): Promise<void> {
    this.#receiving = true;
    try {
      let next: Promise<Uint8Array[]> | undefined = first;
      for (let k = 1; next !== undefined; k++) {
        const pieces = await next;
        if (!this.#open) return;
        this.#options.onPieces(pieces);
        await (k % packetsPerTurn === 0 ? nextTurn() : afterAnswers());
        next = this.#open ? this.#take() : undefined;
      }
      this.#bell.rung();
    } catch (error) {
      if (this.#open) this.#options.onError(error);
    } finally {
      this.#receiving = false;
    }
  }

  /** A packet that has come, if any, as a settled promise. */
  #take(): Promise<Uint8Array[]> | undefined {
    const { gate } = this.#options;
    if (gate?.enter() === false) return undefined;
    const next = this.#socket.readable ? this.#socket.receive() : undefined;
    gate?.leave();
    return next;
  }

  #give(parts: readonly Uint8Array[]): Promise<void> | undefined {
    const { gate } = this.#options;
    if (gate?.enter() === false) return undefined;
    const given = this.#socket.send(parts as Uint8Array[]);
    gate?.leave();
    return given;
  }
}

/** Rings when something may have come, until it is closed; keeps the process alive. */
interface Bell {
  /** Notes that a look was worth it. */
  rung(): void;
  close(): void;
}

class Looks implements Bell {
  readonly #ring: () => void;
  #looks = looksMost;
  #pauseMs = pauseLeastMs;
  #timer: Timer | undefined;
  #immediate: NodeJS.Immediate | undefined;

  constructor(ring: () => void) {
    this.#ring = ring;
    this.#schedule();
  }

  rung(): void {
    this.#looks = looksMost;
    this.#pauseMs = pauseLeastMs;
  }

  close(): void {
    this.#timer?.cancel();
    clearImmediate(this.#immediate);
  }

  #schedule(): void {
    const look = (): void => {
      this.#schedule();
      this.#ring();
    };
    if (this.#looks > 0) {
      this.#looks--;
      this.#immediate = setImmediate(look);
      return;
    }
    this.#timer = systemClock.setTimer(this.#pauseMs, look, { keepAlive: true });
    this.#pauseMs = Math.min(this.#pauseMs * 2, pauseMostMs);
  }
}

/** The application's immediate work on a packet goes first: asking ZeroMQ for the next costs 10 µs, which would be
 *  added to every round trip. Resolves in this turn of the event loop, after all that promises trigger. */
function afterAnswers(): Promise<void> {
  return new Promise((resolve) => process.nextTick(resolve));
}

function nextTurn(): Promise<void> {
  return new Promise((resolve) => setImmediate(resolve));
}

/** Parts as pieces; those that are smaller than a piece are pieces themselves. */
export function cut(parts: readonly Uint8Array[]): readonly Uint8Array[] {
  if (areWhole(parts)) return parts;
  const pieces: Uint8Array[] = [];
  for (const part of parts) {
    for (let at = 0; ; at += pieceBytes) {
      pieces.push(part.subarray(at, at + pieceBytes));
      if (part.byteLength - at < pieceBytes) break;
    }
  }
  return pieces;
}

/** The opposite of `cut`. @throws ShoalError `protocol` when the pieces cannot be of a packet of at most `bytesMost`. */
export function join(pieces: Uint8Array[], bytesMost: number): Uint8Array[] {
  if (areWhole(pieces)) return pieces;
  let bytes = 0;
  for (const { byteLength } of pieces) bytes += byteLength;
  if (bytes > bytesMost || pieces[pieces.length - 1].byteLength >= pieceBytes) {
    throw new ShoalError('protocol', `${pieces.length} pieces with ${bytes} bytes are no packet of at most ${bytesMost} bytes`);
  }
  const parts: Uint8Array[] = [];
  for (let from = 0, k = 0; k < pieces.length; k++) {
    if (pieces[k].byteLength >= pieceBytes) continue;
    parts.push(joined(pieces, from, k));
    from = k + 1;
  }
  return parts;
}

function areWhole(parts: readonly Uint8Array[]): boolean {
  for (const { byteLength } of parts) if (byteLength >= pieceBytes) return false;
  return true;
}

/** Pieces from `first` to `last` in one memory; without a copy where it is one already. */
function joined(pieces: readonly Uint8Array[], first: number, last: number): Uint8Array {
  if (first === last || (first + 1 === last && pieces[last].byteLength === 0)) return pieces[first];
  let bytes = 0;
  for (let k = first; k <= last; k++) bytes += pieces[k].byteLength;
  // All of it is written before anybody sees it, so that it need not be zeroed first.
  const part = Buffer.allocUnsafeSlow(bytes);
  for (let k = first, at = 0; k <= last; at += pieces[k].byteLength, k++) part.set(pieces[k], at);
  return part;
}
