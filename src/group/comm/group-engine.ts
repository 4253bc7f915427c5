/** One group on one rank, in the comm thread: its start and end, its calls, the pump that advances them, its incoming messages.
 *  Collectives begin in the order they were submitted, run concurrently, and finish in any order.
 *
 *      members.ts           the other ranks: links, control blocks, ranks that have left
 *      operation-queue.ts   calls of this thread
 *      host-path-queue.ts, group-network-path.ts   calls that the main thread handed over
 *      watchdog.ts          slow and late calls      inquiry.ts, call-history.ts   the report about them, and about a mismatch
 *
 *  It must not know algorithms, sockets or user objects. The sleeping flag is stored before the signals are loaded, as in Dekker's algorithm. */
import { must } from '../../base/assert.ts';
import { ShoalError, type ErrorData } from '../../base/errors.ts';
import { exhaustion } from '../../base/exhaustion.ts';
import { setServedTimer, type Timer } from '../../base/clock.ts';
import type { GiveWay } from '../../comm/thread/guest.ts';
import type { ControlBlock } from '../../collectives/control-block.ts';
import type { RemoteSpan, Span, TakeDescriptor } from '../../fabric/fabric.ts';
import type { Kernels } from '../../memory/kernels.ts';
import type { RegionShare } from '../../memory/region.ts';
import { AdaptiveSpin } from './engine/adaptive-spin.ts';
import { ProgressLoop } from './engine/progress-loop.ts';
import { CallHistory } from './diagnosis/call-history.ts';
import type { CallQueue } from './engine/call-queue.ts';
import { describeCall, type CollectiveCall } from '../shared/call/contract.ts';
import type { NetworkPathCommand, NetworkPathEntry } from '../network-path/network-path-queue.ts';
import { GroupNetworkPath, type NetworkPathWorld } from '../network-path/group-network-path.ts';
import { speaksOf, type GroupSpec } from '../shared/call/group-spec.ts';
import { Inquiry } from './diagnosis/inquiry.ts';
import type { HostPathName } from '../host-path/host-path.ts';
import { HostPathQueue, type HostPathCall, type HostPathEntry } from '../host-path/host-path-queue.ts';
import { Members } from './engine/members.ts';
import type { Operation, OperationHost } from './engine/operation.ts';
import type { OperationLog } from './diagnosis/operation-log.ts';
import { OperationQueue, type SubmittedCall } from './engine/operation-queue.ts';
import type { PeerLink } from './links/peer-link.ts';
import { Planner, plannerOf, type Plans, type PreparedPlan } from '../shared/call/planner.ts';
import type { PointToPoint } from './engine/point-to-point.ts';
import type { ScratchPool } from './links/scratch-pool.ts';
import type { SharedRegions } from './links/shared-regions.ts';
import { SplitExchange } from './engine/split-exchange.ts';
import type { Culprit, Wait } from './diagnosis/wait-chain.ts';
import { secondsText, Watchdog } from './diagnosis/watchdog.ts';
import type { ControlMessage } from './links/control-message.ts';
import { signalImmediate, type BeginHeader } from './links/wire.ts';

/** What looks like an error of ours may be a peer's death, whose news comes by the connection: how long to wait for it. More than
 *  its process is kept from closing that because its host is busy. */
export const suspicionMs = 2000;
/** Calls remembered for reports. */
const callsMax = 64;

/** What a group asks of its world. */
export interface GroupWorld extends NetworkPathWorld {
  readonly rank: number;
  /** CPUs this process may use. */
  readonly cpus: number;
  /** As CommEnvironment has it. */
  readonly giveWay: GiveWay | undefined;
  readonly regions: SharedRegions;
  readonly scratch: ScratchPool;
  readonly kernels: Kernels;
  readonly recorder: OperationLog;
  readonly pointToPoint: Pick<PointToPoint, 'abandon' | 'isSending'>;
  readonly lastWords: { heard(): Promise<void> };
  /** All ranks hear why the group fails. */
  tellFailure(group: GroupSpec, error: ShoalError): void;
  /** To another world rank. */
  link(rank: number): PeerLink;
  /** What runs the calls of a group whose collectives are MPI's; undefined: they are this group's own. */
  mpiPlans(spec: GroupSpec): Plans | undefined;
  /** All ranks of a group share memory; how to map their control blocks. */
  onHostPath(group: number, blocks: readonly RegionShare[]): void;
  recordFailure(group: GroupSpec, error: ShoalError): void;
  /** What this rank has waited for the longest, in this group or elsewhere. */
  readonly wait: Wait | undefined;
  /** Finds who is to blame that this rank waits for ranks of the world. */
  findCulprit(ranks: readonly number[], onFound: (culprit: Culprit) => void): void;
}

type PendingCall = Operation | HostPathEntry | NetworkPathEntry;

type GroupStatus = 'opening' | 'open' | 'failed' | 'closed';

export class GroupEngine implements OperationHost {
  readonly spec: GroupSpec;
  readonly rank: number;
  readonly size: number;
  readonly links: readonly (PeerLink | undefined)[];
  readonly blocks: readonly ControlBlock[];
  readonly departed = (peer: number | undefined): ShoalError | undefined => this.#failure ?? this.#members.departed(peer);
  /** Who waits until this rank can leave is told. */
  readonly settled = (): void => {
    if (this.#leaving.length > 0 && !this.waitsToLeave) this.#endWaits();
  };
  readonly #world: GroupWorld;
  readonly #members: Members;
  readonly #own: ControlBlock;
  readonly #plans: Plans;
  readonly #history: CallHistory;
  readonly #inquiry: Inquiry;
  readonly #operations: OperationQueue;
  readonly #exchange: SplitExchange;
  readonly #hostPathQueues: Readonly<Record<HostPathName, HostPathQueue>>;
  readonly #networkPath: GroupNetworkPath;
  /** All ways that a call can take. */
  readonly #queues: CallQueue<PendingCall>[];
  readonly #watchdog: Watchdog<PendingCall>;
  /** How long a look around polls shared memory before the thread sleeps; 0 where ranks outnumber CPUs. */
  readonly #spinMs: number;
  readonly #progress: ProgressLoop;
  #status: GroupStatus = 'opening';
  #failure: ShoalError | undefined;
  #suspicion: Timer | undefined;
  /** A timer holds on to the group. */
  #openTimer: Timer | undefined;
  #opened: { resolve: () => void; reject: (error: ShoalError) => void } | undefined;
  /** Who waits until this rank can leave: the group's own destruction, its world's, or both. */
  readonly #leaving: (() => void)[] = [];

  constructor(world: GroupWorld, spec: GroupSpec) {
    this.#world = world;
    this.spec = spec;
    this.rank = spec.rank;
    this.size = spec.globalRanks.length;
    this.links = spec.globalRanks.map((rank) => (rank === world.rank ? undefined : world.link(rank)));
    const { inFlightMax: slotCount, spinMicroseconds } = world.settings;
    this.#members = new Members({ group: spec, links: this.links, slotCount, regions: world.regions });
    this.#own = this.#members.own;
    this.blocks = this.#members.blocks;
    const { hostPeers } = this.#members;
    this.#spinMs = hostPeers.length + 1 > world.cpus ? 0 : spinMicroseconds / 1000;
    this.#plans =
      world.mpiPlans(spec) ??
      plannerOf(
        world,
        spec,
        this.links.map((link) => link === undefined || link.loadStore),
      );
    this.#history = new CallHistory(this.#own, { callsMax });
    this.#inquiry = this.#createInquiry();
    this.#operations = this.#createOperationQueue();
    this.#exchange = new SplitExchange({
      place: { rank: this.rank, size: this.size },
      plans: this.#plans,
      scratch: world.scratch,
      enqueue: (request, plan) => this.#enqueue(request, plan),
    });
    this.#hostPathQueues = { small: this.#createHostPathQueue('small'), large: this.#createHostPathQueue('large') };
    this.#networkPath = this.#createNetworkPath();
    this.#queues = [this.#operations, this.#hostPathQueues.small, this.#hostPathQueues.large, this.#networkPath];
    this.#progress = this.#createProgressLoop();
    this.#watchdog = this.#createWatchdog();
  }

  get scratch(): ScratchPool {
    return this.#world.scratch;
  }

  get kernels(): Kernels {
    return this.#world.kernels;
  }

  get failure(): ShoalError | undefined {
    return this.#failure;
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
      const { id: group, name } = this.spec;
      const networkPath = [...this.#networkPath.candidates];
      this.#members.tellOthers({ type: 'group-open', group, name, key: this.#members.ownKey, offset: 0, networkPath });
      this.#openTimer = this.#world.clock.setTimer(timeoutMs, () => this.#onOpenTimeout(timeoutMs));
      this.#checkOpen();
    });
  }

  #onOpenTimeout(timeoutMs: number): void {
    if (this.#status !== 'opening') return;
    this.#world.findCulprit(this.#absent(), ({ rank: peer, text }) => {
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
    return missing.length > 0 ? missing : this.#members.worldRanks(this.#networkPath.awaited);
  }

  /** What this rank has waited for the longest in the group; undefined: nothing. */
  get wait(): Wait | undefined {
    if (this.#status === 'opening') return { text: `the opening of group '${this.spec.name}'`, ranks: this.#absent() };
    const [pending] = this.#status === 'open' ? this.#pending : [];
    if (pending === undefined) return undefined;
    const late = this.#late(pending);
    // All have called it: some rank is still at it, and does not go on.
    const ranks = late.length > 0 ? late : this.#members.unfinished('phase' in pending ? pending.ordinal : undefined);
    return { text: describeCall(pending.call, pending.sequence), ranks };
  }

  /** Takes no more calls, waits (bounded) for those in flight, then tells the others. Resolves always. */
  async leave(timeoutMs: number): Promise<void> {
    if (this.#status === 'closed') return;
    if (this.waitsToLeave) {
      let timer: Timer | undefined;
      await new Promise<void>((resolve) => {
        this.#leaving.push(resolve);
        timer = this.#world.clock.setTimer(timeoutMs, resolve);
      });
      timer?.cancel();
    }
    this.#close();
  }

  #close(): void {
    if (this.#status === 'closed') return;
    this.#members.tellOthers({ type: 'leave', group: this.spec.id, calls: this.#own.called });
    this.#abandonAll(this.#failure ?? new ShoalError('closed', `group '${this.spec.name}' was destroyed`, { rank: this.rank }));
    this.#status = 'closed';
    this.#openTimer?.cancel();
    this.#suspicion?.cancel();
    this.#watchdog.stop();
    this.#networkPath.close();
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
    const ranOut = exhaustion(`rank ${this.#world.rank}`, thrown, `working for group '${this.spec.name}'`, {
      rank: this.#world.rank,
      sequence,
    });
    if (ranOut) {
      this.fail(ranOut);
      return;
    }
    const error = ShoalError.from(thrown, 'system', { rank: this.rank, sequence });
    const confirm = (): void => {
      // Its error is the older one, and comes.
      if (!this.#inquiry.underway) this.fail(error);
    };
    this.#suspicion = setServedTimer(this.#world.clock, suspicionMs, confirm);
  }

  /** Ends every operation, now and later, with `error`. All ranks hear of it first, also when one of them has said it: this process
   *  may end as soon as its script knows, and must not be taken for the reason by those who do not know it yet. */
  fail(error: ShoalError): void {
    if (this.#status === 'failed' || this.#status === 'closed') return;
    this.#status = 'failed';
    this.#failure = error;
    this.#own.failed = true;
    this.#openTimer?.cancel();
    this.#watchdog.stop();
    this.#world.recorder.found(this.spec, this.#history.calledAlone());
    this.#world.recordFailure(this.spec, error);
    this.#world.tellFailure(this.spec, error);
    void this.#endAllHeard(error);
  }

  async #endAllHeard(error: ShoalError): Promise<void> {
    await this.#world.lastWords.heard();
    this.#endAll(error);
  }

  #endAll(error: ShoalError): void {
    this.#opened?.reject(error);
    this.#opened = undefined;
    this.#abandonAll(error);
  }

  // ── calls ───────────────────────────────────────────────────────────────────────────────────────────────────────

  /** @throws ShoalError why it is not taken; then nothing is known of it. */
  submit(request: SubmittedCall): void {
    this.#checkTakes();
    const { call, sequence, path } = request;
    const splits = path === 'exchange' ? must(call.parts, () => 'calls with splits have them') : undefined;
    try {
      if (splits) this.#exchange.submit(request, splits);
      else this.#enqueue(request, this.#plans.prepare(call));
    } catch (thrown) {
      throw ShoalError.from(thrown, 'usage', { rank: this.rank, operation: call.kind });
    }
    this.#remember(sequence, call);
    if (splits) this.#remember(sequence + 1, call);
    this.pump();
  }

  #enqueue(request: SubmittedCall, plan: PreparedPlan | undefined): Operation {
    const operation = this.#operations.add(request, plan, this.#world.clock.now());
    this.#watchdog.watch(operation);
    return operation;
  }

  /** Takes over an operation of the host path where the main thread left it. Only its head runs. @throws as `submit`. */
  submitHostPath(request: HostPathCall): void {
    this.#takeOver(request, (complete, nowMs) => {
      const plans = must(this.#plans.prepare(request.call).hostPath, () => 'operations of the host path run whole');
      return this.#hostPathQueues[request.hostPath].add({ ...request, complete }, plans, nowMs);
    });
  }

  /** Takes over an operation of the network path where the main thread left it. Only its head runs. @throws as `submit`. */
  submitNetworkPath(request: NetworkPathCommand): void {
    this.#takeOver(request, (complete, nowMs) => this.#networkPath.add({ ...request, complete }, nowMs));
  }

  /** What the main thread has begun is recorded and watched from here on. */
  #takeOver(
    { complete }: HostPathCall | NetworkPathCommand,
    add: (complete: (error?: ShoalError) => void, nowMs: number) => HostPathEntry | NetworkPathEntry,
  ): void {
    this.#checkTakes();
    const { recorder, clock } = this.#world;
    const entry = add((error) => {
      recorder.finished(this.spec, entry, error);
      complete(error);
    }, clock.now());
    recorder.created(this.spec, entry);
    this.#watchdog.watch(entry);
    this.#remember(entry.sequence, entry.call);
    this.pump();
  }

  /** Why no further call is taken; undefined while the group works. */
  refusal(): ShoalError | undefined {
    if (this.#failure) return this.#failure;
    if (this.#status === 'closed') return new ShoalError('closed', `group '${this.spec.name}' was destroyed`, { rank: this.rank });
    return undefined;
  }

  #checkTakes(): void {
    const refusal = this.refusal();
    if (refusal) throw refusal;
  }

  #remember(sequence: number, call: CollectiveCall): void {
    this.#history.remember(sequence, call);
    this.#inquiry.onCalled(sequence);
  }

  /** Its calls come here later: it is given up first. */
  attach(queue: CallQueue<PendingCall>): void {
    this.#queues.unshift(queue);
  }

  // ── progress ────────────────────────────────────────────────────────────────────────────────────────────────────

  /** Advances everything that can advance. Called whenever something arrived; never blocks longer than the spin budget. */
  pump(): void {
    this.#progress.run();
  }

  get #mayRun(): boolean {
    return this.#status === 'open' && this.#suspicion === undefined;
  }

  #onReadable(): void {
    if (this.#mayRun) this.pump();
    else this.#networkPath.rest();
  }

  /** There are calls in flight: leaving takes more than this turn. */
  get waitsToLeave(): boolean {
    for (const queue of this.#queues) if (queue.size > 0) return this.#status === 'open';
    return this.#status === 'open' && this.#world.pointToPoint.isSending(this);
  }

  // ── what operations ask of their group ──────────────────────────────────────────────────────────────────────────

  putSignal(rank: number, slot: number, signal: number, source: Span | undefined, target: RemoteSpan | undefined): Promise<void> {
    const link = must(this.links[rank], () => 'puts go to other ranks');
    const members = this.#members;
    const immediate = signalImmediate(this.spec.id, slot, signal);
    return link.write(source ?? members.nothing, target ?? members.blockSpan(rank), immediate);
  }

  ring(doorbells: Uint32Array): void {
    for (let word = 0; word < doorbells.length; word++) {
      if (doorbells[word] === 0) continue;
      for (let bit = 0; bit < 32; bit++) {
        if ((doorbells[word] & (1 << bit)) === 0) continue;
        const rank = word * 32 + bit;
        if (rank === this.rank) this.#progress.again();
        else this.#members.ring(rank);
      }
      doorbells[word] = 0;
    }
  }

  progress(): void {
    this.pump();
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
        this.#members.join(rank, message.key, message.offset);
        this.#networkPath.onJoined(rank, message.networkPath);
        this.#checkOpen();
        return;
      case 'leave':
        this.#members.leave(rank, message.calls);
        // Where the group has failed, the transfers end for that reason, as soon as all ranks have heard of it.
        if (this.#failure === undefined) this.#world.pointToPoint.abandon(this, this.#members.leftError(rank), this.#members.left);
        this.#reconsider();
        return;
      case 'abort':
        this.fail(this.#saidBy(rank, message.error));
        return;
      case 'network-path-ready':
      case 'network-path-timed':
        this.#networkPath.onControl(rank, message);
        return;
      case 'report':
        this.#inquiry.onReport(rank, message);
        return;
      default:
        throw new ShoalError('protocol', `control message '${message.type}' is not for groups`);
    }
  }

  /** Why another rank has ended the group. If it lacks something, it is the one to blame. */
  #saidBy(rank: number, data: ErrorData): ShoalError {
    const peer = data.resource === undefined ? data.peer : (data.peer ?? this.spec.globalRanks[rank]);
    return ShoalError.fromData({ ...data, peer });
  }

  /** The link to a member closed. `error` undefined: in an orderly way. */
  onLinkClosed(rank: number, error: ShoalError | undefined): void {
    if (this.#status === 'closed' || this.#status === 'failed') return;
    if (error === undefined && this.#members.callsAtLeave[rank] !== undefined) {
      this.#reconsider();
      return;
    }
    // It has drawn its conclusion and gone; the same one is drawn here in a moment, and names who was missing.
    if (this.#inquiry.hasHeardOf(rank)) return;
    const { trouble, failure } = must(this.links[rank], () => 'links lead to other ranks');
    if (trouble) {
      this.fail(trouble);
      return;
    }
    const global = this.spec.globalRanks[rank];
    const doing = this.#pending.at(0);
    const during = doing ? `during ${describeCall(doing.call, doing.sequence)}` : 'between collectives';
    const lost = `rank ${global} was lost ${during} of group '${this.spec.name}'`;
    // Because of another rank, in a group that this one may not be in; or because of this one, which then is its own reason.
    const because = failure?.peer === undefined ? undefined : failure;
    const why = because ? `it had failed: ${because.message}` : (error?.message ?? "it closed its connection; see that rank's own output");
    this.fail(
      new ShoalError('peer-lost', `${lost}: ${why}`, {
        peer: because?.peer ?? global,
        rank: this.#world.rank,
        operation: doing?.call.kind,
        sequence: doing?.sequence,
        cause: error,
      }),
    );
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
    this.#networkPath.settle(() => {
      this.#status = 'open';
      const shares = this.#world.allocator.kind === 'shared' ? this.#members.shares() : undefined;
      if (shares) this.#world.onHostPath(this.spec.id, shares);
      this.#openTimer?.cancel();
      this.#opened?.resolve();
      this.#opened = undefined;
      this.pump();
    });
  }

  /** Another rank has opened a socket for the network path. */
  onSocket(worldRank: number, accept: (take: TakeDescriptor) => number): void {
    if (this.#status === 'opening') this.#networkPath.onSocket(worldRank, accept);
  }

  // ── late, lost and disagreeing ranks ────────────────────────────────────────────────────────────────────────────

  #warnOf(oldest: PendingCall, waitedMs: number): void {
    const { call, sequence } = oldest;
    const late = this.#late(oldest);
    if (!speaksOf(this.spec, late)) return;
    const whom = late.length > 0 ? `rank ${late.join(', ')}` : 'data; all ranks have arrived';
    const what = `${describeCall(call, sequence)} of group '${this.spec.name}'`;
    this.#world.log.warn(`${what} has waited ${secondsText(waitedMs)} for ${whom}`);
  }

  /** Other world ranks that keep the call from going on, because they have not called it, or not ended what must end before it. */
  #late(pending: PendingCall): number[] {
    if ('phase' in pending && pending.phase === 'queued')
      return this.#members.unfinished(pending.ordinal - this.#world.settings.inFlightMax);
    const late = 'slot' in pending ? this.#members.late(pending.slot, pending.sequence) : this.#networkPath.late(pending);
    return late.filter((rank) => rank !== this.#world.rank);
  }

  #hasAnnounced(rank: number, sequence: number): boolean {
    const pending = this.#pending.find((each) => each.sequence === sequence);
    return pending !== undefined && !this.#late(pending).includes(this.spec.globalRanks[rank]);
  }

  #abandonAll(error: ShoalError): void {
    for (const queue of this.#queues) queue.abandon(error);
    this.#world.pointToPoint.abandon(this, error);
    this.#endWaits();
  }

  #endWaits(): void {
    for (const resolve of this.#leaving.splice(0)) resolve();
  }

  // ── how the parts are wired ─────────────────────────────────────────────────────────────────────────────────────

  #createProgressLoop(): ProgressLoop {
    const { clock, giveWay } = this.#world;
    const hosts = this.#members.hostPeers.length;
    return new ProgressLoop({
      clock,
      own: this.#own,
      members: this.#members,
      queues: this.#queues,
      // Of looks at what ranks of this host write; other hosts wake this thread through the system.
      spin: new AdaptiveSpin(hosts === 0 ? 0 : this.#spinMs, { adapts: hosts + 1 < this.size }),
      mayRun: () => this.#mayRun,
      giveWay,
      onSettled: this.settled,
    });
  }

  #createWatchdog(): Watchdog<PendingCall> {
    return new Watchdog({
      clock: this.#world.clock,
      slowMs: this.#world.settings.slowMs,
      pending: () => (this.#status === 'open' ? this.#pending : []),
      onSlow: (oldest, waitedMs) => this.#warnOf(oldest, waitedMs),
      onTimeout: ({ sequence, timeoutMs }) => this.#inquiry.begin('timeout', sequence, timeoutMs),
    });
  }

  /** The oldest first, whichever way they have taken. */
  get #pending(): readonly PendingCall[] {
    return this.#queues.flatMap((queue) => queue.pending).sort((a, b) => a.sequence - b.sequence);
  }

  #createNetworkPath(): GroupNetworkPath {
    return new GroupNetworkPath({
      group: this.spec,
      world: this.#world,
      members: this.#members,
      planner: this.#plans instanceof Planner && this.spec.scheduling === undefined ? this.#plans : undefined,
      onUnopened: (thrown) => this.suspect(thrown),
      onReadable: () => this.#onReadable(),
      onStarted: (entry) => this.#world.recorder.started(this.spec, entry),
      onMismatch: ({ sequence, timeoutMs }) => this.#inquiry.begin('mismatch', sequence, timeoutMs),
      onThrown: (thrown, sequence) => this.suspect(thrown, sequence),
    });
  }

  #createInquiry(): Inquiry {
    return new Inquiry({
      group: this.spec,
      clock: this.#world.clock,
      history: this.#history,
      callsAtLeave: this.#members.callsAtLeave,
      hasAnnounced: (rank, sequence) => this.#hasAnnounced(rank, sequence),
      wait: () => this.#world.wait,
      isOpen: () => this.#status === 'open',
      tellOthers: (message) => this.#members.tellOthers(message),
      onConcluded: (error) => this.fail(this.#reasonOf(error)),
    });
  }

  /** A rank that has left, or does not come, may have said why. */
  #reasonOf(error: ShoalError): ShoalError {
    const trouble = this.links.find((link) => link?.trouble)?.trouble;
    return trouble ? ShoalError.fromData({ ...trouble.toData(), message: `${trouble.message}; then ${error.message}` }) : error;
  }

  #createOperationQueue(): OperationQueue {
    const { recorder, settings } = this.#world;
    return new OperationQueue({
      group: this.spec,
      host: this,
      members: this.#members,
      plans: this.#plans,
      recorder,
      slotCount: settings.inFlightMax,
      stagingBytes: settings.stagingBytes,
      contract: settings.contract,
      yields: this.#spinMs === 0,
      isDisputed: () => this.#inquiry.underway,
      onMismatch: ({ sequence, timeoutMs }) => this.#inquiry.begin('mismatch', sequence, timeoutMs),
      onUnprepared: (thrown, sequence) => this.fail(ShoalError.from(thrown, 'system', { rank: this.rank, sequence })),
      onThrown: (thrown, sequence) => this.suspect(thrown, sequence),
    });
  }

  #createHostPathQueue(name: HostPathName): HostPathQueue {
    return new HostPathQueue({
      hostPath: {
        name,
        rank: this.rank,
        size: this.size,
        blocks: this.blocks,
        slotCount: this.#world.settings.inFlightMax,
        machine: this.#world.machine,
        yields: this.#spinMs === 0,
        peerRegion: (rank, key) => this.#members.memory(rank, key),
      },
      members: this.#members,
      spinNs: this.#spinMs * 1e6,
      // Without the addon, of which wires are a part, waits spin: they would keep the CPU from those they wait for.
      patient: this.#spinMs === 0 && this.#world.wires !== undefined,
      traced: this.#world.recorder.trace.enabled,
      ring: (doorbells) => this.ring(doorbells),
      onStarted: (entry) => this.#world.recorder.started(this.spec, entry),
      onMismatch: ({ sequence, timeoutMs }) => this.#inquiry.begin('mismatch', sequence, timeoutMs),
      onThrown: (thrown, sequence) => this.suspect(thrown, sequence),
    });
  }
}
