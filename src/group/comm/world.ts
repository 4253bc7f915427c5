/** The world of one rank, in the comm thread: links to all ranks, memory they may reach, groups, messages.
 *
 *      fabrics ──▶ links ──▶ onMessage ──▶ group engines, point-to-point
 *      store ─── who is where (bootstrap.ts)
 *
 *  It routes and owns; the groups run the operations. Two worlds share nothing here. */
import { must } from '../../base/assert.ts';
import type { Clock } from '../../base/clock.ts';
import { ShoalError, type ErrorData } from '../../base/errors.ts';
import { exhaustion, type CheckDescriptors } from '../../base/exhaustion.ts';
import type { Logger } from '../../base/log.ts';
import type { Settings } from '../../base/settings/settings.ts';
import type { GiveWay } from '../../comm/thread/guest.ts';
import type { NetworkPathRates } from '../../collectives/network-path.ts';
import { parseSelection, type SelectionRule } from '../../collectives/select.ts';
import type { Tuning } from '../../collectives/tuning-format.ts';
import type { Connection, Fabric } from '../../fabric/fabric.ts';
import { decodeHandle } from '../../fabric/region-handle.ts';
import type { Kernels } from '../../memory/kernels.ts';
import type { NativeWire } from '../../memory/native-wire.ts';
import type { CostModel } from '../../plan/cost.ts';
import type { RegionAllocator, RegionShare } from '../../memory/region.ts';
import type { StepMachine } from '../../memory/step-machine.ts';
import type { NetworkPathShare } from '../shared/comm-protocol.ts';
import { GroupEngine } from './group-engine.ts';
import { usesMpi, type GroupSpec, type SchedulingStatus } from '../shared/call/group-spec.ts';
import type { OperationLog } from './diagnosis/operation-log.ts';
import { MpiCollectives } from './mpi/mpi-collectives.ts';
import type { Plans } from '../shared/call/planner.ts';
import { Arbiter } from '../../scheduler/arbiter.ts';
import { LastWords } from './last-words.ts';
import { LinkProbe } from './links/link-probe.ts';
import { PeerLink } from './links/peer-link.ts';
import { PointToPoint } from './engine/point-to-point.ts';
import { Schedules } from './schedule/schedules.ts';
import { ScratchPool } from './links/scratch-pool.ts';
import { isOfMainThread, SharedRegions } from './links/shared-regions.ts';
import { WaitChains, type Culprit, type Wait } from './diagnosis/wait-chain.ts';
import { decodeControl, encodeControl, type ControlMessage } from './links/control-message.ts';
import { announcedOf, decodeGroupHeader, decodeImmediate, MessageType } from './links/wire.ts';

/** Messages for groups that this rank has not created yet; more from one peer is a protocol error. */
const earlyMessagesMax = 1024;

export interface WorldOptions {
  /** Connections of worlds with other names are refused. */
  readonly name: string;
  readonly rank: number;
  readonly size: number;
  readonly settings: Settings;
  /** Of groups that name none; only `mpi` is not an algorithm. */
  readonly backend?: string | undefined;
  readonly tuning?: Tuning;
  readonly clock: Clock;
  readonly log: Logger;
  readonly recorder: OperationLog;
  readonly allocator: RegionAllocator;
  readonly kernels: Kernels;
  readonly machine: StepMachine;
  readonly fabrics: readonly Fabric[];
  /** CPUs this process may use: with more ranks than that on a host, waiting must give the CPU away at once. */
  readonly cpus: number;
  /** As CommEnvironment has it. */
  readonly checkDescriptors?: CheckDescriptors;
  /** As CommEnvironment has it. */
  readonly giveWay?: GiveWay;
  /** As CommEnvironment has it. */
  readonly arbiter?: Arbiter;
  /** All ranks of a group share memory; how to map their control blocks. */
  readonly onHostPath?: (group: number, blocks: readonly RegionShare[]) => void;
  /** Small operations of the group can be carried out on sockets of their own, by another thread. */
  readonly onNetworkPath?: (group: number, share: NetworkPathShare) => void;
  /** Makes those possible. */
  readonly wires?: NativeWire;
  /** A rank of this host has announced a region, or withdrawn it. */
  readonly onPeerRegion?: (rank: number, key: number, share: RegionShare | undefined) => void;
  /** All ranks have left the group, or are gone. */
  readonly onGroupEnded?: (group: number) => void;
  /** What a scheduled group that is tuned schedules by. */
  readonly onScheduledBy?: (group: number, status: SchedulingStatus) => void;
  /** A group failed: the moment to write what is known. */
  readonly onFailure?: (group: GroupSpec, error: ShoalError) => void;
}

export class World {
  readonly name: string;
  readonly rank: number;
  readonly size: number;
  readonly settings: Settings;
  readonly clock: Clock;
  readonly log: Logger;
  readonly recorder: OperationLog;
  readonly kernels: Kernels;
  readonly machine: StepMachine;
  readonly fabrics: readonly Fabric[];
  readonly regions: SharedRegions;
  readonly scratch: ScratchPool;
  readonly pointToPoint: PointToPoint;
  readonly linkProbe: LinkProbe;
  readonly lastWords: LastWords;
  readonly schedules: Schedules;
  /** The user's rules for choosing algorithms. */
  readonly selection: readonly SelectionRule[];
  readonly tuning: Tuning | undefined;
  /** Rates of this world, known before its groups are opened; undefined where nothing is chosen by them. */
  model: CostModel | undefined;
  /** What the network path of the world's own group takes; undefined: it has none. */
  networkPathRates: NetworkPathRates | undefined;
  readonly cpus: number;
  readonly checkDescriptors: CheckDescriptors | undefined;
  readonly giveWay: GiveWay | undefined;
  readonly arbiter: Arbiter;
  readonly #backend: string | undefined;
  readonly #mpi: MpiCollectives;
  readonly #waitChains: WaitChains;
  readonly #links = new Map<number, PeerLink>();
  readonly #groups = new Map<number, GroupEngine>();
  /** Groups that this rank has left and others have not. */
  readonly #leaving = new Map<number, GroupEngine>();
  readonly #early = new Map<number, { link: PeerLink; message: ControlMessage }[]>();
  readonly allocator: RegionAllocator;
  readonly #onHostPath: WorldOptions['onHostPath'];
  readonly #onNetworkPath: WorldOptions['onNetworkPath'];
  readonly wires: NativeWire | undefined;
  readonly #onPeerRegion: WorldOptions['onPeerRegion'];
  readonly #onGroupEnded: WorldOptions['onGroupEnded'];
  readonly #onFailure: WorldOptions['onFailure'];
  readonly #onScheduledBy: WorldOptions['onScheduledBy'];
  #linkAdded: (() => void) | undefined;
  #closing = false;
  /** Its links are closing: nobody is told of memory any more. */
  #unlinking = false;

  constructor(options: WorldOptions) {
    this.name = options.name;
    this.rank = options.rank;
    this.size = options.size;
    this.settings = options.settings;
    this.clock = options.clock;
    this.log = options.log;
    this.recorder = options.recorder;
    this.kernels = options.kernels;
    this.machine = options.machine;
    this.fabrics = options.fabrics;
    this.cpus = options.cpus;
    this.checkDescriptors = options.checkDescriptors;
    this.giveWay = options.giveWay;
    this.arbiter = options.arbiter ?? new Arbiter();
    this.allocator = options.allocator;
    this.#onHostPath = options.onHostPath;
    this.#onNetworkPath = options.onNetworkPath;
    this.wires = options.wires;
    for (const fabric of options.fabrics) {
      if (fabric.sockets) fabric.sockets.onSocket = ({ rank }, group, accept) => this.#groups.get(group)?.onSocket(rank, accept);
    }
    this.#onPeerRegion = options.onPeerRegion;
    this.#onGroupEnded = options.onGroupEnded;
    this.#onFailure = options.onFailure;
    this.#onScheduledBy = options.onScheduledBy;
    this.selection = parseSelection(options.settings.algorithms);
    this.tuning = options.tuning;
    this.#backend = options.backend;
    const { rank, size, clock, kernels } = options;
    this.#mpi = new MpiCollectives({ rank, size, clock, kernels, native: options.settings.native });
    this.regions = new SharedRegions(options.allocator, options.fabrics, () => (this.#unlinking ? [] : this.#links.values()));
    this.scratch = new ScratchPool(this.regions, options.settings.stagingBytes);
    this.#waitChains = new WaitChains({
      rank,
      clock,
      own: () => this.wait,
      tell: (peer, message) => this.#links.get(peer)?.post(encodeControl(message)),
    });
    this.pointToPoint = new PointToPoint({ rank, clock, kernels, findCulprit: (ranks, onFound) => this.findCulprit(ranks, onFound) });
    this.schedules = new Schedules(this);
    this.lastWords = new LastWords(clock, () => this.links);
    this.linkProbe = new LinkProbe({ clock: options.clock, scratch: this.scratch });
  }

  // ── links ───────────────────────────────────────────────────────────────────────────────────────────────────────

  /** Takes over a connection, dialled or accepted. A second one to the same rank is closed. */
  addLink(connection: Connection, fabric: Fabric): void {
    const { rank } = connection.peer;
    if (this.#links.has(rank) || rank === this.rank || rank >= this.size) {
      connection.setHandlers({ onMessage() {}, onImmediate() {}, onClose() {} });
      this.log.warn(`a second connection of rank ${rank} was closed`);
      void connection.close(0);
      return;
    }
    const link: PeerLink = new PeerLink(connection, fabric, (error) => this.#breakOff(link, error));
    this.#links.set(rank, link);
    connection.setHandlers({
      onMessage: (message) => this.#guard(link, () => this.#onMessage(link, message)),
      onImmediate: (immediate) => this.#guard(link, () => this.#onImmediate(link, immediate)),
      onClose: (error) => this.#onClose(link, error),
    });
    this.regions.announceTo(link);
    this.#linkAdded?.();
  }

  link(rank: number): PeerLink {
    return must(this.#links.get(rank), () => `world rank ${rank} is linked`);
  }

  get links(): readonly PeerLink[] {
    return [...this.#links.values()];
  }

  /** Resolves when every rank is linked; the caller adds the deadline. */
  async linked(): Promise<void> {
    while (this.#links.size < this.size - 1) {
      await new Promise<void>((resolve) => {
        this.#linkAdded = resolve;
      });
    }
  }

  missingLinks(): number[] {
    return Array.from({ length: this.size }, (_, rank) => rank).filter((rank) => rank !== this.rank && !this.#links.has(rank));
  }

  // ── groups ──────────────────────────────────────────────────────────────────────────────────────────────────────

  async openGroup(spec: GroupSpec, timeoutMs: number): Promise<GroupEngine> {
    // Where all goes well without a turn in between: what is announced and said of the group leaves together.
    const made = this.#newGroup(spec);
    const group = made instanceof GroupEngine ? made : await made;
    this.#groups.set(spec.id, group);
    this.schedules.open(group);
    this.recorder.addGroup(spec);
    const early = this.#early.get(spec.id) ?? [];
    this.#early.delete(spec.id);
    for (const { link, message } of early) this.#guard(link, () => group.onControl(this.#groupRank(group, link), message));
    for (const rank of spec.globalRanks) {
      if (rank !== this.rank && this.link(rank).closed) group.onLinkClosed(spec.globalRanks.indexOf(rank), undefined);
    }
    // Some of its ranks may not have heard that all have agreed on it, and do not come.
    const { failure } = (spec.parent !== undefined && this.#groups.get(spec.parent)) || {};
    if (failure) group.fail(failure);
    try {
      await group.open(timeoutMs);
      if (usesMpi(spec.backend, this.#backend)) await this.#openMpi(group, timeoutMs);
    } catch (thrown) {
      await this.closeGroup(spec.id, 0);
      throw thrown;
    }
    return group;
  }

  /** Where there is no room for it, its other ranks hear of that. */
  #newGroup(spec: GroupSpec): GroupEngine | Promise<never> {
    try {
      return new GroupEngine(this, spec);
    } catch (thrown) {
      return this.#haveNoRoom(spec, thrown);
    }
  }

  async #haveNoRoom(spec: GroupSpec, thrown: unknown): Promise<never> {
    const doing = `opening group '${spec.name}'`;
    const error = exhaustion(`rank ${this.rank}`, thrown, doing, { rank: this.rank }) ?? ShoalError.from(thrown);
    this.tellFailure(spec, error);
    const leave = encodeControl({ type: 'leave', group: spec.id, calls: 0 });
    for (const link of this.links) if (spec.globalRanks.includes(link.rank)) link.post(leave);
    this.recordFailure(spec, error);
    await this.lastWords.heard();
    throw error;
  }

  /** This rank cannot go on: all its groups fail. */
  fail(error: ShoalError): void {
    for (const group of this.#groups.values()) group.fail(error);
  }

  /** Ranks that are not in the group hear of it, too: this process may end because of it. Nobody waits for the rank that is to blame. */
  tellFailure({ id: group, globalRanks }: GroupSpec, thrown: ShoalError): void {
    const error = thrown.toData();
    const others = this.links.map(({ rank }) => rank).filter((rank) => !globalRanks.includes(rank));
    this.lastWords.tell(globalRanks, { type: 'abort', group, error }, error.peer);
    this.lastWords.tell(others, { type: 'abort-elsewhere', error }, error.peer);
  }

  /** Tells all ranks what may be the reason if this one ends; undefined: it is over. */
  tellTrouble(error: ErrorData | undefined): void {
    const ranks = this.links.map(({ rank }) => rank);
    this.lastWords.tell(ranks, { type: 'trouble', error });
  }

  async #openMpi(group: GroupEngine, timeoutMs: number): Promise<void> {
    try {
      await this.#mpi.openGroup(group.spec, timeoutMs);
    } catch (thrown) {
      const error = ShoalError.from(thrown);
      group.fail(error);
      throw error;
    }
  }

  /** What runs the calls of a group whose collectives are MPI's. */
  mpiPlans(spec: GroupSpec): Plans | undefined {
    return usesMpi(spec.backend, this.#backend) ? this.#mpi.plans(spec) : undefined;
  }

  group(id: number): GroupEngine | undefined {
    return this.#groups.get(id);
  }

  async closeGroup(id: number, timeoutMs: number): Promise<void> {
    const group = this.#groups.get(id);
    if (!group) return;
    await group.leave(timeoutMs);
    // Whoever closes its world may have been waiting, too.
    if (!this.#groups.delete(id)) return;
    this.schedules.close(id);
    if (group.failure === undefined) this.#mpi.closeGroup(group.spec);
    this.recorder.removeGroup(group.spec);
    this.#leaving.set(id, group);
    this.#endIfDeserted(group);
  }

  /** What a group has is given back when no rank is in it any more: others may look at it until they have left. */
  #endIfDeserted(group: GroupEngine): void {
    if (!group.deserted) return;
    const { id } = group.spec;
    this.#leaving.delete(id);
    this.pointToPoint.forget(id);
    group.end();
    this.#onGroupEnded?.(id);
  }

  onHostPath(group: number, blocks: readonly RegionShare[]): void {
    this.#onHostPath?.(group, blocks);
  }

  onNetworkPath(group: number, share: NetworkPathShare): void {
    this.#onNetworkPath?.(group, share);
  }

  onScheduledBy(group: number, status: SchedulingStatus): void {
    this.#onScheduledBy?.(group, status);
  }

  recordFailure(group: GroupSpec, error: ShoalError): void {
    this.recorder.groupFailed(group, error);
    this.#onFailure?.(group, error);
    for (const each of this.#groups.values()) if (each.spec.parent === group.id && each.isOpening) each.fail(error);
  }

  /** Leaves all groups, flushes and closes all links. Bounded by `timeoutMs` for work and as much again for links. */
  async close(timeoutMs: number): Promise<void> {
    if (this.#closing) return;
    this.#closing = true;
    const waits = [...this.#groups.values()].some((group) => group.waitsToLeave);
    const left = Promise.all([...this.#groups.keys()].map((id) => this.closeGroup(id, timeoutMs)));
    // Else all has been said in this turn, and goes with the end of the connections.
    if (waits) await left;
    this.#unlinking = true;
    const unlinked = Promise.all(this.links.map((link) => link.connection.close(timeoutMs)));
    await left;
    await unlinked;
    await Promise.all(this.fabrics.map((fabric) => fabric.close()));
    this.#mpi.close();
    this.schedules.end();
    this.#waitChains.close();
    this.regions.close();
  }

  // ── who is waited for ───────────────────────────────────────────────────────────────────────────────────────────

  /** Finds who is to blame that this rank waits for some ranks. */
  findCulprit(ranks: readonly number[], onFound: (culprit: Culprit) => void): void {
    this.#waitChains.find(ranks, onFound);
  }

  /** What has been waited for the longest. */
  get wait(): Wait | undefined {
    const waits = [this.pointToPoint.wait, this.schedules.wait, ...[...this.#groups.values()].map((group) => group.wait)];
    return waits.find((wait) => wait !== undefined);
  }

  // ── what arrives ────────────────────────────────────────────────────────────────────────────────────────────────

  #onMessage(link: PeerLink, message: Uint8Array): void {
    switch (message[0]) {
      case MessageType.Begin: {
        const header = decodeGroupHeader(message);
        this.#withGroup(link, header.group, (engine, rank) => engine.onBegin(rank, header, announcedOf(message)));
        return;
      }
      case MessageType.Completed: {
        const { group, completed } = decodeGroupHeader(message);
        this.#withGroup(link, group, (engine, rank) => engine.onCompleted(rank, completed));
        return;
      }
      case MessageType.Doorbell:
        for (const group of this.#groups.values()) group.pump();
        return;
      case MessageType.Control:
        this.#onControl(link, decodeControl(message));
        return;
      case MessageType.Offer:
        this.pointToPoint.onOffer(link, message);
        return;
      case MessageType.Accept:
        this.pointToPoint.onAccept(link, message);
        return;
      case MessageType.Taken:
        this.pointToPoint.onTaken(link, message);
        return;
      case MessageType.Probe:
      case MessageType.Answer:
        this.linkProbe.onMessage(link, message);
        return;
      default:
        throw new ShoalError('protocol', `unknown message type ${message[0]}`);
    }
  }

  #onImmediate(link: PeerLink, immediate: number): void {
    const decoded = decodeImmediate(immediate);
    if ('transfer' in decoded) this.pointToPoint.onLanded(link, decoded.transfer);
    else this.#withGroup(link, decoded.group, (engine) => engine.onSignal(decoded.slot, decoded.signal));
  }

  #onControl(link: PeerLink, message: ControlMessage): void {
    // Who says this waits for the answer, and may end then.
    if ((message.type === 'abort' || message.type === 'abort-elsewhere' || message.type === 'trouble') && message.id !== undefined)
      link.post(encodeControl({ type: 'heard', id: message.id }));
    if (message.type === 'abort' || message.type === 'abort-elsewhere') link.failure = message.error;
    switch (message.type) {
      case 'abort-elsewhere':
        return;
      case 'region':
        link.announce(message.key, message.remote);
        // The main thread looks at what main threads have announced.
        if (link.loadStore && message.remote.handle !== '' && isOfMainThread(message.key))
          this.#onPeerRegion?.(link.rank, message.key, decodeHandle(message.remote.handle));
        for (const group of this.#groups.values()) group.pump();
        return;
      case 'withdraw':
        link.withdraw(message.key);
        if (isOfMainThread(message.key)) this.#onPeerRegion?.(link.rank, message.key, undefined);
        return;
      case 'ping':
        link.post(encodeControl({ type: 'pong', sentMs: message.sentMs, atMs: this.clock.wallNow() }));
        return;
      case 'heard':
        this.lastWords.onHeard(link.rank, message.id);
        return;
      case 'trouble':
        link.trouble = message.error && ShoalError.fromData({ ...message.error, peer: link.rank });
        return;
      case 'pong':
        this.onPong?.(link.rank, message.sentMs, message.atMs);
        return;
      case 'whom':
      case 'waits':
        this.#waitChains.onControl(link.rank, message);
        return;
      case 'probe-open':
      case 'probe-opened':
      case 'probe-close':
        this.linkProbe.onControl(link, message);
        return;
      default: {
        const group = this.#groups.get(message.group);
        const leaving = this.#leaving.get(message.group);
        if (group) this.#onGroupControl(group, link, message);
        else if (leaving) this.#onLeavingGroup(leaving, link, message);
        else this.#keepEarly(link, message);
      }
    }
  }

  #onGroupControl(group: GroupEngine, link: PeerLink, message: ControlMessage & { group: number }): void {
    const rank = this.#groupRank(group, link);
    if (message.type === 'order') {
      this.schedules.onOrder(message.group, rank, message);
      return;
    }
    if (message.type === 'tuned') {
      this.schedules.onTuned(message.group, rank, message);
      return;
    }
    group.onControl(rank, message);
    if (message.type === 'leave') this.schedules.onLeft(message.group, rank);
  }

  /** Told of answers to pings; used while clocks are compared. */
  onPong: ((rank: number, sentMs: number, atMs: number) => void) | undefined;

  /** Of a group that this rank has left, only who leaves as well is of interest. */
  #onLeavingGroup(group: GroupEngine, link: PeerLink, message: ControlMessage): void {
    if (message.type !== 'leave') return;
    group.onControl(this.#groupRank(group, link), message);
    this.#endIfDeserted(group);
  }

  /** Only a group's opening can be early, or that it fails, and what is said after that; what comes for a group that is gone is of no interest. */
  #keepEarly(link: PeerLink, message: ControlMessage & { group: number }): void {
    const early = this.#early.get(message.group) ?? [];
    if (message.type !== 'group-open' && message.type !== 'abort' && !early.some((each) => each.link === link)) return;
    if (early.length >= earlyMessagesMax) throw new ShoalError('protocol', `rank ${link.rank} opens too many groups`);
    early.push({ link, message });
    this.#early.set(message.group, early);
  }

  #withGroup(link: PeerLink, id: number, deliver: (group: GroupEngine, rank: number) => void): void {
    const group = this.#groups.get(id);
    if (group) deliver(group, this.#groupRank(group, link));
  }

  #groupRank(group: GroupEngine, link: PeerLink): number {
    const rank = group.spec.globalRanks.indexOf(link.rank);
    if (rank < 0) throw new ShoalError('protocol', `rank ${link.rank} is not in group '${group.spec.name}'`);
    return rank;
  }

  /** A peer that sends nonsense loses its connection; its groups learn why. */
  #guard(link: PeerLink, deliver: () => void): void {
    if (link.closed) return;
    try {
      deliver();
    } catch (thrown) {
      const ranOut = exhaustion(`rank ${this.rank}`, thrown, `handling what rank ${link.rank} sent`, { rank: this.rank });
      if (ranOut) {
        // The peer has done nothing wrong.
        this.fail(ranOut);
        return;
      }
      const error = ShoalError.from(thrown, 'system', { peer: link.rank });
      const message = `what rank ${link.rank} sent could not be handled: ${error.message}`;
      this.#breakOff(link, new ShoalError(error.code, message, { peer: link.rank, cause: thrown }));
    }
  }

  #breakOff(link: PeerLink, error: ShoalError): void {
    this.#onClose(link, error);
    void link.connection.close(0);
  }

  /** Told of links that end; used while the ranks join. */
  onLinkClosed: ((rank: number, error: ShoalError | undefined) => void) | undefined;

  #onClose(link: PeerLink, error: ShoalError | undefined): void {
    if (link.closed) return;
    link.markClosed(error);
    this.lastWords.onClosed(link.rank);
    if (this.#closing) return;
    this.onLinkClosed?.(link.rank, error);
    for (const group of this.#groups.values()) {
      const rank = group.spec.globalRanks.indexOf(link.rank);
      if (rank >= 0) group.onLinkClosed(rank, error);
    }
    for (const group of [...this.#leaving.values()]) this.#endIfDeserted(group);
  }
}
