/** Serial numbers as memory and messages hold them: 32 bits, which begin again. Counters are plain numbers and go on; `serialOf`
 *  makes serial numbers of them for comparisons, so that no comparison is right for the first 2³² only. */

declare const brand: unique symbol;

export type Serial = number & { readonly [brand]: true };

export function serialOf(count: number): Serial {
  return (count >>> 0) as Serial;
}

/** `at` is `wanted` or a later one, of numbers that are less than 2³¹ apart. */
export function hasReached(at: Serial, wanted: Serial): boolean {
  return ((at - wanted) | 0) >= 0;
}
