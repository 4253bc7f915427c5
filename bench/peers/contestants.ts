/** The programs that are compared. Each runs a collective over a list of sizes and gives a row per size; all write their
 *  inputs before each call, outside the time, and report the median over iterations on the slowest rank. */
import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { programOf } from '../arguments.ts';
import { buildOf, folderOf, repository } from '../earlier/build.ts';
import type { CollectiveName } from '../../src/tools/timing/collective.ts';
import type { BenchReport } from '../../src/tools/timing/report.ts';
import type { Place } from './place.ts';

export interface Size {
  readonly bytes: number;
  readonly iterations: number;
}

export interface WarmSize extends Size {
  /** Number of iterations before those that are timed. */
  readonly warmup: number;
}

export interface Heat {
  readonly collective: CollectiveName;
  readonly sizes: readonly WarmSize[];
  /** Operations per sample, back to back on as many tensors. */
  readonly buckets: number;
  /** Number of buckets that are checked. */
  readonly checkedBuckets: number;
  readonly place: Place;
}

export interface HeatRow {
  readonly bytes: number;
  readonly medianUs: number;
  readonly minUs: number;
  readonly p99Us: number;
  /** Number of wrong elements, over all ranks. */
  readonly wrong: number;
}

export interface Contestant {
  readonly name: string;
  /** Description for the legend. */
  readonly description: string;
  /** Factor of iterations: fewer for contestants that take much longer. */
  readonly iterationShare: number;
  /** Prepares a run; undefined: it can run, otherwise the reason. Called once; may build. */
  prepare(scratch: string): string | undefined;
  /** Runs a heat; a string is the reason why it has no rows for it. */
  run(heat: Heat): Promise<HeatRow[] | string>;
}

/** The contestant by whose times all others are divided. */
export const referenceName = 'shoal sync';

const python = '/usr/bin/python3';

export interface ContestantOptions {
  /** Shoal's algorithms, each a contestant of its own beside the automatic choice. */
  readonly algorithms?: readonly string[];
  /** Commits of Shoal that are built and measured beside this one. */
  readonly earlierCommits?: readonly string[];
}

export function contestants({ algorithms = [], earlierCommits = [] }: ContestantOptions = {}): Contestant[] {
  return [
    ...shoalWays.map((way) => shoal(`shoal ${way.name}`, way)),
    ...algorithms.map((algorithm) =>
      shoal(`shoal ${algorithm}`, { description: `as shoal sync, always by ${algorithm}`, flags: ['--sync'], algorithm }),
    ),
    ...earlierCommits.flatMap(earlierBuild),
    openMpi(),
    gloo(),
  ];
}

interface ShoalWay {
  readonly description: string;
  readonly flags: readonly string[];
  readonly algorithm?: string;
}

const shoalWays: readonly (ShoalWay & { readonly name: string })[] = [
  { name: 'sync', description: 'tensors in shared memory, waitSync()', flags: ['--sync'] },
  { name: 'async', description: 'tensors in shared memory, await', flags: [] },
  { name: 'private', description: 'plain typed arrays, waitSync()', flags: ['--sync', '--private'] },
];

/** The same ways in a build of another commit: `3121df6 sync` beside `shoal sync`. */
function earlierBuild(commit: string): Contestant[] {
  return shoalWays.map((way) => {
    const description = `${way.description}; commit ${commit}`;
    const contestant = shoal(`${commit} ${way.name}`, { ...way, description }, folderOf(commit));
    return { ...contestant, prepare: (scratch) => (buildOf(commit), contestant.prepare(scratch)) };
  });
}

function shoal(name: string, { description, flags, algorithm }: ShoalWay, folder = repository): Contestant {
  return {
    name,
    description,
    iterationShare: 1,
    prepare: () =>
      spawnSync(process.execPath, [programOf(folder), '--version']).status === 0 ? undefined : 'dist/ is not built; run npm run build',
    run: async ({ collective, sizes, buckets, checkedBuckets, place }) => {
      const args = [
        'bench',
        collective,
        '--sizes',
        sizesText(sizes),
        '--buckets',
        String(buckets),
        '--check-buckets',
        String(checkedBuckets),
        '--in-place',
        ...flags,
        '--json',
        '-',
      ];
      // The peers encrypt nothing.
      const environment: Record<string, string> = {
        SHOAL_ENCRYPTION: 'off',
        ...(algorithm === undefined ? {} : { SHOAL_ALGORITHMS: `${collective}:${algorithm}` }),
      };
      const report = JSON.parse(await place.run({ command: [process.execPath, programOf(folder), ...args], environment })) as BenchReport;
      return report.rows.map((row, index) => {
        const half = row.inPlace ?? row.outOfPlace;
        if (half === null) throw new Error(`${name}: a row without times`);
        const { medianUs, minUs, p99Us, wrong } = half;
        return { bytes: sizes[index].bytes, medianUs, minUs, p99Us, wrong: wrong ?? 0 };
      });
    },
  };
}

function openMpi(): Contestant {
  let program = '';
  return {
    name: 'open mpi',
    description: 'C program, private memory, default settings',
    iterationShare: 1,
    prepare: (scratch) => {
      program = join(scratch, 'collectives');
      const source = join(repository, 'bench/peers/openmpi/collectives.c');
      if (spawnSync('mpirun', ['--version']).status !== 0) return 'there is no mpirun; apt-get install openmpi-bin libopenmpi-dev';
      const build = spawnSync('mpicc', ['-O3', '-march=native', '-o', program, source], { encoding: 'utf8' });
      if (build.error !== undefined) return 'there is no mpicc; apt-get install libopenmpi-dev';
      return build.status === 0 ? undefined : `mpicc failed: ${build.stderr.trim()}`;
    },
    run: async ({ place, ...heat }) => rowsOf(await place.runMpi([program, ...positionals(heat)])),
  };
}

function gloo(): Contestant {
  return {
    name: 'gloo',
    description: 'torch.distributed, private memory, one thread per rank',
    iterationShare: 0.1,
    prepare: () =>
      spawnSync(python, ['-c', 'import torch.distributed as d; assert d.is_gloo_available()']).status === 0
        ? undefined
        : `${python} has no torch with Gloo; apt-get install python3-torch`,
    // A process of Gloo aborts now and then, "terminate called without an active exception": one such round is made again.
    run: (heat) =>
      runGloo(heat).catch((error: Error) => {
        if (!error.message.includes('SIGABRT')) throw error;
        console.error(`once more, after: ${error.message}`);
        return runGloo(heat);
      }),
  };
}

async function runGloo({ place, ...heat }: Heat): Promise<HeatRow[] | string> {
  const folder = mkdtempSync(join(tmpdir(), 'shoal-gloo-'));
  try {
    const script = join(repository, 'bench/peers/gloo/collectives.py');
    const command = [python, script, join(folder, 'meeting'), ...positionals(heat)];
    return rowsOf(await place.run({ command, environment: { GLOO_SOCKET_IFNAME: place.interfaceName, OMP_NUM_THREADS: '1' } }));
  } finally {
    rmSync(folder, { recursive: true });
  }
}

/** Arguments of the peers' programs. */
function positionals({ collective, sizes, buckets, checkedBuckets }: Omit<Heat, 'place'>): string[] {
  return [collective, sizesText(sizes), String(buckets), String(checkedBuckets)];
}

/** Sizes as all contestants read them: `8:2000:400,1024:500:100`. */
function sizesText(sizes: readonly WarmSize[]): string {
  return sizes.map(({ bytes, iterations, warmup }) => `${bytes}:${iterations}:${warmup}`).join(',');
}

function rowsOf(lines: string): HeatRow[] | string {
  const rows = lines
    .split('\n')
    .filter((line) => line.startsWith('{'))
    .map((line) => JSON.parse(line) as HeatRow | { unsupported: string });
  for (const row of rows) if ('unsupported' in row) return row.unsupported;
  return rows as HeatRow[];
}
