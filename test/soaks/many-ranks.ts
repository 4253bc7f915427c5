/** Jobs of many ranks on this machine, through the launcher, with its default limits: `npx tsx test/soaks/many-ranks.ts 64 128
 *  4x16`. `4x16`: 64 ranks that play 4 hosts. Prints the most resources of a process, and the CPU time of the job, launcher
 *  included. Exit code 1 if something went wrong, or was printed on stderr. */
import { readFileSync } from 'node:fs';
import { type Ended, shoal } from '../fixtures/launch-harness.ts';
import buildFixtures, { fixtureScript } from '../support/fixtures.ts';

const [node, script] = [process.execPath, fixtureScript('many-ranks')];

interface Held {
  readonly hosts: number;
  readonly small: number;
  readonly large: number;
  readonly descriptors: number;
  readonly mappings: number;
}

/** CPU time of processes that were waited for, and of those that these waited for: proc_pid_stat(5), in hundredths of a second. */
function childrenCpuSeconds(): number {
  const [, , , , , , , , , , , , , user, system] = readFileSync('/proc/self/stat', 'utf8')
    .replace(/^.*\) /, '')
    .split(' ')
    .map(Number);
  return (user + system) / 100;
}

async function run(shape: string): Promise<readonly string[]> {
  const [hosts, ranks] = shape.includes('x') ? shape.split('x').map(Number) : [1, Number(shape)];
  const n = hosts * ranks;
  const start = hosts === 1 ? [script] : ['--no-node', 'sh', '-c', `SHOAL_HOST_ID=host-$((RANK / ${ranks})) exec "$0" "$1"`, node, script];
  const before = childrenCpuSeconds();
  const { code, stdout, stderr } = await shoal(['run', '-q', '-n', String(n), ...start]).ended;
  console.log(`${shape}: ${(childrenCpuSeconds() - before).toFixed(0)} s of CPU time`);
  return faultsOf({ code, stdout, stderr }, { hosts, n });
}

function faultsOf(
  { code, stdout, stderr }: Pick<Ended, 'code' | 'stdout' | 'stderr'>,
  { hosts, n }: { hosts: number; n: number },
): string[] {
  const held = [...stdout.matchAll(/^\[rank +\d+\] (\{.*\})$/gm)].map(([, text]) => JSON.parse(text) as Held);
  const most = (what: 'descriptors' | 'mappings'): number => Math.max(...held.map((each) => each[what]));
  console.log(`${n} ranks on ${hosts} hosts: at most ${most('descriptors')} descriptors, ${most('mappings')} mappings in a process`);
  const wrong = held.filter((each) => each.hosts !== hosts || each.small !== n || each.large !== (n * (n - 1)) / 2);
  const said = stderr.replaceAll(/^shoal: (\d+ processes started: .*|rank .* (started .*|exited with code 0))\n/gm, '');
  return [
    ...(code === 0 && held.length === n ? [] : [`exit code ${code}, ${held.length} of ${n} ranks came through`]),
    ...wrong.map((each) => `wrong: ${JSON.stringify(each)}`),
    ...(said === '' ? [] : [said]),
  ];
}

await buildFixtures();
let failed = 0;
for (const shape of process.argv.slice(2)) {
  const faults = await run(shape);
  if (faults.length > 0) failed++;
  for (const fault of faults) console.log(fault);
}
process.exitCode = failed === 0 ? 0 : 1;
