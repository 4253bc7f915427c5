/** The ranks of a group as a grid, and a sub-group along each of its dimensions: torch's `init_device_mesh`.
 *
 *      shape [2, 3], names dp tp            rank 4 has the coordinate [1, 1]
 *
 *          tp ─▶
 *      dp  0 1 2                            mesh.group('tp') of rank 4: 3 4 5
 *      ▼   3 4 5                            mesh.group('dp') of rank 4: 1 4
 *
 *  It must not know how groups are made. */
import { must } from '../../base/assert.ts';
import { isShoalError, ShoalError } from '../../base/errors.ts';
import { anyList, anyNumber, checkArgument, checkFields, checkOptions, describeValue, noOptions, optionTable } from '../../base/schema.ts';
import { groupBy } from '../../base/collections/lists.ts';
import type { ProcessGroup } from '../caller/types.ts';

/** The options of a mesh. */
export interface MeshOptions {
  /** Names of the dimensions, in their order. Default: none, and dimensions go by their number. */
  readonly names?: readonly string[];
  /** Time limit for each of the groups to open. Default: the world's. Milliseconds. */
  readonly timeoutMs?: number;
}

const meshOptions = optionTable<MeshOptions>({ names: anyList, timeoutMs: anyNumber });
const dimensionsMax = 8;

/** Lays the ranks of a group out as a grid, the last dimension fastest. Collective over the group. Where a rank cannot open one of its
 *  groups, every rank throws, and none keeps any.
 *  @throws ShoalError `usage` for a shape that does not hold every rank once; what `newSubgroups` throws; `aborted`, naming the rank, where
 *          another one has failed. */
export async function initDeviceMesh(group: ProcessGroup, shape: readonly number[], options: MeshOptions = noOptions): Promise<DeviceMesh> {
  if (typeof group?.newSubgroups !== 'function')
    throw new ShoalError('usage', `initDeviceMesh needs a process group, not ${describeValue(group)}`);
  checkArgument('initDeviceMesh: shape', shape, anyList);
  checkOptions('initDeviceMesh', options, meshOptions);
  checkShape(shape, group.size);
  const names = checkedNames(options.names, shape.length);
  const call = options.timeoutMs === undefined ? {} : { timeoutMs: options.timeoutMs };
  const groups: ProcessGroup[] = [];
  try {
    for (let dimension = 0; dimension < shape.length; dimension++) {
      const along = await openAlong(group, lines(shape, dimension), call);
      if (!isShoalError(along)) groups.push(along);
      await checkAll(group, names[dimension] ?? dimension, { ...call, own: isShoalError(along) ? along : undefined });
    }
  } catch (thrown) {
    await Promise.allSettled(groups.map((each) => each.destroy()));
    throw thrown;
  }
  return new DeviceMesh({ rank: group.rank, shape: [...shape], names, groups });
}

/** This rank's group along a dimension, or why it is not open: the others are to know before anything else. */
async function openAlong(
  group: ProcessGroup,
  ranks: readonly number[][],
  call: { timeoutMs?: number },
): Promise<ProcessGroup | ShoalError> {
  const along = await group.newSubgroups({ ...call, ranks }).catch((thrown: unknown) => ShoalError.from(thrown));
  return must(along, () => 'every rank is in one group of each dimension');
}

/** @throws ShoalError this rank's own, or `aborted` with what another rank says. */
async function checkAll(
  group: ProcessGroup,
  dimension: string | number,
  { own, ...call }: { readonly own: ShoalError | undefined; readonly timeoutMs?: number },
): Promise<void> {
  let said: readonly (string | null)[];
  try {
    said = await group.allGatherObject(own?.message ?? null, { ...call, name: 'mesh' });
  } catch (thrown) {
    // The first of them.
    throw own ?? thrown;
  }
  if (own !== undefined) throw own;
  const failed = said.findIndex((message) => message !== null);
  if (failed < 0) return;
  const message = `initDeviceMesh: rank ${failed} cannot open its group of dimension ${dimension}: ${said[failed]}`;
  throw new ShoalError('aborted', message, { peer: group.globalRanks[failed] });
}

interface MeshParts {
  readonly rank: number;
  readonly shape: readonly number[];
  readonly names: readonly string[];
  readonly groups: readonly ProcessGroup[];
}

const meshParts = optionTable<MeshParts>({ rank: anyNumber, shape: anyList, names: anyList, groups: anyList });

/** A grid of ranks; made by `initDeviceMesh`. */
export class DeviceMesh {
  /** Ranks along each dimension; their product is the group's size. */
  readonly shape: readonly number[];
  /** Names of the dimensions; empty: they go by their number. */
  readonly names: readonly string[];
  /** Where this rank is, by dimension. */
  readonly coordinate: readonly number[];
  readonly #groups: readonly ProcessGroup[];

  constructor(parts: MeshParts) {
    checkFields('DeviceMesh', parts, meshParts);
    const { rank, shape, names, groups } = parts;
    this.shape = shape;
    this.names = names;
    this.coordinate = coordinateOf(rank, shape);
    this.#groups = groups;
  }

  /** The ranks that differ from this one in this dimension only, ordered by it. @param dimension its name or number. */
  group(dimension: string | number): ProcessGroup {
    return this.#groups[this.#indexOf(dimension)];
  }

  /** This rank's place in the dimension. */
  localRank(dimension: string | number): number {
    return this.coordinate[this.#indexOf(dimension)];
  }

  /** Ranks along the dimension; without one, in all. */
  size(dimension?: string | number): number {
    return dimension === undefined ? product(this.shape) : this.shape[this.#indexOf(dimension)];
  }

  /** Destroys its groups, not the group that it was made of. */
  async destroy(): Promise<void> {
    await Promise.all(this.#groups.map((group) => group.destroy()));
  }

  /** The same as `destroy`, for `await using`. */
  [Symbol.asyncDispose](): Promise<void> {
    return this.destroy();
  }

  #indexOf(dimension: string | number): number {
    const index = typeof dimension === 'number' ? dimension : this.names.indexOf(dimension);
    if (Number.isInteger(index) && index >= 0 && index < this.shape.length) return index;
    const known = this.names.length > 0 ? `${this.names.join(', ')} or ` : '';
    throw new ShoalError('usage', `the mesh has no dimension ${describeValue(dimension)}; use ${known}0…${this.shape.length - 1}`);
  }
}

function checkShape(shape: readonly number[], size: number): void {
  const valid = shape.length >= 1 && shape.length <= dimensionsMax && shape.every((length) => Number.isSafeInteger(length) && length >= 1);
  if (valid && product(shape) === size) return;
  const message = `initDeviceMesh: shape [${shape.map(String).join(', ')}] must be 1 to ${dimensionsMax} positive integers whose product is the group's ${size} ranks`;
  throw new ShoalError('usage', message);
}

function checkedNames(names: readonly string[] | undefined, dimensions: number): readonly string[] {
  if (names === undefined) return [];
  const valid = [...names].every((name) => typeof name === 'string' && name !== '') && new Set(names).size === names.length;
  if (valid && names.length === dimensions) return [...names];
  const message = `initDeviceMesh: names [${names.map(String).join(', ')}] must be ${dimensions} different names, one per dimension`;
  throw new ShoalError('usage', message);
}

/** The ranks of every line along a dimension. */
function lines(shape: readonly number[], dimension: number): number[][] {
  const stride = product(shape.slice(dimension + 1));
  const ranks = Array.from({ length: product(shape) }, (_, rank) => rank);
  return [...groupBy(ranks, (rank) => rank - coordinateOf(rank, shape)[dimension] * stride).values()];
}

function coordinateOf(rank: number, shape: readonly number[]): number[] {
  let rest = rank;
  return shape.map((_, dimension) => {
    const stride = product(shape.slice(dimension + 1));
    const at = Math.floor(rest / stride);
    rest -= at * stride;
    return at;
  });
}

function product(values: readonly number[]): number {
  return values.reduce((total, value) => total * value, 1);
}
