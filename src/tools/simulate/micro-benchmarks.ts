/** The three micro-benchmarks of Fairring's document in virtual time: one transfer, parallelism, scaling. Contestants:
 *
 *  ring       the incumbent: one operation at a time, messages driven by the devices; between two hosts it exchanges halves
 *             of the sums, as its trees do there, which takes half the ring's bytes
 *  original   fairring without a floor under its shards, messages driven by the hosts
 *  auto       Shoal's choice when it knows the rates, messages driven by the hosts
 *  auto, devices   the same, messages driven by the devices as the incumbent's are
 *
 *  docs/simulation.md says which parts are fitted to the document and which follow. */
import type { Figure } from '../chart/data/figure.ts';
import { buildPlan } from '../../collectives/build.ts';
import { selectAlgorithm } from '../../collectives/select.ts';
import type { PlanRequest } from '../../plan/ir.ts';
import { lineCount } from '../../plan/ranges.ts';
import { grid } from '../../plan/topology.ts';
import { presets, shardFloorBytes, type SimulationModel } from './model.ts';
import { simulate } from './simulation.ts';

export interface MicroBenchmarkOptions {
  /** Hosts of the cluster in the first two benchmarks. Default 8. */
  readonly hosts?: number;
  /** MiB of the single transfers. Default: those of the document. */
  readonly sizes?: readonly number[];
  /** Numbers of hosts of the third benchmark. Default: 1 to 32. */
  readonly scales?: readonly number[];
  /** Numbers of operations in flight of the second benchmark. Default: 1 to 64. */
  readonly parallelism?: readonly number[];
  /** Number of buckets of 25 MiB that are simulated; times are given for 64. Default 64. */
  readonly buckets?: number;
  readonly onProgress?: (text: string) => void;
}

const MiB = 2 ** 20;
const elementBytes = 4;
const ranksPerHost = 8;
const bucketBytes = 25 * MiB;
const bucketsOfDocument = 64;
/** Number of slots that 50 MiB of staging hold on eight hosts. */
const parallelismOfDocument = 7;
const enough = 2 ** 40;
/** Size of the pieces into which the devices cut transfers. */
const devicePieceBytes = 256 * 1024;

interface Contest {
  readonly hosts: number;
  readonly bytes: number;
  readonly operations: number;
  readonly inFlight: number;
  /** Bytes of the original's slices. Default: the document's 25 MiB. */
  readonly sliceBytes?: number;
}

/** Times of the contestants in milliseconds. */
export const contestants = {
  ring: (contest: Contest): number => {
    const alone = { ...contest, inFlight: 1 };
    const device = presets['gpu-cluster-device'];
    const ring = timeOf('ring', alone, device);
    if (contest.hosts !== 2) return ring;
    return Math.min(ring, timeOf('fairring', alone, device, { pieceCount: devicePieceBytes / elementBytes, stagingCount: enough }));
  },
  original: (contest: Contest): number => {
    const sliceCount = (contest.sliceBytes ?? bucketBytes) / elementBytes;
    return timeOf('fairring', contest, presets['gpu-cluster'], {
      shardCount: 64 / elementBytes,
      sliceCount,
      stagingCount: parallelismOfDocument * stagingOfSlice(contest.hosts, sliceCount),
    });
  },
  auto: (contest: Contest): number => auto(contest, presets['gpu-cluster']),
  'auto, devices': (contest: Contest): number => auto(contest, presets['gpu-cluster-device']),
} as const;

/** All three figures. */
export function microBenchmarks(options: MicroBenchmarkOptions = {}): Figure[] {
  return [singleTransfers(options), parallelism(options), scaling(options)];
}

export function singleTransfers({ hosts = 8, sizes = [0.1, 0.39, 1.56, 6.25, 25, 100, 400], onProgress }: MicroBenchmarkOptions): Figure {
  const run = (name: keyof typeof contestants): { name: string; values: number[] } => ({
    name,
    values: sizes.map((size) => {
      onProgress?.(`single transfer of ${size} MiB, ${name}`);
      return contestants[name]({ hosts, bytes: Math.round(size * MiB), operations: 1, inFlight: 1 });
    }),
  });
  const title = `One all-reduce, ${hosts} hosts × ${ranksPerHost}`;
  return { title, xLabel: 'MiB', x: sizes, series: [run('ring'), run('original'), run('auto'), run('auto, devices')] };
}

export function parallelism(options: MicroBenchmarkOptions): Figure {
  const { hosts = 8, parallelism: x = [1, 2, 4, 8, 16, 32, 64], buckets = bucketsOfDocument, onProgress } = options;
  const timed = (name: keyof typeof contestants, inFlight: number): number => {
    onProgress?.(`${buckets} buckets, ${inFlight} in flight, ${name}`);
    return contestants[name]({ hosts, bytes: bucketBytes, operations: buckets, inFlight }) * (bucketsOfDocument / buckets);
  };
  const ring = timed('ring', 1);
  return {
    title: `${bucketsOfDocument} × 25 MiB, ${hosts} hosts × ${ranksPerHost}, by operations in flight`,
    xLabel: 'in flight',
    x,
    series: [
      { name: 'ring', values: x.map(() => ring) },
      { name: 'original', values: x.map((inFlight) => timed('original', inFlight)) },
      { name: 'auto', values: x.map((inFlight) => timed('auto', inFlight)) },
    ],
  };
}

export function scaling({ scales = [1, 2, 4, 8, 16, 32], buckets = bucketsOfDocument, onProgress }: MicroBenchmarkOptions): Figure {
  const timed = (name: keyof typeof contestants, hosts: number, bytes = bucketBytes): number => {
    onProgress?.(`scaling, ${hosts} hosts, ${name}`);
    const contest = { hosts, bytes, operations: buckets, inFlight: parallelismOfDocument, sliceBytes: bytes };
    return contestants[name](contest) * (bucketsOfDocument / buckets);
  };
  const series = (['ring', 'original', 'auto', 'auto, devices'] as const).map((name) => ({
    name,
    values: scales.map((hosts) => timed(name, hosts)),
  }));
  // The same total in fewer, larger buckets: shards stay as large as on eight hosts.
  const growing = scales.map((hosts) => (hosts <= 8 ? null : (timed('original', hosts, (bucketBytes * hosts) / 8) * 8) / hosts));
  return {
    title: `${bucketsOfDocument} × 25 MiB, hosts × ${ranksPerHost}`,
    xLabel: 'hosts',
    x: scales,
    series: [...series, { name: 'original, buckets grow with hosts', values: growing }],
  };
}

/** The algorithm that selection takes by those rates alone, not the best of the simulated ones. */
function auto(contest: Contest, model: SimulationModel): number {
  const shardBytes = shardFloorBytes(model, ranksPerHost);
  const algorithm = selectAlgorithm({
    collective: 'all-reduce',
    bytes: contest.bytes,
    topology: grid(contest.hosts, ranksPerHost),
    loadStore: true,
    order: 'canonical',
    model,
    limits: { shardBytes, stagingBytes: enough * elementBytes },
  });
  return timeOf(algorithm, contest, model, { shardCount: shardBytes / elementBytes, stagingCount: enough });
}

/** Most elements that a slice in flight stages on a rank. */
function stagingOfSlice(hosts: number, sliceCount: number): number {
  const shard = (Math.ceil(sliceCount / ranksPerHost / hosts / lineCount) + 1) * lineCount;
  return Math.max(1, (hosts - 1) * shard);
}

function timeOf(algorithm: string, contest: Contest, model: SimulationModel, limits: Partial<PlanRequest> = {}): number {
  const count = Math.ceil(contest.bytes / elementBytes);
  const topology = grid(contest.hosts, ranksPerHost);
  const request: PlanRequest = { collective: 'all-reduce', topology, count, elementBytes, ...limits };
  const plan = buildPlan(algorithm, request);
  const { operations, inFlight } = contest;
  return simulate({ plan, elementBytes, operations, inFlight }, model).seconds * 1e3;
}
