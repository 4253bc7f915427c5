/** Operations of one group on one rank, in the order of their calls: announced, compared, run.
 *
 *      add ─▶ waiting ── slot free on every rank ─▶ in flight: announced ─▶ contracts agree ─▶ running ─▶ done
 *
 *  A slot of the control block is free again when every rank has finished the operation slotCount before; each rank counts
 *  the operations that it has finished without a gap. Staging is allocated with the announcement, which carries its address: as many
 *  operations are in flight as the budget holds (staging-budget.ts). It must not know the host path's operations, nor how a disagreement
 *  is handled. */
import { assert, must } from '../../../base/assert.ts';
import { ShoalError } from '../../../base/errors.ts';
import { hasReached, serialOf } from '../../../base/serial.ts';
import type { CallQueue, SubmittedCall } from './call-queue.ts';
import { encodeContract, sameContract } from '../../../call/contract.ts';
import type { GroupContext } from './group-context.ts';
import { Operation } from './operation.ts';
import type { PreparedPlan } from '../../../call/planner.ts';
import { StagingBudget } from './staging-budget.ts';
import { beginBytesMax, encodeBegin, encodeCompleted } from '../links/wire.ts';

export class OperationQueue implements CallQueue<Operation> {
  readonly #group: GroupContext;
  /** Most operations in flight. */
  readonly #slotCount: number;
  readonly #beginMessage = new Uint8Array(beginBytesMax);
  readonly #waiting: Operation[] = [];
  /** Operations in flight, in the order of the calls, as `#waiting`. */
  #inFlight: Operation[] = [];
  readonly #staging: StagingBudget;
  #submitted: number;
  /** Operations finished without a gap, and those finished beyond it. */
  #completed: number;
  readonly #finishedAhead = new Set<number>();
  /** The count that the ranks of other hosts were last told. */
  #completedSent: number;

  constructor(group: GroupContext) {
    this.#group = group;
    const { inFlightMax, stagingBytes } = group.world.env.settings;
    this.#slotCount = inFlightMax;
    this.#staging = new StagingBudget(stagingBytes);
    const { callsBefore = 0 } = group.spec;
    this.#submitted = callsBefore;
    this.#completed = callsBefore;
    this.#completedSent = callsBefore;
  }

  get size(): number {
    return this.#waiting.length + this.#inFlight.length;
  }

  get pending(): readonly Operation[] {
    return [...this.#inFlight, ...this.#waiting].sort((a, b) => a.ordinal - b.ordinal);
  }

  /** Queues a call. Without a plan it keeps its place until it has one, and so do the calls behind it. */
  add(request: SubmittedCall, plan: PreparedPlan | undefined, submittedMs: number): Operation {
    const group = this.#group;
    const ordinal = this.#submitted++;
    const operation = new Operation(group, { ...request, ordinal, slot: ordinal % this.#slotCount, submittedMs, plan });
    group.world.env.recorder.created(group.spec, operation);
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

  late({ phase, ordinal, slot, sequence }: Operation): number[] {
    const { members } = this.#group;
    return phase === 'queued' ? members.unfinished(ordinal - this.#slotCount) : members.late(slot, sequence);
  }

  abandon(error: ShoalError): void {
    const { spec, world } = this.#group;
    const ended = this.pending;
    this.#inFlight = [];
    this.#waiting.length = 0;
    for (const operation of ended) {
      operation.execution?.abandon();
      operation.finish(error);
      world.env.recorder.finished(spec, operation, error);
    }
  }

  /** Begins what has a plan, a free slot and room in the staging, in the order of the calls; what stages little passes those that
   *  wait for room. What the oldest one waits for never waits for a later one: on no rank is it held back for ever. */
  #beginWaiting(): boolean {
    let begun = false;
    let room = true;
    for (let index = 0; index < this.#waiting.length;) {
      const operation = this.#waiting[index];
      if (!operation.isReady || operation.ordinal - this.#completed >= this.#slotCount) break;
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
    const { members } = this.#group;
    const needed = ordinal - this.#slotCount + 1;
    return needed <= 0 || members.blocks.every((block) => block.hasCompleted(needed));
  }

  #begin(operation: Operation): void {
    if (operation.refusal) this.#end(operation, operation.refusal);
    else this.#announce(operation);
  }

  #announce(operation: Operation): void {
    const { members, world, rank } = this.#group;
    const later = this.#inFlight.findIndex(({ ordinal }) => ordinal > operation.ordinal);
    this.#inFlight.splice(later < 0 ? this.#inFlight.length : later, 0, operation);
    this.#staging.take(operation.stagingBytes);
    const { slot, sequence, call } = operation;
    try {
      this.#prepare(operation);
    } catch (thrown) {
      this.#group.life.fail(ShoalError.from(thrown, 'system', { rank, sequence }));
      return;
    }
    encodeContract(call, sequence, members.own.contract(slot), { strict: world.env.settings.contract === 'strict' });
    operation.phase = 'announced';
    members.own.publish(slot, operation.ordinal + 1);
    members.wakeSleeping();
    this.#tellBegin(operation);
  }

  #prepare(operation: Operation): void {
    const { rank, members, plans } = this.#group;
    operation.prepare(plans.take(operation.prepared));
    operation.execution?.enter(operation, rank);
    assert(
      must(operation.execution, () => 'prepared').lowered.signalCount <= members.signalMax,
      () => `plan needs more than ${members.signalMax} signals`,
    );
  }

  /** Ranks of other hosts cannot see this rank's block: they are sent what the slot holds. */
  #tellBegin({ slot, prepared }: Operation): void {
    const { spec, members } = this.#group;
    if (members.networkPeers.length === 0) return;
    const announced = members.own.announced(slot, prepared.lowered.mailboxBytes);
    const message = encodeBegin(this.#beginMessage, { group: spec.id, slot, completed: this.#completed }, announced);
    this.#completedSent = this.#completed;
    for (const link of members.networkPeers) link.post(message);
  }

  /** Compares contracts that have arrived; binds and starts when all agree. True when the operation started. */
  #agree(operation: Operation): boolean {
    const group = this.#group;
    const { members } = group;
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
        if (hasReached(published, expected) || members.wentElsewhere(rank, sequence, 'engine')) group.disagree(operation);
      } else if (sameContract(own, members.blocks[rank].contract(slot))) operation.agreed[rank] = true;
      else {
        group.disagree(operation);
        return false;
      }
    }
    if (!all || group.isDisputed || !operation.canBind()) return false;
    try {
      must(operation.execution, () => 'announced operations have an execution').bind(operation);
    } catch (thrown) {
      group.life.suspect(thrown, sequence);
      return false;
    }
    operation.phase = 'running';
    group.world.env.recorder.started(group.spec, operation);
    return true;
  }

  /** True when the operation finished. */
  #run(operation: Operation): boolean {
    const { members, plans, spinMs } = this.#group;
    const execution = must(operation.execution, () => 'running operations have an execution');
    try {
      if (execution.run(0, { yields: spinMs === 0 }) === 'waiting') return false;
    } catch (thrown) {
      this.#group.life.suspect(thrown, operation.sequence);
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
    const { spec, world } = this.#group;
    this.#finished(operation.ordinal);
    operation.finish(error);
    world.env.recorder.finished(spec, operation, error);
  }

  /** Advances the count of contiguous finished operations and lets the others know. */
  #finished(ordinal: number): void {
    const { spec, members } = this.#group;
    this.#finishedAhead.add(ordinal);
    while (this.#finishedAhead.delete(this.#completed)) this.#completed += 1;
    members.own.completed = this.#completed;
    members.wakeSleeping();
    if (members.networkPeers.length > 0 && this.#completed - this.#completedSent >= this.#slotCount / 2) {
      this.#completedSent = this.#completed;
      const message = encodeCompleted(spec.id, this.#completed);
      for (const link of members.networkPeers) link.post(message);
    }
  }
}
