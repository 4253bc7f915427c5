/** What it takes to partition a graph and to fuse its receives: median of several rounds, for graphs of growing size, so that anything
 *  that grows faster than the graph shows.
 *
 *    npx tsx bench/graph/partition.ts            a table
 *    npx tsx bench/graph/partition.ts --json     one JSON document */
import { cpus } from 'node:os';
import { fileURLToPath } from 'node:url';
import { systemClock, type Clock } from '../../src/base/clock.ts';
import { seededRandom } from '../../src/base/random.ts';
import { partitionGraph } from '../../src/graph/partition/partition.ts';
import { prune } from '../../src/graph/partition/prune.ts';
import { DeviceSet } from '../../src/graph/placement/devices.ts';
import { place } from '../../src/graph/placement/place.ts';
import { randomGraph } from '../../src/graph/testing/random-graph.ts';
import { programArguments } from '../arguments.ts';

export interface PartitionBenchRow {
  readonly nodes: number;
  readonly transfers: number;
  readonly groups: number;
  readonly placeMs: number;
  readonly pruneMs: number;
  /** Partition and pass, without the proof. */
  readonly partitionMs: number;
  /** The proof that there is no deadlock, beyond that. */
  readonly proofMs: number;
}

/** @param options.rounds the median is of these. */
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
    const timed = <T>(times: number[], run: () => T): T => {
      const startMs = options.clock.now();
      const result = run();
      times.push(options.clock.now() - startMs);
      return result;
    };
    const [placeMs, pruneMs, partitionMs, checkedMs]: number[][] = [[], [], [], []];
    let row = { nodes: graph.nodes.length, transfers: 0, groups: 0 };
    for (let round = 0; round < options.rounds; round++) {
      const placement = timed(placeMs, () => place(graph, devices));
      const pruned = timed(pruneMs, () => prune(graph, placement, { feeds, fetches: [], targets }));
      timed(partitionMs, () => partitionGraph(pruned, { devices, doFuseRecv: true, check: false }));
      const result = timed(checkedMs, () => partitionGraph(pruned, { devices, doFuseRecv: true }));
      row = { nodes: graph.nodes.length, transfers: result.transfers.length, groups: result.groups.length };
    }
    const proofMs = Math.max(0, median(checkedMs) - median(partitionMs));
    return { ...row, placeMs: median(placeMs), pruneMs: median(pruneMs), partitionMs: median(partitionMs), proofMs };
  });
}

function median(values: readonly number[]): number {
  return values.toSorted((a, b) => a - b)[values.length >> 1];
}

function main(): void {
  const { values } = programArguments(import.meta.url, { options: { json: { type: 'boolean' } } });
  const machine = { cpu: cpus()[0]?.model ?? 'unknown', cpus: cpus().length, node: process.version };
  const rows = benchPartition({ sizes: [6250, 12_500, 25_000, 50_000, 100_000], rounds: 5, clock: systemClock });
  if (values.json) {
    console.log(JSON.stringify({ machine, rows }, null, 2));
    return;
  }
  console.log(`${machine.cpu}, ${machine.cpus} CPUs, Node ${machine.node}\n`);
  console.log('   nodes  transfers   fused   place ms   prune ms   partition + pass ms   proof ms');
  for (const row of rows) {
    const counts = `${String(row.nodes).padStart(8)} ${String(row.transfers).padStart(10)} ${String(row.groups).padStart(7)}`;
    const times = [row.placeMs, row.pruneMs].map((each) => each.toFixed(0).padStart(10)).join(' ');
    console.log(`${counts} ${times} ${row.partitionMs.toFixed(0).padStart(21)} ${row.proofMs.toFixed(0).padStart(10)}`);
  }
}

if (process.argv[1] === fileURLToPath(import.meta.url)) main();
