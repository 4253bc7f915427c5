/** The time of a job from the command line to its end, beside an empty process of Node.js and an empty job of Open MPI, in one
 *  interleaved run: other load of the machine is the same for all. Ratios to the empty process are more reliable than seconds.
 *
 *    npx tsx bench/start/run.ts                 a table
 *    npx tsx bench/start/run.ts --rounds 15 --ranks 2
 *    npx tsx bench/start/run.ts --json          one JSON document; --out out.json writes it
 *    npx tsx bench/start/run.ts --beside DIR    beside the package that is built there, of another commit
 *
 *  Needs a built package. Open MPI is left out where there is no mpirun. */
import { spawnSync } from 'node:child_process';
import { writeFileSync } from 'node:fs';
import { cpus, loadavg } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { systemClock } from '../../src/base/clock.ts';
import { median } from '../../src/base/numbers.ts';
import { positive } from '../../src/tools/cli/option-values.ts';
import { programArguments, programOf } from '../arguments.ts';

export interface Contestant {
  readonly name: string;
  readonly command: readonly [program: string, ...args: string[]];
}

export interface StartRow {
  readonly name: string;
  readonly medianMs: number;
  readonly minMs: number;
  /** Ratio of the medians to that of the first contestant. */
  readonly ratio: number;
}

const here = (file: string): string => fileURLToPath(new URL(file, import.meta.url));
const repository = here('../..');
const shoal = here('../../dist/tools/cli/main.js');

/** All contestants; the first is the one with which all are compared. @param beside folder of another build of the package. */
export function contestants(ranks: number, beside?: string): Contestant[] {
  const { execPath: node } = process;
  const run = (...args: string[]): Contestant['command'] => [node, shoal, 'run', '-q', '-n', String(ranks), ...args];
  // Open MPI's launcher of 64 ranks was seen to wait for ever.
  const hasMpi = ranks <= 16 && spawnSync('mpirun', ['--version']).status === 0;
  return [
    { name: "node -e ''", command: [node, '-e', ''] },
    { name: `${ranks} of these at once`, command: ['sh', '-c', `for i in $(seq ${ranks}); do "$0" -e '' & done; wait`, node] },
    ...(hasMpi
      ? [
          {
            name: `mpirun -n ${ranks} true`,
            command: ['mpirun', '--allow-run-as-root', '--oversubscribe', '-n', String(ranks), 'true'],
          } as const,
        ]
      : []),
    { name: `shoal run -n ${ranks}, no Node.js`, command: run('--no-node', 'true') },
    { name: `shoal run -n ${ranks}, empty script`, command: run(here('empty.mjs')) },
    { name: `shoal run -n ${ranks}, join and leave`, command: run(here('world.mjs')) },
    ...(beside === undefined ? [] : [{ name: `the other build: join and leave`, command: joinAndLeave(ranks, beside) }]),
  ];
}

function joinAndLeave(ranks: number, folder: string): Contestant['command'] {
  return [process.execPath, programOf(folder), 'run', '-q', '-n', String(ranks), join(folder, 'bench/start/world.mjs')];
}

/** @throws Error when one of them fails. */
export function benchStart(all: readonly Contestant[], rounds: number): StartRow[] {
  const times = all.map((): number[] => []);
  // They cost each process of Node.js more than all else of its start, where a user has them.
  const { NODE_EXTRA_CA_CERTS: _, ...env } = process.env;
  // The first round fills the caches of the file system.
  for (let round = -1; round < rounds; round++) {
    for (const [index, { name, command }] of all.entries()) {
      const [program, ...args] = command;
      const startMs = systemClock.now();
      const { status, stderr } = spawnSync(program, args, { encoding: 'utf8', env });
      const ms = systemClock.now() - startMs;
      if (status !== 0) throw new Error(`${name} ended with ${status}: ${stderr}`);
      if (round >= 0) times[index].push(ms);
    }
  }
  const medians = times.map(median);
  return all.map(({ name }, index) => ({
    name,
    medianMs: medians[index],
    minMs: Math.min(...times[index]),
    ratio: medians[index] / medians[0],
  }));
}

/** The largest memory of any rank. */
export function rankBytes(ranks: number, folder = repository): number {
  const [program, ...args] = joinAndLeave(ranks, folder);
  const { stdout } = spawnSync(program, args, {
    encoding: 'utf8',
    env: { ...process.env, SHOW_MEMORY: '1' },
  });
  return Math.max(...[...stdout.matchAll(/"rssBytes":(\d+)/g)].map(([, bytes]) => Number(bytes)));
}

function main(): void {
  const { values } = programArguments(import.meta.url, {
    options: {
      json: { type: 'boolean' },
      out: { type: 'string' },
      beside: { type: 'string' },
      rounds: { type: 'string', default: '9' },
      ranks: { type: 'string', default: '2' },
    },
  });
  const [rounds, ranks] = [positive(values.rounds), positive(values.ranks)];
  // The first job that lasts for a while keeps its code compiled.
  for (const folder of [repository, values.beside ?? repository])
    spawnSync(process.execPath, [programOf(folder), 'run', '-q', '-n', '2', join(folder, 'bench/start/stay.mjs')]);
  const rows = benchStart(contestants(ranks, values.beside), rounds);
  const bytes = rankBytes(ranks);
  const machine = { cpu: cpus()[0]?.model ?? 'unknown', cpus: cpus().length, node: process.version, loadAverage: loadavg()[0] };
  const before = values.beside === undefined ? {} : { otherRankBytes: rankBytes(ranks, values.beside) };
  const report = `${JSON.stringify({ machine, rounds, ranks, rankBytes: bytes, ...before, rows }, null, 2)}\n`;
  if (values.out !== undefined) writeFileSync(values.out, report);
  if (values.json) {
    process.stdout.write(report);
    return;
  }
  console.log(
    `${machine.cpu}, ${machine.cpus} CPUs, Node ${machine.node}, load ${machine.loadAverage.toFixed(1)}, median of ${rounds} rounds\n`,
  );
  for (const { name, medianMs, minMs, ratio } of rows)
    console.log(
      `${name.padEnd(36)} ${medianMs.toFixed(0).padStart(6)} ms   min ${minMs.toFixed(0).padStart(6)} ms   ${ratio.toFixed(1).padStart(5)} ×`,
    );
  console.log(`\na rank takes ${(bytes / 1e6).toFixed(0)} MB at most`);
}

if (process.argv[1] === fileURLToPath(import.meta.url)) main();
