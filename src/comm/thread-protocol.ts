/** Messages between the main thread and the comm thread about guests. Messages to a guest go over the guest's own port. */
import type { PortEnd } from './comm-host.ts';

export interface ThreadData {
  /** Memory of the gate that is closed before the thread is ended. */
  readonly gate: SharedArrayBuffer;
  /** Of the arbiters of both threads. */
  readonly inFlight: SharedArrayBuffer;
}

export type ToThread =
  | {
      readonly type: 'host';
      readonly guest: number;
      /** In messages. */
      readonly who: string;
      /** Path of its built module. */
      readonly entry: string;
      readonly plan: unknown;
      readonly end: PortEnd;
    }
  /** Nobody wants the guest any more. */
  | { readonly type: 'leave'; readonly guest: number };

/** The guest has left. */
export interface FromThread {
  readonly guest: number;
}
