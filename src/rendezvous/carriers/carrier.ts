/** The transport of tensors from one other worker. The conformance suite (conformance.ts) runs on the product's own, over every fabric, and
 *  on the benchmarks' gRPC. */
import type { Cancel, Waiter } from '../table/rendezvous.ts';
import type { FusedWaiter } from '../protocol/tensor-receiver.ts';
import type { PieceSink } from '../protocol/tensor-request.ts';
import type { TensorValue } from '../value/tensor-value.ts';

export interface TensorCarrier {
  /** For people: `tcp 10.0.0.4:7000`. */
  readonly description: string;
  /** Asks the worker for a tensor of one of its steps. The waiter may be called before this returns.
   *  @param sink told of pieces before the waiter is, where the carrier has any. */
  recv(stepId: number, key: string, waiter: Waiter<TensorValue>, sink?: PieceSink): Cancel;
  /** Several tensors by one request, answered together. */
  recvFused(stepId: number, keys: readonly string[], waiter: FusedWaiter): Cancel;
  /** The step has ended here. */
  endStep(stepId: number): void;
  close(): Promise<void>;
}
