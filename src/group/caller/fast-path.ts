/** The interface of a fast path: calls run whole on the calling thread, or begin there. One implementation per
 *  path: host-path-caller.ts, network-path-caller.ts.
 *
 *      bind ─▶ run ─▶ all came in time ─▶ completed work
 *                └─▶ late: the comm thread continues the run ─▶ work; later calls queue behind it there */
import type { CallSite } from '../../base/call-site.ts';
import { ShoalError } from '../../base/errors.ts';
import type { Unnumbered } from '../../comm/caller/comm-channel.ts';
import type { SettlingWork, WorkHooks, WorkWaiter } from '../../comm/caller/work.ts';
import type { CallTally } from '../../metrics/board.ts';
import type { Region, RegionAllocator, RegionShare } from '../../memory/region.ts';
import type { Repetition } from '../../memory/step-machine.ts';
import type { BufferName } from '../../plan/ir.ts';
import type { TraceRecorder } from '../../trace/recorder.ts';
import type { Movement } from '../../trace/traffic.ts';
import { waitName, workName, type CallSpan } from '../../call/collective-spans.ts';
import type { CollectiveCall } from '../../call/contract.ts';
import type { GroupSpec } from '../../call/group-spec.ts';
import type { LocalBuffers } from '../../call/local-buffers.ts';
import type { GroupFacts, Route } from '../../call/route.ts';
import type { CallWay, Command, SharedBuffer } from '../shared/comm-protocol.ts';
import type { CallBuffers } from './call-buffers.ts';

/** A call bound to its buffers; may be run again and again, one run at a time. */
export interface FastOperation {
  /** The buffers that it runs on now. */
  readonly buffers: unknown;
  /** They are the caller's own, which the comm thread cannot reach. */
  readonly isPrivate: boolean;
  /** Runs it once more on these buffers, as the group's next call, by one call of native code. Undefined: it cannot. */
  readonly repetition?: Repetition | undefined;
  /** Counts its runs; undefined: nobody does. */
  tally?: CallTally | undefined;
}

/** A call as the comm thread goes on with it; made only when it must. */
export interface FastRequest {
  readonly call: CollectiveCall;
  /** The buffers where the comm thread reaches them. */
  readonly buffers: Partial<Record<BufferName, SharedBuffer>>;
  /** The same buffers, as this thread maps them. */
  readonly local: () => LocalBuffers;
  readonly timeoutMs: number;
  /** The place in the program where the call was made. */
  readonly site: CallSite;
  readonly hooks: WorkHooks;
}

export interface FastPath<Operation extends FastOperation = FastOperation> {
  /** Part of a call's results may be there when the comm thread takes over. */
  readonly comesInPieces: boolean;
  /** One number: the collectives called on the group, whichever way they went. Other ranks see it, and are told of it when they wait in
   *  vain. */
  readonly called: Float64Array;
  /** The operation for a call whose route is this path; may stage private arrays. */
  bind(call: CollectiveCall, route: Route, reach: CallBuffers): Operation;
  /** Runs the operation as the group's next call. `request` is asked for only when the comm thread must take over.
   *  @param buffers what it runs on, when that may not be what it last ran on.
   *  @param status what the operation's repetition has come to. Default: it has not been tried, or has not started.
   *  @throws ShoalError `out-of-memory`, `unsupported` when there is no room for what the comm thread would need; then nothing is
   *  announced. */
  run(operation: Operation, request: () => FastRequest, buffers: Operation['buffers'], status?: number): SettlingWork;
  /** All that was called has ended. */
  close(): void;
}

/** A fast path that is open to the calls of a group, and which of them it is for. */
export interface OpenFastPath extends Omit<GroupFacts, 'planner'> {
  readonly fast: FastPath;
}

/** Operations that the comm thread may have while the calling thread goes on without looking. */
const unseenMax = 16;

/** A call is about to queue behind operations that the comm thread has. A script that never looks at its works sees no end of them, so
 *  they are looked for here; and beyond a few the comm thread is given time, or all later calls would take the long way, and their queue
 *  would grow for as long as the script goes on. Waits no longer than a call does for late ranks when nothing ends.
 *  @param count how many the comm thread has. */
export function catchUp(engine: Pick<WorkWaiter, 'drain' | 'pump'>, count: () => number, spinNs: number): void {
  engine.drain();
  if (count() <= unseenMax) return;
  for (let before = Infinity; count() > 0 && count() < before;) {
    before = count();
    if (!engine.pump(spinNs / 1e6)) return;
  }
}

/** The command by which the comm thread goes on with a call. */
export function handOverCommand(
  { id: group }: GroupSpec,
  { call, buffers, timeoutMs, site }: FastRequest,
  sequence: number,
  way: CallWay,
): Unnumbered<Extract<Command, { readonly type: 'collective' }>> {
  return { type: 'collective', group, way, sequence, call: { ...call, site: site() }, buffers, timeoutMs };
}

/** The hooks of such a call's work. @param hasBegun other ranks may be at its buffers. */
export function handOverHooks({ hooks, site }: FastRequest, hasBegun: () => boolean, onSettled: () => void): WorkHooks {
  return {
    ...hooks,
    site,
    onSettled: (touched, error) => {
      onSettled();
      hooks.onSettled?.(touched || (error !== undefined && hasBegun()), error);
    },
  };
}

/** A run of a call on this thread. */
interface Run {
  readonly sequence: number;
  readonly startMs: number;
  /** `late`: it has only waited here, for this world rank where it is known, and the comm thread draws the rest. */
  readonly outcome: { readonly text: string; readonly movements: readonly Movement[] } | { readonly late: number | undefined };
}

export function drawRun(trace: TraceRecorder, spec: GroupSpec, span: CallSpan, { sequence, startMs, outcome }: Run): void {
  if ('late' in outcome) {
    trace.complete(waitName(trace, spec, span), startMs, 0, sequence, outcome.late ?? Number.NaN);
    return;
  }
  trace.complete(workName(trace, spec, span, outcome.text), startMs, 0, sequence);
  trace.moved(spec.globalRanks, outcome.movements);
}

/** Maps all shares, or none: undefined when a rank has left or died since it told of them, and the group has failed. The comm thread knows
 *  why, and says so to every call. @throws ShoalError `out-of-memory` when descriptors or memory are used up. */
export function openRegions(allocator: RegionAllocator, shares: readonly RegionShare[]): Region[] | undefined {
  const regions: Region[] = [];
  try {
    for (const share of shares) regions.push(allocator.open(share));
    return regions;
  } catch (thrown) {
    for (const region of regions) region.close();
    if (ShoalError.from(thrown).code === 'unsupported') return undefined;
    throw thrown;
  }
}
