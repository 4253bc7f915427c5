/** The time to partition a graph and to fuse its receives: median of several rounds, for graphs of growing size, so that anything
 *  that grows faster than the graph shows. The code is bundled first, as it is published.
 *
 *    npx tsx bench/graph/partition.ts                    a table
 *    npx tsx bench/graph/partition.ts --out out.json     and the numbers */
import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { systemClock, type Clock } from '../../src/base/clock.ts';
import { seededRandom } from '../../src/base/random.ts';
import { median } from '../../src/base/numbers.ts';
import { partitionGraph } from '../../src/graph/partition/partition-graph.ts';
import { prune } from '../../src/graph/partition/prune.ts';
import { DeviceSet } from '../../src/graph/placement/devices.ts';
import { place } from '../../src/graph/placement/place.ts';
import { randomGraph } from '../../src/graph/testing/random-graph.ts';
import { programArguments } from '../arguments.ts';
import { cpuMs, machine } from './machine.ts';

export interface PartitionBenchRow {
  readonly nodes: number;
  readonly transfers: number;
  readonly groups: number;
  readonly placeMs: number;
  readonly pruneMs: number;
  /** Time of partition and pass, without the proof. */
  readonly partitionMs: number;
  /** The same in CPU time of the process, with the garbage collector's threads: on a busy machine, less than has passed. */
  readonly partitionCpuMs: number;
  /** Further time of the proof that there is no deadlock. */
  readonly proofMs: number;
}

/** @param options.rounds number of rounds, of which the median counts. */
export function benchPartition(options: {
  readonly sizes: readonly number[];
  readonly rounds: number;
  readonly clock: Clock;
}): PartitionBenchRow[] {
  const names = ['/job:ps/task:0/cpu:0', '/job:ps/task:1/cpu:0', '/job:worker/task:0/cpu:0', '/job:worker/task:1/cpu:0'];
  const devices = new DeviceSet(names);
  return options.sizes.map((size) => {
    const graph = randomGraph(seededRandom(1), { nodes: size, devices: devices.names, reach: 2000, loopShare: 0.01 });
    const feeds = graph.nodes.filter(({ op }) => op === 'Placeholder').map(({ outputs: [output] }) => output);
    const targets = graph.nodes.filter(({ op }) => op !== 'Placeholder');
    const timed = <T>(times: number[], run: () => T, now = () => options.clock.now()): T => {
      const startMs = now();
      const result = run();
      times.push(now() - startMs);
      return result;
    };
    const [placeMs, pruneMs, partitionMs, partitionCpuMs, checkedMs]: number[][] = [[], [], [], [], []];
    let row = { nodes: graph.nodes.length, transfers: 0, groups: 0 };
    for (let round = 0; round < options.rounds; round++) {
      const placement = timed(placeMs, () => place(graph, devices));
      const pruned = timed(pruneMs, () => prune(graph, placement, { feeds, fetches: [], targets }));
      const partition = (): unknown => partitionGraph(pruned, { devices, doFuseRecv: true, check: false });
      timed(partitionMs, () => timed(partitionCpuMs, partition, cpuMs));
      const result = timed(checkedMs, () => partitionGraph(pruned, { devices, doFuseRecv: true }));
      row = { nodes: graph.nodes.length, transfers: result.transfers.length, groups: result.groups.length };
    }
    const proofMs = Math.max(0, median(checkedMs) - median(partitionMs));
    return {
      ...row,
      placeMs: median(placeMs),
      pruneMs: median(pruneMs),
      partitionMs: median(partitionMs),
      partitionCpuMs: median(partitionCpuMs),
      proofMs,
    };
  });
}

function main(): void {
  const { values } = programArguments(import.meta.url, { options: { out: { type: 'string' } } });
  // The nodes of loops and branches come on top: 50,000 nodes from 43,600.
  const rows = benchPartition({ sizes: [5450, 10_900, 21_800, 43_600, 87_200], rounds: 5, clock: systemClock }).map((row) => rounded(row));
  console.log('   nodes  transfers   fused   place ms   prune ms   partition + pass ms   of CPU ms   proof ms');
  for (const row of rows) {
    const counts = `${String(row.nodes).padStart(8)} ${String(row.transfers).padStart(10)} ${String(row.groups).padStart(7)}`;
    const times = [row.placeMs, row.pruneMs].map((each) => each.toFixed(0).padStart(10)).join(' ');
    const partition = `${row.partitionMs.toFixed(0).padStart(21)} ${row.partitionCpuMs.toFixed(0).padStart(11)}`;
    console.log(`${counts} ${times} ${partition} ${row.proofMs.toFixed(0).padStart(10)}`);
  }
  if (values.out !== undefined) writeFileSync(values.out, `${JSON.stringify({ machine: machine(), rows }, undefined, 2)}\n`);
}

function rounded(row: PartitionBenchRow): PartitionBenchRow {
  return Object.fromEntries(Object.entries(row).map(([key, value]) => [key, Math.round(value)])) as unknown as PartitionBenchRow;
}

/** @returns the exit code. */
async function runBundled(): Promise<number | null> {
  const { buildSync } = await import('esbuild');
  const folder = mkdtempSync(join(tmpdir(), 'bench-partition-'));
  const bundle = join(folder, 'partition.mjs');
  try {
    const entryPoints = [fileURLToPath(import.meta.url)];
    buildSync({ entryPoints, bundle: true, platform: 'node', format: 'esm', packages: 'external', outfile: bundle });
    return spawnSync(process.execPath, [bundle, ...process.argv.slice(2)], { stdio: 'inherit' }).status;
  } finally {
    rmSync(folder, { recursive: true });
  }
}

if (import.meta.url.endsWith('.mjs')) main();
else if (process.argv[1] === fileURLToPath(import.meta.url)) process.exitCode = (await runBundled()) ?? 1;
