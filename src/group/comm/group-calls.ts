/** The calls of one group on one rank, in the comm thread: they begin in the order in which they were submitted, run concurrently, and
 *  finish in any order.
 *
 *      operation-queue.ts   calls of this thread
 *      host-path-queue.ts, network-path-queue.ts   calls that the calling thread handed over
 *      progress-loop.ts     the loop that advances all of them
 *      watchdog.ts          slow and late calls      inquiry.ts, call-history.ts   the report about them, and about a mismatch
 *
 *  It must not know how a group opens and ends, nor algorithms, sockets or user objects. */
import { must } from '../../base/assert.ts';
import { ShoalError } from '../../base/errors.ts';
import type { ControlBlock } from '../../collectives/control-block.ts';
import type { RemoteSpan, Span } from '../../fabric/fabric.ts';
import type { HostPathName } from '../../call/host-path.ts';
import { HostPathQueue, type HostPathEntry } from './paths/host-path-queue.ts';
import { NetworkPathQueue, type NetworkPathEntry } from './paths/network-path-queue.ts';
import { describeCall, type CollectiveCall } from '../../call/contract.ts';
import { speaksOf, type GroupSpec } from '../../call/group-spec.ts';
import { Planner, type Plans, type PreparedPlan } from '../../call/planner.ts';
import { CallHistory, type CallAlone } from './diagnosis/call-history.ts';
import { withTrouble } from './diagnosis/departures.ts';
import { Inquiry } from './diagnosis/inquiry.ts';
import type { Wait } from './diagnosis/wait-chain.ts';
import { secondsText, Watchdog } from '../../metrics/watchdog.ts';
import { AdaptiveSpin } from './engine/adaptive-spin.ts';
import type { CallQueue, SubmittedCall } from './engine/call-queue.ts';
import type { GroupContext, GroupLife, GroupWorld } from './engine/group-context.ts';
import type { HandedOver } from './engine/late-calls.ts';
import { Members } from './engine/members.ts';
import type { Operation } from './engine/operation.ts';
import { OperationQueue } from './engine/operation-queue.ts';
import { ProgressLoop } from './engine/progress-loop.ts';
import { SplitExchange } from './engine/split-exchange.ts';
import type { PeerLink } from './links/peer-link.ts';
import { signalImmediate } from './links/wire.ts';

/** Calls remembered for reports. */
const callsMax = 64;

type PendingCall = Operation | HostPathEntry | NetworkPathEntry;

export class GroupCalls implements GroupContext {
  readonly world: GroupWorld;
  readonly life: GroupLife;
  readonly spec: GroupSpec;
  readonly rank: number;
  readonly size: number;
  readonly links: readonly (PeerLink | undefined)[];
  readonly members: Members;
  readonly blocks: readonly ControlBlock[];
  /** The plans of Shoal, until a library has opened the group for its calls. */
  plans: Plans;
  readonly spinMs: number;
  readonly networkPath: NetworkPathQueue;
  readonly inquiry: Inquiry;
  readonly #history: CallHistory;
  readonly #operations: OperationQueue;
  readonly #exchange: SplitExchange;
  readonly #hostPathQueues: Readonly<Record<HostPathName, HostPathQueue>>;
  /** One queue for each way that a call can take in this thread. */
  readonly #queues: readonly CallQueue<PendingCall>[];
  readonly #watchdog: Watchdog<PendingCall>;
  readonly #progress: ProgressLoop;

  constructor(world: GroupWorld, spec: GroupSpec, life: GroupLife) {
    this.world = world;
    this.spec = spec;
    this.life = life;
    this.rank = spec.rank;
    this.size = spec.globalRanks.length;
    const { cpus, settings, clock } = world.env;
    this.links = spec.globalRanks.map((rank) => (rank === world.env.rank ? undefined : world.link(rank)));
    this.members = new Members({ group: spec, links: this.links, slotCount: settings.inFlightMax, regions: world.regions });
    this.blocks = this.members.blocks;
    const hosts = this.members.hostPeers.length;
    this.spinMs = hosts + 1 > cpus ? 0 : settings.spinMicroseconds / 1000;
    const loadStore = this.links.map((link) => link === undefined || link.loadStore);
    this.plans = new Planner(world.planning, spec, loadStore);
    this.#history = new CallHistory(this.members.own, { callsMax });
    this.inquiry = this.#createInquiry();
    this.#operations = new OperationQueue(this);
    this.#exchange = new SplitExchange(this);
    this.#hostPathQueues = { small: new HostPathQueue(this, 'small'), large: new HostPathQueue(this, 'large') };
    this.networkPath = new NetworkPathQueue(this);
    this.#queues = [this.#operations, this.#hostPathQueues.small, this.#hostPathQueues.large, this.networkPath];
    // It polls for what ranks of this host write; other hosts wake this thread through the system.
    const spin = new AdaptiveSpin(hosts === 0 ? 0 : this.spinMs, { adapts: hosts + 1 < this.size });
    this.#progress = new ProgressLoop(this, this.#queues, spin);
    this.#watchdog = new Watchdog({
      clock,
      slowMs: settings.slowMs,
      pending: () => (life.isOpen ? this.pending : []),
      onSlow: (oldest, waitedMs) => this.#warnOf(oldest, waitedMs),
      onTimeout: ({ sequence, timeoutMs }) => this.inquiry.begin('timeout', sequence, timeoutMs),
    });
  }

  // ── calls ───────────────────────────────────────────────────────────────────────────────────────────────────────

  /** @throws ShoalError why it is not taken; then nothing is known of it. */
  submit(request: SubmittedCall): void {
    const { call, sequence, way } = request;
    const splits = way.path === 'exchange' ? must(call.parts, () => 'calls with splits have them') : undefined;
    try {
      if (splits) this.#exchange.submit(request, splits);
      else if (way.path === 'host') this.#takeOver({ ...request, way }, this.#hostPathQueues[way.hostPath]);
      else if (way.path === 'network') this.#takeOver({ ...request, way }, this.networkPath);
      else this.enqueue(request, this.plans.prepare(call));
    } catch (thrown) {
      throw ShoalError.from(thrown, 'usage', { rank: this.rank, operation: call.kind });
    }
    this.#remember(sequence, call);
    if (splits) this.#remember(sequence + 1, call);
    this.pump();
  }

  enqueue(request: SubmittedCall, plan: PreparedPlan | undefined): Operation {
    const operation = this.#operations.add(request, plan, this.world.env.clock.now());
    this.#watchdog.watch(operation);
    return operation;
  }

  /** Records and watches from here on what the calling thread has begun. */
  #takeOver<Path extends 'host' | 'network'>(
    request: HandedOver<Path>,
    queue: { add(request: HandedOver<Path>, nowMs: number): HostPathEntry | NetworkPathEntry },
  ): void {
    const { recorder, clock } = this.world.env;
    const complete = (error?: ShoalError): void => {
      recorder.finished(this.spec, entry, error);
      request.complete(error);
    };
    const entry = queue.add({ ...request, complete }, clock.now());
    recorder.created(this.spec, entry);
    this.#watchdog.watch(entry);
  }

  #remember(sequence: number, call: CollectiveCall): void {
    this.#history.remember(sequence, call);
    this.inquiry.onCalled(sequence);
  }

  /** The oldest first, whichever way they have taken. */
  get pending(): readonly PendingCall[] {
    return this.#queues.flatMap((queue) => queue.pending).sort((a, b) => a.sequence - b.sequence);
  }

  get isEmpty(): boolean {
    return this.#queues.every(({ size }) => size === 0);
  }

  /** Advances everything that can advance. Called whenever something arrived; never blocks longer than the spin budget. */
  pump(): void {
    this.#progress.run();
  }

  abandon(error: ShoalError): void {
    for (const queue of this.#queues) queue.abandon(error);
  }

  /** No call is watched any more. */
  stop(): void {
    this.#watchdog.stop();
  }

  // ── what queues ask of their group ──────────────────────────────────────────────────────────────────────────────

  get isDisputed(): boolean {
    return this.inquiry.underway;
  }

  disagree({ sequence, timeoutMs }: { readonly sequence: number; readonly timeoutMs: number }): void {
    this.inquiry.begin('mismatch', sequence, timeoutMs);
  }

  onReadable(): void {
    if (this.life.mayRun) this.pump();
    else this.networkPath.rest();
  }

  putSignal(rank: number, slot: number, signal: number, source: Span | undefined, target: RemoteSpan | undefined): Promise<void> {
    const link = must(this.links[rank], () => 'puts go to other ranks');
    const { members } = this;
    const immediate = signalImmediate(this.spec.id, slot, signal);
    return link.write(source ?? members.nothing, target ?? members.blockSpan(rank), immediate);
  }

  ring(doorbells: Uint32Array): void {
    if (this.members.ringAll(doorbells)) this.#progress.again();
  }

  // ── late and disagreeing ranks ──────────────────────────────────────────────────────────────────────────────────

  /** The call that this rank has waited for the longest in the group; undefined: there is none. */
  get wait(): Wait | undefined {
    const [pending] = this.pending;
    if (pending === undefined) return undefined;
    const late = this.#late(pending);
    // When all have called it, some rank is still at it, and does not go on.
    const ranks = late.length > 0 ? late : this.members.unfinished('phase' in pending ? pending.ordinal : undefined);
    const { call, sequence, submittedMs: sinceMs, path } = pending;
    return { text: describeCall(call, sequence), ranks, sinceMs, path, group: this.spec.name };
  }

  /** The calls that the calling thread made by itself. */
  calledAlone(): CallAlone[] {
    return this.#history.calledAlone();
  }

  #warnOf(oldest: PendingCall, waitedMs: number): void {
    const late = this.#late(oldest);
    if (!speaksOf(this.spec, late)) return;
    const whom = late.length > 0 ? `rank ${late.join(', ')}` : 'data; all ranks have arrived';
    const what = `${describeCall(oldest.call, oldest.sequence)} of group '${this.spec.name}'`;
    this.world.env.log.warn(`${what} has waited ${secondsText(waitedMs)} for ${whom}`);
  }

  /** World ranks that keep the call from going on: they have not made it, or have not ended what must end before it. */
  #late(call: PendingCall): number[] {
    const late = this.#queues.find(({ pending }) => pending.includes(call))?.late(call) ?? [];
    return late.filter((rank) => rank !== this.world.env.rank);
  }

  #hasAnnounced(rank: number, sequence: number): boolean {
    const pending = this.pending.find((each) => each.sequence === sequence);
    return pending !== undefined && !this.#late(pending).includes(this.spec.globalRanks[rank]);
  }

  #createInquiry(): Inquiry {
    return new Inquiry({
      group: this.spec,
      clock: this.world.env.clock,
      history: this.#history,
      callsAtLeave: this.members.callsAtLeave,
      hasAnnounced: (rank, sequence) => this.#hasAnnounced(rank, sequence),
      wait: () => this.world.wait,
      isOpen: () => this.life.isOpen,
      tellOthers: (message) => this.members.tellOthers(message),
      onConcluded: (error) => this.life.fail(withTrouble(this.links, error)),
    });
  }
}
