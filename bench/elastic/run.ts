/** The time from `kill -9` of a rank until the next all-reduce is complete on all others, in interleaved rounds: with `shrink`, with
 *  `--max-restarts`, and with torchrun and Gloo, both of which start all ranks again.
 *
 *    npx tsx bench/elastic/run.ts --rounds 50 --out /tmp/results/elastic.json
 *
 *  A job that lasts comes first, in which a rank is lost: processes find the code for that compiled from then on.
 *
 *  In every fourth round also with a lost rank that has 1 GiB of memory, which the system takes back before it closes sockets, and with a
 *  rank that joins: how much longer the others' steps are while it follows, and when it enters; and how long it takes to get the state when
 *  they stand still, beside messages of arrays as large over a link that nothing has used before: the first, and the fastest.
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
  options: {
    rounds: { type: 'string', default: '30' },
    ranks: { type: 'string', default: '4,8' },
    mebibytes: { type: 'string', default: '256' },
    'compute-ms': { type: 'string', default: '200' },
    out: { type: 'string' },
  },
});
const rounds = positive(values.rounds);
const folder = mkdtempSync(join(tmpdir(), 'shoal-elastic-'));
const python = '/usr/bin/python3';
const hasTorch = spawnSync(python, ['-c', 'import torch.distributed']).status === 0;
const commit = spawnSync('git', ['describe', '--always', '--dirty'], { cwd: repository, encoding: 'utf8' }).stdout.trim();
const here = (file: string): string => fileURLToPath(new URL(file, import.meta.url));

/** The command of a job of `shoal run`. */
const shoalRun = (ranks: number, flags: readonly string[], args: readonly string[]): string[] => [
  ...[process.execPath, programOf(repository), 'run', '-q', '-n', String(ranks), ...flags],
  ...[here('rank.mjs'), ...args],
];

interface Way {
  readonly name: string;
  /** It takes part in every n-th round. */
  readonly every: number;
  /** Ranks that are there afterwards. */
  readonly rest: (ranks: number) => number;
  readonly command: (ranks: number, ...args: string[]) => string[];
}

const ways: readonly Way[] = [
  { name: 'shrink', every: 1, rest: (ranks) => ranks - 1, command: (ranks, ...args) => shoalRun(ranks, ['--min', '1'], args) },
  {
    name: 'shrink-1-GiB',
    every: 4,
    rest: (ranks) => ranks - 1,
    command: (ranks, ...args) => shoalRun(ranks, ['--min', '1'], [...args, '1024']),
  },
  { name: 'restart', every: 10, rest: (ranks) => ranks, command: (ranks, ...args) => shoalRun(ranks, ['--max-restarts', '1'], args) },
  {
    name: 'torchrun',
    every: 10,
    rest: (ranks) => ranks,
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

/** Milliseconds of an entry, by the words of join-rank.mjs. */
const entryTimes = ['pause', 'alone', 'followed', 'state', 'first', 'link', 'tensor'] as const;

type EntryTimes = Readonly<Record<`${(typeof entryTimes)[number]}Ms`, number>>;

/** Entries into worlds of so many ranks, newcomers included: medians. */
interface JoinRow extends EntryTimes {
  readonly ranks: number;
  readonly mebibytes: number;
  readonly rounds: number;
}

function outputOf([program, ...args]: string[]): string {
  const { stdout, stderr, status } = spawnSync(program, args, { cwd: folder, encoding: 'utf8', timeout: 120_000 });
  if (status !== 0) throw new Error(`${program} ${args.join(' ')} ended with ${status}: ${stdout}${stderr}`);
  return stdout;
}

/** The largest of the numbers that ranks print after a word. */
function slowestOf(output: string, word: string, ranks: number): number {
  const numbers = [...output.matchAll(new RegExp(`${word} ([\\d.]+)`, 'g'))].map(([, ms]) => Number(ms));
  if (numbers.length < ranks) throw new Error(`${ranks} ranks should have told their '${word}': ${output}`);
  return Math.max(...numbers);
}

const loadBefore = loadavg()[0];
const startedAt = new Date().toISOString();
// The first loss of a rank in a job that goes on: the code that it needs is kept compiled from then on.
outputOf(ways[0].command(4, join(folder, 'first'), 'shrink', '1', '0', '2000'));
const times = new Map<string, number[]>();
const joins = new Map<number, number[][]>();
for (let round = 0; round < rounds; round++) {
  for (const ranks of values.ranks.split(',').map(Number)) {
    for (const { name, every, rest, command } of ways) {
      if (round % every > 0 || (name === 'torchrun' && !hasTorch)) continue;
      const file = join(folder, `${round}-${ranks}-${name}`);
      const victim = String(1 + (round % (ranks - 1)));
      const key = `${ranks} ${name}`;
      const slowest = slowestOf(outputOf(command(ranks, file, name, victim)), 'gap', rest(ranks));
      times.set(key, [...(times.get(key) ?? []), slowest]);
    }
    if (round % 4 > 0) continue;
    const job = [process.execPath, programOf(repository), 'run', '-q', '-n', String(ranks), '--min', '1', '--max-restarts', '1'];
    const entry = [...job, here('join-rank.mjs'), values.mebibytes, String(ranks), values['compute-ms']];
    const output = ['follow', 'stand', 'message'].map((way) => outputOf([...entry, way])).join('\n');
    joins.set(ranks, [...(joins.get(ranks) ?? []), entryTimes.map((word) => slowestOf(output, word, 1))]);
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
const joinRows = [...joins].map(([ranks, all]): JoinRow => {
  const medians = Object.fromEntries(entryTimes.map((word, k) => [`${word}Ms`, median(all.map((each) => each[k]))]));
  return { ranks, mebibytes: Number(values.mebibytes), rounds: all.length, ...(medians as EntryTimes) };
});
for (const { ranks, mebibytes, rounds: count, pauseMs, ...row } of joinRows) {
  const rate = (ms: number): string => `${((mebibytes * 2 ** 20) / 1000 / ms).toFixed(0)} MB/s`;
  console.log(
    `${ranks} ranks, one joins and gets ${mebibytes} MiB: pause ${pauseMs.toFixed(1)} ms, state ${rate(row.stateMs)}; a message ${rate(row.firstMs)} at first, ${rate(row.linkMs)} at best, of a tensor ${rate(row.tensorMs)}; a step ${row.aloneMs.toFixed(0)} ms without it, ${row.followedMs.toFixed(0)} ms while it follows, ${count} rounds`,
  );
}
if (values.out !== undefined)
  writeFileSync(
    values.out,
    `${JSON.stringify({ schema: 'shoal-elastic', startedAt, commit, cpus: availableParallelism(), loadBefore, rows, joins: joinRows }, null, 1)}\n`,
  );
