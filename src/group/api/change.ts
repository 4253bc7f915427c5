/** The calling thread's part of `shrink`, `grow` and `reconfigure`: checks the call, asks the comm thread for
 *  the group of the ranks that go on, and hands over to it. It must not know how the ranks agree. */
import { ShoalError } from '../../base/errors.ts';
import { keepSeldomCode } from '../../base/packages/cached-code.ts';
import { checkOptions } from '../../base/schema.ts';
import type { GroupSpec } from '../../call/group-spec.ts';
import type { Change } from '../../membership/agreement.ts';
import { checkRanks, checkTimeout } from '../caller/call-arguments.ts';
import { growOptions, reconfigureOptions, shrinkOptions } from '../caller/call-options.ts';
import type { GrowOptions, ProcessGroup, ReconfigureOptions, ShrinkOptions } from '../caller/types.ts';
import type { WorldHandle } from '../caller/world-handle.ts';
import type { ChangedGroup } from '../shared/comm-protocol.ts';
import type { GroupParts } from './group-parts.ts';

/** @throws ShoalError `usage`; `unsupported` for a group whose collectives a library runs; else as `ProcessGroup.shrink`. */
export async function shrunkSpec(spec: GroupSpec, world: WorldHandle, options: ShrinkOptions): Promise<GroupSpec> {
  checkOptions('shrink', options, shrinkOptions);
  const { rank, globalRanks } = spec;
  const exclude = [...new Set(options.exclude)];
  if (exclude.length > 0) checkRanks('shrink', exclude, globalRanks.length);
  if (exclude.includes(rank)) throw new ShoalError('usage', `shrink: rank ${rank} cannot exclude itself; it calls destroy, or just ends`);
  const shrunk = await changedSpec(spec, world, { ...options, exclude });
  keepSeldomCode();
  return shrunk;
}

/** @param isWorld the world ends with the group, and those that wait are taken in. @throws ShoalError as `shrunkSpec`. */
export function reconfiguredSpec(spec: GroupSpec, world: WorldHandle, options: ReconfigureOptions, isWorld: boolean): Promise<GroupSpec> {
  checkOptions('reconfigure', options, reconfigureOptions);
  const { rank, globalRanks } = spec;
  const all = globalRanks.map((_, each) => each);
  const order = options.ranks ?? all;
  checkRanks('reconfigure', order, all.length);
  if (!order.includes(rank)) throw new ShoalError('usage', `reconfigure: rank ${rank} is not named; it calls destroy, or just ends`);
  return changedSpec(spec, world, { ...options, exclude: all.filter((each) => !order.includes(each)), order, admits: isWorld });
}

/** @param isWorld the world ends with the group. @throws ShoalError as `shrunkSpec`, and `unsupported` of a group of some ranks of the
 *  world. */
export function grownSpec(spec: GroupSpec, world: WorldHandle, options: GrowOptions, isWorld: boolean): Promise<GroupSpec> {
  checkOptions('grow', options, growOptions);
  if (isWorld) return changedSpec(spec, world, { ...options, admits: true });
  const message = `group '${spec.name}' was made of another one and cannot grow: grow that of the world, and make it anew`;
  throw new ShoalError('unsupported', message);
}

async function changedSpec(
  { id, name, library, globalRanks }: GroupSpec,
  { client, settings, info }: WorldHandle,
  { exclude = [], order = [], admits = false, timeoutMs = settings.timeoutMs }: Partial<Change>,
): Promise<GroupSpec> {
  checkTimeout(timeoutMs);
  if (library !== undefined) {
    const message = `the ranks of group '${name}' cannot change: its collectives are those of ${library}, which ends with its ranks`;
    throw new ShoalError('unsupported', message);
  }
  const inWorld = (ranks: readonly number[]): number[] => ranks.map((each) => globalRanks[each]);
  const change: Change = { exclude: inWorld(exclude), order: inWorld(order), admits, numbers: client.groupNumbers.encode(), timeoutMs };
  const command = { type: 'change-group', group: id, ...change } as const;
  const { spec, info: joined } = await client.ask<ChangedGroup>(command, `changing the ranks of group '${name}'`);
  client.groupNumbers.use(spec.id, spec.serial);
  Object.assign(info, joined);
  return spec;
}

/** Calls `next` for the group that follows, unless that is underway. @throws ShoalError `usage`. */
export function followed(
  { name, rank }: Pick<ProcessGroup, 'name' | 'rank'>,
  parts: GroupParts,
  next: () => Promise<ProcessGroup>,
): Promise<ProcessGroup> {
  if (parts.successor) throw new ShoalError('usage', `group '${name}' is being shrunk, grown or reconfigured already`, { rank });
  parts.successor = next();
  // One that did not work may be tried again.
  parts.successor.catch(() => (parts.successor = undefined));
  return parts.successor;
}

/** Tensors of the group, and the end of the world, are those of the group that follows from now on. */
export async function handOver(old: GroupParts, shrunk: GroupParts): Promise<void> {
  for (const [tensor, block] of old.blocks) shrunk.blocks.set(tensor, block);
  old.blocks.clear();
  shrunk.ownsWorld = old.ownsWorld;
  await old.devices?.end(0);
  old.dispatch.close();
  old.destroyed = Promise.resolve();
}
