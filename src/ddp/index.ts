/** Data-parallel training: the public face of `shoal/ddp`.
 *  @module */
export { assignBuckets, type Bucket, type BucketLimits, type BucketSlot, type ParameterSpec } from './buckets.ts';
export type { Checkpoint, CheckpointState, CheckpointTensor, CheckpointValue } from './checkpoints/checkpoint.ts';
export { Checkpoints, type CheckpointContents, type CheckpointGroup, type CheckpointsOptions } from './checkpoints/checkpoints.ts';
export { checksum } from './checksum.ts';
export { elastic, type ElasticState, type ElasticSteps, type ElasticTrain, type ShardedState } from '../elastic/elastic.ts';
export * from './hooks/built-in.ts';
export type { CommHook, GradBucket, GradPart } from './hooks/comm-hook.ts';
export { join, type Joinable, type JoinGroup, type JoinHook, type JoinOptions, type JoinResult } from './join.ts';
export { Adam, SGD } from './optimizers.ts';
export type { AdamOptions, Optimizer, OptimizerClass, OptimizerParameter, SGDOptions } from './optimizers.ts';
export { Reducer } from './reducer.ts';
export type { ReducerGroup, ReducerOptions, ReducerStats, StepResult, Weighting } from './reducer-options.ts';
export * from './sharding/zero-redundancy-optimizer.ts';
export { SummaryWriter } from './summary-writer.ts';
export { DistributedSampler, type SamplerOptions, type SamplerState } from './sampler.ts';
/** The generator that the sampler uses: for initial parameters that are the same on every machine. */
export { seededRandom, type Random } from '../base/random.ts';
