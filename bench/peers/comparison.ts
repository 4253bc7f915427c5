/** Runs interleaved rounds and compares their times. Machines change their speed from minute to minute: contestants take turns in
 *  every round, and ratios are taken within a round before their median is. */
import { median } from '../../src/base/numbers.ts';
import type { CollectiveName } from '../../src/tools/timing/collective.ts';
import { referenceName, type Contestant, type Heat, type HeatRow, type Size } from './contestants.ts';
import type { Place } from './place.ts';

/** Incremented when a field changes its meaning or goes away. */
export const comparisonVersion = 1;

export type BoundName = 'memory' | 'line rate';

/** One contestant at one size. Times are microseconds. */
export interface Standing {
  readonly contestant: string;
  /** Median over rounds of the rounds' medians. */
  readonly medianUs: number;
  /** Best median of a round. */
  readonly bestUs: number;
  /** Median over rounds of this time divided by the reference's in the same round; null without the reference. */
  readonly ratio: number | null;
  readonly roundsUs: readonly number[];
  readonly wrong: number;
}

export interface ComparedSize {
  readonly bytes: number;
  readonly standings: readonly Standing[];
  /** The case's `bound`: median over rounds. */
  readonly boundUs: number | null;
}

export interface ComparedCase {
  readonly collective: CollectiveName;
  readonly place: string;
  readonly ranks: number;
  /** Number of operations per sample; times are per operation. */
  readonly buckets: number;
  readonly sizes: readonly ComparedSize[];
  /** Meaning of the sizes' `boundUs`: the least time that an all-reduce can take by the rate of memory, or of the network. */
  readonly bound: BoundName | null;
  /** Contestants that were not measured here, with the reason. */
  readonly skipped: Readonly<Record<string, string>>;
}

export interface Comparison {
  readonly schema: 'shoal-peers';
  readonly version: number;
  readonly startedAt: string;
  readonly machine: {
    readonly processor: string;
    readonly cpus: number;
    readonly memoryBytes: number;
    readonly system: string;
    readonly node: string;
    /** One-minute load before the first round, without this benchmark. */
    readonly loadBefore: number;
  };
  readonly commit: string;
  readonly rounds: number;
  readonly reference: string;
  readonly contestants: Readonly<Record<string, string>>;
  /** Contestants that cannot run on this machine, with the reason. */
  readonly missing: Readonly<Record<string, string>>;
  readonly cases: readonly ComparedCase[];
}

export interface Bound {
  readonly name: BoundName;
  /** Microseconds by bytes. */
  measure(): Promise<ReadonlyMap<number, number>>;
}

export interface CaseOptions {
  readonly collective: CollectiveName;
  readonly place: Place;
  readonly sizes: readonly Size[];
  /** Least number of iterations before those that are timed. */
  readonly warmup: number;
  readonly buckets: number;
  /** Number of buckets that are checked. */
  readonly checkedBuckets: number;
  readonly rounds: number;
  readonly contestants: readonly Contestant[];
  /** Least times by size, measured once per round; undefined where there is no such bound. */
  readonly bound: Bound | undefined;
  readonly report: (line: string) => void;
}

export async function runCase(options: CaseOptions): Promise<ComparedCase> {
  const { collective, place, sizes, rounds } = options;
  const skipped: Record<string, string> = {};
  const heats = new Map<string, HeatRow[][]>();
  const bounds: ReadonlyMap<number, number>[] = [];
  for (let round = 0; round < rounds; round++) {
    for (const contestant of rotated(options.contestants, round)) {
      if (contestant.name in skipped) continue;
      options.report(`${collective}, ${place.name}, ${place.ranks} ranks: round ${round + 1} of ${rounds}, ${contestant.name}`);
      const rows = await contestant.run(heatOf(options, contestant));
      if (typeof rows === 'string') skipped[contestant.name] = rows;
      else heats.set(contestant.name, [...(heats.get(contestant.name) ?? []), rows]);
    }
    if (options.bound !== undefined) bounds.push(await options.bound.measure());
  }
  const reference = heats.get(referenceName);
  return {
    collective,
    place: place.name,
    ranks: place.ranks,
    buckets: options.buckets,
    sizes: sizes.map(({ bytes }, index) => ({
      bytes,
      standings: options.contestants.flatMap(({ name }) => {
        const rows = heats.get(name)?.map((heat) => heat[index]);
        return rows === undefined
          ? []
          : [
              standingOf(
                name,
                rows,
                reference?.map((heat) => heat[index].medianUs),
              ),
            ];
      }),
      boundUs: medianOrNull(bounds.flatMap((bound) => bound.get(bytes) ?? [])),
    })),
    bound: options.bound?.name ?? null,
    skipped,
  };
}

/** The list in another order each round, so that another one goes first. */
function rotated<T>(all: readonly T[], round: number): T[] {
  const turn = round % Math.max(1, all.length);
  return [...all.slice(turn), ...all.slice(0, turn)];
}

/** Iterations before and among those that are timed: it takes thousands until the code of short calls is compiled, and many ranks
 *  on few CPUs need a while to find their pace. Batches of many tensors are long enough to begin with. */
function heatOf({ collective, place, sizes, warmup, buckets, checkedBuckets }: CaseOptions, { iterationShare }: Contestant): Heat {
  const scaled = sizes.map((size) => {
    const iterations = Math.max(Math.min(size.iterations, 3), Math.round(size.iterations * iterationShare));
    return { bytes: size.bytes, iterations, warmup: buckets > 1 ? warmup : Math.max(warmup, iterations) };
  });
  return { collective, place, buckets, checkedBuckets, sizes: scaled };
}

export function standingOf(contestant: string, rows: readonly HeatRow[], referenceUs: readonly number[] | undefined): Standing {
  const roundsUs = rows.map(({ medianUs }) => medianUs);
  return {
    contestant,
    medianUs: median(roundsUs),
    bestUs: Math.min(...roundsUs),
    ratio: referenceUs === undefined ? null : median(roundsUs.map((us, round) => us / referenceUs[round])),
    roundsUs,
    wrong: rows.reduce((sum, { wrong }) => sum + wrong, 0),
  };
}

function medianOrNull(values: readonly number[]): number | null {
  return values.length === 0 ? null : median(values);
}
