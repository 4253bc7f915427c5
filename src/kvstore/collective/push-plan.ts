/** The steps of a push of given values, and of a pull into given outputs. */
import type { TypedArray } from '../../memory/dtype.ts';
import type { Tensor } from '../../memory/tensor.ts';
import type { HeldValues } from '../values/held-values.ts';
import type { Bucket } from './buckets.ts';
import type { Parameter } from '../values/parameter-table.ts';
import type { Value } from '../values/types.ts';

export interface PlannedPush {
  readonly parameter: Parameter;
  /** Of each device. */
  readonly sources: readonly TypedArray[];
  /** pushPull: where the new value goes, and the elements of each. */
  readonly outs: readonly Value[];
  readonly targets: readonly TypedArray[];
}

export interface PushPlan {
  readonly names: readonly string[];
  readonly pushes: readonly PlannedPush[];
  readonly buckets: readonly Bucket[];
  /** Of what is pushed and where results go, what can be given back. */
  readonly tensors: readonly Tensor[];
  readonly held: HeldValues;
  /** Of the names, for contracts. */
  readonly digest: string;
}
