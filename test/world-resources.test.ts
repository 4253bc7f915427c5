/** What a world takes from its process and gives back: time, descriptors, memory. */
import { expect, it } from 'vitest';
import { startRanks } from './support/ranks.ts';

it('a process ends with its world, on whichever thread communication runs', { timeout: 120_000 }, async () => {
  // A limit of joining that went on running would keep the process for 20 minutes.
  const env = { SHOAL_CONNECT_TIMEOUT_MS: '600000' };
  for (const thread of ['inline', 'worker']) {
    await using world = await startRanks({ fixture: 'one-call', n: 2, env: { ...env, SHOAL_COMM_THREAD: thread } });
    for (const { code, lines, stderr } of await world.outcomes()) {
      expect(stderr).toBe('');
      expect(lines).toEqual([{ sum: 3 }]);
      expect(code).toBe(0);
    }
  }
});
