/** `auto` by simulation: on worlds of 64 to 4,096 ranks it takes the fastest of all algorithms, and fairring the fastest of its
 *  groupings, so that no line of a chart is below its own. */
import { expect, it } from 'vitest';
import { buildPlan } from '../../collectives/build.ts';
import { limitsInElements, networkLimits } from '../../collectives/predict.ts';
import { selectAlgorithm } from '../../collectives/select.ts';
import type { PlanRequest } from '../../plan/ir.ts';
import { grid } from '../../plan/topology.ts';
import { presets } from './model.ts';
import { simulate } from './simulation.ts';

const KiB = 1024;
const MiB = 1024 * KiB;
/** Each takes seconds of computing; deterministic, but a busy machine takes its time. */
const patient = { timeout: 600_000 };
const model = presets.tcp;

function secondsOf(algorithm: string, request: PlanRequest): number {
  return simulate({ plan: buildPlan(algorithm, request), elementBytes: 4, operations: 1, inFlight: 1 }, model).seconds;
}

function allReduce(hosts: number, ranks: number, bytes: number): PlanRequest {
  return { collective: 'all-reduce', topology: grid(hosts, ranks), count: bytes / 4, elementBytes: 4 };
}

const worlds: readonly [hosts: number, ranks: number, sizes: readonly number[]][] = [
  [8, 8, [16 * KiB, 64 * KiB, 256 * KiB, MiB, 4 * MiB]],
  [16, 8, [16 * KiB, 64 * KiB, 256 * KiB, MiB, 4 * MiB, 25 * MiB]],
  [32, 8, [64 * KiB, 256 * KiB, MiB, 4 * MiB, 25 * MiB]],
  [17, 4, [64 * KiB, MiB, 4 * MiB, 25 * MiB]],
  [32, 4, [16 * KiB, 256 * KiB, MiB, 2 * MiB]],
  [72, 1, [64 * KiB, 256 * KiB, MiB, 4 * MiB, 25 * MiB]],
  [100, 2, [256 * KiB, MiB, 4 * MiB]],
  [64, 8, [64 * KiB, 256 * KiB, MiB, 4 * MiB, 25 * MiB]],
  [128, 8, [64 * KiB, 256 * KiB, MiB, 4 * MiB]],
  [256, 8, [256 * KiB, MiB]],
  [512, 8, [256 * KiB, MiB]],
];

it.each(worlds)('nothing is faster than auto on %i hosts × %i', patient, (hosts, ranks, sizes) => {
  for (const bytes of sizes) {
    const request = allReduce(hosts, ranks, bytes);
    // Algorithms that send everything to all ranks are hopeless among more ranks, and slow to simulate; so is a tree for large tensors.
    const few = hosts * ranks <= 64 ? ['direct', 'one-shot'] : [];
    const candidates = ['fairring', 'halving-doubling', ...(bytes <= 64 * KiB ? ['tree'] : []), ...few];
    const seconds = new Map(candidates.map((name) => [name, secondsOf(name, request)]));
    const auto = selectAlgorithm({ ...request, bytes, loadStore: true, order: 'canonical', model, limits: {} });
    const best = Math.min(...seconds.values());
    expect((seconds.get(auto) ?? Number.NaN) / best, `${auto} for ${bytes} bytes`).toBeLessThan(1.01);
  }
});

it.each<[hosts: number, ranks: number, bytes: number]>([
  [16, 8, 4 * MiB],
  [32, 8, 25 * MiB],
  [64, 8, 25 * MiB],
  [64, 1, 256 * KiB],
  [128, 8, 256 * KiB],
])('fairring has no faster grouping: %i hosts × %i, %i bytes', patient, (hosts, ranks, bytes) => {
  const request = allReduce(hosts, ranks, bytes);
  const own = secondsOf('fairring', request);
  for (const groupHosts of [4, 8, 16, ...(hosts <= 64 ? [hosts] : [])])
    expect(own / secondsOf('fairring', { ...request, groupHosts }), `in groups of ${groupHosts}`).toBeLessThan(1.02);
});

it.each<[hosts: number, ranks: number, bytes: number]>([
  [8, 8, 6 * MiB],
  [16, 8, 6 * MiB],
  [32, 8, 25 * MiB],
])(
  'with the limits of a job, the canonical order is within a hundredth of the ring: %i hosts × %i, %i bytes',
  patient,
  (hosts, ranks, bytes) => {
    const request = allReduce(hosts, ranks, bytes);
    const limits = networkLimits(request.topology, model);
    const limited = { ...request, ...limitsInElements(limits, request.topology, 4) };
    const auto = selectAlgorithm({ ...request, bytes, loadStore: true, order: 'canonical', model, limits });
    expect(secondsOf(auto, limited) / secondsOf('ring', limited)).toBeLessThan(1.01);
  },
);
