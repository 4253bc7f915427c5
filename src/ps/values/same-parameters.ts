/** Whether saved parameters are those of a store: the same for every kind of store. */
import { ShoalError } from '../../base/errors.ts';
import type { Placeable } from '../protocol/placement.ts';

/** @throws ShoalError `mismatch` naming the first parameter that is another, or is missing on one side. */
export function checkSame(here: ReadonlyMap<string, Placeable>, saved: ReadonlyMap<string, Placeable>): void {
  for (const [key, { dtype, shape }] of saved) {
    const own = here.get(key);
    if (own === undefined) throw mismatch(`'${key}' is in the files and not in the store`);
    if (own.dtype === dtype && own.shape.join() === shape.join()) continue;
    throw mismatch(`'${key}' is ${own.dtype} [${own.shape.join(', ')}] here and ${dtype} [${shape.join(', ')}] in the files`);
  }
  const missing = [...here.keys()].find((key) => !saved.has(key));
  if (missing !== undefined) throw mismatch(`'${missing}' is not in the files`);
}

function mismatch(what: string): ShoalError {
  return new ShoalError('mismatch', `${what}; init the same parameters before loadState`);
}
