/** Compares this code with earlier commits of it, interleaved: all-reduce on one host and between hosts, the parameter server,
 *  rendezvous, and the step of a graph.
 *
 *    npx tsx bench/earlier/run.ts --commits HEAD,86afc300,3121df6
 *    npx tsx bench/earlier/run.ts --commits 86afc300 --only systems --rounds 9
 *
 *  Each commit is built once, in node_modules/.cache. What a commit does not have yet is left out. HEAD is the control: this commit
 *  built a second time, so that its ratio is the scatter. Hosts are made of network namespaces, which needs root. `--only`: 2 ranks,
 *  4 ranks, 4 hosts, 8 hosts, systems. Machines whose CPUs are shared have hours in which each round takes once or twice as long, whichever
 *  build runs: what has short rounds takes more of them than `--rounds`, and ratios are taken within a round before their median is. */
import { spawnSync } from 'node:child_process';
import { copyFileSync, cpSync, existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { availableParallelism, loadavg, tmpdir } from 'node:os';
import { join } from 'node:path';
import { median } from '../../src/base/numbers.ts';
import { programArguments, programOf } from '../arguments.ts';
import type { Comparison } from '../peers/comparison.ts';
import { buildOf, folderOf, repository } from './build.ts';
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
 *  not be the median. `rounds`: by how much they are more. */
const reductions: Readonly<Record<string, { readonly args: readonly string[]; readonly rounds: number }>> = {
  '2 ranks': { args: ['--ranks', '2', '--sizes', '8:20000,1KiB:10000,64KiB:8000,1MiB:3000,25MiB:24'], rounds: 4 },
  '4 ranks': { args: ['--ranks', '4', '--warmup', '5', '--sizes', '8:20000,1KiB:8000,64KiB:3000,1MiB:800,25MiB:16'], rounds: 4 },
  '4 hosts': {
    args: ['--hosts', '4', '--rate-mbit', '1000', '--warmup', '20', '--sizes', '8:10000,1KiB:4000,64KiB:200,256KiB:60,1MiB:20,25MiB:2'],
    rounds: 2,
  },
  '8 hosts': {
    args: ['--hosts', '8', '--rate-mbit', '1000', '--warmup', '20', '--sizes', '8:3000,64KiB:150,256KiB:40,1MiB:20'],
    rounds: 2,
  },
};
const ways = { sync: 'shared tensors', private: 'plain arrays' } as const;

/** Programs that run in the folder of a build, so that they import its package by name. They take twice the rounds. */
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
copyPresent();
const rows: EarlierRow[] = [];
for (const group of Object.keys(reductions)) if (wanted?.includes(group) !== false) add(reduced(group));
if (wanted?.includes('systems') !== false) add(measuredSystems());
rmSync(scratch, { recursive: true });

/** Copies the present build to where the others lie, so that all have the same place, and compiled code of the same age. */
function copyPresent(): void {
  rmSync(folderOf(now), { recursive: true, force: true });
  for (const part of ['package.json', 'build', 'dist']) {
    cpSync(join(repository, part), join(folderOf(now), part), { recursive: true, filter: (path) => !path.endsWith('.cache') });
  }
}

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
  const cells = Object.entries(builds).map(([build, { medianUs, bestUs, ratio }]) => {
    const beside = build === now ? '' : ` (÷ now ${ratio?.toFixed(2)}, best ${(bestUs / builds[now].bestUs).toFixed(2)})`;
    return `${build} ${medianUs.toPrecision(3)} µs${beside}`;
  });
  console.log(`${group}, ${name}: ${cells.join('   ')}`);
}

function reduced(group: string): EarlierRow[] {
  const { args, rounds: share } = reductions[group];
  const contestants = [now, ...earlier].flatMap((build) => Object.keys(ways).map((way) => `${build} ${way}`));
  const options = [
    '--rounds',
    String(share * rounds),
    '--earlier',
    [now, ...earlier].join(','),
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
      builds: compared(
        new Map(
          [now, ...earlier].flatMap((build) => {
            const found = standings.find(({ contestant }) => contestant === `${build} ${way}`);
            return found ? [[build, found.roundsUs]] : [];
          }),
        ),
      ),
    })),
  );
}

/** Compares builds by their times in each round. */
function compared(byBuild: ReadonlyMap<string, readonly number[]>): EarlierRow['builds'] {
  const ours = byBuild.get(now) ?? [];
  return Object.fromEntries(
    [...byBuild].map(([build, roundsUs]) => {
      const ratio = median(roundsUs.map((us, round) => us / ours[round]));
      return [build, { medianUs: median(roundsUs), bestUs: Math.min(...roundsUs), ratio, roundsUs }];
    }),
  );
}

function measuredSystems(): EarlierRow[] {
  const builds = new Map([now, ...earlier].map((each) => [each, buildOf(each)]));
  return systems.flatMap(({ group, script, launch }) => {
    const times = new Map<string, Map<string, number[]>>();
    for (let round = 0; round < 2 * rounds; round++) {
      const order = [...builds.keys()];
      for (const build of [...order.slice(round % order.length), ...order.slice(0, round % order.length)]) {
        console.error(`${group}: round ${round + 1} of ${2 * rounds}, ${build}`);
        for (const [name, us] of Object.entries(runOnce(builds.get(build)!, script, launch) ?? {})) {
          const byBuild = times.get(name) ?? new Map<string, number[]>();
          times.set(name, byBuild);
          byBuild.set(build, [...(byBuild.get(build) ?? []), us]);
        }
      }
    }
    return [...times].map(([name, byBuild]) => ({ group, case: name, builds: compared(byBuild) }));
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
