/** A group of a world that goes on without some of its ranks: its agreement, and the group that follows it. Links, memory and rates of the world
 *  stay as they are. It must not know how ranks agree. */
import { must } from '../../base/assert.ts';
import { restrictHosts, type GroupSpec } from '../../call/group-spec.ts';
import { Agreement, type Members } from '../../membership/agreement.ts';
import { forgetCause } from '../../store/ended-ranks.ts';
import type { Store } from '../../store/store.ts';
import type { ShrinkRequest } from '../shared/comm-protocol.ts';
import type { World } from './world.ts';

/** Opens the group of the ranks that go on, and closes the one that they leave. @returns its spec. @throws ShoalError as `Agreement.next`. */
export async function shrinkGroup(world: World, store: Store, { group, exclude, numbers, timeoutMs }: ShrinkRequest): Promise<GroupSpec> {
  const engine = must(world.group(group), () => 'the group has not been destroyed');
  const { spec } = engine;
  const { name, globalRanks, serial = 0 } = spec;
  const { rank, lossWatchers, env } = world;
  engine.agreement ??= new Agreement(
    {
      rank,
      clock: env.clock,
      lossWatchers,
      isLost: (peer) => world.link(peer).closed,
      open: async (members, leftMs) => void (await world.openGroup(specOf(members, spec, rank), leftMs)),
    },
    store,
    name,
    { ranks: globalRanks, serial },
  );
  const members = await engine.agreement.next({ exclude: exclude.map((each) => globalRanks[each]), numbers, timeoutMs });
  // The reasons for which this rank and others have failed are over, and so is the group.
  for (const link of world.links) link.failure = undefined;
  forgetCause(store, rank).catch(() => undefined);
  await world.closeGroup(group, 0);
  return specOf(members, spec, rank);
}

function specOf({ ranks, id, serial }: Members, { name, globalRanks, topology, backend }: GroupSpec, rank: number): GroupSpec {
  const places = ranks.map((each) => globalRanks.indexOf(each));
  return {
    id,
    serial,
    name: `${name.replace(/\/shrunk-\d+$/, '')}/shrunk-${serial}`,
    globalRanks: ranks,
    rank: ranks.indexOf(rank),
    topology: { hosts: restrictHosts(topology.hosts, places) },
    backend,
  };
}
