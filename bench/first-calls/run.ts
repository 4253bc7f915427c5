/** The cost of the first calls of a process: 2 ranks of one host all-reduce 8 bytes again and again from the start. A row says how long a
 *  call takes in the first thousand, in the second, in the twentieth, and once warm (the median of the last thirty thousands).
 *
 *    npx tsx bench/first-calls/run.ts                          beside Open MPI, where it is installed
 *    npx tsx bench/first-calls/run.ts --earlier a137a59        beside an earlier commit
 *    npx tsx bench/first-calls/run.ts --node-options=--no-opt,--v8-pool-size=0      and with these flags of Node.js, each alone
 *    npx tsx bench/first-calls/run.ts --rounds 15 --out out.json */
import { spawnSync } from 'node:child_process';
import { copyFileSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { cpus, loadavg, tmpdir } from 'node:os';
import { join } from 'node:path';
import { median } from '../../src/base/numbers.ts';
import { programArguments, programOf } from '../arguments.ts';
import { buildOf, repository } from '../earlier/build.ts';
import { mpirun } from '../peers/place.ts';

const { values } = programArguments(import.meta.url, {
  options: {
    rounds: { type: 'string', default: '9' },
    earlier: { type: 'string' },
    'node-options': { type: 'string' },
    out: { type: 'string' },
  },
});
const rounds = Number(values.rounds);
/** Thousands of calls that a program makes. */
const thousands = 60;
const scratch = mkdtempSync(join(tmpdir(), 'shoal-first-calls-'));
const measured = new Map([
  ...build('Shoal', repository),
  ...(values.earlier === undefined ? [] : build(values.earlier, buildOf(values.earlier))),
  ...(values['node-options']?.split(',') ?? []).flatMap((option) => build(`Shoal ${option}`, repository, [`--node-option=${option}`])),
  ...openMpi(),
]);
const times = new Map([...measured.keys()].map((name) => [name, [] as number[][]]));
for (let round = 0; round < rounds; round++) for (const [name, run] of measured) times.get(name)!.push(run());
rmSync(scratch, { recursive: true });

const rows = [...times].map(([name, all]) => {
  const at = (thousand: number): number => median(all.map((us) => us[thousand]));
  return {
    name,
    firstUs: at(0),
    secondUs: at(1),
    twentiethUs: at(19),
    warmUs: median(all.map((us) => median(us.slice(30, thousands)))),
    // Open MPI's program has none.
    firstMedianUs: all[0].length > thousands ? median(all.map((us) => us[thousands])) : undefined,
    rounds: all,
  };
});
const machine = { cpu: cpus()[0]?.model ?? 'unknown', cpus: cpus().length, node: process.version, loadAverage: loadavg()[0] };
if (values.out !== undefined) writeFileSync(values.out, `${JSON.stringify({ machine, rows }, null, 1)}\n`);
for (const { name, firstUs, secondUs, twentiethUs, warmUs, firstMedianUs } of rows) {
  const middle = firstMedianUs === undefined ? '' : `, median of the first thousand ${firstMedianUs.toFixed(2)} µs`;
  const figures = [firstUs, secondUs, twentiethUs, warmUs].map((us) => us.toFixed(2).padStart(8)).join('');
  console.log(`${name.padEnd(24)}${figures} µs   first ÷ warm ${(firstUs / warmUs).toFixed(1)}${middle}`);
}

function build(name: string, folder: string, flags: readonly string[] = []): [string, () => number[]][] {
  const script = join(folder, 'build/first-calls.mjs');
  copyFileSync(join(repository, 'bench/first-calls/rank.mjs'), script);
  return ['shared', 'plain'].map((arrays) => [
    `${name}, ${arrays}`,
    () => run([process.execPath, programOf(folder), 'run', '-q', '-n', '2', ...flags, script], { FIRST_CALLS_ARRAYS: arrays }),
  ]);
}

function openMpi(): [string, () => number[]][] {
  const program = join(scratch, 'first-calls');
  if (spawnSync('mpicc', ['-O3', '-o', program, join(repository, 'bench/first-calls/openmpi.c')]).status !== 0) return [];
  return [['Open MPI', () => run([...mpirun, '-n', '2', program])]];
}

function run([program, ...args]: readonly string[], environment: Readonly<Record<string, string>> = {}): number[] {
  const { stdout, stderr, status } = spawnSync(program, args, { encoding: 'utf8', env: { ...process.env, ...environment } });
  const line = stdout.split('\n').find((each) => each.includes('['));
  if (status !== 0 || line === undefined) throw new Error(`${program} ended with ${status}: ${stderr}`);
  return JSON.parse(line.slice(line.lastIndexOf('['))) as number[];
}
