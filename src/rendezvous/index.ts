/** `shoal/rendezvous`: tensors between processes, by name and step, without copies. */
export type { WorkerIdentity } from './carriers/tensor-channel.ts';
export type { TensorCounters } from './protocol/counters.ts';
export { RendezvousWorker, type RendezvousWorkerOptions, type StandingOptions } from './rendezvous-worker.ts';
export { formatRendezvousKey, parseRendezvousKey, type RendezvousKey } from './table/rendezvous-key.ts';
export { LocalRendezvous, type LocalRendezvousOptions } from './table/local-rendezvous.ts';
export type { RecvOptions, Rendezvous } from './table/rendezvous.ts';
export type { TensorDType, TensorValue } from './value/tensor-value.ts';
export { WorkerStep, type ReceivedTensor, type Sendable } from './worker-step.ts';
