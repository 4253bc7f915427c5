/** The rates of a world, measured while it is set up: a few milliseconds, once. On every host one rank times a link to the
 *  next host, all at the same time, as ranks of a collective send; each times its own copies and sums.
 *
 *      host 0 ─▶ host 1 ─▶ host 2 ─▶ … ─▶ host 0        medians over hosts, the same on all ranks
 *
 *  It must not know the store or the use of the rates. */
import type { Clock } from '../../../base/clock.ts';
import type { Kernels } from '../../../memory/kernels.ts';
import { defaultCostModel, type CostModel } from '../../../plan/cost.ts';
import type { Topology } from '../../../plan/topology.ts';
import type { LinkRates } from './link-probe.ts';

/** Hosts that measure; more would say the same. */
const hostsMax = 16;
const arithmeticBytes = 2 ** 20;
const arithmeticRounds = 3;

/** The rates that one rank has measured; those that it could not measure are missing. */
export type MeasuredRates = Partial<CostModel>;

/** World ranks that measure, in order of their hosts: the first of each. Nobody where there is nothing to choose by rates. */
export function measuringRanks({ hosts }: Topology): number[] {
  return hosts.length < 2 ? [] : hosts.slice(0, hostsMax).map((ranks) => ranks[0]);
}

/** The rank to which one that measures times a link. */
export function timedPeer(rank: number, { hosts }: Topology): number {
  const leaders = hosts.map((ranks) => ranks[0]);
  return leaders[(leaders.indexOf(rank) + 1) % leaders.length];
}

/** The rates of a link that was timed, as a part of a world's. */
export function networkRates({ latency, overhead, byte }: LinkRates): MeasuredRates {
  return { networkLatency: latency, networkOverhead: overhead, networkByte: byte };
}

/** One model from what all measuring ranks said: the median of each rate, to two digits; assumed where nobody measured.
 *  Undefined when nothing was measured. */
export function agreedModel(measured: readonly MeasuredRates[]): CostModel | undefined {
  const model: { -readonly [K in keyof CostModel]: CostModel[K] } = { ...defaultCostModel };
  let known = false;
  for (const rate of Object.keys(defaultCostModel) as (keyof CostModel)[]) {
    const values = measured.map((each) => each[rate]).filter((value): value is number => Number.isFinite(value));
    if (values.length === 0) continue;
    values.sort((a, b) => a - b);
    model[rate] = Number((values.at(values.length >> 1) ?? 0).toPrecision(2));
    known = true;
  }
  return known ? model : undefined;
}

/** Copies and sums of a megabyte, the fastest of some rounds. */
export function measureArithmetic({ clock, kernels }: { readonly clock: Clock; readonly kernels: Kernels }): MeasuredRates {
  const target = new Uint8Array(arithmeticBytes);
  const a = new Uint8Array(arithmeticBytes);
  const b = new Uint8Array(arithmeticBytes);
  // Pages that were never written are all the same one.
  for (const buffer of [target, a, b]) buffer.fill(1);
  const fastest = (run: () => void): number => {
    let bestMs = Number.POSITIVE_INFINITY;
    for (let round = 0; round < arithmeticRounds; round++) {
      const startMs = clock.now();
      run();
      bestMs = Math.min(bestMs, clock.now() - startMs);
    }
    return bestMs / 1e3 / arithmeticBytes;
  };
  const copy = fastest(() => kernels.copy(target, a));
  const sum = fastest(() => kernels.reduce('float32', 'sum', [target], [a, b], [0, 1, -1]));
  // A clock that stands still has measured nothing.
  if (copy <= 0 || sum <= 0) return {};
  return { selfByte: copy, hostByte: copy, reduceByte: sum / 2 };
}
