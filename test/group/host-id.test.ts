/** Ranks that claim one host by SHOAL_HOST_ID and cannot map each other's memory: one is in a container, or of another user. */
import { expect, it } from 'vitest';
import { foreignPlaces } from '../support/foreign-places.ts';
import { startRanks } from '../support/ranks.ts';

for (const { where, within, missing } of foreignPlaces()) {
  it.skipIf(missing)(`a rank ${where} with the others' SHOAL_HOST_ID is reached over the network`, async () => {
    const env = { SHOAL_HOST_ID: 'one', SHOAL_TIMEOUT_MS: '60000' };
    const withinOf = (rank: number): readonly string[] => (rank === 1 ? within : []);
    for (const SCENARIO of ['large', 'places']) {
      await using world = await startRanks({ fixture: 'bad-input', n: 3, env: { ...env, SCENARIO }, within: withinOf });
      for (const { lines, stderr } of await world.outcomes()) {
        expect(stderr).toBe('');
        if (SCENARIO === 'large') expect(lines).toContainEqual({ sum: 6 });
        else expect(lines[1]).toMatchObject({ links: [['self', 'tcp', expect.anything()], ['tcp', 'self', 'tcp'], [expect.anything(), 'tcp', 'self']] }); // prettier-ignore
      }
    }
  });
}
