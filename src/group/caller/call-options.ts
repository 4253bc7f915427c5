/** The options of a group's calls, by call: what `checkOptions` lets through. */
import { abortSignal, anyList, anyNumber, anyText, anything, optionTable, that, type Shape } from '../../base/schema.ts';
import type {
  AllToAllOptions,
  AnyReduceOp,
  CallOptions,
  CountsOptions,
  PeerOptions,
  ProcessGroup,
  ReduceOptions,
  RootOptions,
  ScheduledReduceOptions,
  SchedulingOptions,
  GrowOptions,
  ReconfigureOptions,
  ShrinkOptions,
  SubgroupsOptions,
} from './types.ts';

type OptionsOf<Call extends 'split' | 'newGroup' | 'scheduled' | 'destroy'> = NonNullable<
  Call extends 'destroy' | 'scheduled'
    ? Parameters<ProcessGroup[Call]>[0]
    : Parameters<ProcessGroup[Exclude<Call, 'destroy' | 'scheduled'>]>[1]
>;

const call = { timeoutMs: anyNumber, name: anyText, signal: abortSignal } as const satisfies Record<string, Shape<unknown>>;
const operator = that<AnyReduceOp>(
  'the name of an operator, or an object with a name and a function reduce',
  (op) =>
    typeof op === 'string' || (typeof op === 'object' && op !== null && 'name' in op && 'reduce' in op && typeof op.reduce === 'function'),
);
const reduce = { op: operator, factor: anyNumber, postscale: anyNumber } as const satisfies Record<string, Shape<unknown>>;

export const callOptions = optionTable<CallOptions>(call);
export const reduceOptions = optionTable<ReduceOptions>({ ...reduce, ...call });
export const scheduledReduceOptions = optionTable<ScheduledReduceOptions>({ priority: anyNumber, ...reduce, ...call });
export const rootOptions = optionTable<RootOptions>({ root: anyNumber, ...call });
export const reduceToRootOptions = optionTable<ReduceOptions & RootOptions>({ root: anyNumber, ...reduce, ...call });
export const countsOptions = optionTable<CountsOptions>({ counts: anyList, ...call });
export const countsOfRootOptions = optionTable<CountsOptions & RootOptions>({ root: anyNumber, counts: anyList, ...call });
export const reduceScatterOptions = optionTable<ReduceOptions & CountsOptions>({ ...reduce, counts: anyList, ...call });
export const allToAllOptions = optionTable<AllToAllOptions>({ inputSplits: anyList, outputSplits: anyList, ...call });
export const peerOptions = optionTable<PeerOptions>({ tag: anyNumber, ...call });
export const splitOptions = optionTable<OptionsOf<'split'>>({ key: anyNumber, timeoutMs: anyNumber });
export const newGroupOptions = optionTable<OptionsOf<'newGroup'>>({ name: anyText, backend: anyText, timeoutMs: anyNumber });
export const subgroupsOptions = optionTable<SubgroupsOptions>({ groupSize: anyNumber, ranks: anyList, timeoutMs: anyNumber });
export const shrinkOptions = optionTable<ShrinkOptions>({ exclude: anyList, timeoutMs: anyNumber });
export const reconfigureOptions = optionTable<ReconfigureOptions>({ ranks: anyList, timeoutMs: anyNumber });
export const growOptions = optionTable<GrowOptions>({ timeoutMs: anyNumber });
export const destroyOptions = optionTable<OptionsOf<'destroy'>>({ timeoutMs: anyNumber });
const scheduling = { creditBytes: anyNumber, partitionBytes: anyNumber, tuning: anything } as const satisfies Record<
  string,
  Shape<unknown>
>;
export const schedulingOptions = optionTable<SchedulingOptions>(scheduling);
export const scheduledOptions = optionTable<OptionsOf<'scheduled'>>({ ...scheduling, timeoutMs: anyNumber });
