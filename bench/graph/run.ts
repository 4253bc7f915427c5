/** Requests per step and throughput of the wide & deep example, on real processes of this host, by every way to receive tensors: rounds of
 *  all ways in turn, so that a busy machine is busy for all of them. What counts is the ratio to the first way in the same round.
 *
 *    npx tsx bench/graph/run.ts                              a table
 *    npx tsx bench/graph/run.ts --json out.json              and the numbers
 *    npx tsx bench/graph/run.ts --rounds 5 --steps 40 --workers 5 --ps 1 --parts 4 --batch 128 */
import { spawnSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { cpus, tmpdir } from 'node:os';
import { join } from 'node:path';
import { programArguments } from '../arguments.ts';

interface Result {
  readonly examplesPerSecond: number;
  readonly stepMs: number;
  readonly receivesPerStep: number;
  readonly rpcsPerStep: number;
  readonly bytesPerStep: number;
}

interface Way {
  readonly name: string;
  readonly flags: readonly string[];
}

const ways: readonly Way[] = ['grpc', 'fabric'].flatMap((carrier) => [
  { name: `${carrier}, unfused`, flags: ['--carrier', carrier] },
  { name: `${carrier}, static`, flags: ['--carrier', carrier, '--fuse'] },
  { name: `${carrier}, run time`, flags: ['--carrier', carrier, '--recv-some'] },
  { name: `${carrier}, static and run time`, flags: ['--carrier', carrier, '--fuse', '--recv-some'] },
]);

const { values } = programArguments(import.meta.url, {
  options: {
    rounds: { type: 'string', default: '3' },
    steps: { type: 'string', default: '20' },
    workers: { type: 'string', default: '5' },
    ps: { type: 'string', default: '1' },
    parts: { type: 'string', default: '2' },
    batch: { type: 'string', default: '128' },
    columns: { type: 'string', default: '104' },
    json: { type: 'string' },
  },
});

const folder = mkdtempSync(join(tmpdir(), 'bench-graph-'));
const results = new Map<string, Result[]>(ways.map(({ name }) => [name, []]));
for (let round = 0; round < Number(values.rounds); round++) {
  for (const way of ways) results.get(way.name)?.push(run(way));
}
rmSync(folder, { recursive: true });

function run({ name, flags }: Way): Result {
  const out = join(folder, 'result.json');
  const job = ['dist/cli/main.js', 'run', '-q', '--ps', values.ps, '--workers', values.workers, 'examples/wide-deep/train.ts'];
  const model = [
    '--steps',
    values.steps,
    '--columns',
    values.columns,
    '--batch',
    values.batch,
    '--parts',
    values.parts,
    '--hidden',
    '16',
    '--evaluation',
    '200',
  ];
  const { status, stderr } = spawnSync(process.execPath, [...job, ...model, '--out', out, ...flags], { encoding: 'utf8' });
  if (status !== 0) throw new Error(`${name} failed:\n${stderr}`);
  return JSON.parse(readFileSync(out, 'utf8')) as Result;
}

const [reference] = results.values();
const rows = [...results].map(([name, own]) => ({
  name,
  receivesPerStep: median(own.map(({ receivesPerStep }) => receivesPerStep)),
  rpcsPerStep: median(own.map(({ rpcsPerStep }) => rpcsPerStep)),
  kibPerStep: median(own.map(({ bytesPerStep }) => bytesPerStep / 1024)),
  examplesPerSecond: median(own.map(({ examplesPerSecond }) => examplesPerSecond)),
  /** To the first way, of the same round. */
  throughputRatio: median(own.map(({ examplesPerSecond }, round) => examplesPerSecond / reference[round].examplesPerSecond)),
  rpcRatio: median(own.map(({ rpcsPerStep }, round) => rpcsPerStep / reference[round].rpcsPerStep)),
}));

const machine = { cpu: cpus()[0]?.model ?? 'unknown', cpus: cpus().length, node: process.version };
console.log(
  `${values.ps} ps : ${values.workers} workers, batch ${values.batch}, tables in ${values.parts} parts; ${machine.cpu}, ${machine.cpus} CPUs\n`,
);
console.log('                               RPCs/step       of unfused   examples/s   of unfused gRPC');
for (const row of rows) {
  const counts = `${row.rpcsPerStep.toFixed(1).padStart(9)} ${`${((row.rpcRatio - 1) * 100).toFixed(1)} %`.padStart(16)}`;
  console.log(
    `${row.name.padEnd(30)} ${counts} ${row.examplesPerSecond.toFixed(0).padStart(12)} ${`× ${row.throughputRatio.toFixed(2)}`.padStart(17)}`,
  );
}
if (values.json !== undefined) writeFileSync(values.json, `${JSON.stringify({ machine, options: values, rows }, undefined, 2)}\n`);

function median(numbers: readonly number[]): number {
  return numbers.toSorted((a, b) => a - b)[numbers.length >> 1];
}
