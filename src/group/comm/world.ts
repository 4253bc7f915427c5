/** The world of one rank, in the comm thread: links to all ranks, memory they may reach, groups, messages.
 *
 *      fabrics ──▶ links ──▶ onMessage ──▶ group engines, point-to-point
 *      store ─── who is where (bootstrap.ts)
 *
 *  It routes and owns; the groups run the operations. Two worlds share nothing here. */
import { must } from '../../base/assert.ts';
import { ShoalError, type ErrorData } from '../../base/errors.ts';
import { exhaustion } from '../../base/exhaustion.ts';
import type { NetworkPathRates } from '../../collectives/network-path.ts';
import { parseSelection, type SelectionRule } from '../../collectives/select.ts';
import type { Connection, Fabric } from '../../fabric/fabric.ts';
import { decodeHandle } from '../../fabric/region-handle.ts';
import type { CostModel } from '../../plan/cost.ts';
import type { WorldFacts } from '../../metrics/rank-report.ts';
import { GroupEngine } from './group-engine.ts';
import type { Joined } from '../shared/comm-protocol.ts';
import type { WorldEnvironment } from './engine/environment.ts';
import { collectiveLibraries } from '../../call/collective-libraries.ts';
import type { CollectiveLibrary } from '../../call/collective-library.ts';
import type { GroupSpec } from '../../call/group-spec.ts';
import type { WorldPlanning } from '../../call/planner.ts';
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

export class World {
  readonly env: WorldEnvironment;
  readonly rank: number;
  readonly regions: SharedRegions;
  readonly scratch: ScratchPool;
  readonly pointToPoint: PointToPoint;
  readonly linkProbe: LinkProbe;
  readonly lastWords: LastWords;
  readonly schedules: Schedules;
  readonly arbiter: Arbiter;
  /** Rates of this world, known before its groups are opened; undefined where nothing is chosen by them. */
  model: CostModel | undefined;
  /** Rates of the network path of the world's own group; undefined: it has none. */
  networkPathRates: NetworkPathRates | undefined;
  /** The user's rules for choosing algorithms. */
  readonly #selection: readonly SelectionRule[];
  /** Libraries that groups have asked for, by name. */
  readonly #libraries = new Map<string, CollectiveLibrary>();
  readonly #waitChains: WaitChains;
  readonly #links = new Map<number, PeerLink>();
  readonly #groups = new Map<number, GroupEngine>();
  /** Groups that this rank has left and others have not. */
  readonly #leaving = new Map<number, GroupEngine>();
  readonly #early = new Map<number, { link: PeerLink; message: ControlMessage }[]>();
  readonly #linkAdded: (() => void)[] = [];
  joined!: Joined;
  #closing = false;
  /** Its links are closing: nobody is told of memory any more. */
  #unlinking = false;

  constructor(env: WorldEnvironment) {
    this.env = env;
    const { rank, clock, settings, allocator, fabrics } = env;
    this.rank = rank;
    this.arbiter = env.arbiter ?? new Arbiter();
    for (const { sockets } of fabrics)
      if (sockets) sockets.onSocket = (peer, group, accept) => this.#groups.get(group)?.onSocket(peer.rank, accept);
    this.#selection = parseSelection(settings.algorithms);
    this.regions = new SharedRegions(allocator, fabrics, () => (this.#unlinking ? [] : this.#links.values()));
    this.scratch = new ScratchPool(this.regions, settings.stagingBytes);
    this.#waitChains = new WaitChains({
      rank,
      clock,
      own: () => this.wait,
      tell: (peer, message) => this.#links.get(peer)?.post(encodeControl(message)),
    });
    this.pointToPoint = new PointToPoint(this);
    this.schedules = new Schedules(this);
    this.lastWords = new LastWords(clock, () => this.links);
    this.linkProbe = new LinkProbe({ clock, scratch: this.scratch });
  }

  /** The rules by which plans of groups are found. */
  get planning(): WorldPlanning {
    const { machine, settings, tuning } = this.env;
    return { machine, settings, tuning: tuning?.tuning, model: this.model, selection: this.#selection };
  }

  // ── links ───────────────────────────────────────────────────────────────────────────────────────────────────────

  /** Takes over a connection, dialled or accepted. A second one to the same rank is closed. */
  addLink(connection: Connection, fabric: Fabric): void {
    const { rank } = connection.peer;
    if (this.#links.has(rank) || rank === this.rank) {
      connection.setHandlers({ onMessage() {}, onImmediate() {}, onClose() {} });
      this.env.log.warn(`a second connection of rank ${rank} was closed`);
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
    for (const notice of this.#linkAdded.splice(0)) notice();
  }

  link(rank: number): PeerLink {
    return must(this.#links.get(rank), () => `world rank ${rank} is linked`);
  }

  get links(): readonly PeerLink[] {
    return [...this.#links.values()];
  }

  /** Resolves when all these ranks, by default those that the world began with, are linked; the caller adds the deadline. */
  async linked(ranks?: readonly number[]): Promise<void> {
    while (this.missingLinks(ranks).length > 0) await new Promise<void>((resolve) => this.#linkAdded.push(resolve));
  }

  missingLinks(ranks: readonly number[] = Array.from({ length: this.env.size }, (_, rank) => rank)): number[] {
    return ranks.filter((rank) => rank !== this.rank && !this.#links.has(rank));
  }

  /** There is a connection with this rank. */
  reaches(rank: number): boolean {
    return this.#links.get(rank)?.closed === false;
  }

  /** Tells the calling thread how many newcomers wait. @param taken newcomers that have stopped waiting. */
  tellWaiting(taken: readonly number[] = []): void {
    for (const link of this.links) link.waits &&= !taken.includes(link.rank);
    this.env.tell({ type: 'waiting', count: this.links.filter(({ waits, closed }) => waits && !closed).length });
  }

  // ── groups ──────────────────────────────────────────────────────────────────────────────────────────────────────

  async openGroup(spec: GroupSpec, timeoutMs: number): Promise<GroupEngine> {
    // No turn of the event loop comes in between: all that is announced and said of the group leaves together.
    const made = this.#newGroup(spec);
    const group = made instanceof GroupEngine ? made : await made;
    this.#groups.set(spec.id, group);
    group.schedule = this.schedules.open(group);
    this.env.recorder.addGroup(spec);
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
      if (spec.library !== undefined) group.usePlans(await (await this.#libraryOf(spec.library)).openGroup(spec, timeoutMs));
    } catch (thrown) {
      group.fail(ShoalError.from(thrown));
      await this.closeGroup(spec.id, 0);
      throw thrown;
    }
    return group;
  }

  /** Makes a group. Where there is no room for it, its other ranks hear of that. */
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
    this.lastWords.tell([...this.#links.keys()], { type: 'trouble', error });
  }

  async #libraryOf(name: string): Promise<CollectiveLibrary> {
    const Library = await collectiveLibraries[name]();
    const { rank, size, clock, kernels, settings } = this.env;
    const library = this.#libraries.get(name) ?? new Library({ rank, size, clock, kernels, settings });
    this.#libraries.set(name, library);
    return library;
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
    group.schedule?.close();
    if (group.failure === undefined) this.#libraries.get(group.spec.library ?? '')?.closeGroup(group.spec);
    this.env.recorder.removeGroup(group.spec);
    this.#leaving.set(id, group);
    this.#endIfDeserted(group);
  }

  /** Gives back what a group has when no rank is in it any more: others may look at it until they have left. */
  #endIfDeserted(group: GroupEngine): void {
    if (!group.deserted) return;
    const { id } = group.spec;
    this.#leaving.delete(id);
    this.pointToPoint.forget(id);
    group.end();
    this.env.tell({ type: 'group-ended', group: id });
  }

  recordFailure(group: GroupSpec, error: ShoalError): void {
    this.env.recorder.groupFailed(group, error);
    if (error.code === 'aborted') this.env.tell({ type: 'aborted', group: group.id });
    this.env.onFailure?.(group, error);
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
    await Promise.all(this.env.fabrics.map((fabric) => fabric.close()));
    for (const library of this.#libraries.values()) library.close();
    this.schedules.end();
    this.#waitChains.close();
    this.regions.close();
  }

  // ── who is waited for ───────────────────────────────────────────────────────────────────────────────────────────

  /** Finds who is to blame that this rank waits for some ranks. */
  findCulprit(ranks: readonly number[], onFound: (culprit: Culprit) => void): void {
    this.#waitChains.find(ranks, onFound);
  }

  /** The wait that has lasted longest. */
  get wait(): Wait | undefined {
    const groups = [...this.#groups.values()];
    const waits = [this.pointToPoint.wait, ...groups.map(({ schedule }) => schedule?.wait), ...groups.map(({ wait }) => wait)];
    return waits.find((wait) => wait !== undefined);
  }

  get facts(): Omit<WorldFacts, 'epoch' | 'size'> {
    const { pid, hostName } = this.env;
    const [groups, links] = [[...this.#groups.values()].map(({ facts }) => facts), this.links.map(({ facts }) => facts)];
    return { rank: this.rank, pid, hostName, groups, links, registeredBytes: this.regions.bytes, wait: this.wait };
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
      case MessageType.Accept:
      case MessageType.Taken:
        this.pointToPoint.onMessage(link, message);
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
    // The sender waits for the answer, and may end then.
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
          this.env.tell({ type: 'peer-region', rank: link.rank, key: message.key, share: decodeHandle(message.remote.handle) });
        for (const group of this.#groups.values()) group.pump();
        return;
      case 'withdraw':
        link.withdraw(message.key);
        if (isOfMainThread(message.key)) this.env.tell({ type: 'peer-region', rank: link.rank, key: message.key, share: undefined });
        return;
      case 'waiting':
        link.waits = true;
        this.tellWaiting();
        return;
      case 'heard':
        this.lastWords.onHeard(link.rank, message.id);
        return;
      case 'trouble':
        link.trouble = message.error && ShoalError.fromData({ ...message.error, peer: link.rank });
        return;
      case 'whom':
      case 'waits':
        this.#waitChains.onControl(link.rank, message);
        return;
      case 'ping':
      case 'pong':
      case 'probe-open':
      case 'probe-opened':
      case 'probe-close':
        this.linkProbe.onControl(link, message);
        return;
      default: {
        const group = this.#groups.get(message.group);
        const leaving = this.#leaving.get(message.group);
        if (group) group.onControl(this.#groupRank(group, link), message);
        else if (leaving) this.#onLeavingGroup(leaving, link, message);
        else this.#keepEarly(link, message);
      }
    }
  }

  /** A group that this rank has left hears of nothing but others that leave as well. */
  #onLeavingGroup(group: GroupEngine, link: PeerLink, message: ControlMessage): void {
    if (message.type !== 'leave') return;
    group.onControl(this.#groupRank(group, link), message);
    this.#endIfDeserted(group);
  }

  /** Keeps messages for a group that is not made here yet, from its opening or failure on. Others are for a group that is gone. */
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

  /** Functions that hear of links that end. */
  readonly lossWatchers = new Set<(rank: number, error: ShoalError | undefined) => void>();

  #onClose(link: PeerLink, error: ShoalError | undefined): void {
    if (link.closed) return;
    link.markClosed(error);
    this.lastWords.onClosed(link.rank);
    if (this.#closing) return;
    if (link.waits) this.tellWaiting();
    for (const watch of this.lossWatchers) watch(link.rank, error);
    for (const group of this.#groups.values()) {
      const rank = group.spec.globalRanks.indexOf(link.rank);
      if (rank >= 0) group.onLinkClosed(rank, error);
    }
    for (const group of [...this.#leaving.values()]) this.#endIfDeserted(group);
  }
}
