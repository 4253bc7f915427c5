/** A short soak: `npx tsx test/soaks/resources.ts` does it with as many steps as one likes. */
import { expect, it } from 'vitest';
import { kept, soak } from './support/soak.ts';

it.each([
  { where: 'one host', hosts: 'aa' },
  { where: 'two hosts', hosts: 'ab' },
])('$where: after the first few, all-reduces, subgroups and worlds take nothing more', { timeout: 180_000 }, async ({ hosts }) => {
  const results = await soak({ allReduces: 60, subgroups: 24, worlds: 4 }, hosts);
  expect(results.map(({ rank, what }) => `${rank} ${what}`).toSorted()).toEqual(
    [0, 1].flatMap((rank) => ['all-reduces', 'subgroups', 'worlds'].map((what) => `${rank} ${what}`)),
  );
  expect(results.flatMap(kept)).toEqual([]);
});
