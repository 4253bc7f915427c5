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
/** Allowance for the garbage of two heaps. */
const residentMegabytes = 24;
const results = await soak({
  allReduces: Number(values['all-reduces']),
  subgroups: Number(values.subgroups),
  worlds: Number(values.worlds),
  hosts: values.hosts,
  residentMegabytes,
});
console.table(
  results.map(({ rank, what, count, early, end }) => ({
    rank,
    what,
    count,
    descriptors: `${early.descriptors} → ${end.descriptors}`,
    threads: `${early.threads} → ${end.threads}`,
    strayMappings: `${early.strayMappings} → ${end.strayMappings}`,
    heapMiB: `${early.heapMegabytes.toFixed(1)} → ${end.heapMegabytes.toFixed(1)}`,
    residentMiB: `${early.megabytes} → ${end.megabytes}`,
  })),
);
const more = results.flatMap((result) => kept(result, residentMegabytes));
for (const line of more) console.error(line);
process.exitCode = more.length > 0 ? 1 : 0;
