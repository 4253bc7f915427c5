/** The demonstration: trains the same model on one process and then on N, each process with batches of the same size, and
 *  compares; then on N once more, of which one is killed and comes back. `npm run demo -- --processes 2 --text 'notes/*.txt'`. It
 *  starts train.ts with `shoal run` and reads what that prints and leaves behind; nothing here takes part in training. */
import { SingleBar } from 'cli-progress';
import { spawn, spawnSync } from 'node:child_process';
import { mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { cpus, loadavg } from 'node:os';
import { join, relative } from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { rankResultSchema, summarySchema, type RankResult, type RunSummary, type Summary } from './summary.ts';

const { values } = parseArgs({
  options: {
    processes: { type: 'string', default: '2' },
    text: { type: 'string', multiple: true, default: [] },
    steps: { type: 'string', default: '150' },
    batch: { type: 'string', default: '32' },
    /** wasm or webgpu, as of train.ts. */
    device: { type: 'string', default: 'wasm' },
    runs: { type: 'string', default: 'runs' },
  },
});
const processes = Number(values.processes);
if (!Number.isInteger(processes) || processes < 1) throw new Error(`--processes ${values.processes}: a positive integer is needed`);

const cli = fileURLToPath(new URL('tools/cli/main.js', import.meta.resolve('shoal')));
const script = fileURLToPath(new URL('train.ts', import.meta.url));
const [loadAverage] = loadavg();
const startedAt = new Date().toISOString();
const folder = join(values.runs, startedAt.replaceAll(':', '-').replace(/\.\d+Z$/, ''));
/** A process is killed after this part of the steps. */
const killedAt = 0.2;
const stepLine = /step (\d+)\/(\d+) loss (\S+) tokens\/s (\S+) communicating (\S+)/;

/** The loss of a process. */
type Kill = NonNullable<Summary['elastic']>['killed'];

interface Training {
  readonly size: number;
  /** Folder of its results, in that of the demonstration. */
  readonly name: string;
  /** Folder of its timeline. Default: none is kept. */
  readonly reportDir?: string;
  /** The last process is killed in the middle, training goes on without it, and it is started again. Default false. */
  readonly isElastic?: boolean;
}

interface Trained {
  readonly results: RankResult[];
  readonly killed: Kill | undefined;
  /** The launcher's lines about ranks that were lost and have joined. */
  readonly changes: string[];
}

/** Runs train.ts, showing a bar. When it fails, prints why and ends the demonstration with its code. */
async function train({ size, name, reportDir, isElastic = false }: Training): Promise<Trained> {
  const out = join(folder, name);
  mkdirSync(out, { recursive: true });
  const text = values.text.flatMap((pattern) => ['--text', pattern]);
  const own = ['--steps', values.steps, '--batch', values.batch, '--device', values.device, '--out', out, ...text];
  const report = reportDir === undefined ? [] : ['--report-dir', reportDir];
  const elastic = isElastic ? ['--min', String(size - 1), '--max-restarts', '1'] : [];
  const flags = ['-n', String(size), '--log-dir', out, ...report, ...elastic];
  const args = [cli, 'run', ...flags, script, '--', ...own, ...(isElastic ? ['--elastic'] : [])];
  const child = spawn(process.execPath, args, { stdio: ['ignore', 'pipe', 'pipe'] });
  const label = isElastic ? 'one is killed' : size === 1 ? '1 process    ' : `${size} processes  `;
  const bar = new SingleBar({
    format: `${label} [{bar}] step {value}/{total}  loss {loss}  {rate} tokens/s  {share} communicating`,
    noTTYOutput: true,
    notTTYSchedule: 5000,
  });
  bar.start(Number(values.steps), 0, { loss: '…', rate: '…', share: '…' });
  const errors: string[] = [];
  let killed: Kill | undefined;
  const lines = createInterface({ input: child.stdout });
  lines.on('line', (line) => {
    const [, step, steps, loss, rate, share] = stepLine.exec(line) ?? [];
    if (step === undefined) return;
    bar.update(Number(step), { loss, rate, share });
    if (isElastic && killed === undefined && Number(step) >= Number(steps) * killedAt) {
      const rank = size - 1;
      const pid = Number(new RegExp(`rank ${rank} started \\(pid (\\d+)\\)`).exec(errors.join('\n'))?.[1]);
      killed = { rank, pid, step: Number(step) };
      process.kill(pid, 'SIGKILL');
    }
  });
  createInterface({ input: child.stderr }).on('line', (line) => errors.push(line));
  const [code, signal] = await new Promise<[number | null, string | null]>((resolve, reject) => {
    child.once('error', reject);
    child.once('close', (...end) => resolve(end));
  });
  bar.stop();
  if (code !== 0) {
    // The launcher has put the first failing rank's error last.
    console.error(`\n${errors.join('\n')}\n\ntraining ended with ${signal ?? `code ${code}`}; logs are in ${out}`);
    process.exit(code ?? 1);
  }
  const resultOf = (rank: number): RankResult => rankResultSchema.parse(JSON.parse(readFileSync(join(out, `rank-${rank}.json`), 'utf8')));
  const first = resultOf(0);
  const results = [first, ...Array.from({ length: first.size - 1 }, (_, at) => resultOf(at + 1))];
  return { results, killed, changes: errors.filter((line) => /^shoal: world \d+ → \d+/.test(line)) };
}

/** Training has to end with the same parameters everywhere, and must have learned more than the frequency of characters. */
function summarize(results: readonly RankResult[], name: string): RunSummary {
  const [first] = results;
  const out = join(folder, name);
  const logs = readdirSync(out, { recursive: true, encoding: 'utf8' }).filter((name) => name.endsWith('.log'));
  const { seconds, tokensPerSecond, communicating, losses, heldOutLoss, before, after } = first;
  const checksums = results.map(({ checksum }) => checksum);
  return {
    processes: first.size,
    ...{ seconds, tokensPerSecond, communicating, losses, heldOutLoss, before, after, checksums },
    logs: logs.toSorted().map((name) => join(relative(folder, out), name)),
  };
}

/** The training in which a process was killed, in some lines. */
function storyOf({ killed, changes, losses, processes: size, checksums }: NonNullable<Summary['elastic']>): string {
  const [before] = losses.filter(([step]) => step <= killed.step).slice(-1);
  const [[lastStep, lastLoss]] = losses.slice(-1);
  const same = new Set(checksums).size === 1 ? 'the same parameters' : 'DIFFERENT PARAMETERS';
  return [
    `killed: rank ${killed.rank} (kill -9 ${killed.pid}) after step ${killed.step}, at a loss of ${before[1].toFixed(4)}`,
    ...changes,
    `loss ${lastLoss.toFixed(4)} after step ${lastStep}, on ${size} ${size === 1 ? 'process' : 'processes'} with ${same}`,
  ].join('\n');
}

function table(rows: readonly (readonly string[])[]): string {
  const widths = rows[0].map((_, column) => Math.max(...rows.map((row) => row[column].length)));
  return rows
    .map((row) => row.map((cell, column) => (column === 0 ? cell.padEnd(widths[0]) : cell.padStart(widths[column]))).join('  '))
    .join('\n');
}

const all: RankResult[][] = [];
for (const size of new Set([1, processes])) {
  const name = `processes-${size}`;
  all.push((await train({ size, name, ...(size === processes && { reportDir: folder }) })).results);
}
const runs = all.map((results) => summarize(results, `processes-${results.length}`));
const elasticDir = join(folder, 'elastic');
const elastic = processes > 1 ? await train({ size: processes, name: 'elastic', reportDir: elasticDir, isElastic: true }) : undefined;
const [{ text, model, training }] = all[0];
const last = runs[runs.length - 1];
const summary: Summary = summarySchema.parse({
  version: 1,
  kind: 'char-lm',
  startedAt,
  seconds: (Date.now() - Date.parse(startedAt)) / 1000,
  host: {
    cpus: cpus().length,
    cpuModel: cpus()[0]?.model ?? 'unknown',
    node: process.version,
    platform: process.platform,
    arch: process.arch,
    loadAverage,
  },
  text,
  model,
  training,
  runs,
  ...(elastic?.killed && { elastic: { ...summarize(elastic.results, 'elastic'), killed: elastic.killed, changes: elastic.changes } }),
  scaling: last.tokensPerSecond / runs[0].tokensPerSecond,
});
const path = join(folder, 'summary.json');
writeFileSync(path, `${JSON.stringify(summary, null, 2)}\n`);
const pages = [reportOf(folder)];
if (summary.elastic) {
  writeFileSync(join(elasticDir, 'summary.json'), `${JSON.stringify({ ...summary, runs: [summary.elastic] }, null, 2)}\n`);
  pages.push(reportOf(elasticDir));
}

/** Writes the report of a folder once more, with the losses. @returns its path. */
function reportOf(of: string): string {
  const page = spawnSync(process.execPath, [cli, 'report', of], { encoding: 'utf8' });
  if (page.status !== 0) throw new Error(`the report was not written: ${page.stderr}`);
  return page.stdout.trim();
}

console.log(`\ntext: ${text.characters} characters of ${text.files.join(', ')}`);
console.log(
  `\nbefore training:\n${last.before}\n\nafter training on ${last.processes} ${last.processes === 1 ? 'process' : 'processes'}:\n${last.after}\n`,
);
const columns: [string, (run: RunSummary) => string][] = [
  ['processes', ({ processes: size }) => String(size)],
  ['tokens/s (first step not counted)', ({ tokensPerSecond }) => tokensPerSecond.toFixed(0)],
  ['scaling', ({ tokensPerSecond }) => `${(tokensPerSecond / runs[0].tokensPerSecond).toFixed(2)}×`],
  ['time communicating', ({ communicating }) => `${(communicating * 100).toFixed(1)} %`],
  ['training loss, last step', ({ losses }) => losses[losses.length - 1][1].toFixed(4)],
  ['held-out loss', ({ heldOutLoss }) => heldOutLoss.toFixed(4)],
  ['held-out loss of a unigram model', () => text.unigramLoss.toFixed(4)],
];
const rows = columns.map(([name, cell]) => [name, ...runs.map(cell)]);
for (let rank = 0; rank < processes; rank++)
  rows.push([`parameters of rank ${rank}`, ...runs.map(({ checksums }) => checksums[rank] ?? '')]);
console.log(`${table(rows)}\n\n${path}, ${Math.round(summary.seconds)} s in all`);
if (summary.elastic) console.log(`\n${storyOf(summary.elastic)}\n`);
console.log(`open ${pages.join(' and ')}: what every rank did, and when`);
if (loadAverage > cpus().length / 4) {
  console.log(`the load average was ${loadAverage.toFixed(1)} on ${cpus().length} CPUs when this started: rates and scaling say little`);
}
const trained = summary.elastic ? [...runs, summary.elastic] : runs;
const learned = trained.every(({ heldOutLoss }) => heldOutLoss < text.unigramLoss);
const identical = trained.every(({ checksums }) => new Set(checksums).size === 1);
if (!learned) console.error('the held-out loss is not below that of a unigram model: train for more steps or on more text');
if (!identical) console.error('parameters differ between ranks');
process.exitCode = learned && identical ? 0 : 1;
