/** The protocol of both threads about a guest of the comm thread: the port to it, its answers, and the messages by which guests come and
 *  go. */
import type { MessagePort } from 'node:worker_threads';
import type { ErrorData } from '../../base/errors.ts';
import type { PostponedShare } from './postponed.ts';

export interface ThreadData {
  /** Memory of the gate that is closed before the thread is ended. */
  readonly gate: SharedArrayBuffer;
  /** Memory of the arbiters of both threads. */
  readonly inFlight: SharedArrayBuffer;
}

export type ToThread =
  | {
      readonly type: 'host';
      readonly guest: number;
      /** The guest's user, for messages. */
      readonly who: string;
      /** Path of its built module. */
      readonly entry: string;
      readonly plan: unknown;
      readonly end: PortEnd;
    }
  /** Ends the guest, which nobody wants any more. */
  | { readonly type: 'leave'; readonly guest: number };

/** The guest has left. */
export interface FromThread {
  readonly guest: number;
}

/** One end of the way to a guest. It may be transferred to the thread that uses it. */
export interface PortEnd {
  /** The way to the other end; whoever passes it to a thread puts it in the transfer list. */
  readonly port: MessagePort;
  /** Two Int32 that both ends have: how many events were posted; the comm thread's number in the system, 0: unknown. */
  readonly events: SharedArrayBuffer;
  /** Undefined: nothing is postponed. */
  readonly postponed?: PostponedShare;
}

export const eventCount = 0;
export const threadNumber = 1;

export function eventMemory(): SharedArrayBuffer {
  return new SharedArrayBuffer(2 * Int32Array.BYTES_PER_ELEMENT);
}

/** The answers of any guest. */
export type GuestEvent<Info, Answer> =
  /** Commands may come. */
  | { readonly type: 'ready'; readonly info: Info }
  /** It cannot go on; nothing else follows. `begun` false: its own code has not run. */
  | { readonly type: 'failed'; readonly error: ErrorData; readonly begun?: boolean }
  /** `begun` false: it was refused, and no other process has heard of it. */
  | { readonly type: 'done'; readonly work: number; readonly error?: ErrorData; readonly begun?: boolean; readonly answer?: Answer };
