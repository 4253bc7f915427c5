/** A cache of prepared calls, for calls with the same keys and tensors, as in every step of a training. Lists are compared by content,
 *  because the caller may change them; a tensor always has the same memory, while an array may shrink or lose its memory. */
import { Tensor } from '../../memory/tensor.ts';
import type { Key, Value, Values } from './types.ts';

type List = readonly (Value | readonly Value[])[];

/** What was passed. */
export interface TransferCall {
  readonly keys: Key | readonly Key[];
  readonly values: Values;
  /** Undefined: a push; the values themselves: a pushPull into them. */
  readonly outs: Values | undefined;
}

interface Remembered<P> {
  readonly keys: readonly Key[];
  readonly values: List;
  readonly outs: List | undefined;
  readonly prepared: P;
}

export class RepeatedCalls<P> {
  readonly #rememberedMax: number;
  /** The latest first. */
  readonly #remembered: Remembered<P>[] = [];

  constructor({ rememberedMax }: { readonly rememberedMax: number }) {
    this.#rememberedMax = rememberedMax;
  }

  find({ keys, values, outs }: TransferCall): P | undefined {
    if (!Array.isArray(keys) || !Array.isArray(values)) return undefined;
    return this.#remembered.find((each) => same(each.keys, keys) && same(each.values, values) && sameOuts(each.outs, outs))?.prepared;
  }

  /** Whether a call is one that can be remembered: a list of keys, and of tensors or lists of tensors. */
  accepts({ keys, values, outs }: TransferCall): boolean {
    return Array.isArray(keys) && areTensors(values) && (outs === undefined || areTensors(outs));
  }

  /** Of a call that it accepts. @returns what is forgotten for it */
  remember({ keys, values, outs }: TransferCall, prepared: P): P | undefined {
    const copies = { keys: [...(keys as readonly Key[])], values: copyOf(values), outs: outs === undefined ? undefined : copyOf(outs) };
    this.#remembered.unshift({ ...copies, prepared });
    return this.#remembered.length > this.#rememberedMax ? this.#remembered.pop()?.prepared : undefined;
  }

  /** What was prepared does not hold any more. @returns all of it */
  clear(): P[] {
    return this.#remembered.splice(0).map(({ prepared }) => prepared);
  }
}

function areTensors(values: Values): boolean {
  if (!Array.isArray(values)) return false;
  return (values as List).every((value) => value instanceof Tensor || (Array.isArray(value) && areTensors(value)));
}

function copyOf(values: Values): List {
  return (values as List).map((value) => (Array.isArray(value) ? [...(value as readonly Value[])] : value));
}

function sameOuts(a: List | undefined, b: Values | undefined): boolean {
  return a === undefined || b === undefined ? a === b : Array.isArray(b) && same(a, b);
}

function same(a: readonly unknown[], b: readonly unknown[]): boolean {
  if (a.length !== b.length) return false;
  for (let k = 0; k < a.length; k++) {
    const [one, other] = [a[k], b[k]];
    if (one !== other && !(Array.isArray(one) && Array.isArray(other) && same(one, other))) return false;
  }
  return true;
}
