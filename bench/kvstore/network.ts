/** A parameter server and a worker on two hosts, which are network namespaces: push, pull, and both at once, as shares of the
 *  line's rate. Contestants take turns, round by round. Needs root. Build first.
 *
 *    npx tsx bench/kvstore/network.ts --rate-mbit 2000 [--rounds 5] [--iterations 6] [--mib 100] [--key-mib 4]
 *                                     [--planes tcp,libfabric] [--beside ../before] [--out bench/results/kvstore-network.json]
 *
 *  --beside: another checkout, built, whose programs are contestants as well. */
import { execFileSync } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { writeFileSync } from 'node:fs';
import os from 'node:os';
import { join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { statisticsOf } from '../../src/tools/timing/statistics.ts';
import { programArguments } from '../arguments.ts';
import { createNetwork, networkUnavailable } from '../network/network.ts';
import { rankVariables } from '../peers/place.ts';
import { runTogether } from '../peers/processes.ts';

const loadBefore = os.loadavg()[0];
const text = (fallback: string) => ({ type: 'string', default: fallback }) as const;
const { values } = programArguments(import.meta.url, {
  options: {
    'rate-mbit': text('2000'),
    rounds: text('5'),
    iterations: text('6'),
    mib: text('100'),
    'key-mib': text('4'),
    planes: text('tcp,libfabric'),
    beside: { type: 'string' },
    out: { type: 'string' },
  },
});
const reason = networkUnavailable();
if (reason !== undefined) {
  console.error(reason);
  process.exit(2);
}
const rateMbit = Number(values['rate-mbit']);
const [rounds, iterations] = [Number(values.rounds), Number(values.iterations)];
const keyBytes = Number(values['key-mib']) * 2 ** 20;
const keys = Math.max(1, Math.round((Number(values.mib) * 2 ** 20) / keyBytes));
const timeoutMs = 300_000;
const here = fileURLToPath(new URL('../..', import.meta.url));

const planes: Record<string, Record<string, string>> = {
  tcp: { SHOAL_FABRICS: 'tcp' },
  // Its writes cannot be encrypted.
  libfabric: { SHOAL_FABRICS: 'libfabric', SHOAL_LIBFABRIC_PROVIDER: 'tcp;ofi_rxm', SHOAL_ENCRYPTION: 'off' },
};
interface Contestant {
  readonly name: string;
  readonly checkout: string;
  readonly plane: string;
}
const contestants = values.planes.split(',').flatMap((plane): Contestant[] => {
  if (!Object.hasOwn(planes, plane)) throw new Error(`there is no plane '${plane}'; there are ${Object.keys(planes).join(', ')}`);
  const before = values.beside === undefined ? [] : [{ name: `${plane}, before`, checkout: resolve(values.beside), plane }];
  return [{ name: plane, checkout: here, plane }, ...before];
});

type Sample = { readonly ms: number; readonly cpuMs: number };
type Samples = Record<string, Sample[]>;

using network = await createNetwork({ hosts: 2, rateMbit });
const collected = new Map<string, Samples[]>();
for (let round = 0; round < rounds; round++) {
  for (const contestant of round % 2 === 0 ? contestants : contestants.toReversed()) {
    const samples = await runOnce(contestant);
    collected.set(contestant.name, [...(collected.get(contestant.name) ?? []), samples]);
    const medians = Object.entries(samples).map(([way, all]) => `${way} ${medianOf(all, 'ms').toFixed(0)} ms`);
    process.stderr.write(`round ${round + 1} of ${rounds}: ${contestant.name}: ${medians.join(', ')}\n`);
  }
}

const round3 = (value: number): number => Number(value.toPrecision(3));
const lineMs = (keys * keyBytes * 8) / (rateMbit * 1000);
const results = ['push', 'pull', 'pushPull'].map((way) => ({
  way,
  contestants: contestants.map(({ name }) => {
    const perRound = collected.get(name)!.map((samples) => samples[way]);
    const all = perRound.flat();
    const [medianMs, bestMs] = [medianOf(all, 'ms'), Math.min(...all.map(({ ms }) => ms))];
    const before = collected.get(`${name}, before`)?.map((samples) => medianOf(samples[way], 'ms'));
    return {
      name,
      medianMs: round3(medianMs),
      bestMs: round3(bestMs),
      workerCpuMs: round3(medianOf(all, 'cpuMs')),
      ...(rateMbit > 0 ? { shareOfLine: round3(lineMs / medianMs), bestShareOfLine: round3(lineMs / bestMs) } : {}),
      // Ratios round by round: other load of the machine was alike.
      ...(before === undefined
        ? {}
        : { timesAsFast: round3(statisticsOf(perRound.map((samples, k) => before[k] / medianOf(samples, 'ms'))).median) }),
    };
  }),
}));
const machine = {
  cpu: os.cpus()[0].model,
  cpus: os.availableParallelism(),
  node: process.version,
  kernel: os.release(),
  loadBefore,
  loadAfter: os.loadavg()[0],
};
const commitOf = (checkout: string): string =>
  execFileSync('git', ['rev-parse', '--short', 'HEAD'], { cwd: checkout, encoding: 'utf8' }).trim();
const commits = { here: commitOf(here), ...(values.beside === undefined ? {} : { before: commitOf(values.beside) }) };
const report = { commits, machine, place: network.description, rateMbit, keys, keyBytes, rounds, iterations, results };
console.log(JSON.stringify(report, undefined, 2));
if (values.out !== undefined) writeFileSync(values.out, `${JSON.stringify(report, undefined, 2)}\n`);

function medianOf(samples: readonly Sample[], what: keyof Sample): number {
  return statisticsOf(samples.map((sample) => sample[what])).median;
}

async function runOnce({ checkout, plane }: Contestant): Promise<Samples> {
  const secret = randomBytes(32).toString('hex');
  const job = { SHOAL_WORKERS: '1', SHOAL_SERVERS: '1', SHOAL_KV_SILENCE_MS: '60000', SHOAL_SECRET: secret };
  const program = (rank: number, command: readonly string[], more: Record<string, string>) => ({
    command: [...network.hosts[rank].enter, ...command],
    environment: {
      ...rankVariables({ rank, ranks: 2, localRank: 0, localRanks: 1, masterAddress: network.hosts[0].address, masterPort: 29400 }),
      SHOAL_HOST_ID: `${network.name}-host-${rank}`,
      ...job,
      ...planes[plane],
      ...more,
    },
  });
  const script = [process.execPath, '--import', 'tsx', join(checkout, 'bench/kvstore/network-worker.ts'), keys, keyBytes, iterations];
  const entry = [process.execPath, join(checkout, 'dist/ps/server/server-entry.js')];
  const printed = await runTogether(
    [program(0, script.map(String), { SHOAL_ROLE: 'worker' }), program(1, entry, { SHOAL_ROLE: 'server', SHOAL_SERVER: '0' })],
    { timeoutMs },
  );
  return JSON.parse(printed.trim().split('\n').at(-1)!) as Samples;
}
