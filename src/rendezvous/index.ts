/** `shoal/rendezvous`: tensors between processes, by name and step, without copies.
 *  @module */
export type { WorkerIdentity } from './carriers/tensor-connection.ts';
export type { TensorCounters } from './protocol/counters.ts';
export { RendezvousWorker, type RendezvousWorkerOptions, type StandingOptions } from './rendezvous-worker.ts';
export type { RecvOptions } from './table/rendezvous.ts';
export type { TensorDType, TensorValue } from './value/tensor-value.ts';
export type { DeviceRecvOptions, ReceivedTensor, Sendable, WorkerStep } from './worker-step.ts';
