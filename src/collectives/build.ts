/** Makes the plan for a request and an algorithm's name. Checks the request, fills in even counts, and handles the cases that no
 *  algorithm needs to know: one rank, and nothing to do. */
import { isCount } from '../base/bytes.ts';
import { ShoalError } from '../base/errors.ts';
import { sum } from '../base/numbers.ts';
import { PlanBuilder, type BuildOptions } from '../plan/builder.ts';
import { collectives, type Collective, type Plan, type PlanRequest } from '../plan/ir.ts';
import type { Algorithm } from './algorithms/algorithm.ts';
import { algorithms } from './registry.ts';

const rooted: readonly Collective[] = ['broadcast', 'reduce', 'gather', 'scatter'];
const counted: readonly Collective[] = ['all-gather', 'gather', 'scatter', 'reduce-scatter'];
const reducing: readonly Collective[] = ['all-reduce', 'reduce', 'reduce-scatter'];

const limits = ['pieceCount', 'window', 'stagingCount', 'sliceCount', 'shardCount', 'groupHosts', 'elementBytes'] as const;

/** The plan of a request by an algorithm. The same arguments give the same plan on every rank.
 *  @param options.onlyRank builds this rank's program and leaves the others without steps, as a rank of a large world needs it.
 *  @throws ShoalError `usage` for a malformed request or an unknown name, `unsupported` when the algorithm cannot serve it. */
export function buildPlan(algorithmName: string, request: PlanRequest, options: BuildOptions = {}): Plan {
  const algorithm = algorithmNamed(algorithmName);
  const complete = completeRequest(request);
  const reason = whyUnsupported(algorithm, complete);
  if (reason !== undefined) throw new ShoalError('unsupported', `${algorithm.name} cannot ${complete.collective}: ${reason}`);
  const builder = new PlanBuilder(complete, options);
  if (builder.n === 1) copyToSelf(builder);
  else if (complete.count > 0 || complete.collective === 'barrier') algorithm.build[complete.collective]?.(builder);
  return builder.finish(algorithm.name, reducing.includes(complete.collective) ? algorithm.association : 'none');
}

/** @throws ShoalError `usage` listing the known names. */
export function algorithmNamed(name: string): Algorithm {
  const algorithm = algorithms.find((each) => each.name === name);
  if (algorithm) return algorithm;
  throw new ShoalError('usage', `unknown algorithm '${name}'; use one of ${algorithms.map((each) => each.name).join(', ')}`);
}

/** The reason why an algorithm cannot serve a request; undefined when it can. */
export function whyUnsupported(algorithm: Algorithm, request: PlanRequest): string | undefined {
  if (algorithm.build[request.collective] === undefined) {
    const others = algorithms.filter((each) => each.build[request.collective] !== undefined).map((each) => each.name);
    return `it has no such collective; use one of ${others.join(', ')}`;
  }
  return algorithm.supports?.(request);
}

/** The request with `counts`, `splits` and `root` where its collective has them.
 *  @throws ShoalError `usage` for fields that do not fit together. */
export function completeRequest(request: PlanRequest): PlanRequest {
  const { collective, topology, count } = request;
  const fail = (message: string): never => {
    throw new ShoalError('usage', `${collective}: ${message}`, { operation: collective });
  };
  if (!collectives.includes(collective)) fail(`unknown collective; use one of ${collectives.join(', ')}`);
  const ranks = topology.hosts.flat().sort((x, y) => x - y);
  if (ranks.length === 0 || topology.hosts.some((host) => host.length === 0)) fail('every host of the topology needs a rank');
  if (ranks.some((rank, index) => rank !== index))
    fail(`the topology must hold each rank 0…${ranks.length - 1} once, not ${ranks.join(' ')}`);
  if (!isCount(count)) fail(`count must be a whole number of elements, not ${count}`);
  const n = ranks.length;
  const complete: { -readonly [K in keyof PlanRequest]: PlanRequest[K] } = { collective, topology, count };
  for (const limit of limits) {
    const value = request[limit];
    if (value === undefined) continue;
    if (!isCount(value) || value < 1) fail(`${limit} must be at least 1, not ${value}`);
    complete[limit] = value;
  }
  const { groupHosts = 1 } = complete;
  if (groupHosts < topology.hosts.length && !Number.isInteger(Math.log2(groupHosts)))
    fail(`groupHosts must be a power of two, or all ${topology.hosts.length} hosts, not ${groupHosts}`);
  if (rooted.includes(collective)) {
    complete.root = request.root ?? 0;
    if (!isCount(complete.root) || complete.root >= n) fail(`root ${complete.root} is not one of the ranks 0…${n - 1}`);
  } else if (request.root !== undefined) {
    fail('it has no root');
  }
  if (counted.includes(collective)) {
    complete.counts = request.counts ?? evenly(count, n) ?? fail(`count ${count} does not divide evenly among ${n} ranks; give counts`);
    checkCounts(complete.counts, n, fail);
    const total = sum(complete.counts);
    if (total !== count) fail(`counts [${complete.counts.join(', ')}] sum to ${total}, not to count ${count}`);
  } else if (request.counts !== undefined) {
    fail('it takes no counts');
  }
  if (collective === 'all-to-all') {
    const even = count % n === 0 ? evenly(count / n, n) : undefined;
    complete.splits =
      request.splits ?? (even ? ranks.map(() => even) : fail(`count ${count} does not divide evenly among ${n}×${n} pairs; give splits`));
    if (complete.splits.length !== n) fail(`splits needs one row for each of ${n} ranks, not ${complete.splits.length}`);
    for (const row of complete.splits) checkCounts(row, n, fail);
    const total = sum(complete.splits.flat());
    if (total !== count) fail(`splits sum to ${total}, not to count ${count}`);
  } else if (request.splits !== undefined) {
    fail('it takes no splits');
  }
  if (collective === 'barrier' && count !== 0) fail(`it moves no elements; count must be 0, not ${count}`);
  return complete;
}

/** The whole operation of a world of one. In place there is nothing to do. */
function copyToSelf(b: PlanBuilder): void {
  const { collective, count } = b.request;
  if (collective === 'barrier' || collective === 'all-reduce' || collective === 'broadcast' || collective === 'reduce') return;
  b.copy(0, { buffer: 'output', offset: 0, count }, { buffer: 'input', offset: 0, count });
}

function checkCounts(counts: readonly number[], n: number, fail: (message: string) => never): void {
  if (counts.length !== n) fail(`${counts.length} counts were given for ${n} ranks`);
  const bad = counts.find((count) => !isCount(count));
  if (bad !== undefined) fail(`counts must be whole numbers of elements, not ${bad}`);
}

function evenly(count: number, parts: number): number[] | undefined {
  return count % parts === 0 ? Array.from({ length: parts }, () => count / parts) : undefined;
}
