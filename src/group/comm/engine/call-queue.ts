/** Calls of one kind that the comm thread has yet to finish, as their group moves them. One implementation per way that a call
 *  can take there: operation-queue.ts, host-path-queue.ts (one per host path), network-path-queue.ts. */
import type { ShoalError } from '../../../base/errors.ts';

export interface CallQueue<Call> {
  /** Those that are not finished, oldest first. */
  readonly pending: readonly Call[];
  /** Their number. */
  readonly size: number;
  /** One look at those that may move; true when something moved. Never waits. */
  advance(): boolean;
  /** World ranks that keep one of them from going on: those that have not called it, or not ended what must end before it. */
  late(call: Call): number[];
  /** Ends all with `error`. */
  abandon(error: ShoalError): void;
}
