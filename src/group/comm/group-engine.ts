/** One group on one rank, in the comm thread: its start and end, and its incoming messages. Its calls are in group-calls.ts.
 *
 *      opening ── all ranks have joined, and agree on a network path or none ──▶ open ── leave ──▶ closed
 *         └───────────────────────── fail ──▶ failed: all ranks hear why ◀── fail ──┘
 *
 *  It must not know algorithms, sockets or user objects. */
import { must } from '../../base/assert.ts';
import { setServedTimer, within, type Timer } from '../../base/clock.ts';
import { ShoalError } from '../../base/errors.ts';
import { exhaustion } from '../../base/exhaustion.ts';
import type { GivenSocket, TakeDescriptor } from '../../fabric/fabric.ts';
import type { GroupSpec } from '../../call/group-spec.ts';
import type { NetworkPathOpening } from './paths/network-path-opening.ts';
import type { Agreement } from '../../membership/agreement.ts';
import type { Plans } from '../../call/planner.ts';
import type { WorldFacts } from '../../metrics/rank-report.ts';
import { lossOf, reasonSaidBy } from './diagnosis/departures.ts';
import type { Wait } from './diagnosis/wait-chain.ts';
import type { GroupLife, GroupWorld } from './engine/group-context.ts';
import type { Members } from './engine/members.ts';
import type { SubmittedCall } from './engine/call-queue.ts';
import { GroupCalls } from './group-calls.ts';
import type { ControlMessage } from './links/control-message.ts';
import type { PeerLink } from './links/peer-link.ts';
import type { BeginHeader } from './links/wire.ts';
import type { Schedule } from './schedule/schedule.ts';

/** An error of this rank's own may be the echo of a dying peer, whose end is known by its connection: wait this long for that to close.
 *  A busy host does not keep it from closing for longer. */
export const suspicionMs = 2000;

type GroupStatus = 'opening' | 'open' | 'failed' | 'closed';

export class GroupEngine implements GroupLife {
  readonly spec: GroupSpec;
  readonly links: readonly (PeerLink | undefined)[];
  readonly departed = (peer: number | undefined): ShoalError | undefined => this.#failure ?? this.#members.departed(peer);
  readonly world: GroupWorld;
  /** The agreement on who goes on without the others, once there is one. */
  agreement: Agreement | undefined;
  /** The order of its calls, where it is a scheduled group. */
  schedule: Schedule | undefined;
  readonly #calls: GroupCalls;
  readonly #members: Members;
  #status: GroupStatus = 'opening';
  #failure: ShoalError | undefined;
  #suspicion: Timer | undefined;
  /** A timer holds on to the group. */
  #openTimer: Timer | undefined;
  #opened: { resolve: () => void; reject: (error: ShoalError) => void } | undefined;
  /** Wakes callers of `leave`: the group's own destruction, its world's, or both. */
  readonly #leaving: (() => void)[] = [];

  constructor(world: GroupWorld, spec: GroupSpec) {
    this.world = world;
    this.spec = spec;
    this.#calls = new GroupCalls(world, spec, this);
    this.links = this.#calls.links;
    this.#members = this.#calls.members;
  }

  get #opening(): NetworkPathOpening {
    return this.#calls.networkPath.opening;
  }

  get failure(): ShoalError | undefined {
    return this.#failure;
  }

  get isOpen(): boolean {
    return this.#status === 'open';
  }

  get mayRun(): boolean {
    return this.#status === 'open' && this.#suspicion === undefined;
  }

  get isOpening(): boolean {
    return this.#status === 'opening';
  }

  // ── life ────────────────────────────────────────────────────────────────────────────────────────────────────────

  /** Exchanges control blocks with every member. @throws ShoalError naming the ranks that did not open in time. */
  open(timeoutMs: number): Promise<void> {
    return new Promise<void>((resolve, reject) => {
      this.#opened = { resolve, reject };
      if (this.#failure) {
        void this.#endAllHeard(this.#failure);
        return;
      }
      const networkPath = [...this.#opening.candidates];
      this.#members.tellOthers({ type: 'group-open', group: this.spec.id, key: this.#members.ownKey, networkPath });
      this.#openTimer = this.world.env.clock.setTimer(timeoutMs, () => this.#onOpenTimeout(timeoutMs));
      this.#checkOpen();
    });
  }

  #onOpenTimeout(timeoutMs: number): void {
    if (this.#status !== 'opening') return;
    this.world.findCulprit(this.#absent(), ({ rank: peer, text }) => {
      if (this.#status !== 'opening') return;
      const { missing } = this.#members;
      const why =
        missing.length > 0
          ? `rank ${missing.join(', ')} did not join; does every rank create it?`
          : 'its ranks did not agree on a network path;';
      const message = `group '${this.spec.name}' did not open within ${timeoutMs} ms: ${why} ${text}`;
      this.fail(new ShoalError('timeout', message, { timeoutMs, peer }));
    });
  }

  /** World ranks that keep the group from opening. */
  #absent(): number[] {
    const { missing } = this.#members;
    return missing.length > 0 ? missing : this.#members.worldRanks(this.#opening.awaited);
  }

  /** The wait of this rank in the group that has lasted longest; undefined: there is none. */
  get wait(): Wait | undefined {
    if (this.#status === 'opening') return { text: `the opening of group '${this.spec.name}'`, ranks: this.#absent() };
    return this.#status === 'open' ? this.#calls.wait : undefined;
  }

  get facts(): WorldFacts['groups'][number] {
    const { id, name } = this.spec;
    const [called, pending] = [this.#members.own.called, this.#calls.pending.length];
    return { id, name, called, pending, failure: this.#failure?.message, credit: this.schedule?.credit };
  }

  /** Takes no more calls, waits (bounded) for those in flight, then tells the others. Resolves always. */
  async leave(timeoutMs: number): Promise<void> {
    if (this.#status === 'closed') return;
    const settled = (): Promise<void> => new Promise((resolve) => this.#leaving.push(resolve));
    if (this.waitsToLeave) await within<void>(this.world.env.clock, timeoutMs, settled(), () => undefined);
    this.#close();
  }

  #close(): void {
    if (this.#status === 'closed') return;
    this.#members.tellOthers({ type: 'leave', group: this.spec.id, calls: this.#members.own.called });
    this.#abandonAll(this.#failure ?? new ShoalError('closed', `group '${this.spec.name}' was destroyed`, { rank: this.spec.rank }));
    this.#status = 'closed';
    this.#openTimer?.cancel();
    this.#suspicion?.cancel();
    this.#calls.stop();
    this.#calls.networkPath.close();
  }

  /** This rank has left, and so has every other, or is gone. */
  get deserted(): boolean {
    return this.#status === 'closed' && this.#members.deserted;
  }

  /** Gives back what others could look at while they were in the group. */
  end(): void {
    this.#members.end();
  }

  /** Stops, and fails with what was thrown unless the end of a rank explains it first: its connection closes, or it leaves. */
  suspect(thrown: unknown, sequence?: number): void {
    if (this.#suspicion) return;
    const ranOut = exhaustion(`rank ${this.world.env.rank}`, thrown, `working for group '${this.spec.name}'`, {
      rank: this.world.env.rank,
      sequence,
    });
    if (ranOut) {
      this.fail(ranOut);
      return;
    }
    const error = ShoalError.from(thrown, 'system', { rank: this.spec.rank, sequence });
    const confirm = (): void => {
      // Its error is the older one, and comes.
      if (!this.#calls.inquiry.underway) this.fail(error);
    };
    this.#suspicion = setServedTimer(this.world.env.clock, suspicionMs, confirm);
  }

  /** Ends every operation, now and later, with `error`. All ranks hear of it first, also when one of them has said it: this process
   *  may end as soon as its script knows, and must not be taken for the reason by those who do not know it yet. */
  fail(error: ShoalError): void {
    if (this.#status === 'failed' || this.#status === 'closed') return;
    this.#status = 'failed';
    this.#failure = error;
    this.#members.own.failed = true;
    this.#openTimer?.cancel();
    this.#calls.stop();
    this.world.env.recorder.found(this.spec, () => this.#calls.calledAlone());
    this.world.recordFailure(this.spec, error);
    this.world.tellFailure(this.spec, error);
    void this.#endAllHeard(error);
  }

  async #endAllHeard(error: ShoalError): Promise<void> {
    await this.world.lastWords.heard();
    this.#opened?.reject(error);
    this.#opened = undefined;
    this.#abandonAll(error);
  }

  // ── calls ───────────────────────────────────────────────────────────────────────────────────────────────────────

  /** A library runs its calls from now on. */
  usePlans(plans: Plans): void {
    this.#calls.plans = plans;
  }

  /** @throws ShoalError why it is not taken; then nothing is known of it. */
  submit(request: SubmittedCall): void {
    const refusal = this.refusal();
    if (refusal) throw refusal;
    this.#calls.submit(request);
  }

  /** @throws ShoalError `closed` when it is no scheduled group. */
  get scheduled(): Schedule {
    if (this.schedule) return this.schedule;
    throw new ShoalError('closed', `group '${this.spec.name}' is not scheduled`);
  }

  pump(): void {
    this.#calls.pump();
  }

  ring(doorbells: Uint32Array): void {
    this.#calls.ring(doorbells);
  }

  /** The error with which further calls are refused; undefined while the group works. */
  refusal(): ShoalError | undefined {
    if (this.#failure) return this.#failure;
    if (this.#status === 'closed') return new ShoalError('closed', `group '${this.spec.name}' was destroyed`, { rank: this.spec.rank });
    return undefined;
  }

  /** There are calls in flight: leaving takes more than this turn. */
  get waitsToLeave(): boolean {
    if (this.#status !== 'open') return false;
    return !this.#calls.isEmpty || (this.schedule?.size ?? 0) > 0 || this.world.pointToPoint.isSending(this);
  }

  /** Wakes callers of `leave` when this rank can leave. */
  settled(): void {
    if (this.#leaving.length > 0 && !this.waitsToLeave) this.#endWaits();
  }

  // ── what arrives ────────────────────────────────────────────────────────────────────────────────────────────────

  onSignal(slot: number, signal: number): void {
    this.#members.raise(slot, signal);
    this.pump();
  }

  onBegin(rank: number, header: BeginHeader, announced: Uint8Array): void {
    this.#members.mirrorBegin(rank, header, announced);
    this.pump();
  }

  onCompleted(rank: number, completed: number): void {
    this.#members.mirrorCompleted(rank, completed);
    this.pump();
  }

  onControl(rank: number, message: ControlMessage): void {
    switch (message.type) {
      case 'group-open':
        this.#members.join(rank, message.key);
        this.#opening.note(rank, message.networkPath);
        this.#checkOpen();
        return;
      case 'leave':
        this.#members.leave(rank, message.calls);
        // Where the group has failed, the transfers end for that reason, as soon as all ranks have heard of it.
        if (this.#failure === undefined) this.world.pointToPoint.abandon(this, this.#members.leftError(rank), this.#members.left);
        this.#reconsider();
        this.schedule?.onLeft(rank);
        return;
      case 'abort':
        // The rank that speaks may have seen a connection close first: what it stored before that counts here, too.
        this.pump();
        this.fail(reasonSaidBy(this.spec.globalRanks[rank], message.error));
        return;
      case 'network-path-ready':
        this.#opening.onReady(rank, message);
        return;
      case 'network-path-timed':
        this.#opening.onTimed(rank, message.timings);
        return;
      case 'order':
        this.scheduled.onOrder(rank, message);
        return;
      case 'tuned':
        this.schedule?.onTuned(rank, message);
        return;
      case 'report':
        this.#calls.inquiry.onReport(rank, message);
        return;
      default:
        throw new ShoalError('protocol', `control message '${message.type}' is not for groups`);
    }
  }

  /** The link to a member closed. `error` undefined: in an orderly way. */
  onLinkClosed(rank: number, error: ShoalError | undefined): void {
    if (this.#status === 'closed' || this.#status === 'failed') return;
    if (error === undefined && this.#members.callsAtLeave[rank] !== undefined) {
      this.#reconsider();
      return;
    }
    // It has drawn its conclusion and gone; the same one is drawn here in a moment, and names who was missing.
    if (this.#calls.inquiry.hasHeardOf(rank)) return;
    // Announcements that the lost rank has stored count, and the bell for them may have died with it.
    this.pump();
    const link = must(this.links[rank], () => 'links lead to other ranks');
    this.fail(link.trouble ?? lossOf(link, { group: this.spec.name, rank: this.world.env.rank, during: this.#calls.pending.at(0), error }));
  }

  /** A rank has left: what was not there any more is not needed any more. */
  #reconsider(): void {
    this.#suspicion?.cancel();
    this.#suspicion = undefined;
    this.#checkOpen();
    this.pump();
  }

  #checkOpen(): void {
    // Others may have opened before this rank has said so itself.
    if (this.#status !== 'opening' || !this.#opened || !this.#members.complete) return;
    const { unusable } = this.#members;
    if (unusable) {
      this.suspect(unusable);
      return;
    }
    this.#calls.networkPath.settle(() => {
      this.#status = 'open';
      const shares = this.world.env.allocator.kind === 'shared' ? this.#members.shares() : undefined;
      const yields = shares !== undefined && shares.length > this.world.env.cpus;
      if (shares) this.world.env.tell({ type: 'fast-path', group: this.spec.id, share: { path: 'host', blocks: shares, yields } });
      this.#openTimer?.cancel();
      this.#opened?.resolve();
      this.#opened = undefined;
      this.pump();
    });
  }

  /** Another rank has opened a socket for the network path. */
  onSocket(worldRank: number, accept: (take: TakeDescriptor) => GivenSocket): void {
    const rank = this.spec.globalRanks.indexOf(worldRank);
    if (this.#status === 'opening' && rank >= 0) this.#opening.onSocket(rank, accept);
  }

  #abandonAll(error: ShoalError): void {
    this.schedule?.abandon(error);
    this.#calls.abandon(error);
    this.world.pointToPoint.abandon(this, error);
    this.#endWaits();
  }

  #endWaits(): void {
    for (const resolve of this.#leaving.splice(0)) resolve();
  }
}
