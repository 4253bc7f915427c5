/** The names of a group's calls on the timeline. Each call is two spans:
 *
 *      <group> waits   │ all-reduce wait │ sequence, waitedFor: who came last
 *      <group>                           │ all-reduce fairring │ sequence      from when all ranks have called
 *
 *  The span's name has all details that are constant for a call site. A call that ends on the
 *  calling thread is one span there. It must not know times. */
import { dtypeInfo, type DType } from '../memory/dtype.ts';
import type { NameId, TraceRecorder } from '../trace/recorder.ts';
import type { CollectiveCall } from './contract.ts';
import type { GroupSpec } from './group-spec.ts';
import { rangesOf } from '../membership/rank-ranges.ts';

/** The way of a call, as the timeline names it. */
export type CallPath = 'comm thread' | 'host path' | 'network path';

/** A call, and how it is run. */
export interface CallSpan {
  readonly call: CollectiveCall;
  readonly algorithm: string;
  readonly path: CallPath;
}

const category = 'collective';

/** Waiting for others; the arguments of its spans: sequence, the world rank that came last. */
export function waitName(trace: TraceRecorder, group: GroupSpec, span: CallSpan): NameId {
  return trace.name(`${span.call.kind} wait`, { category, argument: 'sequence', second: 'waitedFor', details: detailsOf(group, span) });
}

/** Running; the argument of its spans: sequence. */
export function workName(trace: TraceRecorder, group: GroupSpec, span: CallSpan, text = span.algorithm): NameId {
  return trace.name(`${span.call.kind} ${text}`, { category, argument: 'sequence', details: detailsOf(group, span) });
}

/** A message to or from one rank. */
export interface MessageSpan {
  readonly direction: 'send' | 'recv';
  /** Group rank; undefined: it came from none. */
  readonly peer: number | undefined;
  readonly tag: number;
  readonly dtype: DType;
  readonly count: number;
}

/** The name of a message's span, from the call to its end; the argument of its spans: the peer's world rank. */
export function messageName(trace: TraceRecorder, group: GroupSpec, { direction, tag, dtype, count }: MessageSpan): NameId {
  const details = { group: group.name, tag, dtype, count, bytes: count * dtypeInfo(dtype).bytes };
  return trace.name(direction, { category: 'message', argument: 'peer', details });
}

function detailsOf(group: GroupSpec, { call, algorithm, path }: CallSpan): Record<string, string | number> {
  const { name, op, root, site, dtype, count } = call;
  return {
    ...(name === undefined ? {} : { name }),
    group: group.name,
    dtype,
    count,
    bytes: count * dtypeInfo(dtype).bytes,
    ...(op === undefined ? {} : { op }),
    ...(root === undefined ? {} : { root: group.globalRanks[root] }),
    algorithm,
    path,
    peers: rangesOf(group.globalRanks.filter((_, rank) => rank !== group.rank)),
    ...(site === undefined ? {} : { site }),
  };
}
