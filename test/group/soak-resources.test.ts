/** A short soak: `npx tsx test/soaks/resources.ts` does it with any number of steps, and compares resident memory as well. */
import { expect, it } from 'vitest';
import { kept, soak } from '../support/soak.ts';

const residentMegabytes = Infinity;

it.each([
  { where: 'one host', hosts: 'aa' },
  { where: 'two hosts', hosts: 'ab' },
])('$where: after the first few, all-reduces, subgroups and worlds take nothing more', async ({ hosts }) => {
  const results = await soak({ allReduces: 200, subgroups: 32, worlds: 4, hosts, residentMegabytes });
  expect(results.map(({ rank, what }) => `${rank} ${what}`).toSorted()).toEqual(
    [0, 1].flatMap((rank) => ['all-reduces', 'subgroups', 'worlds'].map((what) => `${rank} ${what}`)),
  );
  expect(results.flatMap((result) => kept(result, residentMegabytes))).toEqual([]);
});
