/** Meshes of which a part cannot be made. */
import { expect, it } from 'vitest';
import { ShoalError } from '../../base/errors.ts';
import type { ProcessGroup } from '../caller/types.ts';
import { startRanks } from '../testing/in-process-world.ts';
import { initDeviceMesh } from './device-mesh.ts';

it('a rank that cannot open the group of a later dimension leaves no rank with a mesh, and no group open', async () => {
  await using world = await startRanks(4);
  const opened: ProcessGroup[] = [];
  const outcomes = await world.each(async (group) => {
    let dimension = 0;
    const failing: Partial<ProcessGroup> = {
      size: group.size,
      rank: group.rank,
      globalRanks: group.globalRanks,
      allGatherObject: (value, options) => group.allGatherObject(value, options),
      newSubgroups: async (options) => {
        const along = await group.newSubgroups(options);
        if (++dimension < 2 || group.rank !== 1) {
          opened.push(along!);
          return along;
        }
        await along!.destroy();
        throw new ShoalError('out-of-memory', 'no room for control blocks');
      },
    };
    return initDeviceMesh(failing as ProcessGroup, [2, 1, 2], { names: ['dp', 'pp', 'tp'] }).catch((thrown: unknown) => thrown);
  });
  const aborted = {
    code: 'aborted',
    peer: 1,
    message: 'initDeviceMesh: rank 1 cannot open its group of dimension pp: no room for control blocks',
  };
  expect(outcomes).toMatchObject([aborted, { code: 'out-of-memory' }, aborted, aborted]);
  expect(opened).toHaveLength(7);
  for (const group of opened) expect(() => group.barrier()).toThrow(/was destroyed/);
  await world.each(async (group) => {
    await using mesh = await initDeviceMesh(group, [2, 2]);
    expect(mesh.coordinate).toEqual([Math.floor(group.rank / 2), group.rank % 2]);
  });
});
