/** Turns sizes as people write them into a plan request, for `shoal plan` and `shoal simulate`. */
import { getHeapStatistics } from 'node:v8';
import { ShoalError } from '../../../base/errors.ts';
import { bytesSyntax, formatBytes, parseBytes } from '../../../base/settings/quantity.ts';
import { settingDefinitions } from '../../../base/settings/settings.ts';
import { buildPlan } from '../../../collectives/build.ts';
import { buildTile, tiledRequest } from '../../../collectives/tiles.ts';
import type { TransferLimits } from '../../../collectives/predict.ts';
import { selectAlgorithm, type SelectionRule } from '../../../collectives/select.ts';
import { dtypeInfo, dtypes, type DType } from '../../../memory/dtype.ts';
import type { BuildOptions } from '../../../plan/builder.ts';
import type { CostModel } from '../../../plan/cost.ts';
import { collectives, type Collective, type Plan, type PlanRequest } from '../../../plan/ir.ts';
import { grid, hostsOf, rankCount, type Topology } from '../../../plan/topology.ts';
import type { RequestFlags } from './request-options.ts';

/** `layout`: ranks of every host, instead of hosts that have equally many. */
export type WorldFlags = Pick<RequestFlags, 'hosts' | 'ranksPerHost'> & { readonly layout?: readonly number[] };

/** Most ranks of a world: the programs are in memory. */
const ranksMax = 16_384;
/** Most ranks of an all-to-all. */
const pairedRanksMax = 2048;
/** Fewest ranks of a world for which the programs of one host stand for those of all, where an algorithm does the same on all. */
const tiledRanksMin = 513;
/** Most ranks whose programs are proved: a proof follows what each channel knows of each other one. */
const provedRanksMax = 2048;
/** Least bytes by which a tensor is cut: as few as ranks themselves accept, because the parts of a plan are in memory. */
const limitBytesMin = settingDefinitions.stagingBytes.least ?? 0;

/** @throws ShoalError `usage` naming what is wrong and what would be right. */
export function planRequest(collective: string | undefined, flags: RequestFlags & WorldFlags): { request: PlanRequest; dtype: DType } {
  const kind = collectiveOf(collective);
  const dtype = dtypes.find(({ name }) => name === flags.dtype)?.name;
  if (dtype === undefined)
    throw new ShoalError('usage', `unknown dtype '${flags.dtype}'; use one of ${dtypes.map(({ name }) => name).join(', ')}`);
  const topology = worldOf(flags);
  const n = rankCount(topology);
  if (kind === 'all-to-all' && n > pairedRanksMax)
    throw new ShoalError('usage', `an all-to-all of ${n} ranks has ${n} × ${n} parts; at most ${pairedRanksMax} ranks can be planned`);
  const elementBytes = dtypeInfo(dtype).bytes;
  const limit = (option: string, text: string | undefined, bytesMin = limitBytesMin): number | undefined => {
    if (text === undefined) return undefined;
    const bytes = bytesOf(option, text);
    if (bytes % elementBytes !== 0 || bytes === 0)
      throw new ShoalError('usage', `${option} ${text} is not a multiple of ${dtype}'s ${elementBytes} bytes`);
    if (bytes < bytesMin) throw new ShoalError('usage', `${option} ${text} is too small; at least ${formatBytes(bytesMin)} is needed`);
    return bytes / elementBytes;
  };
  const request: PlanRequest = {
    collective: kind,
    topology,
    count: countOf(kind, bytesOf('--bytes', flags.bytes), { n, elementBytes }),
    elementBytes,
    root: flags.root,
    pieceCount: limit('--piece', flags.piece),
    window: flags.window,
    sliceCount: limit('--slice', flags.slice),
    stagingCount: limit('--staging', flags.staging),
    // A floor already: nothing gets smaller by it.
    shardCount: limit('--shard', flags.shard, elementBytes),
  };
  return { request, dtype };
}

/** @throws ShoalError `usage` listing what there is. */
export function collectiveOf(name: string | undefined): Collective {
  const found = collectives.find((each) => each === name);
  if (found !== undefined) return found;
  const problem = name === undefined ? 'name a collective' : `unknown collective '${name}'`;
  throw new ShoalError('usage', `${problem}; use one of ${collectives.join(', ')}`);
}

/** @throws ShoalError `usage` for more ranks than can be planned. */
export function worldOf({ hosts, ranksPerHost, layout }: WorldFlags): Topology {
  const ranks = layout === undefined ? hosts * ranksPerHost : layout.reduce((sum, count) => sum + count, 0);
  if (ranks <= ranksMax) return layout === undefined ? grid(hosts, ranksPerHost) : hostsOf(layout);
  const asked = layout === undefined ? `${hosts} hosts × ${ranksPerHost} ranks` : `--layout ${layout.join(',')}`;
  throw new ShoalError('usage', `${asked} are ${ranks}; at most ${ranksMax} can be planned`);
}

/** `4 hosts × 2`, or `3 hosts of 4, 4, 2`. */
export function worldText({ hosts }: Topology): string {
  const counts = hosts.map((ranks) => ranks.length);
  const each = counts.every((count) => count === counts[0]) ? `× ${counts[0]}` : `of ${counts.join(', ')}`;
  return `${hosts.length} ${hosts.length === 1 ? 'host' : 'hosts'} ${each}`;
}

/** @throws ShoalError `unsupported` for a plan that is too large to be proved. */
export function checkProvable({ request: { topology }, tile }: Plan): void {
  const ranks = rankCount(topology);
  if (tile === undefined && ranks <= provedRanksMax) return;
  const limit = tile === undefined ? provedRanksMax : tiledRanksMin - 1;
  const next = `leave out --verify, or prove the same algorithm for at most ${limit} ranks`;
  throw new ShoalError('unsupported', `a proof for ${ranks} ranks needs more memory than there is: ${next}`);
}

/** Whether the heap has room: less than half is full, as the rest is needed for what is done with the plan. */
function hasRoom(): boolean {
  const { used_heap_size: used, heap_size_limit: limit } = getHeapStatistics();
  return used < limit / 2;
}

function planByName(algorithm: string, request: PlanRequest, onStep?: BuildOptions['onStep']): Plan {
  const tiled = rankCount(request.topology) < tiledRanksMin ? undefined : tiledRequest(algorithm, request);
  return tiled === undefined ? buildPlan(algorithm, request, { hasRoom, onStep }) : buildTile(algorithm, tiled, { hasRoom });
}

interface PlanOptions extends Pick<BuildOptions, 'onStep'> {
  readonly overrides?: readonly SelectionRule[];
  /** Rates of the world. Default: none, the table decides where it can. */
  readonly model?: CostModel;
}

/** The plan of the named algorithm, or with `auto` of the one that is chosen.
 *  @param options.onStep gets the steps instead of the plan, unless it has a `tile`. */
export function planOf(algorithm: string, request: PlanRequest, { overrides = [], model, onStep }: PlanOptions = {}): Plan {
  const { collective, topology, count, elementBytes = 8 } = request;
  if (algorithm !== 'auto') return planByName(algorithm, request, onStep);
  const bytes = count * elementBytes;
  const limits = limitsInBytes(request);
  return planByName(
    selectAlgorithm({ collective, bytes, topology, request, loadStore: true, order: 'canonical', overrides, model, limits }),
    request,
    onStep,
  );
}

/** The request's limits in bytes, as the selection of algorithms wants them. */
function limitsInBytes({ pieceCount, window, sliceCount, stagingCount, shardCount, elementBytes = 8 }: PlanRequest): TransferLimits {
  const bytes = (count: number | undefined): number | undefined => (count === undefined ? undefined : count * elementBytes);
  return {
    window,
    pieceBytes: bytes(pieceCount),
    sliceBytes: bytes(sliceCount),
    stagingBytes: bytes(stagingCount),
    shardBytes: bytes(shardCount),
  };
}

export function bytesOf(option: string, text: string): number {
  const bytes = parseBytes(text);
  if (bytes === undefined) throw new ShoalError('usage', `${option} ${text} is not a size; write ${bytesSyntax}`);
  return bytes;
}

/** Elements: as many as fit, in even parts where the collective has one per rank or pair. */
function countOf(kind: Collective, bytes: number, { n, elementBytes }: { readonly n: number; readonly elementBytes: number }): number {
  const count = Math.floor(bytes / elementBytes);
  if (kind === 'barrier') return 0;
  if (kind === 'all-to-all') return Math.floor(count / n / n) * n * n;
  return kind === 'all-reduce' || kind === 'broadcast' || kind === 'reduce' ? count : Math.floor(count / n) * n;
}
