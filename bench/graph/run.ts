/** Requests per step and throughput of the wide & deep example, on real processes, by every way to receive tensors: rounds of all
 *  ways in turn, so that a busy machine is busy for all of them. Only the ratio to the first way in the same round is meaningful.
 *
 *    npx tsx bench/graph/run.ts                                          on this host
 *    npx tsx bench/graph/run.ts --network --rate-mbit 1000               a network namespace for every task; needs root
 *    npx tsx bench/graph/run.ts --out out.json                           and the numbers
 *    npx tsx bench/graph/run.ts --ways 'gRPC unfused,gRPC static' --rounds 5 --steps 40 --workers 5 --ps 1 --parts 4 --batch 128
 *
 *  Build first. */
import { randomBytes } from 'node:crypto';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { median } from '../../src/base/numbers.ts';
import { programArguments } from '../arguments.ts';
import { grpcGraphEnvironment } from '../grpc/graph.ts';
import { createNetwork, networkUnavailable, type Network } from '../network/network.ts';
import { networkPlace } from '../network/network-place.ts';
import { localPlace } from '../peers/place.ts';
import { machine, round } from './machine.ts';

/** The result that examples/wide-deep/train.ts writes. */
interface Result {
  readonly examplesPerSecond: number;
  readonly receivesPerStep: number;
  readonly rpcsPerStep: number;
  readonly bytesPerStep: number;
}

interface Way {
  readonly name: string;
  readonly environment: Readonly<Record<string, string>>;
  readonly script: string;
  readonly flags: readonly string[];
}

const ways: readonly Way[] = [
  { carrier: 'gRPC', script: 'bench/graph/train-over-grpc.ts', environment: grpcGraphEnvironment },
  { carrier: 'fabric', script: 'examples/wide-deep/train.ts', environment: {} },
].flatMap(({ carrier, ...rest }) => [
  { ...rest, name: `${carrier} unfused`, flags: [] },
  { ...rest, name: `${carrier} static`, flags: ['--fuse'] },
  { ...rest, name: `${carrier} run time`, flags: ['--recv-some'] },
  { ...rest, name: `${carrier} static and run time`, flags: ['--fuse', '--recv-some'] },
]);

const { values } = programArguments(import.meta.url, {
  options: {
    ways: { type: 'string', default: ways.map(({ name }) => name).join(',') },
    network: { type: 'boolean', default: false },
    'rate-mbit': { type: 'string', default: '0' },
    rounds: { type: 'string', default: '3' },
    steps: { type: 'string', default: '20' },
    workers: { type: 'string', default: '5' },
    ps: { type: 'string', default: '1' },
    parts: { type: 'string', default: '2' },
    batch: { type: 'string', default: '128' },
    columns: { type: 'string', default: '104' },
    out: { type: 'string' },
  },
});
const names = values.ways.split(',');
const wanted = ways.filter(({ name }) => names.includes(name));
const ranks = Number(values.workers) + Number(values.ps);
const problem =
  (values.network ? networkUnavailable() : undefined) ??
  (wanted.length < names.length ? `ways are ${ways.map(({ name }) => name).join(', ')}` : undefined);
if (problem !== undefined) {
  console.error(problem);
  process.exit(2);
}

using network: Network | undefined = values.network
  ? await createNetwork({ hosts: ranks, rateMbit: Number(values['rate-mbit']) })
  : undefined;
const job = { secret: randomBytes(32).toString('hex'), timeoutMs: 1_200_000 };
const place = network === undefined ? localPlace({ ranks, ...job }) : networkPlace({ network, ranksPerHost: 1, ...job });
const folder = mkdtempSync(join(tmpdir(), 'bench-graph-'));
const results = new Map<string, Result[]>(wanted.map(({ name }) => [name, []]));
try {
  for (let number = 1; number <= Number(values.rounds); number++) {
    for (const way of wanted) {
      const result = await run(way);
      results.get(way.name)?.push(result);
      console.error(`round ${number}: ${way.name}: ${result.examplesPerSecond.toFixed(0)} examples/s`);
    }
  }
} finally {
  rmSync(folder, { recursive: true });
}

async function run({ script, flags, environment }: Way): Promise<Result> {
  const out = join(folder, 'result.json');
  const { steps, columns, batch, parts } = values;
  const model = Object.entries({ steps, columns, batch, parts, hidden: '16', evaluation: '200', out }).flatMap(([key, value]) => [
    `--${key}`,
    value,
  ]);
  const command = [process.execPath, '--import', 'tsx', script, ...model, ...flags];
  await place.run({ command, environment: { SHOAL_PS: values.ps, ...environment } });
  return JSON.parse(readFileSync(out, 'utf8')) as Result;
}

const [reference] = results.values();
const rows = [...results].map(([name, own]) => {
  // Ratios to the first way, in the same round.
  const ratios = own.map(({ examplesPerSecond }, k) => round(examplesPerSecond / reference[k].examplesPerSecond));
  return {
    name,
    receivesPerStep: median(own.map(({ receivesPerStep }) => receivesPerStep)),
    rpcsPerStep: round(median(own.map(({ rpcsPerStep }) => rpcsPerStep))),
    rpcsSaved: round(1 - median(own.map(({ rpcsPerStep }, k) => rpcsPerStep / reference[k].rpcsPerStep))),
    kibPerStep: round(median(own.map(({ bytesPerStep }) => bytesPerStep / 1024))),
    examplesPerSecond: own.map(({ examplesPerSecond }) => round(examplesPerSecond)),
    throughputRatio: { median: median(ratios), best: Math.max(...ratios), ofRounds: ratios },
  };
});

const { out: _, ...options } = values;
const report = { machine: machine(), place: place.name, options, rows };
console.log(`${values.ps} ps : ${values.workers} workers, batch ${values.batch}, tables in ${values.parts} parts; ${place.name}\n`);
console.log('                               RPCs/step     saved   KiB/step   of the first way: median   best');
for (const { name, rpcsPerStep, rpcsSaved, kibPerStep, throughputRatio } of rows) {
  const counts = `${rpcsPerStep.toFixed(1).padStart(9)} ${`${(rpcsSaved * 100).toFixed(1)} %`.padStart(9)} ${kibPerStep.toFixed(0).padStart(10)}`;
  const ratios = `${`× ${throughputRatio.median.toFixed(2)}`.padStart(26)} ${throughputRatio.best.toFixed(2).padStart(6)}`;
  console.log(`${name.padEnd(30)} ${counts} ${ratios}`);
}
if (values.out !== undefined) writeFileSync(values.out, `${JSON.stringify(report, undefined, 2)}\n`);
