/** The limits of a request with their defaults, in elements. */
import type { PlanRequest } from '../../plan/ir.ts';

const KiB = 1024;
const MiB = 1024 * KiB;

/** Elements of scratch per rank. */
export function stagingCountOf(request: PlanRequest): number {
  return request.stagingCount ?? elements(request, 50 * MiB);
}

/** Elements of the largest slice. */
export function sliceCountOf(request: PlanRequest): number {
  return request.sliceCount ?? elements(request, 25 * MiB);
}

/** Elements of the smallest shard. */
export function shardCountOf(request: PlanRequest): number {
  return request.shardCount ?? elements(request, 16 * KiB);
}

function elements({ elementBytes = 8 }: PlanRequest, bytes: number): number {
  return Math.floor(bytes / elementBytes);
}
