/** A command to the comm thread that is delivered after a short delay, until which its sender may take it back. A sender that would only
 *  wait for the result takes it back and runs it itself: no message is packed, and no thread is woken. If the sender does anything else,
 *  the comm thread gets the command when the delay has passed.
 *
 *      empty ── put, timer is set ──▶ waiting ──┬── taken back ──────────────────────────────▶ empty
 *                                               └── time has come: the other end ── reads ───▶ empty
 *
 *  One command at a time. It carries the number of commands posted before it over the port: the comm thread handles exactly these
 *  first, and later ones after it. It must not know the meaning of commands. */
import { deserialize, serialize } from 'node:v8';
import type { Native } from '../../memory/native.ts';

const empty = 0;
const waiting = 1;
const reading = 2;

const stateWord = 0;
const lengthWord = 1;
const postedWord = 2;
const headWords = 3;
const headBytes = headWords * Int32Array.BYTES_PER_ELEMENT;
/** Larger commands are not postponed. */
const bytesMax = 16 * 1024;
/** The longest time that a command is postponed. */
const delayNsMax = 1e9 - 1;

/** The memory and the timer that both ends have. */
export interface PostponedShare {
  readonly memory: SharedArrayBuffer;
  /** Descriptor of the timer, in this process. */
  readonly timer: number;
}

export type PostponedTimer = Pick<Native, 'createTimer' | 'setTimer' | 'closeTimer'>;

/** The sender's end. */
export class Postponed {
  readonly share: PostponedShare;
  readonly #native: PostponedTimer;
  readonly #words: Int32Array;
  readonly #bytes: Uint8Array;
  #closed = false;

  constructor(native: PostponedTimer) {
    this.#native = native;
    this.share = { memory: new SharedArrayBuffer(headBytes + bytesMax), timer: native.createTimer() };
    this.#words = new Int32Array(this.share.memory, 0, headWords);
    this.#bytes = new Uint8Array(this.share.memory, headBytes);
  }

  /** False: it is to be posted, as it does not fit, or the other end is reading another one.
   *  @param posted commands before it, modulo 2³². */
  put(command: unknown, delayNs: number, posted: number): boolean {
    if (Atomics.load(this.#words, stateWord) !== empty) return false;
    const bytes = serialize(command);
    if (bytes.length > bytesMax) return false;
    this.#bytes.set(bytes);
    this.#words[lengthWord] = bytes.length;
    this.#words[postedWord] = posted;
    Atomics.store(this.#words, stateWord, waiting);
    this.#native.setTimer(this.share.timer, Math.min(delayNs, delayNsMax));
    return true;
  }

  /** False: the other end has it. */
  takeBack(): boolean {
    if (Atomics.compareExchange(this.#words, stateWord, waiting, empty) !== waiting) return false;
    this.#native.setTimer(this.share.timer, 0);
    return true;
  }

  /** Once the other end has been closed. Idempotent: somebody else may have been given the descriptor's number. */
  close(): void {
    if (this.#closed) return;
    this.#closed = true;
    this.#native.closeTimer(this.share.timer);
  }
}

/** The receiver's end: what has come is taken once. Undefined: it has been taken back. */
export function takePostponed({ memory }: PostponedShare): { readonly command: unknown; readonly posted: number } | undefined {
  const words = new Int32Array(memory, 0, headWords);
  if (Atomics.compareExchange(words, stateWord, waiting, reading) !== waiting) return undefined;
  const command: unknown = deserialize(Buffer.from(new Uint8Array(memory, headBytes, words[lengthWord])));
  const posted = words[postedWord];
  Atomics.store(words, stateWord, empty);
  return { command, posted };
}
