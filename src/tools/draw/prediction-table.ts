/** Text of the algorithms that are chosen for each size on one world, and of the times that the cost model expects. */
import { formatBytes } from '../../base/settings/quantity.ts';
import { inColumns } from './columns.ts';
import { formatSeconds } from './draw-plan.ts';
import type { Collective } from '../../plan/ir.ts';
import { rankCount } from '../../plan/topology.ts';
import { networkLimits, predictedRanksMax, predictSeconds, type PredictionInput } from '../../collectives/predict.ts';
import { selectAlgorithm, type SelectionRule } from '../../collectives/select.ts';

export interface TableWorld extends Pick<PredictionInput, 'topology' | 'order' | 'model' | 'networkPath'> {
  readonly overrides: readonly SelectionRule[];
  readonly tuned: readonly SelectionRule[];
}

/** Range of the powers of two that are tabulated, in bytes; larger sizes take the choice of the largest. */
const [least, most] = [8, 64 * 2 ** 20];

/** Rows of equal choice: collective, sizes, algorithm, predicted time of the smallest and of the largest of them. The announcement of a
 *  call comes on top, except where the network path includes it. Without times for worlds that are too large to build their plans. */
export function formatPredictions(world: TableWorld, collectives: readonly Collective[]): string {
  const timed = rankCount(world.topology) <= predictedRanksMax;
  const head = ['collective', 'bytes', 'algorithm', ...(timed ? ['time'] : [])];
  const rows = collectives.flatMap((collective) => rowsOf(world, collective, timed));
  return inColumns([head, ...rows], () => true)
    .map((line) => line.trimEnd())
    .join('\n');
}

interface Stretch {
  readonly algorithm: string;
  readonly from: number;
  to: number;
}

function rowsOf(world: TableWorld, collective: Collective, timed: boolean): string[][] {
  const stretches: Stretch[] = [];
  const predictions = new Map<string, string>();
  const loadStore = world.topology.hosts.length === 1;
  for (let bytes = collective === 'barrier' ? most : least; bytes <= most; bytes *= 2) {
    const algorithm = selectAlgorithm({ ...world, collective, bytes, loadStore, predictions });
    const last = stretches.at(-1);
    if (last?.algorithm === algorithm) last.to = bytes;
    else stretches.push({ algorithm, from: bytes, to: bytes });
  }
  const limits = networkLimits(world.topology, world.model);
  const time = (algorithm: string, bytes: number): string => {
    const networkPath = world.networkPath && bytes <= world.networkPath.bytesMax ? world.networkPath : undefined;
    return formatSeconds(predictSeconds({ ...world, networkPath, collective, bytes, limits }, algorithm));
  };
  return stretches.map(({ algorithm, from, to }, index) => {
    const end = index === stretches.length - 1 ? 'any' : formatBytes(to);
    const sizes = collective === 'barrier' ? '0' : `${formatBytes(from)} … ${end}`;
    const times = from === to ? time(algorithm, from) : `${time(algorithm, from)} … ${time(algorithm, to)}`;
    return [collective, sizes, algorithm, ...(timed ? [times] : [])];
  });
}
