/** Rates of kernels that sum float32 vectors: the addon for every instruction set of this CPU, and JavaScript, beside a plain
 *  copy, in one interleaved run. Rates count the bytes of the result; a sum of n vectors reads n of them and writes one.
 *
 *    npx tsx bench/memory/reduce.ts            a table
 *    npx tsx bench/memory/reduce.ts --json     one JSON document, as kept in bench/results/ */
import { cpus } from 'node:os';
import { fileURLToPath } from 'node:url';
import { systemClock, type Clock } from '../../src/base/clock.ts';
import { createKernels } from '../../src/memory/kernels/create-kernels.ts';
import { balancedTree, type Kernels } from '../../src/memory/kernels.ts';
import { loadNative } from '../../src/memory/native.ts';
import { createRegionAllocator } from '../../src/memory/regions/allocator.ts';
import { createStepMachine } from '../../src/memory/step-machine/create-step-machine.ts';
import { Opcode } from '../../src/memory/step-machine.ts';
import { programArguments } from '../arguments.ts';

export interface ReduceBenchOptions {
  /** Bytes of one vector. */
  readonly sizes: readonly number[];
  readonly sourceCounts: readonly number[];
  /** Number of rounds over all contestants; the median and the 99th percentile are of these. */
  readonly rounds: number;
  /** At least this many bytes of result per measurement. */
  readonly bytesPerRound: number;
  readonly clock: Clock;
}

export interface ReduceBenchRow {
  readonly contestant: string;
  readonly bytes: number;
  readonly sources: number;
  /** Result bytes per second, in units of 10^9. */
  readonly medianGBps: number;
  readonly p99GBps: number;
  /** Ratio to the rate of copying one vector in the same run. */
  readonly shareOfCopy: number;
  /** Sum of the result's elements: the same for all contestants. */
  readonly checksum: number;
}

export interface RunCostRow {
  readonly machine: string;
  readonly program: string;
  readonly medianNs: number;
}

interface Contestant {
  readonly name: string;
  run(target: Uint8Array, sources: readonly Uint8Array[]): void;
}

export function benchReduce(options: ReduceBenchOptions): ReduceBenchRow[] {
  const native = loadNative({ enabled: true });
  const regions = createRegionAllocator({ native });
  const contestants: Contestant[] = [{ name: 'copy', run: (target, [first]) => target.set(first) }];
  if (native !== undefined) {
    contestants.push(summing(`native ${native.isa}`, createKernels({ native })));
    for (const loops of native.others) contestants.push(summing(`native ${loops.isa}`, createKernels({ native: { ...native, ...loops } })));
  }
  contestants.push(summing('js', createKernels()));

  return options.sizes.flatMap((bytes) =>
    options.sourceCounts.flatMap((sourceCount) => {
      const region = regions.create(bytes * (sourceCount + 1));
      const vectors = Array.from({ length: sourceCount + 1 }, (_, k) => new Uint8Array(region.buffer, k * bytes, bytes));
      vectors.forEach((vector, k) => new Float32Array(vector.buffer, vector.byteOffset, bytes / 4).fill(k));
      const rows = measure(contestants, vectors[0], vectors.slice(1), options);
      region.close();
      return rows;
    }),
  );
}

function summing(name: string, kernels: Kernels): Contestant {
  const trees = new Map<number, number[]>();
  return {
    name,
    run: (target, sources) => {
      const tree = trees.get(sources.length) ?? balancedTree(sources.length);
      trees.set(sources.length, tree);
      kernels.reduce('float32', 'sum', [target], sources, tree);
    },
  };
}

function measure(
  contestants: readonly Contestant[],
  target: Uint8Array,
  sources: readonly Uint8Array[],
  options: ReduceBenchOptions,
): ReduceBenchRow[] {
  const repeats = Math.ceil(options.bytesPerRound / target.byteLength);
  const times = contestants.map((): number[] => []);
  const checksums: number[] = [];
  // There is one round more than counted: the first warms up.
  for (let round = 0; round <= options.rounds; round++) {
    contestants.forEach((contestant, k) => {
      const startMs = options.clock.now();
      for (let repeat = 0; repeat < repeats; repeat++) contestant.run(target, sources);
      if (round > 0) times[k].push((options.clock.now() - startMs) / repeats);
      checksums[k] = new Float32Array(target.buffer, target.byteOffset, target.byteLength / 4).reduce((sum, value) => sum + value, 0);
    });
  }
  const gigabytesPerSecond = (timeMs: number): number => target.byteLength / timeMs / 1e6;
  const copyMs = percentile(times[0], 0.5);
  return contestants.map(({ name }, k) => ({
    contestant: name,
    bytes: target.byteLength,
    sources: name === 'copy' ? 1 : sources.length,
    medianGBps: gigabytesPerSecond(percentile(times[k], 0.5)),
    p99GBps: gigabytesPerSecond(percentile(times[k], 0.99)),
    shareOfCopy: copyMs / percentile(times[k], 0.5),
    checksum: checksums[k],
  }));
}

/** Cost of one `run` of a step program beyond the bytes that it moves. */
export function benchRunCost(options: { readonly rounds: number; readonly repeats: number; readonly clock: Clock }): RunCostRow[] {
  const native = loadNative({ enabled: true });
  const machines = [
    ...(native === undefined ? [] : [createStepMachine({ native, clock: options.clock })]),
    createStepMachine({ clock: options.clock }),
  ];
  const programs: Record<string, number[]> = {
    empty: [Opcode.End],
    'signal and wait': [Opcode.Signal, 0, 0, 1, 0, 64, 0, Opcode.Wait, 0, 0, 0, Opcode.End],
    'sum of two 64-byte vectors': [Opcode.Reduce, 1, 0, 16, NaN, 1, 0, 128, 2, 0, 256, 0, 384, 3, 0, 1, -1, Opcode.End],
  };
  return machines.flatMap((machine) =>
    Object.entries(programs).map(([program, instructions]) => {
      const segments = machine.createSegments(1);
      segments.set(0, new Uint8Array(new SharedArrayBuffer(4096)));
      const state = machine.createState(1);
      const code = Float64Array.from(instructions);
      const timesMs: number[] = [];
      for (let round = 0; round <= options.rounds; round++) {
        const startMs = options.clock.now();
        for (let repeat = 0; repeat < options.repeats; repeat++) {
          state.pc = 0;
          machine.run(code, segments, state, 0, false);
        }
        if (round > 0) timesMs.push((options.clock.now() - startMs) / options.repeats);
      }
      return { machine: machine.name, program, medianNs: percentile(timesMs, 0.5) * 1e6 };
    }),
  );
}

function percentile(values: readonly number[], share: number): number {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))];
}

function main(): void {
  const { values } = programArguments(import.meta.url, { options: { json: { type: 'boolean' } } });
  const KiB = 1024;
  const MiB = 1024 * KiB;
  const machine = { cpu: cpus()[0]?.model ?? 'unknown', cpus: cpus().length, node: process.version };
  const reduce = benchReduce({
    sizes: [4 * KiB, 64 * KiB, MiB, 25 * MiB],
    sourceCounts: [2, 4, 8],
    rounds: 21,
    bytesPerRound: 8 * MiB,
    clock: systemClock,
  });
  const runCost = benchRunCost({ rounds: 21, repeats: 20_000, clock: systemClock });
  if (values.json) {
    console.log(JSON.stringify({ machine, reduce, runCost }, null, 2));
    return;
  }
  console.log(`${machine.cpu}, ${machine.cpus} CPUs, Node ${machine.node}\n`);
  console.log('    bytes  sources  contestant        median GB/s   p99 GB/s   of copy   checksum');
  for (const row of reduce) {
    const cells = [row.contestant.padEnd(16), row.medianGBps.toFixed(2).padStart(12), row.p99GBps.toFixed(2).padStart(10)];
    const share = `${(row.shareOfCopy * 100).toFixed(0)} %`;
    console.log(
      `${String(row.bytes).padStart(9)} ${String(row.sources).padStart(8)}  ${cells.join(' ')} ${share.padStart(9)} ${String(row.checksum).padStart(10)}`,
    );
  }
  console.log('\none run of a step program');
  for (const row of runCost) console.log(`${row.machine.padEnd(8)} ${row.program.padEnd(28)} ${row.medianNs.toFixed(0).padStart(6)} ns`);
}

if (process.argv[1] === fileURLToPath(import.meta.url)) main();
