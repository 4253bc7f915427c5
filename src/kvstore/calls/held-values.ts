/** Output memory of an operation: if the caller releases it before the operation has ended, it is not reused until then. Only the caller's
 *  thread writes there. */
import type { Region } from '../../memory/region.ts';
import { Tensor } from '../../memory/tensor.ts';
import type { Value } from './types.ts';

export class HeldValues {
  readonly #regions: Region[] = [];

  constructor(lists: readonly (readonly Value[])[] = []) {
    for (const list of lists) for (const value of list) this.add(value);
  }

  add(value: Value): void {
    if (value instanceof Tensor && value.region.hold !== undefined) this.#regions.push(value.region);
  }

  hold(): void {
    for (const region of this.#regions) region.hold?.();
  }

  letGo(): void {
    for (const region of this.#regions) region.letGo?.({ touched: false });
  }
}
