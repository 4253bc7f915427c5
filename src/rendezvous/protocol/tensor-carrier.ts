/** The way by which tensors of one other worker come: one connection (TensorConnection), or one after the other (RemoteWorker). The
 *  conformance suite runs on every carrier of this package, and on the benchmarks' gRPC. */
import { failureOf, type ShoalError } from '../../base/errors.ts';
import type { Cancel, Waiter } from '../table/rendezvous.ts';
import { describeKeys } from '../table/rendezvous-key.ts';
import type { TensorMetadata } from '../value/tensor-metadata.ts';
import type { TensorValue } from '../value/tensor-value.ts';

export interface TensorCarrier {
  /** Asks the worker for a tensor of one of its steps. The waiter may be called before this returns.
   *  @param sink told of pieces before the waiter is, where the carrier has any. */
  recv(stepId: number, key: string, waiter: Waiter<TensorValue>, sink?: PieceSink): Cancel;
  /** Several tensors by one request, answered together. */
  recvFused(stepId: number, keys: readonly string[], waiter: FusedWaiter): Cancel;
  /** The step has ended here. */
  endStep(stepId: number): void;
  close(): Promise<void>;
}

/** The result for one slot of a fused request. */
export type SlotOutcome = { readonly value: TensorValue | undefined } | { readonly cause: ShoalError };

export interface FusedWaiter {
  /** All slots are known. */
  receive(slots: readonly SlotOutcome[]): void;
  /** The request as a whole has failed. */
  fail(cause: ShoalError): void;
}

/** A user of a tensor before all of it has come. */
export interface PieceSink {
  /** Length of a piece; a multiple of 64 KiB. */
  readonly pieceBytes: number;
  /** The tensor as it is expected if nothing is known of it. */
  readonly expected: TensorMetadata | undefined;
  /** The bytes from `at` have come. They stay until the value that follows is released; after a failure they may change. */
  receive(metadata: TensorMetadata, at: number, bytes: Uint8Array): void;
}

/** A request that its connection has left unanswered. */
export interface Unanswered {
  /** Asks for the same over another connection, for the same waiter. */
  ask(carrier: TensorCarrier): Cancel;
  /** Nobody will ask again. */
  fail(cause: ShoalError): void;
  /** Gives up where it is asked for now. Set by the carrier that takes it over. */
  cancel: Cancel;
}

/** @param ask as `Unanswered.ask`. */
export function unanswered(
  keys: readonly string[],
  stepId: number,
  waiter: { fail(cause: ShoalError): void },
  ask: Unanswered['ask'],
): Unanswered {
  const fail = (cause: ShoalError): void => waiter.fail(failureOf(`${describeKeys(keys)} did not come in step ${stepId}`, cause));
  return { ask, fail, cancel: () => {} };
}
