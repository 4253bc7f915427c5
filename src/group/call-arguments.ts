/** Checks of plain arguments. All throw `usage` before anything is done. */
import { ShoalError } from '../base/errors.ts';
import { algorithms } from '../collectives/registry.ts';

export function rootOf({ root = 0 }: { root?: number }, size: number): number {
  if (Number.isInteger(root) && root >= 0 && root < size) return root;
  throw new ShoalError('usage', `root ${root} is not a rank of this group; use 0…${size - 1}`);
}

export function checkTimeout(timeoutMs: number): number {
  if (timeoutMs > 0) return timeoutMs;
  throw new ShoalError('usage', `timeoutMs must be positive, not ${timeoutMs}`);
}

export function checkTag(tag: number): number {
  if (Number.isInteger(tag) && tag >= 0 && tag <= 0xffff) return tag;
  throw new ShoalError('usage', `tag ${tag} must be an integer of 0…65535`);
}

/** The same count for every rank. */
export function even(count: number, size: number): number[] {
  return new Array<number>(size).fill(count);
}

/** Where a rank stands on its host. */
export function localPlace(hosts: readonly (readonly number[])[], rank: number): { localRank: number; localSize: number } {
  const host = hosts.find((ranks) => ranks.includes(rank)) ?? [rank];
  return { localRank: host.indexOf(rank), localSize: host.length };
}

/** An algorithm's name, `auto`, or `mpi`. */
export function checkBackend(backend: string): void {
  const known = ['auto', 'mpi', ...algorithms.map((algorithm) => algorithm.name)];
  if (!known.includes(backend)) throw new ShoalError('usage', `unknown backend '${backend}'; use ${known.join(', ')}`);
}

/** The collectives of a group are Open MPI's. @param ofWorld what holds for groups that say nothing. */
export function usesMpi(ofGroup: string | undefined, ofWorld: string | undefined): boolean {
  return (ofGroup ?? ofWorld) === 'mpi';
}
