/** The cost of the page of a large run: writes the traces of a synthetic one, reads their bytes, and makes the page of them, with
 *  `shoal report` as a user does. Files are in the system's memory by then. On a machine that does other things, too, compare the
 *  CPU times, whose ratio is given; the peak is of the whole process.
 *
 *    npx tsx bench/report/run.ts [--mib 1024] [--ranks 256] [--rounds 3] [--out bench/results/report-large.json]
 *
 *  Build first. */
import { spawnSync } from 'node:child_process';
import { closeSync, mkdtempSync, openSync, readdirSync, readFileSync, readSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { median } from '../../src/base/numbers.ts';
import { repositoryRoot } from '../../scripts/repository.ts';
import { programArguments } from '../arguments.ts';
import { bytesPerStep, writeSyntheticRun } from './synthetic-run.ts';
import { machine, round } from '../graph/machine.ts';

const { values } = programArguments(import.meta.url, {
  options: {
    mib: { type: 'string', default: '1024' },
    ranks: { type: 'string', default: '256' },
    rounds: { type: 'string', default: '3' },
    out: { type: 'string' },
  },
});
const folder = mkdtempSync(join(tmpdir(), 'shoal-large-run-'));
const ranks = Number(values.ranks);

interface Cost {
  readonly seconds: number;
  readonly cpuSeconds: number;
}

function readAll(): Cost {
  const buffer = Buffer.alloc(256 * 1024);
  const [start, cpu] = [performance.now(), process.cpuUsage()];
  for (const name of readdirSync(folder).filter((each) => each.startsWith('trace-rank-'))) {
    const file = openSync(join(folder, name), 'r');
    while (readSync(file, buffer, 0, buffer.length, null) > 0);
    closeSync(file);
  }
  const { user, system } = process.cpuUsage(cpu);
  return { seconds: (performance.now() - start) / 1000, cpuSeconds: (user + system) / 1e6 };
}

/** Makes the page in a process of its own, which reports the resources that it has used. */
function makePage(): Cost & { readonly peakMib: number } {
  const [used, hook] = [join(folder, 'used'), join(folder, 'hook.cjs')];
  const tell = `require('node:fs').writeFileSync(${JSON.stringify(used)}, JSON.stringify(process.resourceUsage()))`;
  writeFileSync(hook, `process.on('exit', () => ${tell});`);
  const start = performance.now();
  const { status, stderr } = spawnSync(
    process.execPath,
    ['--require', hook, join(repositoryRoot, 'dist/tools/cli/main.js'), 'report', folder],
    {
      encoding: 'utf8',
    },
  );
  if (status !== 0) throw new Error(`shoal report ended with ${status}: ${stderr}`);
  const seconds = (performance.now() - start) / 1000;
  const { maxRSS, userCPUTime, systemCPUTime } = JSON.parse(readFileSync(used, 'utf8')) as NodeJS.ResourceUsage;
  return { seconds, cpuSeconds: (userCPUTime + systemCPUTime) / 1e6, peakMib: Math.round(maxRSS / 1024) };
}

try {
  const steps = Math.ceil((Number(values.mib) * 2 ** 20) / ranks / bytesPerStep);
  const bytes = writeSyntheticRun(folder, { ranks, ranksPerHost: 8, steps });
  readAll();
  const rounds = Array.from({ length: Number(values.rounds) }, () => ({ read: readAll(), report: makePage() }));
  const [read, report] = [median(rounds.map((each) => each.read.cpuSeconds)), median(rounds.map((each) => each.report.cpuSeconds))];
  const result = {
    machine: machine(),
    ...{ ranks, steps, traceMib: Math.round(bytes / 2 ** 20) },
    pageMib: Number((statSync(join(folder, 'report.html')).size / 2 ** 20).toFixed(1)),
    ...{ readCpuSeconds: round(read), reportCpuSeconds: round(report), ratio: round(report / read) },
    peakMib: Math.max(...rounds.map((each) => each.report.peakMib)),
    rounds,
  };
  console.log(JSON.stringify(result, null, 2));
  if (values.out !== undefined) writeFileSync(values.out, `${JSON.stringify(result, null, 2)}\n`);
} finally {
  rmSync(folder, { recursive: true });
}
