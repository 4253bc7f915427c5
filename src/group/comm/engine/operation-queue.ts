/** Operations of one group on one rank, in the order of their calls: announced, compared, run.
 *
 *      add ─▶ waiting ── slot free on every rank ─▶ in flight: announced ─▶ contracts agree ─▶ running ─▶ done
 *
 *  A slot of the control block is free again when every rank has finished the operation slotCount before; each rank counts
 *  the operations that it has finished without a gap. Staging is allocated with the announcement, which carries its address: as many
 *  operations are in flight as the budget holds (staging-budget.ts). It must not know the host path's operations, nor how a disagreement
 *  is handled. */
import { assert, must } from '../../../base/assert.ts';
import type { ShoalError } from '../../../base/errors.ts';
import { hasReached, serialOf } from '../../../base/serial.ts';
import type { CallQueue } from './call-queue.ts';
import { encodeContract, sameContract, type CollectiveCall } from '../../shared/call/contract.ts';
import type { EnginePath } from '../../shared/call/route.ts';
import type { GroupSpec } from '../../shared/call/group-spec.ts';
import type { Members } from './members.ts';
import { Operation, type Buffers, type Complete, type OperationHost } from './operation.ts';
import type { OperationLog } from '../diagnosis/operation-log.ts';
import type { Plans, PreparedPlan } from '../../shared/call/planner.ts';
import { StagingBudget } from './staging-budget.ts';
import { beginBytesMax, encodeBegin, encodeCompleted } from '../links/wire.ts';

export interface SubmittedCall {
  readonly path: EnginePath;
  /** Position among the group's calls. */
  readonly sequence: number;
  readonly call: CollectiveCall;
  readonly buffers: Buffers;
  readonly timeoutMs: number;
  readonly complete: Complete;
}

export interface OperationQueueOptions {
  readonly group: GroupSpec;
  /** What operations ask of their group. */
  readonly host: OperationHost;
  readonly members: Members;
  readonly plans: Plans;
  readonly recorder: OperationLog;
  /** Operations in flight at most. */
  readonly slotCount: number;
  /** Staging that operations in flight may hold together. */
  readonly stagingBytes: number;
  readonly contract: 'standard' | 'strict';
  /** Waiting gives the CPU away at once: ranks outnumber CPUs. */
  readonly yields: boolean;
  /** Ranks are found to disagree: nothing new is started. */
  readonly isDisputed: () => boolean;
  readonly onMismatch: (operation: Operation) => void;
  /** This rank could not announce an operation. */
  readonly onUnprepared: (thrown: unknown, sequence: number) => void;
  /** Binding or running an operation threw. */
  readonly onThrown: (thrown: unknown, sequence: number) => void;
}

export class OperationQueue implements CallQueue<Operation> {
  readonly #options: OperationQueueOptions;
  readonly #beginMessage = new Uint8Array(beginBytesMax);
  readonly #waiting: Operation[] = [];
  /** In the order of the calls, as `#waiting`. */
  #inFlight: Operation[] = [];
  readonly #staging: StagingBudget;
  #submitted: number;
  /** Operations finished without a gap, and those finished beyond it. */
  #completed: number;
  readonly #finishedAhead = new Set<number>();
  /** What the ranks of other hosts were last told. */
  #completedSent: number;

  constructor(options: OperationQueueOptions) {
    this.#options = options;
    this.#staging = new StagingBudget(options.stagingBytes);
    const { callsBefore = 0 } = options.group;
    this.#submitted = callsBefore;
    this.#completed = callsBefore;
    this.#completedSent = callsBefore;
  }

  get size(): number {
    return this.#waiting.length + this.#inFlight.length;
  }

  get runnable(): boolean {
    return this.size > 0;
  }

  get pending(): readonly Operation[] {
    return [...this.#inFlight, ...this.#waiting].sort((a, b) => a.ordinal - b.ordinal);
  }

  /** Without a plan it keeps its place, and those behind it theirs, until it has one. */
  add(request: SubmittedCall, plan: PreparedPlan | undefined, submittedMs: number): Operation {
    const { group, host, recorder, slotCount } = this.#options;
    const ordinal = this.#submitted++;
    const operation = new Operation(host, {
      ...request,
      ordinal,
      slot: ordinal % slotCount,
      submittedMs,
      plan,
    });
    recorder.created(group, operation);
    this.#waiting.push(operation);
    return operation;
  }

  advance(): boolean {
    let moved = this.#waiting.length > 0 && this.#beginWaiting();
    for (const operation of this.#inFlight) {
      if (operation.phase === 'announced' && this.#agree(operation)) moved = true;
      if (operation.phase === 'running' && this.#run(operation)) moved = true;
    }
    if (moved) this.#inFlight = this.#inFlight.filter((operation) => operation.phase !== 'done');
    return moved;
  }

  abandon(error: ShoalError): void {
    const { group, recorder } = this.#options;
    const ended = this.pending;
    this.#inFlight = [];
    this.#waiting.length = 0;
    for (const operation of ended) {
      operation.execution?.abandon();
      operation.finish(error);
      recorder.finished(group, operation, error);
    }
  }

  /** Begins what has a plan, a free slot and room in the staging, in the order of the calls; what stages little passes those that
   *  wait for room. What the oldest one waits for never waits for a later one: on no rank is it held back for ever. */
  #beginWaiting(): boolean {
    let begun = false;
    let room = true;
    for (let index = 0; index < this.#waiting.length;) {
      const operation = this.#waiting[index];
      if (!operation.isReady || operation.ordinal - this.#completed >= this.#options.slotCount) break;
      if (this.#staging.counts(operation.stagingBytes)) room &&= this.#staging.holds(operation.stagingBytes);
      if (!room && this.#staging.counts(operation.stagingBytes)) {
        index += 1;
        continue;
      }
      if (!this.#slotFree(operation)) break;
      this.#waiting.splice(index, 1);
      this.#begin(operation);
      begun = true;
    }
    return begun;
  }

  /** The operation's slot is free on every rank. */
  #slotFree({ ordinal }: Operation): boolean {
    const { members, slotCount } = this.#options;
    const needed = ordinal - slotCount + 1;
    return needed <= 0 || members.blocks.every((block) => block.hasCompleted(needed));
  }

  #begin(operation: Operation): void {
    if (operation.refusal) this.#end(operation, operation.refusal);
    else this.#announce(operation);
  }

  #announce(operation: Operation): void {
    const { members, contract, onUnprepared } = this.#options;
    const later = this.#inFlight.findIndex(({ ordinal }) => ordinal > operation.ordinal);
    this.#inFlight.splice(later < 0 ? this.#inFlight.length : later, 0, operation);
    this.#staging.take(operation.stagingBytes);
    const { slot, sequence, call } = operation;
    try {
      this.#prepare(operation);
    } catch (thrown) {
      onUnprepared(thrown, sequence);
      return;
    }
    encodeContract(call, sequence, members.own.contract(slot), { strict: contract === 'strict' });
    operation.phase = 'announced';
    members.own.publish(slot, operation.ordinal + 1);
    members.wakeSleeping();
    this.#tellBegin(operation);
  }

  #prepare(operation: Operation): void {
    const { group, members, plans } = this.#options;
    operation.prepare(plans.take(operation.prepared));
    operation.execution?.enter(operation, group.rank);
    assert(
      must(operation.execution, () => 'prepared').lowered.signalCount <= members.signalMax,
      () => `plan needs more than ${members.signalMax} signals`,
    );
  }

  /** Ranks of other hosts cannot see this rank's block: they are sent what the slot holds. */
  #tellBegin({ slot, prepared }: Operation): void {
    const { group, members } = this.#options;
    if (members.networkPeers.length === 0) return;
    const announced = members.own.announced(slot, prepared.lowered.mailboxBytes);
    const message = encodeBegin(this.#beginMessage, { group: group.id, slot, completed: this.#completed }, announced);
    this.#completedSent = this.#completed;
    for (const link of members.networkPeers) link.post(message);
  }

  /** Compares contracts that have arrived; binds and starts when all agree. True when the operation started. */
  #agree(operation: Operation): boolean {
    const { group, members, recorder, isDisputed, onMismatch, onThrown } = this.#options;
    const { slot, sequence, ordinal } = operation;
    const expected = serialOf(ordinal + 1);
    const own = members.own.contract(slot);
    let all = true;
    for (let rank = 0; rank < members.links.length; rank++) {
      if (operation.agreed[rank]) continue;
      const published = members.blocks[rank].published(slot);
      if (published !== expected) {
        all = false;
        operation.waitedFor = rank;
        if (hasReached(published, expected) || members.leftBefore(rank, sequence) || members.tookHostPath(rank, sequence))
          onMismatch(operation);
      } else if (sameContract(own, members.blocks[rank].contract(slot))) operation.agreed[rank] = true;
      else {
        onMismatch(operation);
        return false;
      }
    }
    if (!all || isDisputed() || !operation.canBind()) return false;
    try {
      must(operation.execution, () => 'announced operations have an execution').bind(operation);
    } catch (thrown) {
      onThrown(thrown, sequence);
      return false;
    }
    operation.phase = 'running';
    recorder.started(group, operation);
    return true;
  }

  /** True when the operation finished. */
  #run(operation: Operation): boolean {
    const { members, plans, yields, onThrown } = this.#options;
    const execution = must(operation.execution, () => 'running operations have an execution');
    try {
      if (execution.run(0, { yields }) === 'waiting') return false;
    } catch (thrown) {
      onThrown(thrown, operation.sequence);
      return false;
    }
    members.own.clearSignals(operation.slot, execution.lowered.signalCount);
    plans.give(operation.prepared, execution);
    operation.execution = undefined;
    this.#staging.give(operation.stagingBytes);
    this.#end(operation, undefined);
    return true;
  }

  /** On every rank alike. */
  #end(operation: Operation, error: ShoalError | undefined): void {
    const { group, recorder } = this.#options;
    this.#finished(operation.ordinal);
    operation.finish(error);
    recorder.finished(group, operation, error);
  }

  /** Advances the count of contiguous finished operations and lets the others know. */
  #finished(ordinal: number): void {
    const { group, members, slotCount } = this.#options;
    this.#finishedAhead.add(ordinal);
    while (this.#finishedAhead.delete(this.#completed)) this.#completed += 1;
    members.own.completed = this.#completed;
    members.wakeSleeping();
    if (members.networkPeers.length > 0 && this.#completed - this.#completedSent >= slotCount / 2) {
      this.#completedSent = this.#completed;
      const message = encodeCompleted(group.id, this.#completed);
      for (const link of members.networkPeers) link.post(message);
    }
  }
}
