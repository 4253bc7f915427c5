/** The time from `kill -9` of a rank until the next all-reduce is complete on all others, in interleaved rounds: with `shrink`, with
 *  `--max-restarts`, and with torchrun and Gloo, both of which start all ranks again.
 *
 *    npx tsx bench/elastic/run.ts --rounds 50 --out /tmp/results/elastic.json
 *
 *  Needs a built package. PyTorch is left out where there is none; restarts take part in every tenth round, because they take seconds. */
import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { availableParallelism, loadavg, tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { median } from '../../src/base/numbers.ts';
import { positive } from '../../src/tools/cli/option-values.ts';
import { programArguments, programOf } from '../arguments.ts';

const repository = fileURLToPath(new URL('../..', import.meta.url));
const { values } = programArguments(import.meta.url, {
  options: { rounds: { type: 'string', default: '30' }, ranks: { type: 'string', default: '4,8' }, out: { type: 'string' } },
});
const rounds = positive(values.rounds);
const folder = mkdtempSync(join(tmpdir(), 'shoal-elastic-'));
const python = '/usr/bin/python3';
const hasTorch = spawnSync(python, ['-c', 'import torch.distributed']).status === 0;
const commit = spawnSync('git', ['describe', '--always', '--dirty'], { cwd: repository, encoding: 'utf8' }).stdout.trim();
const here = (file: string): string => fileURLToPath(new URL(file, import.meta.url));

/** Ways to go on, with the command of a job; every n-th round. */
const ways: readonly { readonly name: string; readonly every: number; readonly command: (ranks: number, ...args: string[]) => string[] }[] =
  [
    {
      name: 'shrink',
      every: 1,
      command: (ranks, ...args) => [
        ...[process.execPath, programOf(repository), 'run', '-q', '-n', String(ranks), '--min', '1'],
        ...[here('rank.mjs'), ...args],
      ],
    },
    {
      name: 'restart',
      every: 10,
      command: (ranks, ...args) => [
        ...[process.execPath, programOf(repository), 'run', '-q', '-n', String(ranks), '--max-restarts', '1'],
        ...[here('rank.mjs'), ...args],
      ],
    },
    {
      name: 'torchrun',
      every: 10,
      command: (ranks, ...args) => [
        ...[python, '-m', 'torch.distributed.run', '--nproc_per_node', String(ranks), '--max_restarts', '1'],
        ...['--monitor_interval', '0.1', '--redirects', '1', '--tee', '1'],
        ...[here('torch_rank.py'), ...args],
      ],
    },
  ];

interface Row {
  readonly ranks: number;
  readonly way: string;
  readonly rounds: number;
  readonly medianMs: number;
  readonly bestMs: number;
  /** The 99th percentile, or the worst of fewer than a hundred rounds. */
  readonly p99Ms: number;
}

/** The gap of the slowest rank. */
function gapOf([program, ...args]: string[], left: number): number {
  const { stdout, stderr, status } = spawnSync(program, args, { cwd: folder, encoding: 'utf8', timeout: 120_000 });
  const gaps = [...stdout.matchAll(/gap ([\d.]+)/g)].map(([, ms]) => Number(ms));
  if (status !== 0 || gaps.length < left) throw new Error(`${program} ${args.join(' ')} ended with ${status}: ${stdout}${stderr}`);
  return Math.max(...gaps);
}

const loadBefore = loadavg()[0];
const startedAt = new Date().toISOString();
const times = new Map<string, number[]>();
for (let round = 0; round < rounds; round++) {
  for (const ranks of values.ranks.split(',').map(Number)) {
    for (const { name, every, command } of ways) {
      if (round % every > 0 || (name === 'torchrun' && !hasTorch)) continue;
      const file = join(folder, `${round}-${ranks}-${name}`);
      const victim = String(1 + (round % (ranks - 1)));
      const key = `${ranks} ${name}`;
      times.set(key, [...(times.get(key) ?? []), gapOf(command(ranks, file, name, victim), name === 'shrink' ? ranks - 1 : ranks)]);
    }
  }
}
rmSync(folder, { recursive: true });
const rows = [...times].map(([key, all]): Row => {
  const sorted = all.toSorted((a, b) => a - b);
  const [ranks, way] = key.split(' ');
  const p99Ms = sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * 0.99))];
  return { ranks: Number(ranks), way, rounds: all.length, medianMs: median(all), bestMs: sorted[0], p99Ms };
});
for (const { ranks, way, rounds: count, medianMs, bestMs, p99Ms } of rows)
  console.log(
    `${ranks} ranks, ${way}: median ${medianMs.toFixed(1)} ms, best ${bestMs.toFixed(1)}, p99 ${p99Ms.toFixed(1)}, ${count} rounds`,
  );
if (values.out !== undefined)
  writeFileSync(
    values.out,
    `${JSON.stringify({ schema: 'shoal-elastic', startedAt, commit, cpus: availableParallelism(), loadBefore, rows }, null, 1)}\n`,
  );
