/** How many elements each rank sends to each other in an all-to-all: this rank's numbers, how ranks tell each other, and the table
 *  of all ranks'. */
import { ShoalError } from '../base/errors.ts';
import { even, type Place } from './call-arguments.ts';
import type { Operand } from './call-buffers.ts';
import type { CollectiveCall } from './contract.ts';

/** Of one argument: `splits`, checked; default: the same for every rank. @throws ShoalError `usage`. */
export function splitsOf(
  role: 'inputSplits' | 'outputSplits',
  splits: readonly number[] | undefined,
  value: Operand,
  size: number,
): readonly number[] {
  if (splits === undefined) {
    if (value.count % size !== 0)
      throw new ShoalError('usage', `allToAll: ${value.count} elements do not divide by ${size} ranks; give ${role}`);
    return even(value.count / size, size);
  }
  const total = splits.reduce((sum, count) => sum + count, 0);
  if (splits.length !== size || !splits.every((count) => Number.isSafeInteger(count) && count >= 0) || total !== value.count) {
    throw new ShoalError(
      'usage',
      `allToAll: ${role} [${splits.join(', ')}] must be ${size} non-negative integers that sum to ${value.count}`,
    );
  }
  // Ranks read it after the call has returned.
  return [...splits];
}

/** What ranks agree on first: an all-gather of every rank's part. */
export function exchangeOf({ dtype, name, site }: CollectiveCall, size: number): CollectiveCall {
  const named = JSON.stringify(['allToAll splits', dtype, name]);
  return { kind: 'all-gather', dtype: 'float64', count: 2 * size * size, name: named, site };
}

/** Of a rank's part in that all-gather. */
export function partBytes(size: number): number {
  return 2 * size * Float64Array.BYTES_PER_ELEMENT;
}

/** Table[a][b]: elements that rank a sends to rank b. @param all every rank's part, in rank order.
 *  @throws ShoalError `mismatch` naming two ranks that disagree, the same on every rank. */
export function tableOf(all: Float64Array, { rank: own, size }: Place): number[][] {
  const row = (rank: number, part: number): number[] => [...all.subarray((2 * rank + part) * size, (2 * rank + part + 1) * size)];
  const ranks = Array.from({ length: size }, (_, rank) => rank);
  const sent = ranks.map((rank) => row(rank, 0));
  const expected = ranks.map((rank) => row(rank, 1));
  for (const from of ranks) {
    for (const to of ranks) {
      if (sent[from][to] === expected[to][from]) continue;
      throw new ShoalError(
        'mismatch',
        `allToAll: rank ${from} sends ${sent[from][to]} elements to rank ${to}, which expects ${expected[to][from]}; inputSplits[to] and outputSplits[from] must agree`,
        { operation: 'all-to-all', rank: own, peer: from === own ? to : from },
      );
    }
  }
  return sent;
}
