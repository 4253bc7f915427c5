/** Chooses credit and partition during training: measures the step time at one point after the other, then stays at the
 *  best one and watches it. Input: the ends of steps; output: points, and the steps at which they apply. Its owner carries these to the
 *  other ranks, and applies them.
 *
 *      tuning: 14 points of 100 steps ─▶ the best 4 again, in turn ─▶ converged ── steps take longer, or shorter, for good ─▶ tuning
 *
 *  Schedule, search space and margin are ByteScheduler's. */
import { ShoalError } from '../../base/errors.ts';
import { seededRandom, type Random } from '../../base/random.ts';
import { anyNumber, anyObject, checkArgument, checkFields, describeValue, integer, optional, optionTable } from '../../base/schema.ts';
import { Finals } from './finals.ts';
import { BayesianSearch, type Range } from './search.ts';

/** Ranges in bytes; a setting without a range is not tuned. */
export interface SearchSpace {
  /** Range of the credit. Default: the credit is not tuned. */
  readonly creditBytes?: Range;
  /** Range of the partition. Default: the partition is not tuned. */
  readonly partitionBytes?: Range;
}

/** A point of the search space: values of the settings that are tuned. */
export interface TunedPoint {
  /** Most bytes in flight of a link. Absent when the credit is not tuned. */
  readonly creditBytes?: number;
  /** Largest part of a tensor, in bytes. Absent when the partition is not tuned. */
  readonly partitionBytes?: number;
}

/** A change that every rank applies before the step with this number. */
export interface PointChange {
  /** Number of the first step with the new point. */
  readonly atStep: number;
  /** Values to set. */
  readonly point: TunedPoint;
  /** True when the point was chosen for good. */
  readonly isFinal: boolean;
}

/** Settings of tuning: the space, and the amount of measurement. Plain data. */
export interface TuningSpec {
  /** Ranges of the settings that are tuned; at least one. */
  readonly space: SearchSpace;
  /** Number of points, with the one that is chosen in the end. Default: 15. */
  readonly points?: number;
  /** Number of these that cover the space. Default: 10. */
  readonly coveringPoints?: number;
  /** Steps that each point is measured for. Default: 100. */
  readonly stepsPerPoint?: number;
  /** Steps from a decision to the step at which all ranks apply it. Default: 10. */
  readonly stepsAhead?: number;
  /** Margin of the expected improvement, in deviations. Default: 0.1. */
  readonly margin?: number;
  /** Number of points that are measured again, in turn, before one is chosen; 1: none. Default: 4. */
  readonly finalists?: number;
  /** Most rounds in which they are measured again. Default: 3. */
  readonly finalRounds?: number;
  /** Tuning begins again when steps of two points' time in turn differ by more than this share. Default: 0.25. */
  readonly driftShare?: number;
}

/** Options of `Tuner`. */
export interface TunerOptions extends TuningSpec {
  /** Chooses points. Default: one with a fixed seed. */
  readonly random?: Random;
}

/** Steps at the beginning and at the end of a point that do not count, as they run half under another one. */
const firstSteps = 3;
const lastSteps = 2;
export const stepsPerPointMin = firstSteps + lastSteps + 1;

const tunerOptions = optionTable<TunerOptions>({
  space: anyObject,
  random: anyObject,
  points: integer({ min: 2 }),
  coveringPoints: integer({ min: 1 }),
  stepsPerPoint: integer({ min: stepsPerPointMin }),
  stepsAhead: integer({ min: 1 }),
  margin: anyNumber,
  finalists: integer({ min: 1 }),
  finalRounds: integer({ min: 1 }),
  driftShare: anyNumber,
});
const spaceOptions = optionTable<SearchSpace>({ creditBytes: anyObject, partitionBytes: anyObject });

/** ByteScheduler's documents count in parameters of float32, 4 bytes each. */
const million = 4e6;

/** The tuned part of the documented space; the partition's range is the same for both kinds. */
export function spaceOf(
  kind: 'parameter-server' | 'all-reduce',
  tuned: { readonly credit: boolean; readonly partition: boolean },
): SearchSpace {
  const { creditBytes } = documentedSpace(kind);
  const { partitionBytes } = documentedSpace('all-reduce');
  return { ...(tuned.credit ? { creditBytes } : {}), ...(tuned.partition ? { partitionBytes } : {}) };
}

/** Options of tuning credit and partition while a program trains: each point is measured for some steps, and the best one stays. */
export interface TuningOptions extends Omit<TuningSpec, 'space'> {
  /** Ranges of the tuned settings, in bytes. Default: ByteScheduler's. */
  readonly space?: SearchSpace;
}

/** Text for messages: `creditBytes 4-64, partitionBytes 2-32`. */
export function describeSpace(space: SearchSpace): string {
  return (['creditBytes', 'partitionBytes'] as const)
    .flatMap((name) => {
      const range = space[name];
      return range === undefined ? [] : [`${name} ${range.least}-${range.most}`];
    })
    .join(', ');
}

/** The tuning that a program asks for; undefined: nothing is tuned. @throws ShoalError `usage` naming the call. */
export function tuningOf(
  call: string,
  tuning: TuningOptions | boolean,
  { kind, memoryBytes }: { readonly kind: 'parameter-server' | 'all-reduce'; readonly memoryBytes: number },
): TuningSpec | undefined {
  if (tuning === false) return undefined;
  const given = tuning === true ? {} : tuning;
  if (typeof given !== 'object' || given === null) {
    throw new ShoalError('usage', `${call}: tuning is true, false or its options, not ${describeValue(tuning)}`);
  }
  const spec = { ...given, space: given.space ?? documentedSpace(kind) };
  // Making a tuner checks the whole specification.
  const { ranges } = new Tuner(spec);
  for (const { most } of ranges) {
    if (most > memoryBytes) throw new ShoalError('usage', `${call}: tuning up to ${most} bytes is more than this machine's memory`);
  }
  return spec;
}

/** ByteScheduler's documented space, in bytes: credits of 1 to 16 million parameters for parameter servers, of 4 to 64 million
 *  for all-reduces, whose partitions of 2 to 32 million are tuned as well. */
export function documentedSpace(kind: 'parameter-server' | 'all-reduce'): SearchSpace {
  if (kind === 'parameter-server') return { creditBytes: { least: 1 * million, most: 16 * million } };
  return { creditBytes: { least: 4 * million, most: 64 * million }, partitionBytes: { least: 2 * million, most: 32 * million } };
}

/** Finds the credit and the partition with the shortest steps while a program trains, then watches whether steps still take that long.
 *  One rank has a tuner and tells it when steps end; its owner applies the changes that `record` returns on all ranks. */
export class Tuner {
  readonly #options: Required<TunerOptions>;
  readonly #names: readonly (keyof SearchSpace)[];
  /** Ranges of the tuned settings. */
  readonly ranges: readonly Range[];
  #search: BayesianSearch;
  /** The final measurements, once all points have been measured. */
  #finals: Finals | undefined;
  #state: 'tuning' | 'converged' = 'tuning';
  /** The point that is in force, or will be. */
  #point: readonly number[] | undefined;
  /** Steps before this one do not count: they run under another point. */
  #fromStep = 0;
  #lastStep = -1;
  #endsMs: number[] = [];
  #isFirst = true;
  /** Time of a step at convergence; `#drifted` counts how often in turn a step has not taken that long since. */
  #convergedMs: number | undefined;
  #drifted = 0;

  constructor(options: TunerOptions) {
    checkFields('Tuner', options, tunerOptions);
    checkFields('Tuner: space', options.space, spaceOptions);
    const { points = 15, coveringPoints = 10, stepsPerPoint = 100, stepsAhead = 10, margin = 0.1, driftShare = 0.25 } = options;
    const { finalists = 4, finalRounds = 3, random = seededRandom(1), space } = options;
    this.#options = { space, random, points, coveringPoints, stepsPerPoint, stepsAhead, margin, finalists, finalRounds, driftShare };
    if (!(margin >= 0) || !(driftShare > 0)) throw new ShoalError('usage', 'Tuner: margin is at least 0, and driftShare larger than 0');
    this.#names = (['creditBytes', 'partitionBytes'] as const).filter((name) => options.space[name] !== undefined);
    if (this.#names.length === 0) throw new ShoalError('usage', 'Tuner: the space has neither creditBytes nor partitionBytes');
    this.ranges = this.#names.flatMap((name) => options.space[name] ?? []);
    for (const [index, { least, most }] of this.ranges.entries()) {
      if (!(least >= 1)) throw new ShoalError('usage', `Tuner: credit and partition are at least one byte, not ${describeValue(least)}`);
      if (least < most && most < Infinity) continue;
      const range = `from ${describeValue(least)} to ${describeValue(most)}`;
      throw new ShoalError('usage', `Tuner: ${this.#names[index]} goes from a number of bytes to a larger one, not ${range}`);
    }
    this.#search = this.#newSearch();
  }

  /** Time of a step at convergence; undefined before it, and while that is being measured. */
  get convergedMs(): number | undefined {
    return this.#state === 'converged' ? this.#convergedMs : undefined;
  }

  /** The point that was chosen; undefined while tuning. */
  get best(): TunedPoint | undefined {
    return this.#state === 'converged' && this.#point !== undefined ? this.#named(this.#point) : undefined;
  }

  /** Takes a point that an earlier run has found as the best. @param stepMs time of a step then: tuning begins again when that has changed.
   *  @throws ShoalError `usage` for a point of other names. */
  resume(step: number, point: TunedPoint, stepMs?: number): PointChange {
    checkArgument('resume: step', step, integer());
    checkArgument('resume: point', point, anyObject);
    checkArgument('resume: stepMs', stepMs, optional(anyNumber));
    const values = this.#names.map((name) => point[name]);
    if (values.some((value) => value === undefined)) {
      throw new ShoalError('usage', `resume: the point has ${Object.keys(point).join(', ')}, not ${this.#names.join(', ')}`);
    }
    this.#lastStep = step;
    this.#isFirst = false;
    this.#state = 'converged';
    this.#convergedMs = stepMs;
    this.#endsMs = [];
    return this.#change(step, values as number[]);
  }

  /** Records the end of a step. @param step numbers of steps go up, one by one. @returns the change that all ranks are to apply, if any. */
  record(step: number, nowMs: number): PointChange | undefined {
    checkArgument('record: nowMs', nowMs, anyNumber);
    if (!Number.isSafeInteger(step) || step <= this.#lastStep) {
      throw new ShoalError('usage', `record: steps go up; step ${describeValue(step)} came after step ${this.#lastStep}`);
    }
    this.#lastStep = step;
    if (step < this.#fromStep) return undefined;
    this.#endsMs.push(nowMs);
    if (this.#endsMs.length <= this.#options.stepsPerPoint) return undefined;
    const stepMs = meanStep(this.#endsMs);
    this.#endsMs = [];
    return this.#state === 'tuning' ? this.#measured(step, stepMs) : this.#watched(step, stepMs);
  }

  #measured(step: number, stepMs: number): PointChange {
    // The first measurement is of the settings before tuning, and of a program that warms up.
    if (this.#finals !== undefined) this.#finals.add(stepMs);
    else if (!this.#isFirst && this.#point !== undefined) this.#search.add(this.#point.map(Math.log), stepMs);
    this.#isFirst = false;
    const { points, finalists, finalRounds } = this.#options;
    if (this.#search.count < points - 1) return this.#change(step, this.#search.next().map(Math.exp));
    this.#finals ??= new Finals(
      this.#search.candidates(finalists).map((point) => point.map(Math.exp)),
      finalRounds,
    );
    const again = this.#finals.next();
    if (again !== undefined) return this.#change(step, again);
    this.#state = 'converged';
    this.#convergedMs = undefined;
    this.#drifted = 0;
    return this.#change(step, this.#finals.best());
  }

  /** Begins tuning again when two measurements in turn have drifted: one pause of a machine is no drift. */
  #watched(step: number, stepMs: number): PointChange | undefined {
    this.#convergedMs ??= stepMs;
    const share = Math.abs(stepMs - this.#convergedMs) / this.#convergedMs;
    this.#drifted = share > this.#options.driftShare ? this.#drifted + 1 : 0;
    if (this.#drifted < 2) return undefined;
    this.#state = 'tuning';
    this.#search = this.#newSearch();
    this.#finals = undefined;
    return this.#change(step, this.#search.next().map(Math.exp));
  }

  /** Searches in logarithms: costs depend on the ratios of partitions, and of credits. */
  #newSearch(): BayesianSearch {
    const { random, coveringPoints, points, margin } = this.#options;
    const ranges = this.ranges.map(({ least, most }) => ({ least: Math.log(least), most: Math.log(most) }));
    return new BayesianSearch({ ranges, random, coveringPoints: Math.min(coveringPoints, points - 1), margin });
  }

  #change(step: number, point: readonly number[]): PointChange {
    this.#point = point;
    const atStep = step + this.#options.stepsAhead;
    this.#fromStep = atStep;
    return { atStep, point: this.#named(point), isFinal: this.#state === 'converged' };
  }

  #named(point: readonly number[]): TunedPoint {
    return Object.fromEntries(this.#names.map((name, index) => [name, Math.round(point[index])]));
  }
}

/** Mean time of a step from the ends of steps, without the first and the last ones. */
function meanStep(endsMs: readonly number[]): number {
  const counted = endsMs.slice(firstSteps, endsMs.length - lastSteps);
  return (counted[counted.length - 1] - counted[0]) / (counted.length - 1);
}
