/** Push and pull beside gRPC and beside the bound by shared memory, in one interleaved run: each round starts every contestant
 *  anew, one after the other, and the medians over rounds are compared.
 *
 *    tsx bench/kvstore/run.ts [--rounds 3] [--workers 2] [--servers 2] [--only copy-bound,dist_sync,collective,grpc]
 *                             [--mib 100] [--key-mib 4] [--keys 10000] [--key-bytes 256] [--iterations 12] [--out bench/results/kvstore.json]
 *
 *    large   --mib in keys of --key-mib, milliseconds per pushPull of all       small   --keys of --key-bytes, keys per second
 *
 *  A round's figure is the median over iterations of the slowest worker. gRPC: @grpc/grpc-js over loopback TCP, raw bytes, one
 *  call per key, all at once, the sum by the same kernels; being slow and steady it does a quarter of the iterations. The bound:
 *  see copy-bound.ts. */
import { execFileSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import os from 'node:os';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { programArguments } from '../arguments.ts';
import { freePort } from '../../src/base/testing/free-port.ts';
import { statisticsOf } from '../../src/tools/timing/statistics.ts';
import { runTogether, type Program } from '../peers/processes.ts';
import type { Row, Times } from './workload.ts';

/** Load of the machine; above the number of CPUs it was busy with other things: the figures are then a lower bound. */
const loadBefore = os.loadavg()[0];
const text = (fallback: string) => ({ type: 'string', default: fallback }) as const;
const { values } = programArguments(import.meta.url, {
  options: {
    rounds: text('3'),
    workers: text('2'),
    servers: text('2'),
    only: text('copy-bound,dist_sync,collective,grpc'),
    mib: text('100'),
    'key-mib': text('4'),
    keys: text('10000'),
    'key-bytes': text('256'),
    iterations: text('12'),
    out: { type: 'string' },
  },
});
const [rounds, workers, servers, iterations] = [values.rounds, values.workers, values.servers, values.iterations].map(Number);
const MiB = 2 ** 20;
const keyBytes = Number(values['key-mib']) * MiB;
const rows: readonly Row[] = [
  { name: 'large', keys: Math.max(1, Math.round((Number(values.mib) * MiB) / keyBytes)), bytes: keyBytes, iterations },
  { name: 'small', keys: Number(values.keys), bytes: Number(values['key-bytes']), iterations },
];
const timeoutMs = 120_000;
const here = dirname(fileURLToPath(import.meta.url));
const cli = fileURLToPath(new URL('../../dist/tools/cli/main.js', import.meta.url));
const script = (name: string): string => join(here, name);
const typescript = (name: string, ...args: readonly (string | number)[]): string[] => [
  process.execPath,
  '--import',
  'tsx',
  script(name),
  ...args.map(String),
];
const shoalRun = (...args: readonly (string | number)[]): string[] => [process.execPath, cli, 'run', '--quiet', ...args.map(String)];

const contestants: Record<string, () => Promise<Program[]> | Program[]> = {
  'copy-bound': () => [{ command: shoalRun('-n', workers, script('copy-bound.ts')), environment: {} }],
  dist_sync: () => [
    { command: shoalRun('--workers', workers, '--servers', servers, script('shoal-worker.ts')), environment: { BENCH_STORE: 'dist_sync' } },
  ],
  collective: () => [{ command: shoalRun('-n', workers, script('shoal-worker.ts')), environment: { BENCH_STORE: 'collective' } }],
  grpc: async () => {
    const ports = await Promise.all(Array.from({ length: servers }, freePort));
    return [
      ...Array.from({ length: workers }, (_, rank) => ({
        command: typescript('grpc-worker.ts', rank, workers, ...ports),
        environment: {},
      })),
      ...ports.map((port) => ({ command: typescript('grpc-server.ts', port, workers), environment: {} })),
    ];
  },
};

const names = values.only.split(',');
const unknown = names.find((name) => !Object.hasOwn(contestants, name));
if (unknown !== undefined) throw new Error(`there is no contestant '${unknown}'; there are ${Object.keys(contestants).join(', ')}`);
const samples = new Map<string, number[]>();
for (let round = 0; round < rounds; round++) {
  for (const name of names) {
    const times = await runOnce(await contestants[name](), name === 'grpc' ? 4 : 1);
    for (const { name: row } of rows) {
      const slowest = times[0][row].map((_, i) => Math.max(...times.map((each) => each[row][i])));
      const key = `${name}|${row}`;
      samples.set(key, [...(samples.get(key) ?? []), statisticsOf(slowest).median]);
    }
    process.stderr.write(`round ${round + 1} of ${rounds}: ${name}\n`);
  }
}

const round3 = (value: number): number => Number(value.toPrecision(3));
const medianUs = (name: string, row: string): number | undefined => {
  const all = samples.get(`${name}|${row}`);
  return all === undefined ? undefined : statisticsOf(all).median;
};
const results = rows.map(({ name: row, keys, bytes }) => {
  const perContestant = names.map((name) => {
    const us = medianUs(name, row)!;
    const { min, max } = statisticsOf(samples.get(`${name}|${row}`)!);
    return {
      name,
      milliseconds: round3(us / 1000),
      keysPerSecond: round3(keys / (us / 1e6)),
      minMs: round3(min / 1000),
      maxMs: round3(max / 1000),
    };
  });
  const ratio = (slower: string, faster: string): number | undefined => {
    const [a, b] = [medianUs(slower, row), medianUs(faster, row)];
    return a === undefined || b === undefined ? undefined : round3(a / b);
  };
  const overGrpc = { 'dist_sync over gRPC': ratio('grpc', 'dist_sync'), 'collective over gRPC': ratio('grpc', 'collective') };
  const ofBound = {
    'dist_sync, share of the copy bound': ratio('copy-bound', 'dist_sync'),
    'collective, share of the copy bound': ratio('copy-bound', 'collective'),
  };
  // Small keys cost calls, not copies.
  const ratios = row === 'large' ? { ...ofBound, ...overGrpc } : overGrpc;
  return { row, keys, bytesPerKey: bytes, contestants: perContestant, ratios };
});
const machine = { cpu: os.cpus()[0].model, cpus: os.availableParallelism(), node: process.version, kernel: os.release(), loadBefore };
const made = `tsx bench/kvstore/run.ts --rounds ${rounds} --workers ${workers} --servers ${servers} --iterations ${iterations}`;
const commit = execFileSync('git', ['rev-parse', '--short', 'HEAD'], { cwd: here, encoding: 'utf8' }).trim();
const report = { made, commit, machine, rounds, workers, servers, iterations, results };
console.log(JSON.stringify(report, undefined, 2));
if (values.out !== undefined) {
  mkdirSync(dirname(values.out), { recursive: true });
  writeFileSync(values.out, `${JSON.stringify(report, undefined, 2)}\n`);
}

/** Runs a contestant once, with a part of the iterations. @returns the times of every worker. */
async function runOnce(programs: readonly Program[], fewer: number): Promise<Times[]> {
  const folder = mkdtempSync(join(os.tmpdir(), 'shoal-bench-kvstore-'));
  try {
    const own = rows.map((row) => ({ ...row, iterations: Math.ceil(row.iterations / fewer) }));
    const warmUps = String(Math.ceil(iterations / 3 / fewer));
    const environment = { BENCH_ROWS: JSON.stringify(own), BENCH_WARM_UPS: warmUps, BENCH_RESULTS: folder };
    await runTogether(
      programs.map((program) => ({ ...program, environment: { ...environment, ...program.environment } })),
      { timeoutMs },
    );
    return Array.from({ length: workers }, (_, rank) => JSON.parse(readFileSync(join(folder, `worker-${rank}.json`), 'utf8')) as Times);
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}
