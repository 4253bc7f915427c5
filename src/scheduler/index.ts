/** `shoal/scheduler`: ByteScheduler's core for tasks of any kind: parts, priorities and credits; the order that all ranks agree on;
 *  the tuner. Scheduled groups and stores are made of it.
 *  @module */
export type { Clock, Timer } from '../base/clock.ts';
export type { Random } from '../base/random.ts';
export { Arbiter, type ArbiterOptions, type SharedResource } from './arbiter.ts';
export { Core, type CoreObserver, type CoreOptions, type ShutdownMode } from './core.ts';
export { OrderAgreement, type OrderMessage, type OrderOptions, type OrderPost, type OrderState, type Turn } from './order-agreement.ts';
export type { LinkOptions, LinkOrder, LinkStatus } from './scheduler-link.ts';
export { Task, type TaskListener, type TaskOptions, type TaskState } from './task.ts';
export type { Cut, Part } from './task-parts.ts';
export type { Range } from './tuner/search.ts';
export { Tuner, type PointChange, type SearchSpace, type TunedPoint, type TunerOptions, type TuningSpec } from './tuner/tuner.ts';
