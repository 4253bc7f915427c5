/** Training with inputs of which ranks have different numbers: torch's `Join`. Before each step all ranks say whether they have an input.
 *
 *      rank 0   input ─ step    input ─ step    input ─ step                  │ post
 *      rank 1   input ─ step    ─────── main    ─────── main    all are out   │ post      main: the step's collectives, with nothing to give
 *               ▲ who has one?  ▲               ▲               ▲
 *
 *  It must not know what steps do, nor which collectives they make. */
import { ShoalError } from '../base/errors.ts';
import { checkKind, checkOptions, describeValue, noOptions, optionTable } from '../base/settings/options.ts';
import type { ProcessGroup } from '../group/call/types.ts';
import type { TypedArray } from '../memory/dtype.ts';
import { rangesText } from './rank-text.ts';

/** What a rank does for others after its own inputs are over. */
export interface JoinHook {
  /** In the place of a step: the same collectives of this object. */
  mainHook(): Promise<void>;
  /** When all ranks are out. @param lastJoiner a rank that made the most steps. */
  postHook?(lastJoiner: number): Promise<void>;
  /** What a step of this rank has left for a later one, where ranks that have run out could not take part in it: gradients of `noSync`. */
  leftover?(): string | undefined;
}

/** What has collectives in a step: a `Reducer`, a `ZeroRedundancyOptimizer`. */
export interface Joinable {
  /** What this object does for others once this rank's inputs are over; called once for each `join`. */
  joinHook(): JoinHook;
}

/** How a join ends. */
export interface JoinOptions {
  /** `true`: as soon as one rank is out, all throw. Default `false`. */
  readonly throwOnEarlyTermination?: boolean;
  /** Overwritten in the end, on every rank, with those of a rank that made the most steps: parameters that only steps update. */
  readonly parameters?: readonly TypedArray[];
  /** Of each collective. Default: the group's. Milliseconds. */
  readonly timeoutMs?: number;
}

/** What a join comes to. */
export interface JoinResult {
  /** Of this rank. */
  readonly steps: number;
  /** Of whoever had most. */
  readonly stepsMax: number;
  /** A rank that made the most steps: the highest one of them. */
  readonly lastJoiner: number;
}

/** Said in the place of 0 or 1, so that all ranks stop. */
const hasLeftover = 2;
const oneInput = 'give all micro-batches of a step as one input';

/** What `join` needs of a process group. */
export type JoinGroup = Pick<ProcessGroup, 'rank' | 'size' | 'allGather' | 'broadcast'>;

const joinOptions = optionTable<JoinOptions>({ throwOnEarlyTermination: 'boolean', parameters: 'list', timeoutMs: 'number' });

/** Runs `step` with each input of this rank; when those are over, the hooks of `joinables`, in their order, until every rank is out.
 *  Collective. Every collective of a step must be one of the joinables', and every step must make them: micro-batches of `noSync` and the
 *  one that they are averaged with are one input.
 *  @throws ShoalError `mismatch`, on every rank, naming those that are out, with `throwOnEarlyTermination`; `usage`, on every rank, when a
 *          step leaves gradients of `noSync` for the next; what steps and hooks throw. */
export async function join<T>(
  group: JoinGroup,
  joinables: readonly Joinable[],
  inputs: Iterable<T> | AsyncIterable<T>,
  step: (input: T) => unknown,
  options: JoinOptions = noOptions,
): Promise<JoinResult> {
  if (typeof group?.allGather !== 'function')
    throw new ShoalError('usage', `join: the first argument is the process group, not ${describeValue(group)}`);
  checkKind('join: joinables', joinables, 'list');
  for (const each of joinables)
    if (typeof each?.joinHook !== 'function')
      throw new ShoalError('usage', `join: a joinable has a joinHook; ${describeValue(each)} has none`);
  if (typeof inputs !== 'object' || inputs === null || !(Symbol.iterator in inputs || Symbol.asyncIterator in inputs))
    throw new ShoalError('usage', `join: inputs must be iterable, not ${describeValue(inputs)}`);
  checkKind('join: step', step, 'function');
  checkOptions('join', options, joinOptions);
  const { throwOnEarlyTermination = false, parameters = [], timeoutMs } = options;
  for (const array of parameters)
    if (!ArrayBuffer.isView(array)) throw new ShoalError('usage', `join: parameters are arrays, not ${describeValue(array)}`);
  const call = timeoutMs === undefined ? {} : { timeoutMs };
  const active = new Uint8Array(group.size);
  const hooks = joinables.map((each) => each.joinHook());

  /** Whether any rank has an input. */
  const notify = async (own: 0 | 1, steps: number): Promise<boolean> => {
    const left = hooks.map((hook) => hook.leftover?.()).find((each) => each !== undefined);
    await group.allGather(active, Uint8Array.of(left === undefined ? own : hasLeftover), { ...call, name: 'ddp/join' });
    if (left !== undefined) throw new ShoalError('usage', `join: a step has left ${left}; ${oneInput}`, { rank: group.rank });
    const unfinished = active.indexOf(hasLeftover);
    if (unfinished >= 0) throw new ShoalError('usage', `join: a step of rank ${unfinished} has left something for the next; ${oneInput}`);
    const out = [...active.keys()].filter((rank) => active[rank] === 0);
    if (throwOnEarlyTermination && out.length > 0 && out.length < group.size) {
      const message = `join: ${rangesText(out)} ran out of inputs after ${steps} steps, and others have more`;
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
  // Who had inputs when somebody last had.
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
