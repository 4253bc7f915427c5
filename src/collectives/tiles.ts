/** Plans of worlds in which every host does the same, built for one host: a ring of n ranks has n · n steps, its tile n for each rank.
 *
 *      host 0 │ 0 1 2 │   host 1 │ 3 4 5 │   host 2 │ 6 7 8 │         the program of rank r + 3 is that of rank r,
 *             └ tile ┘                                                with every rank in it 3 later, around the end */
import { assert } from '../base/assert.ts';
import type { BuildOptions } from '../plan/builder.ts';
import type { Plan, PlanRequest, Program, Step } from '../plan/ir.ts';
import { lineCount } from '../plan/ranges.ts';
import { rankCount } from '../plan/topology.ts';
import { algorithmNamed, buildPlan, completeRequest } from './build.ts';

/** The request with shares that are all as large as its largest, if the algorithm's programs are then alike on all hosts, and with it the
 *  number of ranks that differ. Undefined: they are not alike. */
export function tiledRequest(name: string, request: PlanRequest): { readonly request: PlanRequest; readonly tile: number } | undefined {
  const { hosts } = request.topology;
  const { tiles } = algorithmNamed(name);
  const ordered = hosts.flat().every((rank, index) => rank === index);
  if (tiles === undefined || !ordered || hosts.some(({ length }) => length !== hosts[0].length)) return undefined;
  if (request.counts?.some((count, _, counts) => count !== counts[0])) return undefined;
  const whole = rankCount(request.topology) * lineCount;
  const count = request.collective === 'all-reduce' ? Math.ceil(request.count / whole) * whole : request.count;
  return { request: { ...request, count }, tile: hosts.length === 1 ? 1 : hosts[0].length };
}

/** The plan of a request from `tiledRequest`. The programs of two other hosts are built too, and compared.
 *  @throws ShoalError as `buildPlan` does. */
export function buildTile(
  name: string,
  { request, tile }: { readonly request: PlanRequest; readonly tile: number },
  options: Pick<BuildOptions, 'hasRoom'> = {},
): Plan {
  const ranks = rankCount(request.topology);
  const complete = completeRequest(request);
  const programOf = (rank: number): Program => buildPlan(name, complete, { ...options, onlyRank: rank }).programs[rank];
  const { onlyRank: _, ...plan } = buildPlan(name, complete, { ...options, onlyRank: 0 });
  const programs = [plan.programs[0], ...Array.from({ length: tile - 1 }, (__, index) => programOf(index + 1))];
  assert(plan.programs[0].entry.length === 0, () => `${name} is alike on all hosts, but has entry steps`);
  const middle = Math.floor(ranks / tile / 2) * tile;
  for (const rank of [middle, ranks - 1])
    assert(isShifted(programs[rank % tile], programOf(rank), ranks), () => `${name}: rank ${rank} does not do as rank ${rank % tile}`);
  return { ...plan, programs, tile };
}

/** True if the second program is the first one, of a rank some hosts later. Offsets may differ. */
function isShifted(first: Program, second: Program, ranks: number): boolean {
  const shift = second.rank - first.rank;
  const shapeOf = ({ channels, entry, scratchCount, signalCount }: Program, by: number): string =>
    JSON.stringify([
      channels.map((steps) => steps.map((step) => stepShape(step, (rank) => (rank + by) % ranks))),
      entry.length,
      scratchCount,
      signalCount,
    ]);
  return shapeOf(first, shift) === shapeOf(second, 0);
}

/** The effect of a step, without offsets. */
function stepShape(step: Step, rankOf: (rank: number) => number): unknown {
  const places = (list: readonly { readonly buffer: string; readonly count: number; readonly rank?: number }[]): unknown =>
    list.map(({ buffer, count, rank }) => [buffer, count, rank === undefined ? undefined : rankOf(rank)]);
  switch (step.kind) {
    case 'put':
      return [step.kind, rankOf(step.peer), places([step.source, step.target]), step.signal];
    case 'signal':
      return [step.kind, rankOf(step.peer), step.signal];
    case 'copy':
      return [step.kind, places([step.source, step.target])];
    case 'reduce':
      return [step.kind, places(step.sources), places(step.targets), step.tree, step.final];
    case 'wait':
    case 'flush':
      return step;
  }
}
