/** Finds the algorithm that the cost model expects to be fastest: builds the plan of every candidate and compares their costs.
 *
 *  A pure function of facts that all ranks share, rates included, so that all predict alike. Sizes are rounded to the nearest
 *  power of two: the prediction for one call serves its neighbours. It must not know where rates come from. */
import { clamp } from '../base/numbers.ts';
import { dtypeInfo } from '../memory/dtype.ts';
import { costOf, defaultCostModel, type CostModel } from '../plan/cost.ts';
import type { Collective, PlanRequest } from '../plan/ir.ts';
import { rankCount, type Topology } from '../plan/topology.ts';
import { buildPlan, whyUnsupported } from './build.ts';
import { estimated, estimateSeconds } from './estimate.ts';
import { secondsOnPaths, type NetworkPathSpec } from './network-path.ts';
import { algorithms } from './registry.ts';

/** Largest world in which the programs of all ranks are built to be compared; beyond, that takes longer than it saves. */
export const predictedRanksMax = 64;
/** Smaller differences are within the model's error: the usual choice stays. */
const clearlyFaster = 0.95;

/** Limits of a world's plans, in bytes; undefined: the algorithms' own defaults. */
export interface TransferLimits {
  readonly pieceBytes?: number;
  readonly window?: number;
  /** Largest slice; 0 counts as undefined. */
  readonly sliceBytes?: number;
  readonly stagingBytes?: number;
  /** Smallest shard. */
  readonly shardBytes?: number;
  /** Not bytes: hosts per group. */
  readonly groupHosts?: number;
}

type PieceLimits = Required<Pick<TransferLimits, 'pieceBytes' | 'window'>>;

export interface PredictionInput {
  readonly collective: Collective;
  /** Bytes of the operation: count × element size. */
  readonly bytes: number;
  readonly topology: Topology;
  /** Canonical: sums have the bits of the canonical tree. Relaxed: any order, the same bits on all ranks. */
  readonly order: 'canonical' | 'relaxed';
  readonly model: CostModel;
  readonly limits: TransferLimits;
  /** The network path of small operations; larger ones are chosen as without. Default: all go through the comm threads. */
  readonly networkPath?: NetworkPathSpec;
}

const KiB = 1024;
/** Limits of pieces: smaller ones cost more time than they take on the wire, larger ones gain nothing. */
const pieceBytesLeast = 64 * KiB;
const pieceBytesMost = 512 * KiB;
const pieceBytesUnit = 16 * KiB;
const [windowLeast, windowMost] = [2, 4];
/** Time that a host's data under way in one direction occupies its link: time for others to take a piece, reduce it and send the
 *  sum while the link stays busy. More lets hosts drift apart, and switches drop packets that they cannot queue. */
const underWaySeconds = 12e-3;
/** Rate that a path counts with at least, in seconds per byte: on a long one the measurement ends before TCP has found the rate. */
const pathByte = 8e-9;

/** Limits between hosts: transfers are cut so that a piece is reduced while the next one travels, and few are under way to a
 *  receiver. The number follows from the rate and the latency of links, measured or assumed, from the number of ranks that share
 *  one, and from the number of peers of each. The same on all ranks. */
export function networkLimits({ hosts }: Topology, model: CostModel = defaultCostModel): PieceLimits {
  const perHost = Math.max(1, ...hosts.map((ranks) => ranks.length));
  const pairs = Math.max(1, (hosts.length - 1) * perHost);
  const pathBytes = (4 * model.networkLatency) / Math.min(model.networkByte || pathByte, pathByte) / pairs;
  const pairBytes = underWaySeconds / model.networkByte / pairs + pathBytes;
  const pieceBytes = clamp(Math.floor(pairBytes / windowMost / pieceBytesUnit) * pieceBytesUnit, pieceBytesLeast, pieceBytesMost);
  const window = clamp(Math.floor(pairBytes / pieceBytes), windowLeast, Math.max(windowMost, Math.floor(pathBytes / pieceBytes)));
  return { pieceBytes, window };
}

/** The limits of a request in elements. Nothing is cut when all ranks share a host. */
export function limitsInElements(limits: TransferLimits, topology: Topology, elementBytes: number): Partial<PlanRequest> {
  if (topology.hosts.length === 1) return {};
  const { pieceBytes, window, sliceBytes, stagingBytes, shardBytes, groupHosts } = limits;
  const elements = (bytes: number): number => Math.max(1, Math.floor(bytes / elementBytes));
  return {
    ...(pieceBytes === undefined ? {} : { pieceCount: elements(pieceBytes) }),
    ...(window === undefined ? {} : { window }),
    ...(stagingBytes === undefined ? {} : { stagingCount: elements(stagingBytes) }),
    ...(sliceBytes === undefined || sliceBytes === 0 ? {} : { sliceCount: elements(sliceBytes) }),
    ...(shardBytes === undefined ? {} : { shardCount: elements(shardBytes) }),
    ...(groupHosts === undefined ? {} : { groupHosts: Math.min(groupHosts, topology.hosts.length) }),
  };
}

/** The fastest of `names` by the model; `usual` unless another is clearly faster. */
export function predictFastest(input: PredictionInput, names: readonly string[], usual: string): string {
  const request = evenRequest(input);
  const candidates = names.filter((name) => name !== usual && canServe(name, request, input.order));
  if (candidates.length === 0 || !canServe(usual, request, input.order)) return usual;
  let best = { name: usual, seconds: predictSeconds(input, usual) * clearlyFaster };
  for (const name of candidates) {
    const seconds = predictSeconds(input, name);
    if (seconds < best.seconds) best = { name, seconds };
  }
  return best.name;
}

/** The fastest all-reduce by formula, for worlds of more ranks than are worth building plans for. */
export function estimateFastest(input: PredictionInput): string {
  const request = evenRequest(input);
  const candidates = estimated.filter((name) => canServe(name, request, input.order));
  const seconds = candidates.map((name) => estimateSeconds(name, request, input.model));
  return candidates[seconds.indexOf(Math.min(...seconds))];
}

/** Seconds of one algorithm by the model. The announcement of the call comes on top, except with a network path, where it is part
 *  of the difference. */
export function predictSeconds(input: PredictionInput, name: string): number {
  const { model, networkPath: path } = input;
  const plan = buildPlan(name, evenRequest(input));
  return path === undefined ? costOf(plan, elementBytes, model).seconds : secondsOnPaths(plan, elementBytes, { path, model });
}

/** True if the algorithm can serve the request, and keeps the requested order. */
export function canServe(name: string, request: PlanRequest, order: PredictionInput['order']): boolean {
  const algorithm = algorithms.find((each) => each.name === name);
  if (algorithm === undefined || (algorithm.association === 'relaxed' && order !== 'relaxed')) return false;
  return whyUnsupported(algorithm, request) === undefined;
}

/** The size that stands for `bytes` and its neighbours; with a network path never a smaller one, because the size decides whether
 *  that takes the call. */
export function representativeBytes(bytes: number, networkPath?: NetworkPathSpec): number {
  if (bytes <= 1) return bytes;
  return 2 ** (networkPath ? Math.ceil(Math.log2(bytes)) : Math.round(Math.log2(bytes)));
}

const elementBytes = dtypeInfo('float32').bytes;

/** A call of about this many bytes, in even parts, which stands for all calls of that size. */
export function evenRequest({
  collective,
  bytes,
  topology,
  limits = {},
}: Pick<PredictionInput, 'collective' | 'bytes' | 'topology'> & Partial<Pick<PredictionInput, 'limits'>>): PlanRequest {
  const n = rankCount(topology);
  const whole = Math.max(1, Math.ceil(bytes / elementBytes));
  const parts = collective === 'all-to-all' ? n * n : n;
  const even = collective !== 'all-reduce' && collective !== 'broadcast' && collective !== 'reduce';
  const count = collective === 'barrier' ? 0 : even ? Math.max(1, Math.floor(whole / parts)) * parts : whole;
  return { collective, topology, count, elementBytes, ...limitsInElements(limits, topology, elementBytes) };
}
