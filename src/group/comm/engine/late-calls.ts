/** Calls of a fast path that the calling thread handed over to the comm thread, in their order. Only the head runs, from where the calling
 *  thread left it. One implementation per fast path: host-path-queue.ts, network-path-queue.ts.
 *
 *      calling thread ── waited long enough, or is not to wait ─▶ add ─▶ head ─▶ run … ─▶ done
 *
 *  It must not know the operations that start in the comm thread, nor how a disagreement is handled. */
import { ShoalError } from '../../../base/errors.ts';
import type { RecordedOperation } from '../diagnosis/operation-log.ts';
import type { CallQueue, SubmittedCall } from './call-queue.ts';
import type { GroupContext } from './group-context.ts';
import type { HostPathName } from '../../../call/host-path.ts';
import type { CallWay } from '../../shared/comm-protocol.ts';

/** A call as the calling thread handed it over. */
export interface HandedOver<Path extends FastPathName> extends SubmittedCall {
  readonly way: Extract<CallWay, { readonly path: Path }>;
}

type FastPathName = 'host' | 'network';

export interface LateCall<Path extends FastPathName = FastPathName> extends HandedOver<Path>, RecordedOperation {
  /** All ranks have announced it. */
  started: boolean;
  /** The last rank that was seen not to have announced it. */
  waitedFor: number | undefined;
}

/** The outcome of a look at the head. `nothing`: no conclusion can be drawn yet. An error: it cannot go on, unless some rank has called
 *  something else, which then is the reason. */
export type Look = 'done' | 'moved' | 'waiting' | 'mismatch' | 'nothing' | ShoalError;

export abstract class LateCalls<Call extends LateCall> implements CallQueue<Call> {
  protected readonly group: GroupContext;
  protected readonly calls: Call[] = [];

  /** The path of these calls, as `Members.wentElsewhere` has it. */
  readonly #path: HostPathName | 'network';

  constructor(group: GroupContext, path: HostPathName | 'network') {
    this.group = group;
    this.#path = path;
  }

  /** @throws ShoalError why it is not taken. */
  abstract add(request: HandedOver<Call['way']['path']>, submittedMs: number): Call;
  abstract late(call: Call): number[];
  /** Continues the head. */
  protected abstract run(head: Call): Look;
  /** The first other rank that has not announced the head. */
  protected abstract firstLate(head: Call): number | undefined;
  /** No call is left, or none may go on. */
  abstract rest(): void;

  get pending(): readonly Call[] {
    return this.calls;
  }

  get size(): number {
    return this.calls.length;
  }

  advance(): boolean {
    if (this.calls.length === 0) return false;
    const [head] = this.calls;
    if (!head.started) this.#noteStart(head);
    let look: Look;
    try {
      look = this.run(head);
    } catch (thrown) {
      this.group.life.suspect(thrown, head.sequence);
      return false;
    }
    if (look === 'done') {
      this.#start(head);
      this.calls.shift();
      // Before the calling thread hears of it, which may go on then.
      if (this.calls.length === 0) this.rest();
      head.complete();
      return true;
    }
    if (look === 'nothing') return false;
    if (look === 'mismatch' || this.#someoneWentElsewhere(head)) this.group.disagree(head);
    else if (look instanceof ShoalError) this.group.life.suspect(look, head.sequence);
    return look === 'moved';
  }

  abandon(error: ShoalError): void {
    this.rest();
    for (const call of this.calls.splice(0)) call.complete(error);
  }

  #noteStart(head: Call): void {
    const late = this.firstLate(head);
    if (late === undefined) this.#start(head);
    else head.waitedFor = late;
  }

  #start(head: Call): void {
    if (head.started) return;
    head.started = true;
    const { world, spec } = this.group;
    world.env.recorder.started(spec, head);
  }

  /** Some rank made the call another way, or left before it. */
  #someoneWentElsewhere({ sequence }: Call): boolean {
    const { size, rank: own, members } = this.group;
    for (let rank = 0; rank < size; rank++) if (rank !== own && members.wentElsewhere(rank, sequence, this.#path)) return true;
    return false;
  }
}
