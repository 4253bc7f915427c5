/** Memory where results of an operation are to go: until it has ended, nobody else gets what the caller gives back. Only the thread
 *  of the caller writes there. */
import type { Region } from '../../memory/region.ts';
import { Tensor } from '../../memory/tensor.ts';
import type { Value } from './types.ts';

export class HeldValues {
  readonly #regions: Region[] = [];

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
