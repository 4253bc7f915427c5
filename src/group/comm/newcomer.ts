/** A process that joins a world which has begun without it. It follows the agreements of the world's group, and connects with all members
 *  of the present one while they work; then it waits until they take it in, or have changed without it:
 *
 *      newcomer   info/9 ──▶ store      dials all members; waiting/9 ──▶ store; tells them       … members: 0, 2, 3, 9 ──▶ opens their group
 *      member     grows: reads waiting/9 ─▶ members, with where rank 9 is ─▶ agreement           … members: 0, 2, 3, 9 ──▶ opens their group
 *
 *  It must not know how ranks agree. */
import { ShoalError } from '../../base/errors.ts';
import { parse } from '../../base/schema.ts';
import type { GroupSpec } from '../../call/group-spec.ts';
import type { Group } from '../../membership/agreement.ts';
import { memberAfter, waitingKey, type Newcomer } from '../../membership/newcomer.ts';
import { decodeJson, encodeJson } from '../../base/bytes.ts';
import { GroupNumbers } from '../../membership/group-numbers.ts';
import { noteJoined, whenJoined } from '../../store/ended-ranks.ts';
import { checkAgreement, dialAll, linksOf, listen, rankInfo, type BootstrapOptions, type RankInfo } from './bootstrap.ts';
import { agreementOf, specOf } from './changing.ts';
import { encodeControl } from './links/control-message.ts';

const noop = (): undefined => undefined;

type Joining = Omit<BootstrapOptions, 'ratesOf'>;

/** Waits until the world takes this rank in. @returns the spec of its group, which is open.
 *  @throws ShoalError `timeout` when it does not within the limit; `config`, `auth`. */
export async function joinRunning(joining: Joining): Promise<GroupSpec> {
  const { world, store, limit, signal } = joining;
  const { size, rank, clock } = world.env;
  const own = await listen(world);
  const means: Newcomer = {
    rank,
    clock,
    reach: (ranks, over) => reach({ ...joining, signal: over }, own, ranks),
    about: () => ({ hostId: own.hostId, links: linksOf(world) }),
    tell: (ranks) => ranks.forEach((each) => world.link(each).post(encodeControl({ type: 'waiting' }))),
  };
  await store.set(infoKey(world.rank), encodeJson(own));
  const group: Group = { ranks: Array.from({ length: size }, (_, rank) => rank), serial: 0 };
  try {
    await whenJoined(store, group.ranks, { timeoutMs: limit.leftMs, signal });
    const members = await memberAfter(means, joining, group);
    await store.deleteKey(waitingKey(world.rank));
    const agreement = agreementOf(world, store, { name: 'world' }, members);
    const change = { exclude: [], order: [], admits: false, numbers: new GroupNumbers().encode(), timeoutMs: limit.leftMs };
    const last = await agreement.next(change, members);
    await noteJoined(store, world.rank);
    return specOf(last, { name: 'world' }, world);
  } catch (thrown) {
    await store.deleteKey(waitingKey(world.rank)).catch(noop);
    const error = ShoalError.from(thrown);
    if (error.code !== 'timeout') throw error;
    const message = `rank ${world.rank} has waited for ${limit.timeoutMs} ms, and nobody has taken it in: do the ranks call grow? ${error.message}`;
    throw new ShoalError('timeout', message, { rank: world.rank, timeoutMs: limit.timeoutMs, cause: error });
  }
}

/** Connects with those of these ranks that this one has no connection with. */
async function reach(joining: Joining, own: RankInfo, ranks: readonly number[]): Promise<void> {
  const { world, store } = joining;
  // They have described themselves before anybody knew of them.
  const values = await store.multiGet(ranks.filter((rank) => !world.reaches(rank)).map(infoKey));
  const infos = values.map((value) => parse('what a rank says of itself', rankInfo, decodeJson(value)));
  checkAgreement(infos, own);
  await dialAll(joining, infos, own);
}

const infoKey = (rank: number): string => `info/${rank}`;
