/** A cache of prepared calls, for calls with the same keys and tensors, as in every step of a training. Lists are compared by content,
 *  because the caller may change them; a tensor always has the same memory, while an array may shrink or lose its memory. */
import { Tensor } from '../../memory/tensor.ts';
import type { Key, Value, Values } from './types.ts';

type List = readonly (Value | readonly Value[])[];

/** The arguments of a call. */
export interface TransferCall {
  readonly keys: Key | readonly Key[];
  /** Undefined: a pull. */
  readonly values: Values | undefined;
  /** Undefined: a push; the values themselves: a pushPull into them. */
  readonly outs: Values | undefined;
}

const rememberedMax = 16;

export class RepeatedCalls<P> {
  /** The latest first. */
  readonly #remembered: { readonly call: TransferCall; readonly prepared: P }[] = [];

  find({ keys, values, outs }: TransferCall): P | undefined {
    if (!Array.isArray(keys)) return undefined;
    for (const { call, prepared } of this.#remembered) {
      // In place, the outputs are the values.
      const sameOuts = outs === values ? call.outs === call.values : same(call.outs, outs);
      if (sameOuts && same(call.keys, keys) && same(call.values, values)) return prepared;
    }
    return undefined;
  }

  /** Whether a call is one that can be remembered: it pushes, and has a list of keys, and of tensors or lists of tensors. */
  accepts({ keys, values, outs }: TransferCall): boolean {
    return Array.isArray(keys) && areTensors(values) && (outs === undefined || areTensors(outs));
  }

  /** A call that it accepts, with lists that the caller does not change. */
  remember(call: TransferCall, prepared: P): void {
    this.#remembered.unshift({ call, prepared });
    if (this.#remembered.length > rememberedMax) this.#remembered.pop();
  }
}

/** The same call, with lists of its own. */
export function copyOfCall({ keys, values, outs }: TransferCall): TransferCall {
  const own = values && copyOf(values);
  return { keys: [...(keys as readonly Key[])], values: own, outs: outs === values ? own : outs && copyOf(outs) };
}

function areTensors(values: Values | undefined): boolean {
  if (!Array.isArray(values)) return false;
  return (values as List).every((value) => value instanceof Tensor || (Array.isArray(value) && areTensors(value)));
}

function copyOf(values: Values): Values {
  return (values as List).map((value) => (Array.isArray(value) ? [...(value as readonly Value[])] : value)) as Values;
}

function same(a: unknown, b: unknown): boolean {
  if (a === b) return true;
  if (!Array.isArray(a) || !Array.isArray(b) || a.length !== b.length) return false;
  for (let k = 0; k < a.length; k++) if (a[k] !== b[k] && !same(a[k], b[k])) return false;
  return true;
}
