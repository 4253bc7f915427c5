/** Shoal: the communication stack for training models on more than one process.
 *  @module */
export { isShoalError, ShoalError, type ErrorCode } from './base/errors.ts';
export { DeviceMesh, initDeviceMesh, type MeshOptions } from './group/api/device-mesh.ts';
export { initProcessGroup, type InitOptions } from './group/init.ts';
export type {
  AllToAllOptions,
  AnyReduceOp,
  BatchCall,
  CallOptions,
  CollectiveData,
  CountsOptions,
  PeerOptions,
  PersistentCall,
  ProcessGroup,
  ReceiveWork,
  ReduceOptions,
  RootOptions,
  ScheduledGroup,
  ScheduledReduceOptions,
  SchedulingOptions,
  SchedulingStatus,
  SubgroupsOptions,
  TensorLike,
  UserReduceOp,
  Work,
} from './group/caller/types.ts';
export { DeviceTensor, type DeviceTensorOptions } from './memory/device/device-tensor.ts';
export { openDevice, type OpenDevice } from './memory/device/open-device.ts';
export type { DType, DTypeViews, TypedArray } from './memory/dtype.ts';
export { ReduceOp, type LogicalOp } from './memory/reduce-op.ts';
export { Tensor } from './memory/tensor.ts';
export type { TuningOptions } from './scheduler/tuner/tuner.ts';
export type { JobStore, StoreWait } from './store/store.ts';
export { openStore, type StoreOptions } from './store/open-job-store.ts';
