/** Calls of one kind that the comm thread has yet to finish, as their group moves them. One implementation per way that a call
 *  can take there: operation-queue.ts, host-path-queue.ts (one per host path), network-path-queue.ts. */
import type { ShoalError } from '../../../base/errors.ts';
import type { CollectiveCall } from '../../../call/contract.ts';
import type { Buffers } from '../../../call/local-buffers.ts';
import type { CallWay } from '../../shared/comm-protocol.ts';

/** `begun` false: no other rank has heard of it. Default: true. */
export type Complete = (error?: ShoalError, how?: { readonly begun: boolean }) => void;

export interface SubmittedCall {
  readonly way: CallWay;
  /** Position among the group's calls. */
  readonly sequence: number;
  readonly call: CollectiveCall;
  readonly buffers: Buffers;
  readonly timeoutMs: number;
  readonly complete: Complete;
}

export interface CallQueue<Call> {
  /** Calls that are not finished, oldest first. */
  readonly pending: readonly Call[];
  /** Number of pending calls. */
  readonly size: number;
  /** One look at those that may move; true when something moved. Never waits. */
  advance(): boolean;
  /** World ranks that keep one of them from going on: those that have not called it, or not ended what must end before it. */
  late(call: Call): number[];
  /** Ends all with `error`. */
  abandon(error: ShoalError): void;
}
