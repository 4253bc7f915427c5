/** Training that goes on without the ranks that are lost and with those that join, in the shape of Horovod's `hvd.elastic.run`: without
 *  commits, because survivors keep what they have. It must not know the model. */
import { isShoalError, ShoalError } from '../base/errors.ts';
import { leave } from '../base/leave-signal.ts';
import { anyList, anything, callback, checkArgument, checkFields, count, describeValue, optionTable } from '../base/schema.ts';
import { bytesOf } from '../group/caller/call-buffers.ts';
import type { ProcessGroup, TensorLike } from '../group/caller/types.ts';
import type { Tensor } from '../memory/tensor.ts';
import { checkGroup } from '../group/caller/call-arguments.ts';
import { follow, Followers, kindsOf } from './followers.ts';
import { copyOf, handOn, type FollowedRanks } from './state-donors.ts';
import { StepBoundaries } from './step-boundaries.ts';

/** State of which each rank has a part: a `ZeroRedundancyOptimizer`. */
export interface ShardedState {
  /** Steps that this rank's part has made; negative: it has none yet. */
  readonly steps: number;
  /** This rank takes over the other state of a rank whose part has made so many steps. */
  settle(steps: number): void;
  /** Deals all parts out to the ranks of the group. Collective. */
  regroup(group: ProcessGroup): Promise<void>;
}

/** The state by which training goes on. Change all of it together, after the last collective of a step, and without awaiting in between. */
export interface ElasticState {
  /** Steps that this rank has made. */
  step: number;
  /** Parameters, the optimiser's state, …: the same dtypes and numbers of elements on all ranks, in the same order. */
  readonly tensors: readonly TensorLike[];
  /** The optimiser whose state is spread over the ranks, made of the group that `elastic.run` is given. Its step is the last call of a
   *  step. */
  readonly sharded?: ShardedState;
  /** Anything else that structured clone takes and that is the same on all ranks, such as the position of a sampler. */
  extra?: unknown;
}

const stateFields = optionTable<ElasticState>({ step: count, tensors: anyList, sharded: anything, extra: anything });

/** Trains from `state.step` on, with this group. `boundary` is awaited after each step, once the state has been changed, equally often on
 *  all ranks and with a collective of all between two times: there, ranks that wait are taken in. It rejects with what `elastic.run`
 *  catches. */
export type ElasticTrain = (group: ProcessGroup, state: ElasticState, boundary: () => Promise<void>) => Promise<void>;

/** Training in two parts, which `elastic.run` calls in turns, so that newcomers get the state while the others go on. */
export interface ElasticSteps {
  /** Computes the averages of a step's gradients, by collectives of this group: the same on all its ranks. Undefined, on all ranks: training
   *  is over. It changes no tensors of the state. */
  averages(group: ProcessGroup, state: ElasticState): Promise<readonly TensorLike[] | undefined>;
  /** Changes the state by averages, and by nothing that only this rank has. A newcomer makes the same changes, to have the same bits: there,
   *  averages that are tensors have one dimension, and `state.extra` is that of the step in which it joined. `elastic.run` counts the step. */
  update(state: ElasticState, averages: readonly TensorLike[]): void;
}

const stepsFields = optionTable<ElasticSteps>({ averages: callback, update: callback });

/** Calls `train` until it has ended on all ranks: at first, and again when the ranks have changed, with the group of those that there are
 *  then. Before each time all take over the state of the rank that has made the most steps; at first that is rank 0's, or that of one that
 *  has loaded a checkpoint. When ranks are lost the group is shrunk, when some wait it is grown. A newcomer runs the same script. A rank
 *  that gets SIGTERM leaves at the next boundary, by this signal. Start the job with `shoal run --min`. @returns the last group. @throws
 *  ShoalError as `shrink`, and what `train` throws, unless it is the loss of a rank. */
async function run(group: ProcessGroup, state: ElasticState, train: ElasticTrain | ElasticSteps): Promise<ProcessGroup> {
  checkGroup('elastic.run', group, 'shrink');
  checkFields('elastic.run: state', state, stateFields);
  checkArgument('elastic.run: state.step', state.step, count);
  checkArgument('elastic.run: state.tensors', state.tensors, anyList);
  if (state.sharded !== undefined && typeof state.sharded?.regroup !== 'function')
    throw new ShoalError('usage', `elastic.run: state.sharded is a ZeroRedundancyOptimizer, not ${describeValue(state.sharded)}`);
  const steps = checkedSteps(train);
  const standing: Standing = { hasBegun: false, isTorn: false, kinds: [] };
  for (let current = group; ;) {
    leaveIfAsked(current);
    try {
      const { name, followed } = await catchUp(current, state, standing, steps !== undefined);
      const ranks = followed ? await current.newGroup(followed.donors) : current;
      if (ranks === null) {
        standing.isTorn = true;
        await follow(followed!, state, (averages) => steps!.update(state, averages), standing.kinds);
        [standing.hasBegun, standing.isTorn] = [true, false];
        continue;
      }
      const followers = followed && new Followers(followed);
      const boundaries = new StepBoundaries(ranks, name, () => (followers ? followers.isOver : current.waiting > 0));
      const boundary = (): Promise<void> => boundaries.pass().then(() => leaveIfAsked(current));
      try {
        await (steps ? trainBy(steps, standing, followers) : (train as ElasticTrain))(ranks, state, boundary);
      } catch (error) {
        if (!boundaries.isDue) throw error;
      } finally {
        if (ranks !== current) await ranks.destroy();
      }
      if (followers) {
        await followers.end(state);
        continue;
      }
      if (!boundaries.isDue) {
        // Nobody leaves while others may still lose a rank in their last step.
        await current.barrier();
        return current;
      }
    } catch (error) {
      if (!isShoalError(error) || error.code !== 'peer-lost') throw error;
      leaveIfAsked(current);
      current = await current.shrink();
      continue;
    }
    current = await current.grow();
  }
}

/** Undefined for training that is one function. @throws ShoalError `usage`. */
function checkedSteps(train: ElasticTrain | ElasticSteps): ElasticSteps | undefined {
  if (typeof train === 'function') return undefined;
  checkFields('elastic.run: train', train, stepsFields);
  checkArgument('elastic.run: train.averages', train.averages, callback);
  checkArgument('elastic.run: train.update', train.update, callback);
  return train;
}

function trainBy(steps: ElasticSteps, standing: Standing, followers: Followers | undefined): ElasticTrain {
  return async (group, state, boundary) => {
    for (;;) {
      followers?.begin(state);
      const averages = await steps.averages(group, state);
      if (averages === undefined) return;
      checkArgument('elastic.run: the result of train.averages', averages, anyList);
      standing.kinds = kindsOf(averages);
      await followers?.give(averages, standing.kinds);
      steps.update(state, averages);
      state.step++;
      await boundary();
    }
  };
}

/** Ends this process where SIGTERM has come. The others see that it is gone, and go on without it. */
function leaveIfAsked({ leaving, rank }: ProcessGroup): void {
  if (!leaving) return;
  leave();
  // The script listens for the signal itself.
  throw new ShoalError('closed', `elastic.run: rank ${rank} leaves, as SIGTERM has asked it to; end this process`, { rank });
}

/** The state of this rank beside those of others. */
interface Standing {
  /** It has been that of all ranks. */
  hasBegun: boolean;
  /** It is partly that of other ranks, which have been lost. */
  isTorn: boolean;
  /** Those of a step's averages, where they are known. */
  kinds: readonly number[];
}

/** All get the state of the ranks that have made the most steps: a call in flight at a loss may have ended well on some ranks, and
 *  newcomers have nothing yet. Those that have begun have the same state after as many steps; at first one rank gives its own. A rank that
 *  is behind keeps what it has until it has everything, as those ranks may be lost meanwhile.
 *  @param mayFollow newcomers may get it while the others go on: then only they lack it.
 *  @returns a name that nobody had before. */
async function catchUp(
  group: ProcessGroup,
  state: ElasticState,
  standing: Standing,
  mayFollow: boolean,
): Promise<{ readonly name: string; readonly followed?: FollowedRanks }> {
  const { rank } = group;
  const told = new Float64Array(2 * group.size);
  await group.allGather(told, Float64Array.of(standing.isTorn ? -1 : state.step, Number(standing.hasBegun)));
  const all = Array.from({ length: group.size }, (_, each) => ({ rank: each, steps: told[2 * each], hasBegun: told[2 * each + 1] === 1 }));
  const begun = all.filter(({ hasBegun }) => hasBegun);
  const candidates = begun.length > 0 ? begun : all;
  const furthest = Math.max(...candidates.map(({ steps }) => steps));
  const torn = `elastic.run: rank ${rank} was given half of the state when all that had it were lost; start again`;
  if (furthest < 0) throw new ShoalError('aborted', torn, { rank });
  const level = candidates.filter(({ steps }) => steps === furthest).map((each) => each.rank);
  const donors = begun.length > 0 ? level : level.slice(0, 1);
  const [root] = donors;
  const newcomers = all.filter(({ hasBegun }) => !hasBegun).map((each) => each.rank);
  const areFollowed = mayFollow && state.sharded === undefined && begun.length > 0 && newcomers.length > 0 && level.length === begun.length;
  const isBehind = state.step < furthest && standing.hasBegun;
  standing.isTorn ||= state.step < furthest && !isBehind;
  const targets = state.tensors.map((tensor) => (isBehind ? copyOf(tensor, group) : tensor));
  try {
    if (!areFollowed) await handOn(group, targets, donors);
    const number = rank === root ? await group.store.add('elastic/names', 1) : 0;
    const own = [state.extra, String(number), state.sharded?.steps ?? 0, standing.kinds] as const;
    const [extra, name, steps, kinds] = await group.broadcastObject(own, { root });
    if (isBehind) state.tensors.forEach((tensor, index) => bytesOf(tensor).set(bytesOf(targets[index])));
    [state.step, state.extra, standing.kinds] = [furthest, extra, kinds];
    if (areFollowed) return { name, followed: { group, donors, newcomers } };
    [standing.hasBegun, standing.isTorn] = [true, false];
    state.sharded?.settle(steps);
    await state.sharded?.regroup(group);
    return { name };
  } finally {
    if (isBehind) for (const target of targets) group.release(target as Tensor);
  }
}

/** Elastic training. */
export const elastic = {
  /** Trains until `train` has ended on all ranks, without the ranks that are lost and with those that join. @returns the last group.
   *  @throws ShoalError as `shrink`, and what `train` throws, unless it is the loss of a rank. */
  run,
} as const;
