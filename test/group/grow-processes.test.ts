/** Worlds that take in processes which join later, under the launcher, while others are killed. */
import { expect, it } from 'vitest';
import { shoalRun } from '../fixtures/launch-harness.ts';
import { fixtureScript } from '../support/fixtures.ts';

it.each([
  { victim: 'nobody', members: 3, newcomers: 2 },
  { victim: 'member', members: 2, newcomers: 2 },
  { victim: 'newcomer', members: 3, newcomers: 1 },
])('a world of three takes in newcomers; killed meanwhile: $victim', async ({ victim, members, newcomers }) => {
  await using job = shoalRun('-q', '-n', '3', '--min', '2', fixtureScript('growing-rank'), victim);
  const { code, stdout, stderr } = await job.ended;
  expect(code, stderr).toBe(0);
  const size = members + newcomers;
  const said = (who: string): number => stdout.split(`${who}, ${size} ranks, sum ${size}`).length - 1;
  expect([said('member'), said('newcomer')], stdout).toEqual([members, newcomers]);
});
