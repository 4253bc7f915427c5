/** The gain by several operations, or several slices, under way between hosts: the experiment of Fairring's document
 *  ("Overlap/Parallelism") on real ranks, one or more on each of several hosts made of network namespaces (root). Every turn is a
 *  fresh set of processes that run `shoal bench`; turns are interleaved in rounds.
 *
 *    npx tsx bench/overlap/run.ts --out /tmp/overlap.json             minutes; on a machine that does nothing else
 *    npx tsx bench/overlap/run.ts --hosts 8 --delay-us 0 --in-flight 1,2,4 --series staging */
import { spawnSync } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { writeFileSync } from 'node:fs';
import os from 'node:os';
import { dirname } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseBytes } from '../../src/base/settings/quantity.ts';
import { median } from '../../src/base/numbers.ts';
import type { BenchReport } from '../../src/tools/timing/report.ts';
import { fairringLayout } from '../../src/collectives/algorithms/fairring-layout.ts';
import { grid } from '../../src/plan/topology.ts';
import { programArguments } from '../arguments.ts';
import { createNetwork, networkUnavailable } from '../network/network.ts';
import { networkPlace } from '../network/network-place.ts';
import type { Place } from '../peers/place.ts';
import { seriesNames, type OverlapPoint, type OverlapReport, type SeriesName } from './report.ts';

const { values } = programArguments(import.meta.url, {
  options: {
    hosts: { type: 'string', default: '4' },
    'ranks-per-host': { type: 'string', default: '1' },
    'rate-mbit': { type: 'string', default: '1000' },
    'delay-us': { type: 'string', default: '500' },
    /** Number of operations, at most 62, and bytes of each. */
    buckets: { type: 'string', default: '16' },
    bytes: { type: 'string', default: '8MiB' },
    'in-flight': { type: 'string', default: '1,2,4,8,16' },
    series: { type: 'string', default: seriesNames.join(',') },
    /** Number of samples of a turn, after one that is not timed. */
    samples: { type: 'string', default: '2' },
    rounds: { type: 'string', default: '3' },
    out: { type: 'string' },
  },
});

const elementBytes = 4;
const [hosts, ranksPerHost, buckets, rounds] = [values.hosts, values['ranks-per-host'], values.buckets, values.rounds].map(Number);
const rateMbit = Number(values['rate-mbit']);
const bytes = parseBytes(values.bytes) ?? Number.NaN;
const inFlights = values['in-flight'].split(',').map(Number);
const series = values.series.split(',') as SeriesName[];
const numbers = [hosts, ranksPerHost, buckets, rounds, bytes, ...inFlights];
const operationsMax = 62;
const problem =
  networkUnavailable() ??
  (numbers.some((each) => !(Number.isInteger(each) && each >= 1))
    ? 'hosts, ranks, buckets, bytes, in-flight and rounds are whole numbers from 1'
    : undefined) ??
  (buckets > operationsMax ? `at most ${operationsMax} operations can be in flight` : undefined) ??
  (series.some((each) => !seriesNames.includes(each)) ? `series are ${seriesNames.join(', ')}` : undefined);
if (problem !== undefined) {
  console.error(problem);
  process.exit(2);
}

const repository = dirname(dirname(dirname(fileURLToPath(import.meta.url))));
const sliceCount = bytes / elementBytes;
const layout = fairringLayout({
  collective: 'all-reduce',
  topology: grid(hosts, ranksPerHost),
  count: sliceCount,
  sliceCount,
  elementBytes,
});
const stagedBytes = layout.scratchCount * elementBytes;

/** Runs one turn. @returns the time of all bytes, in microseconds. */
async function turn(place: Place, name: SeriesName, inFlight: number): Promise<number> {
  const one = name === 'slices';
  const flags = {
    '--sizes': `${one ? buckets * bytes : bytes}:${values.samples}`,
    '--buckets': String(one ? 1 : buckets),
    '--parallel': String(one ? 1 : name === 'operations' ? inFlight : buckets),
    '--check-buckets': '1',
    '--backend': 'fairring',
    '-w': '1',
    '-c': '1',
    '--json': '-',
  };
  const command = [process.execPath, 'dist/tools/cli/main.js', 'bench', 'all-reduce', '--in-place', ...Object.entries(flags).flat()];
  const environment = {
    SHOAL_SLICE_BYTES: String(bytes),
    SHOAL_STAGING_BYTES: String(stagingOf(name, inFlight)),
    SHOAL_IN_FLIGHT: String(Math.max(buckets, 16)),
  };
  const report = JSON.parse(await place.run({ command, environment })) as BenchReport;
  const half = report.rows[0]?.inPlace;
  if (half == null || half.wrong !== 0) throw new Error(`${name}, ${inFlight} in flight: ${half?.wrong ?? 'no'} wrong results`);
  return half.medianUs * (one ? 1 : buckets);
}

function stagingOf(name: SeriesName, inFlight: number): number {
  return stagedBytes * (name === 'operations' ? buckets : inFlight);
}

async function measure(): Promise<OverlapReport> {
  const startedAt = new Date().toISOString();
  const loadBefore = os.loadavg()[0];
  using network = await createNetwork({ hosts, rateMbit, delayUs: Number(values['delay-us']) });
  const secret = randomBytes(32).toString('hex');
  const place = networkPlace({ network, ranksPerHost, secret, timeoutMs: 600_000 });
  const turns = series.flatMap((name) => inFlights.map((inFlight) => ({ name, inFlight, roundsUs: [] as number[] })));
  for (let round = 0; round < rounds; round++) {
    for (const index of turns.keys()) {
      // Rounds begin at different places, so that changes of the machine over time meet all alike.
      const each = turns[(index + Math.floor((round * turns.length) / rounds)) % turns.length];
      const us = await turn(place, each.name, each.inFlight);
      each.roundsUs.push(us);
      console.error(`round ${round + 1}: ${each.name}, ${each.inFlight} in flight: ${(us / 1000).toFixed(0)} ms`);
    }
  }
  const points = turns.map(({ name, inFlight, roundsUs }): OverlapPoint => {
    return { series: name, inFlight, stagingBytes: stagingOf(name, inFlight), roundsUs, medianUs: median(roundsUs) };
  });
  const bits = 8 * 2 * ((hosts - 1) / hosts) * bytes * buckets;
  return {
    schema: 'shoal-overlap',
    version: 1,
    network: network.description,
    ranksPerHost,
    buckets,
    bytes,
    stagedBytes,
    boundUs: rateMbit === 0 ? null : bits / rateMbit,
    rounds,
    machine: { cpu: os.cpus()[0]?.model ?? 'unknown', cpus: os.availableParallelism(), node: process.version, loadBefore },
    commit: spawnSync('git', ['describe', '--always', '--dirty'], { cwd: repository, encoding: 'utf8' }).stdout.trim(),
    startedAt,
    points,
  };
}

try {
  const text = `${JSON.stringify(await measure(), null, 2)}\n`;
  if (values.out === undefined) process.stdout.write(text);
  else writeFileSync(values.out, text);
} catch (error) {
  console.error(error instanceof Error ? error.message : error);
  process.exitCode = 1;
}
