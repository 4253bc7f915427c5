/** Inputs with known answers. Values are small integers, so that every sum, product and minimum over all ranks is exact in every
 *  dtype whatever the order of operations, and they depend on rank, part and position, so that data from the wrong place is seen.
 *  They repeat after a prime number of elements: no power-of-two displacement maps them onto themselves.
 *
 *  The idea is nccl-tests' (verifiable.cu). Contributions to a sum come from at most 8 ranks per element: at most 48, which
 *  bfloat16 and int8 hold exactly for any number of ranks. */
import { dtypeInfo, viewOf, type DType, type TypedArray } from '../../memory/dtype.ts';
import type { Kernels } from '../../memory/kernels.ts';
import { combineOpOf, type CombineOp, type ReduceOp } from '../../memory/reduce-op.ts';
import { bytesOf } from '../../base/bytes.ts';

const period = 1021;
const contributors = 8;
const factors = 3;

/** One period of elements. */
export type Pattern = TypedArray;

/** Contribution of rank `rank` at position k to a reduction over `ranks` ranks. */
function contribution(op: ReduceOp, k: number, { rank, ranks }: { rank: number; ranks: number }): number {
  const turn = (k + rank) % ranks;
  const combineOp = combineOpOf(op);
  if (combineOp === 'sum') return turn < contributors ? (k * 3 + rank * 5) % 7 : 0;
  if (combineOp === 'product') return turn < factors ? 2 : 1;
  return (k * 31 + rank * 17) % 61;
}

const combine: Readonly<Record<CombineOp, (a: number, b: number) => number>> = {
  sum: (a, b) => a + b,
  product: (a, b) => a * b,
  min: Math.min,
  max: Math.max,
  'bit-and': (a, b) => a & b,
  'bit-or': (a, b) => a | b,
  'bit-xor': (a, b) => a ^ b,
};

export class Patterns {
  readonly #of: { readonly dtype: DType; readonly op: ReduceOp; readonly ranks: number; readonly kernels: Kernels };

  constructor(of: { readonly dtype: DType; readonly op: ReduceOp; readonly ranks: number; readonly kernels: Kernels }) {
    this.#of = of;
  }

  /** Input of a reduction, of one rank. */
  term(rank: number): Pattern {
    return this.#encode((k) => this.#element(k, rank));
  }

  /** Result of the reduction of all ranks' terms. */
  reduced(): Pattern {
    const { op, ranks } = this.#of;
    const combined = combine[combineOpOf(op)];
    return this.#encode((k) => {
      let value = this.#element(k, 0);
      for (let rank = 1; rank < ranks; rank++) value = combined(value, this.#element(k, rank));
      return op === 'avg' ? value / ranks : value;
    });
  }

  /** Data that is moved, not reduced, from rank `source` to rank `target`. */
  part(source: number, target = 0): Pattern {
    return this.#encode((k) =>
      this.#of.dtype === 'bool' ? ((k * (source + 1) + target) % 3) & 1 : (k * 3 + source * 7 + target * 11) % 127,
    );
  }

  /** Number of elements of `actual` that differ from `pattern` continued from position `offset`. `avg` may differ by the last
   *  bit: whether a mean is divided or multiplied by the reciprocal is left open. */
  countWrong(actual: TypedArray, pattern: Pattern, offset: number): number {
    const { dtype, op } = this.#of;
    const same = op === 'avg' ? nearly[dtype === 'float16' || dtype === 'bfloat16' ? 'bits' : 'values'] : exactly;
    let wrong = 0;
    for (let i = 0, k = offset % period; i < actual.length; i++) {
      if (!same(actual[i], pattern[k])) wrong++;
      k = k + 1 === period ? 0 : k + 1;
    }
    return wrong;
  }

  /** A contribution; bool sums are `or`, so their terms are 0 and 1. */
  #element(k: number, rank: number): number {
    const { dtype, op, ranks } = this.#of;
    const value = contribution(op, k, { rank, ranks });
    if (dtype !== 'bool') return value;
    return op === 'product' ? value - 1 : value & 1;
  }

  #encode(valueAt: (k: number) => number): Pattern {
    const values = Float64Array.from({ length: period }, (_, k) => valueAt(k));
    const { dtype, kernels } = this.#of;
    if (dtype === 'float64') return values;
    const encoded = viewOf(dtype, new ArrayBuffer(period * dtypeInfo(dtype).bytes), 0, period);
    kernels.convert(dtype, bytesOf(encoded), 'float64', bytesOf(values));
    return encoded;
  }
}

/** Writes `values`, continued from position `offset`, over all of `array`. */
export function fillWith(array: TypedArray, values: Pattern, offset: number): void {
  // Both have the dtype's view; TypeScript cannot know that they are the same.
  const [target, pattern] = [array as Float64Array, values as Float64Array];
  const head = Math.min(period, target.length);
  for (let i = 0; i < head; i++) target[i] = pattern[(offset + i) % period];
  // Each step doubles the written part; it copies whole periods, except the last step.
  for (let done = head; done < target.length; done *= 2) target.copyWithin(done, 0, Math.min(done, target.length - done));
}

/** Writes bytes that no pattern contains in this order, so that a result that was never written is seen. */
export function spoil(target: TypedArray): void {
  bytesOf(target).fill(0xa5);
}

function exactly(actual: number | bigint, expected: number | bigint): boolean {
  return actual === expected;
}

/** Comparisons of floats: by value, or by bits for 16-bit floats, where neighbours differ by 1. */
const nearly = {
  values: (actual: number | bigint, expected: number | bigint): boolean =>
    Math.abs(Number(actual) - Number(expected)) <= Math.abs(Number(expected)) * 2 ** -22,
  bits: (actual: number | bigint, expected: number | bigint): boolean => Math.abs(Number(actual) - Number(expected)) <= 1,
};
