/** The calling thread's part of `shrink` and `grow`: checks the call, asks the comm thread for the group of the ranks that go on, and hands over
 *  to it. It must not know how the ranks agree. */
import { ShoalError } from '../../base/errors.ts';
import { checkOptions } from '../../base/schema.ts';
import type { GroupSpec } from '../../call/group-spec.ts';
import { checkTimeout } from '../caller/call-arguments.ts';
import { growOptions, shrinkOptions } from '../caller/call-options.ts';
import type { GrowOptions, ProcessGroup, ShrinkOptions } from '../caller/types.ts';
import type { WorldHandle } from '../caller/world-handle.ts';
import type { ChangedGroup, ChangeRequest } from '../shared/comm-protocol.ts';
import type { GroupParts } from './group-parts.ts';

/** @throws ShoalError `usage`; `unsupported` for a group whose collectives a library runs; else as `ProcessGroup.shrink`. */
export function shrunkSpec(spec: GroupSpec, world: WorldHandle, options: ShrinkOptions): Promise<GroupSpec> {
  checkOptions('shrink', options, shrinkOptions);
  const { rank, globalRanks } = spec;
  const { exclude = [], timeoutMs } = options;
  for (const each of exclude) {
    if (!Number.isInteger(each) || each < 0 || each >= globalRanks.length)
      throw new ShoalError('usage', `shrink: ${String(each)} is not a rank of 0…${globalRanks.length - 1}`);
    if (each === rank) throw new ShoalError('usage', `shrink: rank ${rank} cannot exclude itself; it calls destroy, or just ends`);
  }
  return changedSpec(spec, world, { exclude, admits: false, timeoutMs });
}

/** @param isWorld the world ends with the group. @throws ShoalError as `shrunkSpec`, and `unsupported` of a group of some ranks of the world. */
export function grownSpec(spec: GroupSpec, world: WorldHandle, options: GrowOptions, isWorld: boolean): Promise<GroupSpec> {
  checkOptions('grow', options, growOptions);
  if (isWorld) return changedSpec(spec, world, { exclude: [], admits: true, timeoutMs: options.timeoutMs });
  throw new ShoalError(
    'unsupported',
    `group '${spec.name}' was made of another one and cannot grow: grow that of the world, and make it anew`,
  );
}

async function changedSpec(
  { id, name, rank, library }: GroupSpec,
  { client, settings, info }: WorldHandle,
  { exclude, admits, timeoutMs = settings.timeoutMs }: Pick<ChangeRequest, 'exclude' | 'admits'> & ShrinkOptions,
): Promise<GroupSpec> {
  checkTimeout(timeoutMs);
  if (library !== undefined) {
    const message = `the ranks of group '${name}' cannot change: its collectives are those of ${library}, which ends with its ranks`;
    throw new ShoalError('unsupported', message);
  }
  let changed: ChangedGroup | undefined;
  const onSuccess = (answer: unknown): void => void (changed = answer as ChangedGroup);
  const request = { group: id, exclude: [...exclude], admits, numbers: client.groupNumbers.encode(), timeoutMs };
  await client.start({ type: 'change-group', ...request }, `changing the ranks of group '${name}'`, { onSuccess });
  if (changed === undefined) throw new ShoalError('closed', `group '${name}' was destroyed while its ranks changed`, { rank });
  const { spec } = changed;
  client.groupNumbers.use(spec.id, spec.serial);
  Object.assign(info, changed.info);
  return spec;
}

/** Calls `next` for the group that follows, unless that is underway. @throws ShoalError `usage`. */
export function followed(
  { name, rank }: Pick<ProcessGroup, 'name' | 'rank'>,
  parts: GroupParts,
  next: () => Promise<ProcessGroup>,
): Promise<ProcessGroup> {
  if (parts.successor) throw new ShoalError('usage', `group '${name}' is being shrunk or grown already`, { rank });
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
