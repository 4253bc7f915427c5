/** `shoal/engine`: a dependency engine in MXNet's vocabulary: functions run when the variables that they read and write allow it.
 *  @module */
export type { Clock, Timer } from '../base/clock.ts';
export { DependencyEngine, type EngineOptions, type WaitOptions } from './engine.ts';
export type { AsyncFunction, OnComplete, PushOptions } from './operation.ts';
export type { Variable } from './variable.ts';
