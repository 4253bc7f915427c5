/** Compares this code with earlier commits of it, interleaved: all-reduce on one host and between four, the parameter server,
 *  rendezvous, and the step of a graph.
 *
 *    npx tsx bench/earlier/run.ts --commits HEAD,86afc300,3121df6
 *    npx tsx bench/earlier/run.ts --commits 86afc300 --only systems --rounds 9
 *
 *  Each commit is built once, in node_modules/.cache. What a commit does not have yet is left out. HEAD is the control: this commit
 *  built a second time, so that its ratio is the scatter. Hosts are made of network namespaces, which needs root. `--only`: 2 ranks,
 *  4 ranks, 4 hosts, systems. 4 ranks share the CPUs and scatter most: they take twice the rounds. */
import { spawnSync } from 'node:child_process';
import { copyFileSync, existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { availableParallelism, loadavg, tmpdir } from 'node:os';
import { join } from 'node:path';
import { median } from '../../src/base/numbers.ts';
import { programArguments, programOf } from '../arguments.ts';
import type { Comparison } from '../peers/comparison.ts';
import { buildOf, repository } from './build.ts';
import type { EarlierReport, EarlierRow } from './report.ts';

const { values } = programArguments(import.meta.url, {
  options: {
    commits: { type: 'string', default: 'HEAD,86afc300,3121df6' },
    rounds: { type: 'string', default: '5' },
    only: { type: 'string' },
    out: { type: 'string', default: join(repository, 'bench/results') },
    name: { type: 'string', default: 'earlier' },
  },
});
const rounds = Number(values.rounds);
const now = 'now';

/** Comparisons of all-reduce by bench/peers, which has the places and checks the sums. The first thousands of calls, while V8 compiles, must
 *  not be the median. */
const reductions: Readonly<Record<string, readonly string[]>> = {
  '2 ranks': ['--ranks', '2', '--sizes', '8:20000,1KiB:10000,64KiB:8000,1MiB:3000,25MiB:24'],
  '4 ranks': ['--ranks', '4', '--warmup', '5', '--sizes', '8:20000,1KiB:8000,64KiB:3000,1MiB:800,25MiB:16'],
  '4 hosts': [...['--hosts', '4', '--rate-mbit', '1000', '--warmup', '20'], '--sizes', '8:20000,1KiB:8000,64KiB:400,1MiB:40,25MiB:3'],
};
const ways = { sync: 'shared tensors', private: 'plain arrays' } as const;

/** Programs that run in the folder of a build, so that they import its package by name. */
const systems: readonly { readonly group: string; readonly script: string; readonly launch: readonly string[] | undefined }[] = [
  { group: 'parameter server', script: 'store.mjs', launch: ['run', '-q', '--workers', '2', '--servers', '1'] },
  { group: 'rendezvous', script: 'rendezvous.mjs', launch: undefined },
  { group: 'graph', script: 'graph.mjs', launch: ['run', '-q', '--ps', '1', '--workers', '1'] },
];

const startedAt = new Date().toISOString();
const loadBefore = loadavg()[0];
const commit = spawnSync('git', ['describe', '--always', '--dirty'], { cwd: repository, encoding: 'utf8' }).stdout.trim();
const head = spawnSync('git', ['rev-parse', '--short=8', 'HEAD'], { cwd: repository, encoding: 'utf8' }).stdout.trim();
const earlier = values.commits.split(',').map((each) => (each === 'HEAD' ? head : each));
const path = join(values.out, `${values.name}.json`);
const wanted = values.only?.split(',');
const scratch = mkdtempSync(join(tmpdir(), 'shoal-earlier-'));
mkdirSync(values.out, { recursive: true });
const rows: EarlierRow[] = [];
for (const [group, args] of Object.entries(reductions)) if (wanted?.includes(group) !== false) add(reduced(group, args));
if (wanted?.includes('systems') !== false) add(measuredSystems());
rmSync(scratch, { recursive: true });

/** Writes the result after each part, because all of them take a quarter of an hour. Rows of the same commit that were not measured again
 *  stay. */
function add(measured: readonly EarlierRow[]): void {
  rows.push(...measured);
  const before = existsSync(path) ? (JSON.parse(readFileSync(path, 'utf8')) as EarlierReport) : undefined;
  const others = before?.commit === commit ? before.rows.filter(({ group }) => !rows.some((row) => row.group === group)) : [];
  const all = [...others, ...rows];
  const report: EarlierReport = { schema: 'shoal-earlier', startedAt, commit, cpus: availableParallelism(), loadBefore, rounds, rows: all };
  writeFileSync(path, `${JSON.stringify(report, null, 1)}\n`);
}
for (const { group, case: name, builds } of rows) {
  const cells = Object.entries(builds).map(([build, { medianUs, bestUs }]) => {
    const ratio = (theirs: number, ours: number): string => (theirs / ours).toFixed(2);
    const beside = build === now ? '' : ` (÷ now ${ratio(medianUs, builds[now].medianUs)}, best ${ratio(bestUs, builds[now].bestUs)})`;
    return `${build} ${medianUs.toPrecision(3)} µs${beside}`;
  });
  console.log(`${group}, ${name}: ${cells.join('   ')}`);
}

function reduced(group: string, args: readonly string[]): EarlierRow[] {
  const contestants = ['shoal', ...earlier].flatMap((build) => Object.keys(ways).map((way) => `${build} ${way}`));
  const options = [
    '--rounds',
    String(group === '4 ranks' ? 2 * rounds : rounds),
    '--earlier',
    earlier.join(','),
    '--only',
    contestants.join(','),
    '--out',
    scratch,
    '--name',
    'one',
  ];
  const peers = join(repository, 'bench/peers/run.ts');
  const { status } = spawnSync(process.execPath, ['--import', 'tsx', peers, ...args, ...options], {
    cwd: repository,
    stdio: ['ignore', 'ignore', 'inherit'],
  });
  if (status !== 0) throw new Error(`the comparison of ${group} failed`);
  const { cases } = JSON.parse(readFileSync(join(scratch, 'one.json'), 'utf8')) as Comparison;
  return cases[0].sizes.flatMap(({ bytes, standings }) =>
    Object.entries(ways).map(([way, title]) => ({
      group: `all-reduce, ${group}`,
      case: `${bytes} bytes, ${title}`,
      builds: Object.fromEntries(
        ['shoal', ...earlier].flatMap((build) => {
          const found = standings.find(({ contestant }) => contestant === `${build} ${way}`);
          if (!found) return [];
          const { medianUs, bestUs, roundsUs } = found;
          return [[build === 'shoal' ? now : build, { medianUs, bestUs, roundsUs }]];
        }),
      ),
    })),
  );
}

function measuredSystems(): EarlierRow[] {
  const builds = new Map([[now, repository], ...earlier.map((each) => [each, buildOf(each)] as const)]);
  return systems.flatMap(({ group, script, launch }) => {
    const times = new Map<string, Map<string, number[]>>();
    for (let round = 0; round < rounds; round++) {
      const order = [...builds.keys()];
      for (const build of [...order.slice(round % order.length), ...order.slice(0, round % order.length)]) {
        console.error(`${group}: round ${round + 1} of ${rounds}, ${build}`);
        for (const [name, us] of Object.entries(runOnce(builds.get(build)!, script, launch) ?? {})) {
          const byBuild = times.get(name) ?? new Map<string, number[]>();
          times.set(name, byBuild);
          byBuild.set(build, [...(byBuild.get(build) ?? []), us]);
        }
      }
    }
    return [...times].map(([name, byBuild]) => ({
      group,
      case: name,
      builds: Object.fromEntries(
        [...builds.keys()].flatMap((build) => {
          const roundsUs = byBuild.get(build);
          return roundsUs === undefined ? [] : [[build, { medianUs: median(roundsUs), bestUs: Math.min(...roundsUs), roundsUs }]];
        }),
      ),
    }));
  });
}

/** The median time of each case; undefined for a build that does not have this system. */
function runOnce(folder: string, script: string, launch: readonly string[] | undefined): Record<string, number> | undefined {
  const place = join(folder, 'build', script);
  copyFileSync(join(repository, 'bench/earlier', script), place);
  const command = launch === undefined ? [place] : [programOf(folder), ...launch, place];
  const { stdout, stderr, status } = spawnSync(process.execPath, command, { cwd: folder, encoding: 'utf8', timeout: 300_000 });
  if (/ERR_PACKAGE_PATH_NOT_EXPORTED|unknown option/.test(stderr)) return undefined;
  const line = stdout.split('\n').find((each) => each.includes('[{"case"'));
  if (status !== 0 || line === undefined) throw new Error(`${script} in ${folder} ended with ${status}: ${stderr}`);
  const cases = JSON.parse(line.slice(line.indexOf('[{'))) as { case: string; us: number[] }[];
  return Object.fromEntries(cases.map(({ case: name, us }) => [name, median(us)]));
}
