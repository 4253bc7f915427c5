/** Dataflow graphs over several devices: the names that programs use, pictures and imports apart (src/graph.ts). */
export { startGraphServer, type StartOptions } from './cluster/start.ts';
export { GraphServer, type ClusterSessionOptions, type ClusterSpec, type GraphServerStats } from './cluster/graph-server.ts';
export type { MonitoredSession, MonitoredSessionOptions } from './cluster/monitored-session.ts';
export type { Kernel, KernelCall, KernelTable } from './execute/kernel.ts';
export { Session, type Feeds, type Fetch, type RunOptions, type SessionOptions, type SessionStats } from './execute/session.ts';
export type { FunctionTable } from './execute/structural-kernels.ts';
export type { Reference } from './execute/variable-store.ts';
export { gradients, IndexedSlices, joined, whole, type Gradient, type GradientsOptions } from './gradients/gradients.ts';
export * from './ops/array.ts';
export { call, type CallOptions } from './ops/call.ts';
export { cond, controlTrigger, merge, noOp, switchOn, whileLoop, type WhileLoop, type WhileLoopOptions } from './ops/control-flow.ts';
export * from './ops/math.ts';
export { batchMatMul, biasAdd, matMul } from './ops/matrix.ts';
export * from './ops/nn.ts';
export { argMax, max, mean, min, prod, sum } from './ops/reduction.ts';
export { evictEmbeddings } from './ops/embedding.ts';
export { dropout, randomNormal, randomUniform, truncatedNormal, type RandomOptions } from './ops/random.ts';
export { operations } from './ops/registry.ts';
export {
  assign,
  assignAdd,
  assignSub,
  dynamicPartition,
  dynamicStitch,
  gather,
  scatterAdd,
  scatterSub,
  scatterUpdate,
  variable,
} from './ops/state.ts';
export {
  applyAdagrad,
  applyAdam,
  applyGradientDescent,
  sparseApplyAdagrad,
  sparseApplyFtrl,
  sparseApplyGradientDescent,
} from './ops/training.ts';
export type { Partition, PartitionedGraph } from './partition/partition-graph.ts';
export { destWave, sourceWave, type FusePolicy } from './passes/fuse-policy.ts';
export type { FuseOptions, UnfusedReceive } from './passes/fuse-recv.ts';
export type { Device } from './placement/devices.ts';
export { Saver } from './saver.ts';
export { localKernels } from './local-kernels.ts';
export * from './train/clipping.ts';
export * from './train/embedding.ts';
export * from './train/learning-rates.ts';
export { AdagradOptimizer, AdamOptimizer, FtrlOptimizer, GradientDescentOptimizer, MomentumOptimizer } from './train/optimizers.ts';
export type { AdamOptions, ApplyGradientsOptions, ComputeGradientsOptions, FtrlOptions } from './train/optimizers.ts';
export type { GradientAndVariable, Optimizer } from './train/optimizers.ts';
export {
  constantInitializer,
  createGlobalStep,
  getVariable,
  globalVariablesInitializer,
  glorotUniformInitializer,
  onesInitializer,
  randomNormalInitializer,
  randomUniformInitializer,
  truncatedNormalInitializer,
  varianceScalingInitializer,
  zerosInitializer,
  type Initializer,
  type RandomInitializerOptions,
  type VariableOptions,
  type VarianceScalingOptions,
} from './train/variables.ts';
export { GraphBuilder, type NodeOptions } from './structure/builder.ts';
export type { CallContext, CallFunction } from './structure/definition.ts';
export { elementsOf } from './structure/elements.ts';
export type { Graph } from './structure/graph.ts';
export type { GraphDType } from './structure/graph-dtype.ts';
export { exportNodes, importNodes, type NodeData } from './structure/node-data.ts';
export { Node, Output } from './structure/graph-node.ts';
export type { Shape } from './structure/shape.ts';
export type { DenseValue, Value } from './structure/value.ts';
export { decodeGraph, encodeGraph } from './wire/graphs.ts';
