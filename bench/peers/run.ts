/** Shoal and its peers in one interleaved run: times, ratios, and the bound that memory sets.
 *
 *    npx tsx bench/peers/run.ts                                       one host: 2, 4 and 8 ranks
 *    npx tsx bench/peers/run.ts --collectives all-reduce,broadcast --ranks 2 --rounds 9
 *    npx tsx bench/peers/run.ts --hosts 4 --rate-mbit 1000            hosts made of network namespaces (root)
 *    npx tsx bench/peers/run.ts --hosts 4 --rate-mbit 1000 --sizes 25MiB:4 --warmup 2 --rounds 3   large tensors only, a minute
 *    npx tsx bench/peers/run.ts --hosts 4 --ranks-per-host 2 --rate-mbit 1000 --sizes 25MiB:3 --algorithms fairring,direct,ring
 *    npx tsx bench/peers/run.ts --ranks 2 --buckets 64 --sizes 25MiB:3  64 operations back to back, as gradients are
 *    npx tsx bench/peers/run.ts --ranks 2 --earlier v0.1.0 --only 'shoal sync,v0.1.0 sync'   beside a build of another commit
 *    npx tsx bench/peers/run.ts --tiny --out /tmp                     seconds; shows that everything runs
 *
 *  Writes <out>/<name>.json, which `bench/pages.ts` draws. Peers that are not installed are left out, with a line
 *  that says why. Run it on a machine that does nothing else. */
import { spawnSync } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { availableParallelism, cpus, loadavg, release, tmpdir, totalmem } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { programArguments } from '../arguments.ts';
import { layoutOf, type CollectiveName } from '../../src/tools/timing/collective.ts';
import { parseSizes } from '../../src/tools/timing/options.ts';
import { parseBytes } from '../../src/base/settings/quantity.ts';
import { createNetwork, networkUnavailable } from '../network/network.ts';
import { networkPlace } from '../network/network-place.ts';
import { comparisonVersion, runCase, type Bound, type ComparedCase, type Comparison } from './comparison.ts';
import { contestants, referenceName, type Contestant, type Size } from './contestants.ts';
import { localPlace, type Place } from './place.ts';

/** The collectives that the programs of all peers know. */
const collectiveNames = ['all-reduce', 'all-gather', 'reduce-scatter', 'broadcast', 'all-to-all', 'send-recv', 'barrier'] as const;

const KiB = 1024;
const MiB = 1024 * KiB;
const repository = fileURLToPath(new URL('../..', import.meta.url));

// Training makes millions of calls: the first few thousand, which JavaScript interprets, must not be the median.
const sizesLocal: readonly Size[] = [
  { bytes: 8, iterations: 20_000 },
  { bytes: KiB, iterations: 10_000 },
  { bytes: 8 * KiB, iterations: 5000 },
  { bytes: 64 * KiB, iterations: 2000 },
  { bytes: MiB, iterations: 300 },
  { bytes: 4 * MiB, iterations: 60 },
  { bytes: 25 * MiB, iterations: 12 },
  { bytes: 100 * MiB, iterations: 5 },
];
const sizesNetwork: readonly Size[] = [
  { bytes: 8, iterations: 300 },
  { bytes: KiB, iterations: 300 },
  { bytes: 64 * KiB, iterations: 100 },
  { bytes: MiB, iterations: 20 },
  { bytes: 4 * MiB, iterations: 8 },
  { bytes: 25 * MiB, iterations: 3 },
  { bytes: 100 * MiB, iterations: 2 },
];
const sizesTiny: readonly Size[] = [
  { bytes: 8, iterations: 5 },
  { bytes: 64 * KiB, iterations: 3 },
];

const { values } = programArguments(import.meta.url, {
  options: {
    collectives: { type: 'string', default: 'all-reduce' },
    ranks: { type: 'string' },
    rounds: { type: 'string' },
    only: { type: 'string' },
    // Algorithms of Shoal, to compare with its automatic choice; with --only, they are measured besides.
    algorithms: { type: 'string' },
    // Commits that are built and take part: 3121df6 as '3121df6 sync', '3121df6 async', '3121df6 private'.
    earlier: { type: 'string' },
    hosts: { type: 'string' },
    'ranks-per-host': { type: 'string', default: '1' },
    'rate-mbit': { type: 'string', default: '0' },
    'delay-us': { type: 'string', default: '0' },
    'jitter-us': { type: 'string', default: '0' },
    'loss-percent': { type: 'string', default: '0' },
    // Sizes in place of the usual ones: 25MiB:3,100MiB:2
    sizes: { type: 'string' },
    'size-max': { type: 'string', default: '100MiB' },
    buckets: { type: 'string', default: '1' },
    // Number of buckets that are checked; all by default. Checking all takes as long as a sample.
    'check-buckets': { type: 'string' },
    // Iterations before the timed ones; 10, or 1 with --tiny or --buckets.
    warmup: { type: 'string' },
    name: { type: 'string' },
    out: { type: 'string', default: join(repository, 'bench/results') },
    tiny: { type: 'boolean', default: false },
  },
});

const timeoutMs = 900_000;
const secret = randomBytes(32).toString('hex');
const say = (line: string): void => console.error(line);

/** A handler that makes an interruption wait while hosts are made or removed. */
const nothing = (): void => undefined;
for (const name of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.on(name, nothing);

const scratch = mkdtempSync(join(tmpdir(), 'shoal-peers-'));
try {
  process.exitCode = await main();
} catch (error) {
  say(error instanceof Error ? error.message : String(error));
  process.exitCode = 1;
} finally {
  rmSync(scratch, { recursive: true });
}

async function main(): Promise<number> {
  const collectives = values.collectives.split(',').map(collectiveOf);
  const rounds = Number(values.rounds ?? (values.tiny ? 1 : 5));
  if (!(Number.isInteger(rounds) && rounds > 0)) throw new Error(`--rounds ${values.rounds} is not a number of rounds`);
  const overNetwork = values.hosts !== undefined;
  const unavailable = overNetwork ? networkUnavailable() : undefined;
  if (unavailable !== undefined) {
    say(unavailable);
    return 2;
  }
  const loadBefore = loadavg()[0];
  const startedAt = new Date().toISOString();
  const { present, missing } = prepare();
  const cases: ComparedCase[] = [];
  const warmup = Number(values.warmup ?? (values.tiny || Number(values.buckets) > 1 ? 1 : 10));
  const usual = values.tiny ? sizesTiny : overNetwork ? sizesNetwork : sizesLocal;
  const sizeMax = parseBytes(values['size-max']) ?? Number.NaN;
  const sizes =
    values.sizes === undefined ? usual.filter(({ bytes }) => bytes <= sizeMax) : parseSizes(values.sizes, { iterations: 5, warmup });
  if (sizes.length === 0) throw new Error(`there are no sizes up to ${values['size-max']}`);
  const measure = async (place: Place): Promise<void> => {
    for (const collective of collectives) {
      const bound = collective === 'all-reduce' ? (overNetwork ? lineRateBound(sizes) : memoryBound(place.ranks, sizes)) : undefined;
      const points = collective === 'barrier' ? [{ bytes: 0, iterations: sizes[0].iterations }] : sizesFor(collective, place, sizes);
      const options = {
        collective,
        place,
        sizes: points,
        warmup,
        buckets: Number(values.buckets),
        checkedBuckets: Number(values['check-buckets'] ?? values.buckets),
        rounds,
        contestants: present,
        bound,
        report: say,
      };
      const one = await runCase(options);
      cases.push(one);
      printCase(one);
    }
  };
  if (overNetwork) {
    using network = await createNetwork({
      hosts: Number(values.hosts),
      rateMbit: Number(values['rate-mbit']),
      delayUs: Number(values['delay-us']),
      jitterUs: Number(values['jitter-us']),
      lossPercent: Number(values['loss-percent']),
    });
    await measure(networkPlace({ network, ranksPerHost: Number(values['ranks-per-host']), secret, timeoutMs }));
  } else {
    for (const ranks of (values.ranks ?? (values.tiny ? '2' : '2,4,8')).split(',').map(Number)) {
      await measure(localPlace({ ranks, secret, timeoutMs }));
    }
  }
  const comparison: Comparison = {
    schema: 'shoal-peers',
    version: comparisonVersion,
    startedAt,
    machine: { ...machine(), loadBefore },
    commit: spawnSync('git', ['describe', '--always', '--dirty'], { cwd: repository, encoding: 'utf8' }).stdout.trim(),
    rounds,
    reference: referenceName,
    contestants: Object.fromEntries(present.map(({ name, description }) => [name, description])),
    missing,
    cases,
  };
  const wrong = write(comparison);
  return wrong === 0 ? 0 : 1;
}

/** Sizes that leave each rank a whole part: not every peer survives empty tensors. */
function sizesFor(collective: CollectiveName, { ranks }: Place, sizes: readonly Size[]): Size[] {
  return sizes.filter(({ bytes }) => layoutOf(collective, { bytes, elementBytes: 4, ranks }).movedCount > 0);
}

/** The contestants that can run here, and the reasons of the others. */
function prepare(): { present: Contestant[]; missing: Record<string, string> } {
  const algorithms = values.algorithms?.split(',') ?? [];
  const wanted = values.only?.split(',').concat(algorithms.map((algorithm) => `shoal ${algorithm}`));
  const missing: Record<string, string> = {};
  const present = contestants({ algorithms, earlierCommits: values.earlier?.split(',') }).filter(({ name, prepare: build }) => {
    if (wanted !== undefined && !wanted.includes(name)) return false;
    const reason = build(scratch);
    if (reason === undefined) return true;
    missing[name] = reason;
    say(`without ${name}: ${reason}`);
    return false;
  });
  return { present, missing };
}

/** The bound by the line rate: every host sends, and receives, its share 2·(M−1)/M of the reduced bytes; headers are not counted. */
function lineRateBound(sizes: readonly Size[]): Bound | undefined {
  const hosts = Number(values.hosts);
  const bytesPerUs = Number(values['rate-mbit']) / 8;
  if (bytesPerUs === 0) return undefined;
  const times = new Map(sizes.map(({ bytes }) => [bytes, (2 * (hosts - 1) * bytes) / hosts / bytesPerUs]));
  return { name: 'line rate', measure: () => Promise.resolve(times) };
}

function memoryBound(ranks: number, sizes: readonly Size[]): Bound {
  return { name: 'memory', measure: () => memoryTimes(ranks, sizes) };
}

async function memoryTimes(ranks: number, sizes: readonly Size[]): Promise<Map<number, number>> {
  const place = localPlace({ ranks: Math.min(ranks, availableParallelism()), secret, timeoutMs });
  const script = join(repository, 'bench/peers/memory-bound.ts');
  // Below this size, the call costs more than the bytes.
  const list = sizes
    .filter(({ bytes }) => bytes >= 64 * KiB)
    .map(({ bytes, iterations }) => `${bytes}:${iterations}`)
    .join(',');
  if (list === '') return new Map();
  const lines = await place.run({ command: [process.execPath, '--import', import.meta.resolve('tsx'), script, String(ranks), list] });
  const rows = lines
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line) as { bytes: number; boundUs: number });
  return new Map(rows.map(({ bytes, boundUs }) => [bytes, boundUs]));
}

function printCase({ collective, place, ranks, sizes, bound, skipped }: ComparedCase): void {
  console.log(`\n${collective}, ${place}, ${ranks} ranks: median µs (times ${referenceName})`);
  for (const { bytes, standings, boundUs } of sizes) {
    const cells = standings.map(
      ({ contestant, medianUs, ratio }) => `${contestant} ${medianUs.toFixed(2)}${ratio === null ? '' : ` (${ratio.toPrecision(3)})`}`,
    );
    if (boundUs !== null) cells.push(`${bound} bound ${boundUs.toFixed(2)}`);
    console.log(`${String(bytes).padStart(10)}  ${cells.join('   ')}`);
  }
  for (const [name, reason] of Object.entries(skipped)) console.log(`  without ${name}: ${reason}`);
}

/** Writes the results. @returns the number of wrong elements, over everything. */
function write(comparison: Comparison): number {
  const name = values.name ?? (values.hosts === undefined ? 'peers-one-host' : 'peers-network');
  mkdirSync(values.out, { recursive: true });
  writeFileSync(join(values.out, `${name}.json`), `${JSON.stringify(comparison, null, 1)}\n`);
  say(`wrote ${join(values.out, name)}.json`);
  const standings = comparison.cases.flatMap(({ sizes }) => sizes.flatMap((size) => size.standings));
  const wrong = standings.filter((standing) => standing.wrong > 0);
  for (const standing of wrong) say(`${standing.contestant}: ${standing.wrong} elements are wrong`);
  return wrong.length;
}

function machine(): Omit<Comparison['machine'], 'loadBefore'> {
  return {
    processor: cpus()[0]?.model ?? 'unknown',
    cpus: availableParallelism(),
    memoryBytes: totalmem(),
    system: `Linux ${release()}`,
    node: process.version,
  };
}

function collectiveOf(name: string): CollectiveName {
  const found = collectiveNames.find((each) => each === name);
  if (found !== undefined) return found;
  throw new Error(`'${name}' is not a collective; use ${collectiveNames.join(', ')}`);
}
