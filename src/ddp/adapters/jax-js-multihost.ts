/** JAX's names for programs of several processes, on trees of jax-js' arrays: `process_index` and `process_count`, the collectives of `lax`
 *  over all processes as over a mapped axis, and `multihost_utils`. As everywhere in jax-js, what is passed is consumed, and what is
 *  returned is the caller's. All but the first two are collective; trees that differ between ranks give `mismatch`. */
import { numpy as np, tree } from '@jax-js/jax';
import { ShoalError } from '../../base/errors.ts';
import { anyText, checkArgument, checkOptions, describeValue, flag, noOptions, optionTable } from '../../base/schema.ts';
import type { BatchCall, ProcessGroup } from '../../group/caller/types.ts';
import type { TypedArray } from '../../memory/dtype.ts';
import type { ReduceOp } from '../../memory/reduce-op.ts';
import { checkGroup } from '../../group/caller/call-arguments.ts';
import type { ArrayTree } from './jax-js-trees.ts';

/** The part of a process group that these functions use. */
export type MultihostGroup = Pick<ProcessGroup, 'rank' | 'size' | 'batch' | 'barrier'>;

/** `jax.process_index()`: this process among those of the group. */
export function processIndex(group: MultihostGroup): number {
  checkGroup('processIndex', group, 'batch');
  return group.rank;
}

/** `jax.process_count()`. */
export function processCount(group: MultihostGroup): number {
  checkGroup('processCount', group, 'batch');
  return group.size;
}

/** `lax.psum`: the sum over all processes, leaf by leaf. */
export const psum = reduction('psum', 'sum');
/** `lax.pmean`: the mean over all processes, of floats. */
export const pmean = reduction('pmean', 'avg');
/** `lax.pmax`: the largest over all processes. */
export const pmax = reduction('pmax', 'max');
/** `lax.pmin`: the smallest over all processes. */
export const pmin = reduction('pmin', 'min');

/** `multihost_utils.broadcast_one_to_all`: process 0's tree, for all processes; theirs has the same shapes. */
export function broadcastOneToAll<T extends ArrayTree>(group: MultihostGroup, values: T): Promise<T> {
  return mapped('broadcastOneToAll', group, values, (data) => [{ call: 'broadcast', data }, data]);
}

/** Options of `processAllgather`. */
export interface AllgatherOptions {
  /** `false` (default): leaves get a new first axis, of one entry for each process. `true`: they are joined along their first axis. */
  readonly tiled?: boolean;
}

const allgatherOptions = optionTable<AllgatherOptions>({ tiled: flag });

/** `multihost_utils.process_allgather`: the trees of all processes, in their order, on all. */
export async function processAllgather<T extends ArrayTree>(
  group: MultihostGroup,
  values: T,
  options: AllgatherOptions = noOptions,
): Promise<T> {
  checkOptions('processAllgather', options, allgatherOptions);
  const shapeOf = ([first = 1, ...rest]: readonly number[]): number[] => [group.size * first, ...rest];
  return mapped(
    'processAllgather',
    group,
    values,
    (input) => {
      const output = new (input.constructor as new (count: number) => TypedArray)(input.length * group.size);
      return [{ call: 'allGather', output, input }, output];
    },
    (shape) => (options.tiled === true ? shapeOf(shape) : [group.size, ...shape]),
  );
}

/** `multihost_utils.sync_global_devices`: done when every process has called it, by the same name. */
export async function syncGlobalDevices(group: MultihostGroup, name: string): Promise<void> {
  checkGroup('syncGlobalDevices', group, 'barrier');
  checkArgument('syncGlobalDevices: name', name, anyText);
  await group.barrier({ name });
}

function reduction(name: string, op: ReduceOp): <T extends ArrayTree>(group: MultihostGroup, values: T) => Promise<T> {
  return (group, values) => mapped(name, group, values, (data) => [{ call: 'allReduce', data, op }, data]);
}

/** Makes one call for each leaf, all in one batch. @param plan a leaf's call, and the array that has its result. */
async function mapped<T extends ArrayTree>(
  name: string,
  group: MultihostGroup,
  values: T,
  plan: (data: TypedArray) => [BatchCall, TypedArray],
  shapeOf: (shape: readonly number[]) => readonly number[] = (shape) => shape,
): Promise<T> {
  checkGroup(name, group, 'batch');
  const [leaves, structure] = tree.flatten<np.Array>(values);
  for (const leaf of leaves)
    if (!(leaf instanceof np.Array))
      throw new ShoalError('usage', `${name}: every leaf of the tree must be an array of jax-js, not ${describeValue(leaf)}`);
  const kinds = leaves.map(({ shape, dtype, device }) => ({ shape: [...shapeOf(shape)], dtype, device }));
  const planned: [BatchCall, TypedArray][] = [];
  for (const leaf of leaves) planned.push(plan((await leaf.data()).slice() as TypedArray));
  // Shapes are compared with the name: equal counts are not enough.
  const shapes = kinds.map(({ shape, dtype }) => `${dtype}[${shape.join()}]`).join(' ');
  await group.batch(
    planned.map(([call]) => call),
    { name: `${name} ${structure.toString()} ${shapes}` },
  );
  return tree.unflatten(
    structure,
    planned.map(([, data], index) => np.array(data as Float32Array<ArrayBuffer>, kinds[index])),
  ) as T;
}
