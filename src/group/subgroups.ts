/** Groups made of ranks of a group: all its ranks say what they want, and each concludes the same from what all have said, which
 *  groups there will be and under which number.
 *
 *      split      colour, key, first free number of each rank ─ all-gather ─▶ one group per colour
 *      newGroup   the ranks, checked and compared; first free numbers ─ all-gather ─▶ one group
 *
 *  It must not know how a group is opened. */
import { ShoalError } from '../base/errors.ts';
import { checkKind } from '../base/options.ts';
import { checkBackend } from './call-arguments.ts';
import type { WorldInfo } from './comm-protocol.ts';
import { restrictHosts, type GroupSpec } from './group-spec.ts';
import type { ProcessGroup } from './types.ts';
import { groupIdMax } from './wire.ts';

/** The group that is divided. */
export type ParentGroup = Pick<ProcessGroup, 'name' | 'rank' | 'size' | 'globalRanks' | 'allGather'>;

/** Its world, as this rank knows it. */
export interface ParentWorld {
  readonly client: GroupIds;
  readonly info: Pick<WorldInfo, 'topology'>;
}

/** Numbers of the groups that this rank knows. */
export interface GroupIds {
  /** The smallest that it has not used. */
  readonly nextGroupId: number;
  useGroupId(id: number): void;
}

/** The group of this rank's colour, ordered by key, then rank; null without one. Default key: the rank. Collective.
 *  @throws ShoalError `usage`; `unsupported` when numbers are used up; what the all-gather throws. */
export async function splitGroup(
  parent: ParentGroup,
  world: ParentWorld,
  color: number | null,
  options: { readonly key?: number; readonly timeoutMs?: number },
): Promise<GroupSpec | null> {
  if (color !== null && !Number.isSafeInteger(color))
    throw new ShoalError('usage', `the colour of split must be an integer of at most 53 bits or null, not ${color}`);
  const key = options.key ?? parent.rank;
  if (!Number.isSafeInteger(key)) throw new ShoalError('usage', `the key of split must be an integer of at most 53 bits, not ${key}`);
  const mine = BigInt64Array.of(BigInt(color ?? 0), color === null ? 0n : 1n, BigInt(key), BigInt(world.client.nextGroupId));
  const all = new BigInt64Array(mine.length * parent.size);
  await parent.allGather(all, mine, { timeoutMs: options.timeoutMs, name: 'split' });
  const rows = parent.globalRanks.map((_, rank) => {
    const [itsColor, present, itsKey, nextId] = [...all.subarray(rank * mine.length, (rank + 1) * mine.length)].map(Number);
    return { rank, color: present === 1 ? itsColor : null, key: itsKey, nextId };
  });
  const id = agreedId(
    world.client,
    rows.map(({ nextId }) => nextId),
  );
  if (color === null) return null;
  const members = rows.filter((row) => row.color === color).sort((a, b) => a.key - b.key || a.rank - b.rank);
  const ranks = members.map(({ rank }) => rank);
  return specOf(parent, world, ranks, { id, name: `${parent.name}/split-${id}:${color}` });
}

/** The group of some ranks of the parent, in this order; null on the others. Default name: the parent's and a number. Collective.
 *  @throws ShoalError `usage`; `mismatch` when ranks ask for different groups; `unsupported` when numbers are used up; what the
 *          all-gather throws. */
export async function groupOfRanks(
  parent: ParentGroup,
  world: ParentWorld,
  asked: readonly number[],
  { name, backend, timeoutMs }: { readonly name?: string; readonly backend?: string; readonly timeoutMs?: number },
): Promise<GroupSpec | null> {
  checkKind('newGroup: ranks', asked, 'list');
  // The caller's list may change while ranks agree.
  const ranks = [...asked];
  if (backend !== undefined) checkBackend(backend);
  const valid =
    ranks.length > 0 &&
    new Set(ranks).size === ranks.length &&
    ranks.every((rank) => Number.isInteger(rank) && rank >= 0 && rank < parent.size);
  if (!valid) throw new ShoalError('usage', `newGroup([${ranks.join(', ')}]) needs distinct ranks of 0…${parent.size - 1}`);
  const ids = new Int32Array(parent.size);
  await parent.allGather(ids, Int32Array.of(world.client.nextGroupId), {
    timeoutMs,
    name: `newGroup ${ranks.join(',')}${backend === undefined ? '' : ` ${backend}`}`,
  });
  const id = agreedId(world.client, ids);
  if (!ranks.includes(parent.rank)) return null;
  return specOf(parent, world, ranks, { id, name: name ?? `${parent.name}/group-${id}`, backend });
}

/** The smallest number that no rank has used; used from now on. */
function agreedId(ids: GroupIds, nextIds: Iterable<number>): number {
  const id = Math.max(...nextIds);
  ids.useGroupId(id);
  return id;
}

/** @param ranks Those of the parent, in the new order. */
function specOf(
  parent: ParentGroup,
  { info }: ParentWorld,
  ranks: readonly number[],
  given: Pick<GroupSpec, 'id' | 'name' | 'backend'>,
): GroupSpec {
  if (given.id > groupIdMax)
    throw new ShoalError('unsupported', `more than ${groupIdMax} groups in one world; reuse groups instead of making new ones`);
  const globalRanks = ranks.map((rank) => parent.globalRanks[rank]);
  return { ...given, globalRanks, rank: ranks.indexOf(parent.rank), topology: { hosts: restrictHosts(info.topology.hosts, globalRanks) } };
}
