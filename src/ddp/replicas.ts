/** Checks that replicas are identical: equal checksums on every rank. It must not know where the arrays come from. */
import { ShoalError } from '../base/errors.ts';
import type { CallOptions, ProcessGroup } from '../group/caller/types.ts';
import { checksum, checksumBytes, checksumsOf, describeDisagreement } from './checksum.ts';

export interface NamedArray {
  readonly name: string;
  readonly array: ArrayBufferView;
}

/** Collective. The checksum of all arrays in order, the same on every rank.
 *  @throws ShoalError `mismatch` on every rank, naming the ranks that differ and the first array in which they do. */
export async function verifyReplicas(
  group: Pick<ProcessGroup, 'rank' | 'size' | 'allGather'>,
  arrays: readonly NamedArray[],
  call: CallOptions,
): Promise<string> {
  const gather = async (own: Uint8Array, name: string): Promise<string[]> => {
    const all = new Uint8Array(own.length * group.size);
    await group.allGather(all, own, { ...call, name });
    return checksumsOf(all);
  };
  const own = checksum(arrays.map(({ array }) => array));
  const ofRank = await gather(checksumBytes(own), 'ddp/checksum');
  if (new Set(ofRank).size === 1) return own;
  // Every rank sees the same checksums, so every rank takes this path.
  const each = await gather(Uint8Array.from(arrays.flatMap(({ array }) => [...checksumBytes(checksum([array]))])), 'ddp/checksum-each');
  const first = arrays.find((_, i) => ofRank.some((_value, rank) => each[rank * arrays.length + i] !== each[i]));
  const where = first === undefined ? '' : `, first in '${first.name}'`;
  const message = `replicas differ${where}: ${describeDisagreement(ofRank)}; did a rank change its parameters outside the averaged step?`;
  throw new ShoalError('mismatch', message, { rank: group.rank, operation: 'ddp/checksum' });
}
