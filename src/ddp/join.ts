/** Training with different numbers of inputs on the ranks, like torch's `Join`. Before each step all ranks say whether they have an input.
 *
 *      rank 0   input ─ step    input ─ step    input ─ step                  │ post
 *      rank 1   input ─ step    ─────── main    ─────── main    all are out   │ post      main: the step's collectives, with nothing to give
 *               ▲ who has one?  ▲               ▲               ▲
 *
 *  It must not know what steps do, nor which collectives they make. */
import { describeForeign } from '../memory/foreign-value.ts';
import { ShoalError } from '../base/errors.ts';
import { anyList, anyNumber, callback, checkArgument, checkOptions, describeValue, flag, noOptions, optionTable } from '../base/schema.ts';
import type { ProcessGroup } from '../group/caller/types.ts';
import type { TypedArray } from '../memory/dtype.ts';
import { checkGroup } from '../group/caller/call-arguments.ts';

/** The work that a rank does for the others after its own inputs are over. */
export interface JoinHook {
  /** Runs in the place of a step: makes the same collectives of this object as a step does. */
  mainHook(): Promise<void>;
  /** Runs when all ranks are out. @param lastJoiner a rank that made the most steps. */
  postHook?(lastJoiner: number): Promise<void>;
  /** Names anything that a step of this rank has left for a later one, such as gradients of `noSync`: ranks that have run out
   *  could not take part in it. */
  leftover?(): string | undefined;
}

/** An object that has collectives in a step: a `Reducer`, a `ZeroRedundancyOptimizer`. */
export interface Joinable {
  /** The work of this object for the others once this rank's inputs are over; called once for each `join`. */
  joinHook(): JoinHook;
}

/** Options of `join`. */
export interface JoinOptions {
  /** `true`: all ranks throw as soon as one is out. Default `false`. */
  readonly throwOnEarlyTermination?: boolean;
  /** Parameters that only steps update. In the end they are overwritten, on every rank, with those of a rank that made the most steps. */
  readonly parameters?: readonly TypedArray[];
  /** Timeout of each collective, in milliseconds. Default: the group's. */
  readonly timeoutMs?: number;
}

/** Result of `join`. */
export interface JoinResult {
  /** Steps of this rank. */
  readonly steps: number;
  /** Steps of the rank that made most. */
  readonly stepsMax: number;
  /** A rank that made the most steps: the highest one of them. */
  readonly lastJoiner: number;
}

/** Sent in the place of 0 or 1 by a rank with a leftover, so that all ranks stop. */
const hasLeftover = 2;
const oneInput = 'give all micro-batches of a step as one input';

/** The part of a process group that `join` uses. */
export type JoinGroup = Pick<ProcessGroup, 'rank' | 'size' | 'allGather' | 'broadcast'>;

const joinOptions = optionTable<JoinOptions>({ throwOnEarlyTermination: flag, parameters: anyList, timeoutMs: anyNumber });

/** Runs `step` with each input of this rank; when those are over, runs the hooks of `joinables`, in their order, until every rank
 *  is out. Collective. Every collective of a step must be one of the joinables', and every step must make them: micro-batches of
 *  `noSync` and the one that they are averaged with are one input.
 *  @throws ShoalError `mismatch`, on every rank, naming those that are out, with `throwOnEarlyTermination`; `usage`, on every
 *          rank, when a step leaves gradients of `noSync` for the next; errors of steps and hooks. */
export async function join<T>(
  group: JoinGroup,
  joinables: readonly Joinable[],
  inputs: Iterable<T> | AsyncIterable<T>,
  step: (input: T) => unknown,
  options: JoinOptions = noOptions,
): Promise<JoinResult> {
  checkGroup('join', group, 'allGather');
  checkArgument('join: joinables', joinables, anyList);
  for (const each of joinables)
    if (typeof each?.joinHook !== 'function')
      throw new ShoalError('usage', `join: a joinable has a joinHook; ${describeValue(each)} has none`);
  if (typeof inputs !== 'object' || inputs === null || !(Symbol.iterator in inputs || Symbol.asyncIterator in inputs))
    throw new ShoalError('usage', `join: inputs must be iterable, not ${describeValue(inputs)}`);
  checkArgument('join: step', step, callback);
  checkOptions('join', options, joinOptions);
  const { throwOnEarlyTermination = false, parameters = [], timeoutMs } = options;
  for (const array of parameters)
    if (!ArrayBuffer.isView(array)) throw new ShoalError('usage', `join: parameters are arrays, not ${describeForeign(array)}`);
  const call = { timeoutMs };
  const active = new Uint8Array(group.size);
  const hooks = joinables.map((each) => each.joinHook());

  /** Tells the other ranks whether this one has an input. @returns true if any rank has one. */
  const notify = async (own: 0 | 1, steps: number): Promise<boolean> => {
    const left = hooks.map((hook) => hook.leftover?.()).find((each) => each !== undefined);
    await group.allGather(active, Uint8Array.of(left === undefined ? own : hasLeftover), { ...call, name: 'ddp/join' });
    if (left !== undefined) throw new ShoalError('usage', `join: a step has left ${left}; ${oneInput}`, { rank: group.rank });
    const unfinished = active.indexOf(hasLeftover);
    if (unfinished >= 0) throw new ShoalError('usage', `join: a step of rank ${unfinished} has left something for the next; ${oneInput}`);
    const out = [...active.keys()].filter((rank) => active[rank] === 0);
    if (throwOnEarlyTermination && out.length > 0 && out.length < group.size) {
      const message = `join: ${out.length === 1 ? 'rank' : 'ranks'} ${out.join(', ')} ran out of inputs after ${steps} steps, and others have more`;
      throw new ShoalError('mismatch', message, { rank: group.rank, operation: 'ddp/join' });
    }
    return out.length < group.size;
  };

  let steps = 0;
  for await (const input of inputs) {
    await notify(1, steps);
    await step(input);
    steps++;
  }
  let stepsMax = steps;
  // Flags by rank, as of the last time that any rank had an input: 1 for a rank that had one.
  let last = steps > 0 ? active.slice() : undefined;
  while (await notify(0, stepsMax)) {
    last = active.slice();
    for (const hook of hooks) await hook.mainHook();
    stepsMax++;
  }
  const lastJoiner = last?.lastIndexOf(1) ?? 0;
  for (const [index, array] of parameters.entries())
    await group.broadcast(array, { ...call, root: lastJoiner, name: `ddp/join-parameters-${index}` });
  for (const hook of hooks) await hook.postHook?.(lastJoiner);
  return { steps, stepsMax, lastJoiner };
}
