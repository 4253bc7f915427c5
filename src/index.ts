/** Shoal: the communication stack for training models on more than one process. */
export { isShoalError, ShoalError, type ErrorCode } from './base/errors.ts';
export { initProcessGroup, type InitOptions } from './group/api/init.ts';
export type {
  AllToAllOptions,
  CallOptions,
  CountsOptions,
  PeerOptions,
  ProcessGroup,
  ReduceOptions,
  RootOptions,
  ScheduledGroup,
  ScheduledReduceOptions,
  SchedulingOptions,
  SchedulingStatus,
  TensorLike,
  Work,
} from './group/call/types.ts';
export type { DType, DTypeViews, TypedArray } from './memory/dtype.ts';
export { ReduceOp } from './memory/reduce-op.ts';
export { Tensor } from './memory/tensor.ts';
export type { TuningOptions } from './scheduler/tuner/tuner.ts';
