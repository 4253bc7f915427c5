/** Subgroups of a group: its ranks exchange their requests, and each derives the same new groups and group numbers from
 *  all requests.
 *
 *      split      colour, key, used numbers of each rank ─ all-gather ─▶ one group per colour
 *      newGroup   the ranks, checked and compared; used numbers ─ all-gather ─▶ one group
 *
 *  It must not know how a group is opened. */
import { must } from '../../base/assert.ts';
import { ShoalError } from '../../base/errors.ts';
import { checkBackend, checkRanks } from '../caller/call-arguments.ts';
import { chosenBackend } from '../../call/collective-libraries.ts';
import type { WorldInfo } from '../shared/comm-protocol.ts';
import { noNumberLeft, type GroupNumbers } from '../../membership/group-numbers.ts';
import { restrictHosts, type GroupSpec, type Scheduling } from '../../call/group-spec.ts';
import type { ProcessGroup, SubgroupsOptions } from '../caller/types.ts';
import { describeSpace } from '../../scheduler/tuner/tuner.ts';

/** The group that is divided. */
export interface ParentGroup extends Pick<ProcessGroup, 'name' | 'rank' | 'size' | 'globalRanks' | 'allGather'> {
  readonly id: number;
}

/** Its world, as this rank knows it. */
export interface ParentWorld {
  /** The library of groups that ask for no backend. */
  readonly library?: string | undefined;
  readonly client: { readonly groupNumbers: GroupNumbers };
  readonly info: Pick<WorldInfo, 'topology'>;
}

/** The group of this rank's colour, ordered by key, then rank; null without one. Default key: the rank. Collective.
 *  @throws ShoalError `usage`; `unsupported` when numbers are used up; what the all-gather throws. */
export async function splitGroup(
  parent: ParentGroup,
  world: ParentWorld,
  color: number | null,
  { name = 'split', ...options }: { readonly key?: number; readonly timeoutMs?: number; readonly name?: string },
): Promise<GroupSpec | null> {
  if (color !== null && !Number.isSafeInteger(color))
    throw new ShoalError('usage', `the colour of split must be an integer of at most 53 bits or null, not ${color}`);
  const key = options.key ?? parent.rank;
  if (!Number.isSafeInteger(key)) throw new ShoalError('usage', `the key of split must be an integer of at most 53 bits, not ${key}`);
  const { told, id, serial } = await exchange(parent, world, splitRow(color, key), { timeoutMs: options.timeoutMs, name });
  const rows = told.map((row, rank) => {
    const [itsColor, present, itsKey] = [...new BigInt64Array(row.buffer)].map(Number);
    return { rank, color: present === 1 ? itsColor : null, key: itsKey };
  });
  if (color === null) return null;
  const members = rows.filter((row) => row.color === color).sort((a, b) => a.key - b.key || a.rank - b.rank);
  const ranks = members.map(({ rank }) => rank);
  return specOf(parent, world, ranks, { id, serial, name: `${parent.name}/split-${serial}:${color}` });
}

export interface GroupRequest extends Pick<GroupSpec, 'backend' | 'scheduling'> {
  readonly name?: string;
  readonly timeoutMs?: number;
}

function describeScheduling({ creditBytes, partitionBytes, tuning }: Scheduling): string {
  const tuned = tuning === undefined ? 'not tuned' : `tuned: ${describeSpace(tuning.space)}`;
  return `, scheduled: credit ${creditBytes}, parts ${partitionBytes}, ${tuned}`;
}

/** The group of some ranks of the parent, in this order; null on the others. Default name: the parent's and a number. Collective.
 *  @throws ShoalError `usage`; `mismatch` when ranks ask for different groups; `unsupported` when numbers are used up; what the
 *          all-gather throws. */
export async function groupOfRanks(
  parent: ParentGroup,
  world: ParentWorld,
  asked: readonly number[],
  { name, backend, timeoutMs, scheduling }: GroupRequest,
): Promise<GroupSpec | null> {
  checkRanks('newGroup', asked, parent.size);
  // The caller's list may change while ranks agree.
  const ranks = [...asked];
  if (backend !== undefined) checkBackend(backend);
  const { id, serial } = await exchange(parent, world, new Int32Array(), {
    timeoutMs,
    name: `newGroup ${ranks.join(',')}${backend === undefined ? '' : ` ${backend}`}${scheduling === undefined ? '' : describeScheduling(scheduling)}`,
  });
  if (!ranks.includes(parent.rank)) return null;
  return specOf(parent, world, ranks, { id, serial, name: name ?? `${parent.name}/group-${serial}`, backend, scheduling });
}

/** A group of the same ranks. Collective. @throws ShoalError as `groupOfRanks`. */
export async function groupOfAll(parent: ParentGroup, world: ParentWorld, request: GroupRequest): Promise<GroupSpec> {
  const ranks = parent.globalRanks.map((_, rank) => rank);
  return must(await groupOfRanks(parent, world, ranks, request), () => 'this rank is one of all');
}

/** This rank's of the groups that the parent is cut into; null when it is in none. Collective.
 *  @throws ShoalError `usage`; `mismatch` when ranks ask for different groups; else as `splitGroup`. */
export function subgroupOf(
  parent: ParentGroup & Pick<ProcessGroup, 'hosts'>,
  world: ParentWorld,
  { groupSize, ranks, timeoutMs }: SubgroupsOptions,
): Promise<GroupSpec | null> {
  if (groupSize !== undefined && ranks !== undefined) throw new ShoalError('usage', 'newSubgroups takes groupSize or ranks, not both');
  const lists = ranks === undefined ? evenRanks(parent, groupSize) : ranks;
  const taken = new Set<number>();
  for (const list of lists) checkRanks('newSubgroups', list, parent.size, taken);
  const color = lists.findIndex((list) => list.includes(parent.rank));
  const key = color < 0 ? 0 : lists[color].indexOf(parent.rank);
  const name = `newSubgroups ${lists.map((list) => list.join(',')).join(' ')}`;
  return splitGroup(parent, world, color < 0 ? null : color, { key, timeoutMs, name });
}

function evenRanks({ size, hosts }: Pick<ProcessGroup, 'size' | 'hosts'>, groupSize: number | undefined): readonly (readonly number[])[] {
  if (groupSize === undefined) return hosts;
  if (!Number.isInteger(groupSize) || groupSize < 1 || size % groupSize !== 0)
    throw new ShoalError('usage', `newSubgroups: groupSize must be a divisor of the group's ${size} ranks, not ${groupSize}`);
  return Array.from({ length: size / groupSize }, (_, group) => Array.from({ length: groupSize }, (_each, k) => group * groupSize + k));
}

/** A rank's colour and key, as 64-bit words. */
function splitRow(color: number | null, key: number): Int32Array {
  return new Int32Array(BigInt64Array.of(BigInt(color ?? 0), color === null ? 0n : 1n, BigInt(key)).buffer);
}

/** Ranks tell each other these words. @returns those of each rank, and the number and serial that all conclude. */
async function exchange(
  parent: ParentGroup,
  { client: { groupNumbers } }: ParentWorld,
  words: Int32Array,
  options: { readonly timeoutMs: number | undefined; readonly name: string },
): Promise<{ readonly told: Int32Array[]; readonly id: number | undefined; readonly serial: number }> {
  const mine = Int32Array.of(...words, groupNumbers.known(parent.id), ...groupNumbers.encode());
  const all = new Int32Array(mine.length * parent.size);
  await parent.allGather(all, mine, options);
  const rows = parent.globalRanks.map((_, rank) => all.slice(rank * mine.length, (rank + 1) * mine.length));
  const known = rows.map((row) => row[words.length]);
  const numbers = rows.flatMap((row) => [...row.subarray(words.length + 1)]);
  const agreed = groupNumbers.agreeOf(parent.id, known, Int32Array.from(numbers));
  return { told: rows.map((row) => row.slice(0, words.length)), ...agreed };
}

/** Its number is used from now on. @param ranks Those of the parent, in the new order. */
function specOf(
  parent: ParentGroup,
  { info, client, library }: ParentWorld,
  ranks: readonly number[],
  { id, backend, ...given }: Pick<GroupSpec, 'name' | 'serial' | 'backend' | 'scheduling'> & { readonly id: number | undefined },
): GroupSpec {
  if (id === undefined) throw noNumberLeft();
  if (client.groupNumbers.isUsed(id)) {
    const message = `group '${given.name}' cannot be made: another one, which took its number, was made at the same time of another group; await one before the other`;
    throw new ShoalError('usage', message, { rank: parent.globalRanks[parent.rank] });
  }
  client.groupNumbers.use(id);
  const globalRanks = ranks.map((rank) => parent.globalRanks[rank]);
  return {
    ...given,
    ...chosenBackend(backend, library),
    id,
    parent: parent.id,
    globalRanks,
    rank: ranks.indexOf(parent.rank),
    topology: { hosts: restrictHosts(info.topology.hosts, globalRanks) },
  };
}
