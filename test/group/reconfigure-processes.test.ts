/** Ranks in processes of their own that change their group by `reconfigure`, under the launcher. */
import { expect, it } from 'vitest';
import { shoal } from '../fixtures/launch-harness.ts';
import { fixtureScript } from '../support/fixtures.ts';

const places: readonly (readonly [string, Record<string, string>])[] = [
  ['in shared memory', {}],
  ['over TCP', { SHOAL_FABRICS: 'tcp' }],
];
const cases = [
  'basic',
  'identity',
  'order',
  'late',
  'merge, split',
  'after an abort',
  'shrink',
  'exclude the middle',
  'down, up',
  'one, all',
];

it.each(places)('the cases of ReconfigureTest, %s', async (_, env) => {
  await using run = shoal(['run', '-n', '4', '--min', '1', fixtureScript('reconfigures')], { env });
  const { code, stdout, stderr } = await run.ended;
  expect({ code, stdout, stderr }).toMatchObject({ code: 0 });
  const ended = (name: string): number => stdout.split(`well: ${name}\n`).length - 1;
  expect(cases.map((name) => [name, ended(name)])).toEqual(cases.map((name) => [name, 4]));
  expect(ended('killed')).toBe(3);
});
