/** The script of a rank in a world: joins, makes the calls of the plan, checks the results, leaves. */
import { isShoalError } from '../../src/base/errors.ts';
import type { CommGroup } from '../../src/group/api/process-group.ts';
import { callOf, sendAround } from '../../src/group/testing/random-program.ts';
import type { KVStore } from '../../src/kvstore/calls/types.ts';
import { wrong, type Ending } from './ending.ts';
import { ServerRounds } from './server-rounds.ts';
import type { Action, WorldPlan } from './world-plan.ts';
import type { VirtualProcess } from './virtual-host.ts';

export interface RankSurroundings {
  readonly plan: WorldPlan;
  join(): Promise<CommGroup>;
  /** Connects to the servers; undefined: the world has none. */
  readonly connect: (() => Promise<KVStore>) | undefined;
}

/** @throws ShoalError of the first call that fails; an Error when a result is wrong. */
export async function runRank(process: VirtualProcess, { plan, join, connect }: RankSurroundings): Promise<void> {
  const group = await join();
  const store = connect && (await connect());
  const endings: Ending[] = [];
  const rounds = store && plan.actions.some(({ on }) => on === 'servers') ? await ServerRounds.begin(store, group) : undefined;
  for (const [index, action] of plan.actions.entries()) {
    const { differs } = plan;
    if (differs?.rank === group.rank && differs.at === index) {
      if (differs.how === 'leaves') break;
      await group.reduce(new Int8Array(3), { root: 0 });
    }
    const step = action.on === 'group' ? action : action.on === 'subgroup' ? action.step : undefined;
    for (let turns = step?.late[group.rank] ?? 0; turns > 0; turns--) await new Promise<void>((resolve) => process.role.turn(resolve));
    const ending = await begin({ group, rounds, plan }, action, index);
    if (ending === undefined) continue;
    endings.push(ending);
    if (step?.awaited[group.rank] ?? true) await ending();
  }
  for (const ending of endings) await ending();
  await store?.close();
  await group.destroy({ timeoutMs: 1000 });
}

interface Open {
  readonly group: CommGroup;
  readonly rounds: ServerRounds | undefined;
  readonly plan: WorldPlan;
}

async function begin({ group, rounds, plan }: Open, action: Action, index: number): Promise<Ending | undefined> {
  switch (action.on) {
    case 'group': {
      const { work, check } = callOf(group, action, index);
      // The code that awaits the work gets its error, so this rejection is not unhandled.
      work.then(undefined, () => undefined);
      return async () => {
        await work;
        check();
      };
    }
    case 'subgroup': {
      const members = await group.newGroup(action.members);
      if (members === null) return undefined;
      const { work, check } = callOf(members as CommGroup, action.step, index);
      await work;
      check();
      await members.destroy({ timeoutMs: 1000 });
      return undefined;
    }
    case 'ring':
      await sendAround(group, action.count, index);
      return undefined;
    case 'store':
      await useStore(group, index);
      // The wait is tried only if messages take less time than a client waits for the store's answer.
      if (plan.delayMs <= 50) await waitInVain(group, index);
      return undefined;
    case 'servers':
      return rounds?.call(action, index);
  }
}

async function useStore({ rank, size, store }: CommGroup, index: number): Promise<void> {
  const part = store.prefix(`action-${index}`);
  await part.set(`rank/${rank}`, String(rank * rank));
  const sum = await part.add('sum', rank + 1);
  if (sum < rank + 1 || sum > (size * (size + 1)) / 2) wrong({ rank }, index, `the sum is ${sum}`);
  const first = Buffer.from(await part.compareSet('first', '', String(rank))).toString();
  const values = await part.multiGet(Array.from({ length: size }, (_, r) => `rank/${r}`));
  for (const [r, value] of values.entries()) {
    if (Buffer.from(value).toString() !== String(r * r)) wrong({ rank }, index, `rank ${r} has set ${Buffer.from(value).toString()}`);
  }
  // A barrier by the store: the rank that comes last tells the others.
  if ((await part.add('arrived', 1)) === size) await part.set('all', '');
  await part.wait(['all']);
  if (Buffer.from(await part.get('first')).toString() !== first) wrong({ rank }, index, 'there were two firsts');
  if ((await part.add('sum', 0)) !== (size * (size + 1)) / 2) wrong({ rank }, index, 'the sum of all is wrong');
}

/** Waits for a key that nobody sets, until the store says so. */
async function waitInVain({ rank, store }: CommGroup, index: number): Promise<void> {
  try {
    await store.wait([`nothing-${index}`], { timeoutMs: 1 });
  } catch (thrown) {
    if (isShoalError(thrown) && thrown.code === 'timeout' && thrown.message.includes(`nothing-${index}`)) return;
    throw thrown;
  }
  wrong({ rank }, index, 'a key is there that nobody has set');
}
