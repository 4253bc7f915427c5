/** Training that goes on without the ranks that are lost and with those that join, in the shape of Horovod's `hvd.elastic.run`: without commits,
 *  because survivors keep what they have. It must not know the model. */
import { bytesOf } from '../base/bytes.ts';
import { isShoalError, ShoalError } from '../base/errors.ts';
import { leave } from '../base/leave-signal.ts';
import { anyList, anything, callback, checkArgument, checkFields, count, describeValue, optionTable } from '../base/schema.ts';
import type { ProcessGroup, TensorLike } from '../group/caller/types.ts';
import { Tensor } from '../memory/tensor.ts';
import { checkGroup } from './reducer-options.ts';
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
  /** The optimiser whose state is spread over the ranks, made of the group that `elastic.run` is given. Its step is the last call of a step. */
  readonly sharded?: ShardedState;
  /** Anything else that structured clone takes and that is the same on all ranks, such as the position of a sampler. */
  extra?: unknown;
}

const stateFields = optionTable<ElasticState>({ step: count, tensors: anyList, sharded: anything, extra: anything });

/** Trains from `state.step` on, with this group. `boundary` is awaited after each step, once the state has been changed, equally often on all
 *  ranks and with a collective of all between two times: there, ranks that wait are taken in. It rejects with what `elastic.run` catches. */
export type ElasticTrain = (group: ProcessGroup, state: ElasticState, boundary: () => Promise<void>) => Promise<void>;

/** Calls `train` until it has ended on all ranks: at first, and again when the ranks have changed, with the group of those that there are then.
 *  Before each time all take over the state of the rank that has made the most steps; at first that is rank 0's, or that of one that has
 *  loaded a checkpoint. When ranks are lost the group is shrunk, when some wait it is grown. A newcomer runs the same script. A rank that gets SIGTERM
 *  leaves at the next boundary, by this signal. Start the job with `shoal run --min`. @returns the last group. @throws ShoalError as `shrink`, and what `train` throws, unless it is the loss of a rank. */
async function run(group: ProcessGroup, state: ElasticState, train: ElasticTrain): Promise<ProcessGroup> {
  checkGroup('elastic.run', group, 'shrink');
  checkFields('elastic.run: state', state, stateFields);
  checkArgument('elastic.run: state.step', state.step, count);
  checkArgument('elastic.run: state.tensors', state.tensors, anyList);
  if (state.sharded !== undefined && typeof state.sharded?.regroup !== 'function')
    throw new ShoalError('usage', `elastic.run: state.sharded is a ZeroRedundancyOptimizer, not ${describeValue(state.sharded)}`);
  checkArgument('elastic.run: train', train, callback);
  for (let current = group; ;) {
    let boundaries: StepBoundaries | undefined;
    leaveIfAsked(current);
    try {
      boundaries = new StepBoundaries(current, await catchUp(current, state));
      await train(current, state, async () => {
        await boundaries!.pass();
        leaveIfAsked(current);
      });
      if (!boundaries.isDue) {
        // Nobody leaves while others may still lose a rank in their last step.
        await current.barrier();
        return current;
      }
    } catch (error) {
      if (boundaries?.isDue !== true) {
        if (!isShoalError(error) || error.code !== 'peer-lost') throw error;
        leaveIfAsked(current);
        current = await current.shrink();
        continue;
      }
    }
    current = await current.grow();
  }
}

/** Ends this process where SIGTERM has come. The others see that it is gone, and go on without it. */
function leaveIfAsked({ leaving, rank }: ProcessGroup): void {
  if (!leaving) return;
  leave();
  // The script listens for the signal itself.
  throw new ShoalError('closed', `elastic.run: rank ${rank} leaves, as SIGTERM has asked it to; end this process`, { rank });
}

/** All take over the state of the rank that has made the most steps: a call in flight at a loss may have ended well on some ranks, and newcomers have
 *  nothing yet. One that is behind keeps what it has until it has everything, as that rank may be lost meanwhile.
 *  @returns a name that nobody had before. */
async function catchUp(group: ProcessGroup, state: ElasticState): Promise<string> {
  const [furthest, place] = [Int32Array.of(state.step), Int32Array.of(group.rank)];
  await group.maxLoc(furthest, place);
  const [root] = place;
  const isBehind = state.step < furthest[0];
  const targets = state.tensors.map((tensor) => (isBehind ? likeOf(tensor, group) : tensor));
  try {
    if (targets.length > 0) await group.batch(targets.map((data) => ({ call: 'broadcast', data, root })));
    const name = group.rank === root ? await group.store.add('elastic/names', 1) : 0;
    const [extra, key, steps] = await group.broadcastObject([state.extra, name, state.sharded?.steps ?? 0], { root });
    if (isBehind) state.tensors.forEach((tensor, index) => bytesOf(dataOf(tensor)).set(bytesOf(dataOf(targets[index]))));
    [state.step, state.extra] = [furthest[0], extra];
    state.sharded?.settle(steps);
    await state.sharded?.regroup(group);
    return String(key);
  } finally {
    if (isBehind) for (const target of targets) if (target instanceof Tensor) group.release(target);
  }
}

function dataOf(tensor: TensorLike): ArrayBufferView {
  return tensor instanceof Tensor ? tensor.data : tensor;
}

function likeOf(tensor: TensorLike, group: ProcessGroup): TensorLike {
  // A native Float16Array has it, too.
  return tensor instanceof Tensor ? group.tensor(tensor.dtype, tensor.shape) : (tensor as Float32Array).slice();
}

/** Elastic training. */
export const elastic = { run } as const;
