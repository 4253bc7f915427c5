/** The interface of a fast path: calls run whole on the calling thread, or begin there. One implementation per
 *  path: host-path-caller.ts, network-path-caller.ts.
 *
 *      bind ─▶ run ─▶ all came in time ─▶ completed work
 *                └─▶ late: the engine continues the run ─▶ work; later calls queue behind it there */
import type { CallSite } from '../../base/call-site.ts';
import type { Repetition } from '../../memory/step-machine.ts';
import type { BufferName } from '../../plan/ir.ts';
import type { CollectiveCall } from '../shared/call/contract.ts';
import type { GroupFacts, Route } from '../shared/call/route.ts';
import type { SettlingWork } from '../../comm/caller/work.ts';
import type { SharedBuffer } from '../shared/comm-protocol.ts';
import type { WorkHooks, WorkWaiter } from '../../comm/caller/work.ts';
import type { CallBuffers } from './call-buffers.ts';

/** A call bound to its buffers; may be run again and again, one run at a time. */
export interface FastOperation {
  /** The buffers that it runs on now. */
  readonly buffers: unknown;
  /** They are the caller's own, which the engine cannot reach. */
  readonly isPrivate: boolean;
  /** Runs it once more on these buffers, as the group's next call, by one call of native code. Undefined: it cannot. */
  repetition?: Repetition | undefined;
}

/** A call as the engine goes on with it; made only when it must. */
export interface FastRequest {
  readonly call: CollectiveCall;
  /** The buffers where the engine reaches them. */
  readonly buffers: Partial<Record<BufferName, SharedBuffer>>;
  readonly timeoutMs: number;
  /** The place in the program where the call was made. */
  readonly site: CallSite;
  readonly hooks: WorkHooks;
}

export interface FastPath<Operation extends FastOperation = FastOperation> {
  /** The collectives called on the group, whichever way they went: `RepetitionNumber.Runs` of its repetitions. */
  readonly numbers: Float64Array;
  /** The operation for a call whose route is this path; may stage private arrays. */
  bind(call: CollectiveCall, route: Route, reach: CallBuffers): Operation;
  /** Checks that there is room for what the engine would need for the operation. @throws ShoalError `out-of-memory`, `unsupported`. */
  checkRoom(operation: Operation, buffers: Operation['buffers']): void;
  /** Runs the operation as call number `sequence` of the group. `request` is asked for only when the engine must take over.
   *  @param buffers what it runs on, when that may not be what it last ran on. */
  run(operation: Operation, sequence: number, request: () => FastRequest, buffers: Operation['buffers']): SettlingWork;
  /** The operation is being repeated: from now on by a repetition, if it can be. */
  makeRepeatable?(operation: Operation): void;
  /** Goes on with a run that the operation's repetition has begun. @param status its answer, which is not `notStarted`. */
  goOn?(operation: Operation, status: number, request: () => FastRequest): SettlingWork;
  /** Notes for other ranks that this one has made so many calls: what they are told when they wait in vain. */
  announce(calls: number): void;
  /** No call follows. What has begun goes on in the engine. */
  close(): void;
  /** All that was called has ended. */
  end(): void;
}

/** A fast path that is open to the calls of a group, and which of them it is for. */
export interface OpenFastPath extends Omit<GroupFacts, 'planner'> {
  readonly fast: FastPath;
}

/** Operations that the engine may have while the calling thread goes on without looking. */
const unseenMax = 16;

/** A call is about to queue behind operations that the engine has. A script that never looks at its works sees no end of them, so
 *  they are looked for here; and beyond a few the engine is given time, or all later calls would take the long way, and their queue
 *  would grow for as long as the script goes on. Waits no longer than a call does for late ranks when nothing ends.
 *  @param count how many the engine has. */
export function catchUp(engine: Pick<WorkWaiter, 'drain' | 'pump'>, count: () => number, spinNs: number): void {
  engine.drain();
  if (count() <= unseenMax) return;
  for (let before = Infinity; count() > 0 && count() < before;) {
    before = count();
    if (!engine.pump(spinNs / 1e6)) return;
  }
}
