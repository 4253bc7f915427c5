/** Times the algorithms of a collective against each other, in one world: every algorithm has a group of its own over the same
 *  ranks, and they take turns, so that other load of the machine meets all alike. Every rank calls it with the same options.
 *
 *      warm-up   every algorithm until its code is compiled and its connections are awake
 *      trial     a few calls each; hopelessly slower algorithms are left out
 *      rounds    every algorithm in some order, another order next round; a turn is a batch of calls, its time their mean
 *      again     all of it for the first size, until the rest is warm too; and where the same calls take times too far apart
 *      result    median over rounds of the slowest rank; every algorithm's result is checked once
 *
 *  The mean of a batch, because ranks may settle into waiting in every other call; the median of the batches, because some meet
 *  other load of the machine. */
import { ShoalError } from '../../base/errors.ts';
import { sum } from '../../base/numbers.ts';
import { seededRandom, shuffled } from '../../base/random.ts';
import type { Stopwatch } from '../../base/clock.ts';
import { canServe, evenRequest } from '../../collectives/predict.ts';
import { algorithms } from '../../collectives/registry.ts';
import type { CommGroup } from '../../group/api/process-group.ts';
import { dtypeInfo } from '../../memory/dtype.ts';
import { createKernels } from '../../memory/kernels/create-kernels.ts';
import { loadNative } from '../../memory/native.ts';
import { halvesOf, type CollectiveName } from './collective.ts';
import { countWrong, measure } from './measure.ts';
import { createOperation, type Operation } from './operation.ts';
import type { BenchOptions } from './options.ts';
import { Patterns } from './pattern.ts';
import { statisticsOf } from './statistics.ts';

/** Collectives that have several algorithms and can be measured. */
export const comparable = ['all-reduce', 'all-gather', 'reduce-scatter', 'broadcast'] as const satisfies readonly CollectiveName[];
export type ComparableCollective = (typeof comparable)[number];

export interface CompareOptions extends Pick<BenchOptions, 'dtype' | 'op' | 'memory' | 'wait'> {
  readonly collectives: readonly ComparableCollective[];
  /** Bytes of the whole operation, ascending. */
  readonly sizes: readonly number[];
  /** Algorithms to compare. `all`: every one that can serve; `auto` is always among them. */
  readonly algorithms: 'all' | readonly string[];
  readonly order: 'canonical' | 'relaxed';
  /** Approximate time per size and collective, all algorithms together. */
  readonly budgetMs: number;
}

export interface ComparedRow {
  readonly collective: ComparableCollective;
  readonly bytes: number;
  /** Median time of the slowest rank by algorithm, microseconds; `auto` among them. */
  readonly timesUs: Readonly<Record<string, number>>;
  /** The algorithm that `auto` takes: its calls and those of `auto` are the same, and so are their times. */
  readonly chosen: string;
  /** Algorithms left out after the trial, as much slower. */
  readonly hopeless: readonly string[];
  /** Fastest of the named algorithms. */
  readonly best: string;
  /** Time of the algorithm that `auto` takes over that of the best. */
  readonly autoOverBest: number;
  /** Ratio of the longer to the shorter time of the same calls, timed as `auto` and by the name of the algorithm that it takes.
   *  Ratios nearer to 1 than this say nothing. 1 where only one of the two was timed. */
  readonly scatter: number;
  /** Number of wrong elements, over all algorithms and ranks. */
  readonly wrong: number;
}

export interface CompareContext {
  readonly group: CommGroup;
  readonly options: CompareOptions;
  readonly stopwatch: Stopwatch;
  /** Called on rank 0 for each row as it comes. */
  readonly onRow: (row: ComparedRow) => void;
}

/** Scatter above which a contest is repeated, and the most repetitions, also of the first. */
const scatterMost = 1.1;
const [againMax, againFirst] = [2, 8];
/** An algorithm is left out if it takes longer than the trial's fastest by this factor. */
const hopelessFactor = 4;
const roundsMin = 5;
const roundsMax = 25;
/** Time that a batch lasts about, unless one call is longer: many times the time that a processor gives one thread at once. */
const batchUs = 20_000;
/** Number of batches that fit the budget: one takes at most this part of it. */
const batchesPerBudget = 10;
const callsMax = 500;
/** Calls of each algorithm before the trial, unless they take longer than this many batches. */
const warmCalls = 1000;
const warmBatches = 5;
/** Trials in the time of a batch. */
const trialsPerBatch = 4;

/** @throws ShoalError `usage` for names that are not known or cannot serve. */
export async function compare(context: CompareContext): Promise<ComparedRow[]> {
  const { group, options } = context;
  const names = namesOf(options.algorithms);
  const groups = new Map<string, CommGroup>();
  for (const name of ['auto', ...names]) groups.set(name, await groupOf(group, name));
  const rows: ComparedRow[] = [];
  try {
    for (const collective of options.collectives) {
      for (const bytes of options.sizes) {
        const contest = { collective, bytes, groups };
        const row = await compareSettled(context, contest, rows.length > 0);
        rows.push(row);
        if (group.rank === 0) context.onRow(row);
      }
    }
  } finally {
    for (const each of groups.values()) await each.destroy();
  }
  return rows;
}

/** The requested algorithms, in the registry's order. @throws ShoalError `usage` listing the known ones. */
export function namesOf(asked: CompareOptions['algorithms']): string[] {
  const known = algorithms.map(({ name }) => name);
  if (asked === 'all') return known;
  const unknown = asked.find((name) => name !== 'auto' && !known.includes(name));
  if (unknown !== undefined) throw new ShoalError('usage', `unknown algorithm '${unknown}'; use all, auto, ${known.join(', ')}`);
  return known.filter((name) => asked.includes(name));
}

async function groupOf(group: CommGroup, backend: string): Promise<CommGroup> {
  const made = await group.newGroup(
    Array.from({ length: group.size }, (_, rank) => rank),
    // The group of `auto` takes the choice of the world itself.
    { name: `compare ${backend}`, ...(backend === 'auto' ? {} : { backend }) },
  );
  return made as CommGroup;
}

interface Contest {
  readonly collective: ComparableCollective;
  readonly bytes: number;
  readonly groups: ReadonlyMap<string, CommGroup>;
}

/** Compares once more while the same calls take times too far apart; the contest in which they are nearest counts. Code that is not warm
 *  gets faster with each contest, for longer where ranks share CPUs: those do not count. */
async function compareSettled(context: CompareContext, contest: Contest, isWarmAlready: boolean): Promise<ComparedRow> {
  let row = await compareOne(context, contest);
  let isWarm = isWarmAlready;
  for (let left = isWarm ? againMax : againFirst; left > 0 && (!isWarm || row.scatter > scatterMost); left--) {
    const next = await compareOne(context, contest);
    isWarm ||= next.timesUs.auto * scatterMost > row.timesUs.auto;
    if (!isWarm || next.scatter < row.scatter) row = next;
  }
  return row;
}

async function compareOne(context: CompareContext, contest: Contest): Promise<ComparedRow> {
  const { group, options, stopwatch } = context;
  const { collective, bytes } = contest;
  const batch = Math.min(batchUs, (options.budgetMs * 1000) / batchesPerBudget);
  const request = evenRequest({ collective, bytes, topology: group.topology });
  const names = [...contest.groups.keys()].filter((name) => name === 'auto' || canServe(name, request, options.order));
  const operations = new Map<string, Operation>();
  try {
    for (const name of names) operations.set(name, operationOf(context, contest, name));
    const time = async (name: string, iterations: number): Promise<number> => {
      const operation = operations.get(name);
      if (operation === undefined) throw new ShoalError('system', `${name} has no operation`);
      const loop = { operations: [operation], parallel: 1, wait: options.wait, touch: 'each', stopwatch } as const;
      return statisticsOf(await measure({ ...loop, iterations })).mean;
    };
    const timeAll = async (run: (name: string, index: number) => Promise<number>): Promise<Float64Array> =>
      slowest(group, await inTurn(names, run));
    // The first calls prepare plans and map memory; their time also bounds the warm-up.
    await timeAll((name) => time(name, 1));
    const first = await timeAll((name) => time(name, 1));
    await timeAll((name, index) => time(name, callsIn(warmBatches * batch, first[index], warmCalls)));
    const trial = await timeAll(async (name, index) => {
      const calls = callsIn(batch / trialsPerBatch, first[index], callsMax);
      return Math.min(await time(name, calls), await time(name, calls), await time(name, calls));
    });
    const fastest = Math.min(...trial);
    const stays = names.filter((name, index) => name === 'auto' || trial[index] <= hopelessFactor * fastest + 100);
    const trialOf = (name: string): number => trial[names.indexOf(name)];
    const calls = stays.map((name) => callsIn(batch, trialOf(name), callsMax));
    const roundCostUs = stays.reduce((sum, name, index) => sum + trialOf(name) * calls[index], 0);
    const rounds = Math.max(roundsMin, Math.min(roundsMax, Math.floor((options.budgetMs * 1000) / roundCostUs)));
    const samples = stays.map(() => new Float64Array(rounds));
    // The random order is the same on all ranks.
    const random = seededRandom(bytes);
    for (let round = 0; round < rounds; round++) {
      for (const index of shuffled(stays.length, random)) {
        await group.barrier();
        samples[index][round] = await time(stays[index], calls[index]);
      }
    }
    const times = new Map<string, Float64Array>();
    for (const [index, name] of stays.entries()) times.set(name, await slowest(group, samples[index]));
    const own = await countWrong(group, [...operations.values()], { checks: 1, parallel: 1, wait: options.wait });
    const wrong = sum(await group.allGatherObject(own ?? 0));
    const chosen = (contest.groups.get('auto') ?? group).algorithmOf(collective, bytes);
    return rowOf(contest, { times, chosen, wrong, hopeless: names.filter((name) => !stays.includes(name)) });
  } finally {
    for (const operation of operations.values()) operation.release();
  }
}

/** Number of calls of `callUs` each that fill `wholeUs`; at least one. */
function callsIn(wholeUs: number, callUs: number, most: number): number {
  return Math.max(1, Math.min(most, Math.round(wholeUs / callUs)));
}

function operationOf({ group, options }: CompareContext, { collective, bytes, groups }: Contest, name: string): Operation {
  const native = loadNative({ enabled: true });
  const { dtype, op, memory } = options;
  const patterns = new Patterns({ dtype, op, ranks: group.size, kernels: createKernels({ native }) });
  const half = halvesOf(collective).includes('inPlace') ? 'inPlace' : 'outOfPlace';
  const whole = Math.max(bytes, group.size * 16, dtypeInfo(dtype).bytes);
  const own = groups.get(name) ?? group;
  return createOperation({
    group: own,
    options: { collective, dtype, op, memory, root: 0, buckets: 1 },
    patterns,
    bytes: collective === 'all-reduce' ? bytes : whole,
    half,
    slot: 0,
  });
}

async function inTurn(names: readonly string[], run: (name: string, index: number) => Promise<number>): Promise<Float64Array> {
  const values = new Float64Array(names.length);
  for (const [index, name] of names.entries()) values[index] = await run(name, index);
  return values;
}

/** The largest value of any rank at every position: the same on all ranks. */
async function slowest(group: CommGroup, values: Float64Array): Promise<Float64Array> {
  const all = values.slice();
  await group.allReduce(all, { op: 'max' });
  return all;
}

function rowOf(
  { collective, bytes }: Contest,
  result: Pick<ComparedRow, 'chosen' | 'wrong' | 'hopeless'> & { readonly times: ReadonlyMap<string, Float64Array> },
): ComparedRow {
  const { times, chosen, wrong, hopeless } = result;
  const timesUs: Record<string, number> = {};
  const auto = times.get('auto') ?? new Float64Array(0);
  const named = times.get(chosen);
  const both = Float64Array.of(...auto, ...(named ?? []));
  const apart = named === undefined ? 1 : statisticsOf(named).median / statisticsOf(auto).median;
  for (const [name, own] of times) timesUs[name] = statisticsOf(name === 'auto' || name === chosen ? both : own).median;
  // If the algorithm that `auto` takes was left out by its own name, that was noise: its time is auto's.
  timesUs[chosen] ??= timesUs.auto;
  const candidates = Object.keys(timesUs).filter((name) => name !== 'auto');
  const best = candidates.reduce((a, b) => (timesUs[b] < timesUs[a] ? b : a), chosen);
  const ratios = { autoOverBest: timesUs.auto / timesUs[best], scatter: Math.max(apart, 1 / apart) };
  return { collective, bytes, timesUs, chosen, hopeless: hopeless.filter((name) => name !== chosen), best, ...ratios, wrong };
}
