/** Memory of tensors in real processes: on the calling thread's paths as on the comm thread's, a block is given to no other
 *  tensor while an operation may reach it. */
import { describe, expect, it } from 'vitest';
import { startRanks } from '../support/ranks.ts';

const counts = [16, 2 ** 20];

describe.each([
  { where: 'one host', env: {} as Record<string, string> },
  { where: 'two hosts', env: { SHOAL_FABRICS: 'tcp' } as Record<string, string> },
  { where: 'one host, the comm thread inline', env: { SHOAL_COMM_THREAD: 'inline' } as Record<string, string> },
])('$where', ({ env }) => {
  it('memory is given out again when nothing in the world reaches it', async () => {
    await using world = await startRanks({ fixture: 'tensor-lifetime', n: 2, env });
    for (const { code, lines, stderr } of await world.outcomes()) {
      expect(stderr).toBe('');
      const expected = counts.flatMap((count) => [
        { count, asTensor: true, asArray: true },
        { count, left: { readable: true, intact: true, usable: true }, bound: ['usage', 'usage'] },
      ]);
      expect(lines).toEqual(expected);
      expect(code).toBe(0);
    }
  });
});
