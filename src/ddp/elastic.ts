/** Training that goes on without the ranks that are lost, in the shape of Horovod's `hvd.elastic.run`: without commits, because survivors keep
 *  what they have. It must not know the model. */
import { isShoalError } from '../base/errors.ts';
import { anyList, callback, checkArgument, checkFields, count, optionTable, anything } from '../base/schema.ts';
import type { ProcessGroup, TensorLike } from '../group/caller/types.ts';

/** The state by which training goes on. Change all of it together, after the last collective of a step, and without awaiting in between. */
export interface ElasticState {
  /** Steps that this rank has made. */
  step: number;
  /** Parameters, the optimiser's state, …: the same dtypes and numbers of elements on all ranks, in the same order. */
  readonly tensors: readonly TensorLike[];
  /** Anything else that structured clone takes, such as the position of a sampler. */
  extra?: unknown;
}

const stateFields = optionTable<ElasticState>({ step: count, tensors: anyList, extra: anything });

/** Calls `train` with the group until it has ended on all ranks. When ranks are lost, the group is shrunk, the others take over the state of
 *  the one that has made the most steps, and `train` is called again, with what is left: it goes on from `state.step`. Start the job with
 *  `shoal run --min`. @returns the last group. @throws ShoalError as `shrink`, and what `train` throws, unless it is the loss of a rank. */
async function run(
  group: ProcessGroup,
  state: ElasticState,
  train: (group: ProcessGroup, state: ElasticState) => Promise<void>,
): Promise<ProcessGroup> {
  checkFields('elastic.run: state', state, stateFields);
  checkArgument('elastic.run: train', train, callback);
  let current = group;
  for (let isInStep = true; ; isInStep = false) {
    try {
      if (!isInStep) await catchUp(current, state);
      await train(current, state);
      // Nobody leaves while others may still lose a rank in their last step.
      await current.barrier();
      return current;
    } catch (error) {
      if (!isShoalError(error) || error.code !== 'peer-lost') throw error;
      current = await current.shrink();
    }
  }
}

/** A call in flight at a loss may have ended well on some ranks: they are one step ahead. */
async function catchUp(group: ProcessGroup, state: ElasticState): Promise<void> {
  const [furthest, place] = [Int32Array.of(state.step), Int32Array.of(group.rank)];
  await group.maxLoc(furthest, place);
  const [root] = place;
  await group.batch(state.tensors.map((data) => ({ call: 'broadcast', data, root })));
  state.extra = await group.broadcastObject(state.extra, { root });
  [state.step] = furthest;
}

/** Elastic training. */
export const elastic = { run } as const;
