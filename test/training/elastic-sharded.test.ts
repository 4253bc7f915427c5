/** A sharded optimiser in training under the launcher: ranks are killed and started again, and parameters keep the bits of an unsharded one. */
import { expect, it } from 'vitest';
import { shoal } from '../fixtures/launch-harness.ts';
import { fixtureScript } from '../support/fixtures.ts';

const program = fixtureScript('elastic-sharded');

interface Said {
  readonly ranks: readonly number[];
  readonly step: number;
  readonly whole: string;
  readonly sharded: string;
  readonly bytes: number;
}

it.each([
  ['in shared memory', {}],
  ['over TCP', { SHOAL_FABRICS: 'tcp' }],
])('a rank is killed, and comes back as a new one: %s', async (_, env) => {
  const kills = ['1:20', 'until:3'];
  await using job = shoal(['run', '-n', '3', '--min', '2', '--max-restarts', '3', program, '30', '1', ...kills], { env });
  const { code, stdout, stderr } = await job.ended;
  expect(code, stderr).toBe(0);
  const said = [...stdout.matchAll(/^\[rank \d+\] (\{.*\})$/gm)].map(([, text]) => JSON.parse(text) as Said);
  expect(said.map(({ ranks }) => ranks)).toEqual([0, 2, 3].map(() => [0, 2, 3]));
  for (const { whole, sharded, step } of said) expect({ sharded, step }).toEqual({ sharded: whole, step: said[0].step });
  // Two moments of 57,903 parameters, once and as a copy.
  expect(said.reduce((sum, { bytes }) => sum + bytes, 0)).toBe(2 * (2 * 57_903 * 4 + 5 * 8));
});

it('without redundancy the loss of a rank ends the job, and says why', async () => {
  await using job = shoal(['run', '-n', '3', '--min', '2', program, '100', '0', '1:20']);
  const { code, stderr } = await job.ended;
  expect(code).not.toBe(0);
  expect(stderr).toMatch(
    /the state of a sharded optimiser is lost with its rank: 'p\d\.exp_avg' and \d+ more; start again from the last checkpoint/,
  );
});
