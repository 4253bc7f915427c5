/** The options of a group's calls, by call: what `checkOptions` lets through. */
import { optionTable, type ValueKind } from '../../base/settings/options.ts';
import type {
  AllToAllOptions,
  CallOptions,
  CountsOptions,
  PeerOptions,
  ProcessGroup,
  ReduceOptions,
  RootOptions,
  ScheduledReduceOptions,
  SchedulingOptions,
  SubgroupsOptions,
} from './types.ts';

type OptionsOf<Call extends 'split' | 'newGroup' | 'scheduled' | 'destroy'> = NonNullable<
  Call extends 'destroy' | 'scheduled'
    ? Parameters<ProcessGroup[Call]>[0]
    : Parameters<ProcessGroup[Exclude<Call, 'destroy' | 'scheduled'>]>[1]
>;

const call = { timeoutMs: 'number', name: 'string', signal: 'signal' } as const satisfies Record<string, ValueKind>;
const reduce = { op: 'string', factor: 'number' } as const satisfies Record<string, ValueKind>;

export const callOptions = optionTable<CallOptions>(call);
export const reduceOptions = optionTable<ReduceOptions>({ ...reduce, ...call });
export const scheduledReduceOptions = optionTable<ScheduledReduceOptions>({ priority: 'number', ...reduce, ...call });
export const rootOptions = optionTable<RootOptions>({ root: 'number', ...call });
export const reduceToRootOptions = optionTable<ReduceOptions & RootOptions>({ root: 'number', ...reduce, ...call });
export const countsOptions = optionTable<CountsOptions>({ counts: 'list', ...call });
export const countsOfRootOptions = optionTable<CountsOptions & RootOptions>({ root: 'number', counts: 'list', ...call });
export const reduceScatterOptions = optionTable<ReduceOptions & CountsOptions>({ ...reduce, counts: 'list', ...call });
export const allToAllOptions = optionTable<AllToAllOptions>({ inputSplits: 'list', outputSplits: 'list', ...call });
export const peerOptions = optionTable<PeerOptions>({ tag: 'number', ...call });
export const splitOptions = optionTable<OptionsOf<'split'>>({ key: 'number', timeoutMs: 'number' });
export const newGroupOptions = optionTable<OptionsOf<'newGroup'>>({ name: 'string', backend: 'string', timeoutMs: 'number' });
export const subgroupsOptions = optionTable<SubgroupsOptions>({ groupSize: 'number', ranks: 'list', timeoutMs: 'number' });
export const destroyOptions = optionTable<OptionsOf<'destroy'>>({ timeoutMs: 'number' });
const scheduling = { creditBytes: 'number', partitionBytes: 'number', tuning: 'any' } as const satisfies Record<string, ValueKind>;
export const schedulingOptions = optionTable<SchedulingOptions>(scheduling);
export const scheduledOptions = optionTable<OptionsOf<'scheduled'>>({ ...scheduling, timeoutMs: 'number' });
