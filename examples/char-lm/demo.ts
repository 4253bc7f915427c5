/** The demonstration: trains the same model on one process and then on N, each process with batches of the same size, and
 *  compares. `npm run demo -- --processes 2 --text 'notes/*.txt'`. It starts train.ts with `shoal run` and reads what that prints
 *  and leaves behind; nothing here takes part in training. */
import { SingleBar } from 'cli-progress';
import { spawn, spawnSync } from 'node:child_process';
import { mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { cpus, loadavg } from 'node:os';
import { dirname, join, relative } from 'node:path';
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
const stepLine = /step (\d+)\/(\d+) loss (\S+) tokens\/s (\S+) communicating (\S+)/;

/** Runs train.ts on `size` processes, showing a bar. When a process fails, prints why and ends the demonstration with its code. */
async function train(size: number): Promise<RankResult[]> {
  const out = join(folder, `processes-${size}`);
  mkdirSync(out, { recursive: true });
  const text = values.text.flatMap((pattern) => ['--text', pattern]);
  const own = ['--steps', values.steps, '--batch', values.batch, '--device', values.device, '--out', out, ...text];
  const report = size === processes ? ['--report-dir', folder] : [];
  const args = [cli, 'run', '-n', String(size), '--log-dir', out, ...report, script, '--', ...own];
  const child = spawn(process.execPath, args, { stdio: ['ignore', 'pipe', 'pipe'] });
  const label = size === 1 ? '1 process  ' : `${size} processes`;
  const bar = new SingleBar({
    format: `${label} [{bar}] step {value}/{total}  loss {loss}  {rate} tokens/s  {share} communicating`,
    noTTYOutput: true,
    notTTYSchedule: 5000,
  });
  bar.start(Number(values.steps), 0, { loss: '…', rate: '…', share: '…' });
  const errors: string[] = [];
  const lines = createInterface({ input: child.stdout });
  lines.on('line', (line) => {
    const [, step, , loss, rate, share] = stepLine.exec(line) ?? [];
    if (step !== undefined) bar.update(Number(step), { loss, rate, share });
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
  return Array.from({ length: size }, (_, rank) =>
    rankResultSchema.parse(JSON.parse(readFileSync(join(out, `rank-${rank}.json`), 'utf8'))),
  );
}

/** Training has to end with the same parameters everywhere, and must have learned more than the frequency of characters. */
function summarize(results: readonly RankResult[]): RunSummary {
  const [first] = results;
  const out = join(folder, `processes-${first.size}`);
  const logs = readdirSync(out, { recursive: true, encoding: 'utf8' }).filter((name) => name.endsWith('.log'));
  const { seconds, tokensPerSecond, communicating, losses, heldOutLoss, before, after } = first;
  const checksums = results.map(({ checksum }) => checksum);
  return {
    processes: first.size,
    ...{ seconds, tokensPerSecond, communicating, losses, heldOutLoss, before, after, checksums },
    logs: logs.toSorted().map((name) => join(relative(folder, out), name)),
  };
}

function table(rows: readonly (readonly string[])[]): string {
  const widths = rows[0].map((_, column) => Math.max(...rows.map((row) => row[column].length)));
  return rows
    .map((row) => row.map((cell, column) => (column === 0 ? cell.padEnd(widths[0]) : cell.padStart(widths[column]))).join('  '))
    .join('\n');
}

const all: RankResult[][] = [];
for (const size of new Set([1, processes])) all.push(await train(size));
const runs = all.map(summarize);
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
  scaling: last.tokensPerSecond / runs[0].tokensPerSecond,
});
const path = join(folder, 'summary.json');
mkdirSync(dirname(path), { recursive: true });
writeFileSync(path, `${JSON.stringify(summary, null, 2)}\n`);
// Once more, with the losses.
const page = spawnSync(process.execPath, [cli, 'report', folder], { encoding: 'utf8' });
if (page.status !== 0) throw new Error(`the report was not written: ${page.stderr}`);

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
console.log(`open ${page.stdout.trim()}: what every rank did, and when`);
if (loadAverage > cpus().length / 4) {
  console.log(`the load average was ${loadAverage.toFixed(1)} on ${cpus().length} CPUs when this started: rates and scaling say little`);
}
const learned = runs.every(({ heldOutLoss }) => heldOutLoss < text.unigramLoss);
const identical = runs.every(({ checksums }) => new Set(checksums).size === 1);
if (!learned) console.error('the held-out loss is not below that of a unigram model: train for more steps or on more text');
if (!identical) console.error('parameters differ between ranks');
process.exitCode = learned && identical ? 0 : 1;
