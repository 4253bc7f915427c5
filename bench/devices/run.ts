/** All-reduces of a tensor in a WebGPU buffer, between ranks of this host: as a pipeline of pieces, and with the same copies made one
 *  after the other (out of the device, the all-reduce on the host, back into the device), in turns in the same processes.
 *
 *    npx tsx bench/devices/run.ts                                  a table
 *    npx tsx bench/devices/run.ts --out /tmp/devices.json          one JSON document, as kept in bench/results/
 *    npx tsx bench/devices/run.ts --bytes 16MiB --ranks 4 --rounds 20
 *
 *  Needs a Vulkan driver: VK_ICD_FILENAMES, or SwiftShader's of the package chromium. Build first. */
import { spawnSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import os from 'node:os';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseBytes } from '../../src/base/settings/quantity.ts';
import { median } from '../../src/base/numbers.ts';
import { softwareDriver } from '../../src/memory/device/software-driver.ts';
import { programArguments } from '../arguments.ts';

export interface DeviceRound {
  readonly outMs: number;
  readonly allReduceMs: number;
  readonly inMs: number;
  readonly pipelinedMs: number;
  /** CPU time of the rank that took more. */
  readonly serialCpuMs: number;
  readonly pipelinedCpuMs: number;
  /** Number of wrong elements. */
  readonly wrong: number;
}

export interface DeviceBenchOptions {
  readonly bytes: number;
  readonly ranks: number;
  readonly rounds: number;
}

/** @throws Error when a rank fails. */
export function benchDevices({ bytes, ranks, rounds }: DeviceBenchOptions): { readonly adapter: string; readonly results: DeviceRound[] } {
  const folder = mkdtempSync(join(os.tmpdir(), 'shoal-devices-'));
  const repository = dirname(dirname(dirname(fileURLToPath(import.meta.url))));
  const file = join(folder, 'rounds.json');
  const driver = process.env.VK_ICD_FILENAMES === undefined ? softwareDriver() : {};
  const env = {
    ...process.env,
    ...driver,
    DEVICE_BENCH_BYTES: String(bytes),
    DEVICE_BENCH_ROUNDS: String(rounds),
    DEVICE_BENCH_OUT: file,
  };
  const command = ['dist/tools/cli/main.js', 'run', '-n', String(ranks), '--quiet', 'bench/devices/rank.ts'];
  try {
    const { status, stdout, stderr } = spawnSync(process.execPath, command, { cwd: repository, env, encoding: 'utf8' });
    if (status !== 0) throw new Error(`${stdout}${stderr}`);
    return JSON.parse(readFileSync(file, 'utf8')) as ReturnType<typeof benchDevices>;
  } finally {
    rmSync(folder, { recursive: true });
  }
}

function main(): void {
  const { values } = programArguments(import.meta.url, {
    options: {
      bytes: { type: 'string', default: '64MiB' },
      ranks: { type: 'string', default: '2' },
      rounds: { type: 'string', default: '15' },
      out: { type: 'string' },
    },
  });
  const options = { bytes: parseBytes(values.bytes) ?? Number.NaN, ranks: Number(values.ranks), rounds: Number(values.rounds) };
  if (Object.values(options).some((each) => !(Number.isInteger(each) && each >= 1))) {
    console.error('bytes, ranks and rounds are whole numbers from 1');
    process.exit(2);
  }
  const startedAt = new Date().toISOString();
  const loadBefore = os.loadavg()[0];
  const { adapter, results } = benchDevices(options);
  const serial = results.map(({ outMs, allReduceMs, inMs }) => outMs + allReduceMs + inMs);
  const medianMs = {
    out: median(results.map(({ outMs }) => outMs)),
    allReduce: median(results.map(({ allReduceMs }) => allReduceMs)),
    in: median(results.map(({ inMs }) => inMs)),
    serial: median(serial),
    pipelined: median(results.map(({ pipelinedMs }) => pipelinedMs)),
    serialCpu: median(results.map(({ serialCpuMs }) => serialCpuMs)),
    pipelinedCpu: median(results.map(({ pipelinedCpuMs }) => pipelinedCpuMs)),
  };
  const speedRatio = median(results.map(({ pipelinedMs }, round) => serial[round] / pipelinedMs));
  const wrong = results.reduce((sum, round) => sum + round.wrong, 0);
  if (values.out === undefined) {
    console.log(`${adapter}; ${options.ranks} ranks, ${values.bytes}, medians of ${options.rounds} rounds in ms`);
    for (const [name, ms] of Object.entries(medianMs)) console.log(`${name.padEnd(12)}${ms.toFixed(1).padStart(8)}`);
    console.log(`speed of the pipeline over one after the other: ${speedRatio.toFixed(2)}; ${wrong} wrong`);
    return;
  }
  const machine = {
    cpu: os.cpus()[0]?.model ?? 'unknown',
    cpus: os.availableParallelism(),
    node: process.version,
    loadBefore,
    loadAfter: os.loadavg()[0],
  };
  const commit = spawnSync('git', ['describe', '--always', '--dirty'], { encoding: 'utf8' }).stdout.trim();
  const report = {
    schema: 'shoal-devices',
    version: 1,
    adapter,
    ...options,
    machine,
    commit,
    startedAt,
    medianMs,
    speedRatio,
    wrong,
    results,
  };
  writeFileSync(values.out, `${JSON.stringify(report, null, 2)}\n`);
}

if (process.argv[1] === fileURLToPath(import.meta.url)) main();
