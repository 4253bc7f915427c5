/** Soaks ranks of this machine: `npx tsx test/soaks/resources.ts --hosts aab --all-reduces 20000 --subgroups 2000 --worlds 100`. Fails when a process
 *  ends up with more than it had after the first hundredth. */
import { parseArgs } from 'node:util';
import buildFixtures from '../support/fixtures.ts';
import { kept, soak } from '../support/soak.ts';

const { values } = parseArgs({
  options: {
    hosts: { type: 'string', default: 'aa' },
    'all-reduces': { type: 'string', default: '20000' },
    subgroups: { type: 'string', default: '2000' },
    worlds: { type: 'string', default: '100' },
  },
});
await buildFixtures();
const counts = { allReduces: Number(values['all-reduces']), subgroups: Number(values.subgroups), worlds: Number(values.worlds) };
const results = await soak(counts, values.hosts);
console.table(
  results.map(({ rank, what, count, after, end }) => ({
    rank,
    what,
    count,
    descriptors: `${after.descriptors} → ${end.descriptors}`,
    mappings: `${after.mappings} → ${end.mappings}`,
    MiB: `${after.megabytes} → ${end.megabytes}`,
  })),
);
const more = results.flatMap(kept);
for (const line of more) console.error(line);
process.exitCode = more.length > 0 ? 1 : 0;
