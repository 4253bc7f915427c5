/** A group of a world that goes on without some of its ranks, or with others: its agreement, and the group that follows it. Links, memory
 *  and rates of the world stay as they are, but for rates of a world that gets its second machine. It must not know how ranks agree. */
import { must } from '../../base/assert.ts';
import { within } from '../../base/clock.ts';
import { ShoalError } from '../../base/errors.ts';
import { keepSeldomCode } from '../../base/packages/cached-code.ts';
import { restrictHosts, type GroupSpec } from '../../call/group-spec.ts';
import { Agreement, type Group, type Members, type MemberWorld } from '../../membership/agreement.ts';
import { factsOf, newcomersOf, type KnownNewcomers } from '../../membership/newcomers.ts';
import { forgetCause } from '../../store/ended-ranks.ts';
import type { Store } from '../../store/store.ts';
import type { ChangeRequest, ChangedGroup } from '../shared/comm-protocol.ts';
import { ratesTo } from './bootstrap.ts';
import { agreedModel } from './links/calibrate.ts';
import type { World } from './world.ts';

/** The group that is left; for a newcomer, the world's. */
type Left = Pick<GroupSpec, 'name' | 'backend'>;

/** Time after which a group that has failed is left. */
const leaveMs = 100;

/** Opens the group of the ranks that go on, and closes the one that they leave. @throws ShoalError as `Agreement.next`. */
export async function changeGroup(world: World, store: Store, { group, ...change }: ChangeRequest): Promise<ChangedGroup> {
  const engine = must(world.group(group), () => 'the group has not been destroyed');
  const { globalRanks, serial = 0 } = engine.spec;
  engine.agreement ??= agreementOf(world, store, engine.spec, { ranks: globalRanks, serial });
  const members = await engine.agreement.next(change);
  if (engine.failure) {
    // The others do not wait for this rank's word that it has left: they and it go on first.
    world.env.clock.setTimer(leaveMs, () => void world.closeGroup(group, 0));
    keepSeldomCode();
  } else await world.closeGroup(group, 0);
  return { spec: specOf(members, engine.spec, world), info: world.joined };
}

/** The agreement on who follows a group. */
export function agreementOf(world: World, store: Store, left: Left, group: Group): Agreement {
  const { rank, lossWatchers, env } = world;
  const open = async (members: Members, leftMs: number): Promise<void> => {
    const startMs = env.clock.now();
    if (members.newcomers !== undefined) {
      world.joined = { ...world.joined, ...factsOf(members) };
      world.model = world.joined.model;
    }
    const spec = specOf(members, left, world);
    await linkAll(world, spec, Math.min(leftMs, env.settings.connectTimeoutMs));
    await world.openGroup(spec, Math.max(1, leftMs - (env.clock.now() - startMs)));
    // The reasons for which this rank and others have failed are over.
    for (const link of world.links) link.failure = undefined;
    world.tellWaiting(members.ranks);
    forgetCause(store, rank).catch(() => undefined);
  };
  const newcomers: MemberWorld['newcomers'] = async (ranks) => withRates(world, await newcomersOf(world, store, ranks));
  const isLost = (peer: number): boolean => peer !== rank && !world.reaches(peer);
  return new Agreement({ rank, clock: env.clock, lossWatchers, isLost, open, newcomers }, store, left.name, group);
}

/** The newcomers, and the rates of a world that has been on one machine and gets another by them: this rank times its link to one of
 *  those. */
async function withRates(world: World, newcomers: KnownNewcomers | undefined): Promise<KnownNewcomers | undefined> {
  if (newcomers === undefined || newcomers.facts.model !== undefined || world.env.settings.calibration !== 'measure') return newcomers;
  const { ranks, facts } = newcomers;
  const own = facts.topology.hosts.find((host) => host.includes(world.rank));
  const peer = ranks.find((rank) => own?.includes(rank) === false);
  if (peer === undefined) return newcomers;
  return { ranks, facts: { ...facts, model: agreedModel([await ratesTo(world, peer)]) } };
}

/** The connection of a newcomer, which it has made, may be about to be accepted here. */
async function linkAll(world: World, spec: GroupSpec, timeoutMs: number): Promise<void> {
  const { rank, env } = world;
  await within<void>(env.clock, timeoutMs, world.linked(spec.globalRanks), () => undefined);
  const [peer] = world.missingLinks(spec.globalRanks);
  if (peer === undefined) return;
  const error = new ShoalError('peer-lost', `rank ${peer} has not connected with rank ${rank}, and was to be taken in`, { rank, peer });
  world.tellFailure(spec, error);
  throw error;
}

/** The spec of a group that follows another one. */
export function specOf({ ranks, id, serial, newcomers }: Members, { name, backend }: Left, world: World): GroupSpec {
  return {
    id,
    serial,
    name: `${name.replace(/\/(shrunk|grown)-\d+$/, '')}/${newcomers === undefined ? 'shrunk' : 'grown'}-${serial}`,
    globalRanks: ranks,
    rank: ranks.indexOf(world.rank),
    topology: { hosts: restrictHosts(world.joined.topology.hosts, ranks) },
    backend,
  };
}
