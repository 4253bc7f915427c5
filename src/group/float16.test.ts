/** Half floats in the engine's own arrays, where it has them. */
import { expect, it } from 'vitest';
import { startRanks } from './testing/in-process-world.ts';
import type { NativeFloat16Array } from '../memory/dtype.ts';

const Native = (globalThis as { Float16Array?: { of(...values: number[]): NativeFloat16Array } }).Float16Array;

it('a Float16Array is float16, and tensors have one as a view', async (context) => {
  if (!Native) context.skip(`Node.js ${process.version} has no Float16Array`);
  await using world = await startRanks(2);
  await world.each(async (group) => {
    const data = Native!.of(0.5, group.rank, 65504);
    const tensor = group.tensor('float16', [2]);
    tensor.float16[0] = 1.5;
    await Promise.all([group.allReduce(data, { op: 'avg' as never }), group.allReduce(tensor)]);
    expect([data[0], data[1], data[2], tensor.float16[0], tensor.data[0]]).toEqual([0.5, 0.5, 65504, 3, 0x4200]);
  });
});

it('the view is of float16 tensors, and says what is missing where the engine has none', async () => {
  await using world = await startRanks(1);
  const [group] = world.groups;
  expect(() => group.tensor('float32', [1]).float16).toThrow(/a view of float16 tensors, this one is float32/);
  if (!Native) expect(() => group.tensor('float16', [1]).float16).toThrow(expect.objectContaining({ code: 'unsupported' }));
});
