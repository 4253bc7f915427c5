/** The calling thread's part of `shrink`: checks the call, asks the comm thread for the group of the ranks that go on, and hands over to it. It
 *  must not know how the ranks agree. */
import { ShoalError } from '../../base/errors.ts';
import { checkOptions } from '../../base/schema.ts';
import type { GroupSpec } from '../../call/group-spec.ts';
import { checkTimeout } from '../caller/call-arguments.ts';
import { shrinkOptions } from '../caller/call-options.ts';
import type { ShrinkOptions } from '../caller/types.ts';
import type { WorldHandle } from '../caller/world-handle.ts';
import type { GroupParts } from './group-parts.ts';

/** @throws ShoalError `usage`; `unsupported` for a group whose collectives a library runs; else as `ProcessGroup.shrink`. */
export async function shrunkSpec(
  { id, name, rank, globalRanks, library }: GroupSpec,
  { client, settings }: WorldHandle,
  options: ShrinkOptions,
): Promise<GroupSpec> {
  checkOptions('shrink', options, shrinkOptions);
  const { exclude = [], timeoutMs = settings.timeoutMs } = options;
  checkTimeout(timeoutMs);
  for (const each of exclude) {
    if (!Number.isInteger(each) || each < 0 || each >= globalRanks.length)
      throw new ShoalError('usage', `shrink: ${String(each)} is not a rank of 0…${globalRanks.length - 1}`);
    if (each === rank) throw new ShoalError('usage', `shrink: rank ${rank} cannot exclude itself; it calls destroy, or just ends`);
  }
  if (library !== undefined) {
    const message = `group '${name}' cannot be shrunk: its collectives are those of ${library}, which ends with its ranks`;
    throw new ShoalError('unsupported', message);
  }
  let spec: GroupSpec | undefined;
  const onSuccess = (answer: unknown): void => void (spec = answer as GroupSpec);
  const request = { group: id, exclude: [...exclude], numbers: client.groupNumbers.encode(), timeoutMs };
  await client.start({ type: 'shrink-group', ...request }, `shrinking group '${name}'`, { onSuccess });
  if (spec === undefined) throw new ShoalError('closed', `group '${name}' was destroyed while it was shrunk`, { rank });
  client.groupNumbers.use(spec.id, spec.serial);
  return spec;
}

/** Tensors of the group, and the end of the world, are the shrunk one's from now on. */
export async function handOver(old: GroupParts, shrunk: GroupParts): Promise<void> {
  for (const [tensor, block] of old.blocks) shrunk.blocks.set(tensor, block);
  old.blocks.clear();
  shrunk.ownsWorld = old.ownsWorld;
  await old.devices?.end(0);
  old.dispatch.close();
  old.destroyed = Promise.resolve();
}
