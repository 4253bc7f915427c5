/** Compares this code with earlier commits of it, in turns: all-reduce on one host and between hosts, the parameter server,
 *  rendezvous, and the step of a graph.
 *
 *    npx tsx bench/earlier/run.ts --commits HEAD,86afc300,3121df6
 *    npx tsx bench/earlier/run.ts --commits 86afc300 --only rendezvous,graph --rounds 9
 *
 *  Each commit is built once, in node_modules/.cache. A commit that does not have a system yet is left out of its rows. HEAD is the
 *  control: this commit built a second time, so that its ratio is the scatter. Hosts are made of network namespaces, which needs root.
 *  `--only`: 2 ranks, 4 ranks, 4 hosts small, 4 hosts, 8 hosts small, 8 hosts, parameter server, rendezvous, graph.
 *  `--sizes 26214400:6:300:1`: all-reduces of other sizes (bytes, calls in a turn, calls before the first one; 1: also taken apart,
 *  see all-reduce.mjs). In each round all processes are started anew, and builds take turns of some milliseconds (turns.ts). */
import { spawnSync } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { copyFileSync, cpSync, existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { availableParallelism, loadavg, tmpdir } from 'node:os';
import { join } from 'node:path';
import { median } from '../../src/base/numbers.ts';
import { programArguments, programOf } from '../arguments.ts';
import { networkPlace } from '../network/network-place.ts';
import { createNetwork } from '../network/network.ts';
import { localPlace, type Place } from '../peers/place.ts';
import { runTogether } from '../peers/processes.ts';
import { buildOf, folderOf, repository } from './build.ts';
import type { EarlierReport, EarlierRow } from './report.ts';
import { inTurns, type TurnTaker } from './turns.ts';

const { values } = programArguments(import.meta.url, {
  options: {
    commits: { type: 'string', default: 'HEAD,86afc300,3121df6' },
    rounds: { type: 'string', default: '5' },
    sizes: { type: 'string' },
    only: { type: 'string' },
    out: { type: 'string', default: join(repository, 'bench/results') },
    name: { type: 'string', default: 'earlier' },
  },
});
const rounds = Number(values.rounds);
const now = 'now';
const timeoutMs = 1_200_000;
const scripts = ['turns.mjs', 'all-reduce.mjs', 'store.mjs', 'rendezvous.mjs', 'graph.mjs'];

/** Rounds of a program are `share` times `--rounds`: more where the luck of processes, such as their CPUs, decides. */
interface Turns {
  readonly share: number;
  readonly turns: number;
}

/** All-reduces. Sizes: bytes, calls in a turn, calls before the first turn, while V8 compiles; 1: also taken apart. */
const reductions: Readonly<Record<string, Turns & { readonly ranks: number; readonly hosts: number; readonly sizes: string }>> = {
  '2 ranks': {
    ...{ ranks: 2, hosts: 1, share: 2, turns: 15 },
    sizes: '8:5000:60000,1024:4000:20000,65536:1500:8000,262144:600:3000,1048576:200:1000,26214400:6:300:1',
  },
  '4 ranks': {
    ...{ ranks: 4, hosts: 1, share: 4, turns: 5 },
    sizes: '8:800:10000,1024:800:4000,65536:300:1500,262144:150:500,1048576:60:200,26214400:4:60:1',
  },
  '4 hosts small': { ...{ ranks: 4, hosts: 4, share: 3, turns: 6 }, sizes: '8:100:6000,1024:100:3000' },
  '4 hosts': { ...{ ranks: 4, hosts: 4, share: 1, turns: 10 }, sizes: '65536:16:200,262144:8:60,1048576:4:20,26214400:1:3' },
  '8 hosts small': { ...{ ranks: 8, hosts: 8, share: 3, turns: 6 }, sizes: '8:40:3000,65536:8:100' },
  '8 hosts': { ...{ ranks: 8, hosts: 8, share: 1, turns: 10 }, sizes: '262144:5:40,1048576:3:20' },
};

/** Programs that run in the folder of a build, so that they import its package by name. */
const systems: Readonly<
  Record<string, Turns & { readonly script: string; readonly launch?: readonly string[]; readonly processes: number }>
> = {
  'parameter server': {
    ...{ script: 'store.mjs', launch: ['run', '-q', '--workers', '2', '--servers', '1'], processes: 2 },
    ...{ share: 2, turns: 10 },
  },
  rendezvous: { script: 'rendezvous.mjs', processes: 2, share: 2, turns: 15 },
  graph: { script: 'graph.mjs', launch: ['run', '-q', '--ps', '1', '--workers', '1'], processes: 1, share: 2, turns: 10 },
};

const startedAt = new Date().toISOString();
const loadBefore = loadavg()[0];
const git = (...args: string[]): string => spawnSync('git', args, { cwd: repository, encoding: 'utf8' }).stdout.trim();
const commit = git('describe', '--always', '--dirty');
const head = git('rev-parse', '--short=8', 'HEAD');
/** The last commit that changed the code that is measured. */
const code =
  git('log', '-1', '--format=%h', '--abbrev=8', '--', 'src', 'native', 'package.json') + (commit.endsWith('-dirty') ? '-dirty' : '');
const earlier = values.commits.split(',').map((each) => (each === 'HEAD' ? head : each));
const builds = [now, ...earlier];
const path = join(values.out, `${values.name}.json`);
const wanted = values.only?.split(',');
const groups = [...Object.keys(reductions), ...Object.keys(systems)];
const unknown = wanted?.find((group) => !groups.includes(group));
if (unknown !== undefined) {
  console.error(`--only: there is no '${unknown}'; use ${groups.join(', ')}`);
  process.exit(2);
}
const scratch = mkdtempSync(join(tmpdir(), 'shoal-earlier-'));
mkdirSync(values.out, { recursive: true });
copyPresent();
for (const build of builds) prepare(build);
const rows: EarlierRow[] = [];
for (const group of Object.keys(reductions)) if (wanted?.includes(group) !== false) add(await reduced(group));
for (const group of Object.keys(systems))
  if (wanted?.includes(group) !== false) add(await measured(group, systems[group], () => systemTakers(group)));
rmSync(scratch, { recursive: true });

/** Copies the present build to where the others lie, so that all have the same place, and compiled code of the same age. */
function copyPresent(): void {
  rmSync(folderOf(now), { recursive: true, force: true });
  for (const part of ['package.json', 'build', 'dist']) {
    cpSync(join(repository, part), join(folderOf(now), part), { recursive: true, filter: (path) => !path.endsWith('.cache') });
  }
}

/** Copies the programs to where they import the package of a build. */
function prepare(build: string): void {
  const folder = build === now ? folderOf(now) : buildOf(build);
  for (const script of scripts) copyFileSync(join(repository, 'bench/earlier', script), join(folder, 'build', script));
}

/** Writes the result after each part, because all of them take most of an hour. Rows of the same code that were not measured again
 *  stay. */
function add(measured: readonly EarlierRow[]): void {
  rows.push(...measured);
  const before = existsSync(path) ? (JSON.parse(readFileSync(path, 'utf8')) as EarlierReport) : undefined;
  const others = before?.code === code ? before.rows.filter(({ group }) => !rows.some((row) => row.group === group)) : [];
  const all = [...others, ...rows];
  const report: EarlierReport = {
    schema: 'shoal-earlier',
    startedAt,
    commit,
    code,
    cpus: availableParallelism(),
    loadBefore,
    rounds,
    rows: all,
  };
  writeFileSync(path, `${JSON.stringify(report, null, 1)}\n`);
}
for (const { group, case: name, builds } of rows) {
  const cells = Object.entries(builds).map(([build, { medianUs, bestUs, ratio }]) => {
    const beside = build === now ? '' : ` (÷ now ${ratio?.toFixed(2)}, best ${(bestUs / builds[now].bestUs).toFixed(2)})`;
    return `${build} ${medianUs.toPrecision(3)} µs${beside}`;
  });
  console.log(`${group}, ${name}: ${cells.join('   ')}`);
}

async function reduced(group: string): Promise<EarlierRow[]> {
  const { ranks, hosts, sizes, ...turns } = reductions[group];
  const secret = randomBytes(32).toString('hex');
  using network = hosts > 1 ? await createNetwork({ hosts, rateMbit: 1000, delayUs: 0, jitterUs: 0, lossPercent: 0 }) : undefined;
  const place: Place = network
    ? networkPlace({ network, ranksPerHost: ranks / hosts, secret, timeoutMs })
    : localPlace({ ranks, secret, timeoutMs });
  // All builds live in the same network, so each has a port of its own. Commits before encryption have none.
  const variables = { BENCH_SIZES: values.sizes ?? sizes, SHOAL_ENCRYPTION: 'off' };
  const takers = (): TurnTaker[] =>
    builds.map((build, index) => ({
      build,
      processes: ranks,
      start: (environment) =>
        place.run({
          command: [process.execPath, join(folderOf(build), 'build/all-reduce.mjs')],
          environment: { ...variables, ...(network ? { MASTER_PORT: String(29400 + 100 * index) } : {}), ...environment },
        }),
    }));
  return await measured(`all-reduce, ${group}`, turns, takers);
}

function systemTakers(group: string): TurnTaker[] {
  const { script, launch = [], processes } = systems[group];
  return builds.map((build) => {
    const folder = folderOf(build);
    const program = launch.length > 0 ? [programOf(folder), ...launch] : [];
    const command = [process.execPath, ...program, join(folder, 'build', script)];
    return { build, processes, start: (environment) => runTogether([{ command, environment }], { timeoutMs }) };
  });
}

/** All rounds of a program. */
async function measured(group: string, { share, turns }: Turns, takers: () => readonly TurnTaker[]): Promise<EarlierRow[]> {
  const times = new Map<string, Map<string, { us: number; ratio: number }[]>>();
  for (let round = 0; round < share * rounds; round++) {
    console.error(`${group}: round ${round + 1} of ${share * rounds}`);
    const all = takers();
    // Each build is the first one to start in its share of the rounds: that may matter.
    const first = round % all.length;
    for (const [name, byBuild] of await inTurns([...all.slice(first), ...all.slice(0, first)], { turns, scratch })) {
      const ours = byBuild.get(now)!;
      if (!times.has(name)) times.set(name, new Map());
      for (const [build, us] of byBuild) {
        const ratio = median(us.map((each, turn) => each / ours[turn]));
        const before = times.get(name)!.get(build) ?? [];
        times.get(name)!.set(build, [...before, { us: median(us), ratio }]);
      }
    }
  }
  return [...times].map(([name, byBuild]) => ({
    group,
    case: name,
    builds: Object.fromEntries(
      [...byBuild].map(([build, each]) => {
        const [roundsUs, ratios] = [each.map(({ us }) => us), each.map(({ ratio }) => ratio)];
        return [build, { medianUs: median(roundsUs), bestUs: Math.min(...roundsUs), ratio: median(ratios), roundsUs, ratios }];
      }),
    ),
  }));
}
