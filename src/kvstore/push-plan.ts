/** What a push of certain values, and a pull into certain places, consists of. A training makes the same call with the same
 *  tensors at every step, so plans are remembered by the lists that they were made of. */
import { Tensor } from '../memory/tensor.ts';
import type { TypedArray } from '../memory/dtype.ts';
import type { Bucket } from './buckets.ts';
import type { Parameter } from './parameter-table.ts';
import type { Key, Value, Values } from './types.ts';

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
  /** Of the names, for contracts. */
  readonly digest: string;
}

/** What was passed. */
export interface PushCall {
  readonly keys: Key | readonly Key[];
  readonly values: Values;
  /** Undefined: a push; the values themselves: a pushPull into them. */
  readonly outs: Values | undefined;
}

interface Remembered {
  readonly keys: readonly Key[];
  readonly values: readonly Value[];
  readonly outs: readonly Value[] | undefined;
  readonly plan: PushPlan;
}

export class PushPlans {
  readonly #rememberedMax: number;
  /** The latest first. */
  #remembered: readonly Remembered[] = [];

  constructor({ rememberedMax }: { readonly rememberedMax: number }) {
    this.#rememberedMax = rememberedMax;
  }

  find({ keys, values, outs }: PushCall): PushPlan | undefined {
    if (!Array.isArray(keys) || !Array.isArray(values)) return undefined;
    return this.#remembered.find((each) => same(each.keys, keys) && same(each.values, values) && sameOuts(each.outs, outs))?.plan;
  }

  /** Only tensors: an array may shrink or lose its memory between two calls. */
  remember({ keys, values, outs }: PushCall, plan: PushPlan): void {
    if (!Array.isArray(keys) || !areTensors(values) || !(outs === undefined || areTensors(outs))) return;
    const copies = { keys: [...(keys as readonly Key[])], values: [...values], outs: outs === undefined ? undefined : [...outs] };
    this.#remembered = [{ ...copies, plan }, ...this.#remembered].slice(0, this.#rememberedMax);
  }

  /** Parameters are others now. */
  clear(): void {
    this.#remembered = [];
  }
}

function areTensors(values: Values): values is readonly Tensor[] {
  return Array.isArray(values) && values.every((value) => value instanceof Tensor);
}

function sameOuts(a: readonly Value[] | undefined, b: Values | undefined): boolean {
  return a === undefined || b === undefined ? a === b : Array.isArray(b) && same(a, b);
}

function same(a: readonly unknown[], b: readonly unknown[]): boolean {
  if (a.length !== b.length) return false;
  for (let k = 0; k < a.length; k++) if (a[k] !== b[k]) return false;
  return true;
}
