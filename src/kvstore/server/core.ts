/** One server of the parameter server, as a state machine: messages in, messages out. It must not know sockets, threads or
 *  processes; its owner calls one method at a time. This file decides which messages are handled, and when; state/state.ts is
 *  the state, state/transfers.ts and server/control.ts act on it.
 *
 *    receive ─▶ standby there? ─▶ forward, wait for its acknowledgement ─▶ paused? wait ─▶ epoch right? ─▶ act ─▶ send */
import { must } from '../../base/assert.ts';
import { isCount, Layout } from '../../base/bytes.ts';
import { ShoalError } from '../../base/errors.ts';
import type { ValueOf } from '../../base/schema.ts';
import { groupOf, idOf, roleOf, type Address } from '../../messaging/address.ts';
import type { Msg } from '../../messaging/msg.ts';
import { ServerBarrier } from './barrier.ts';
import { ServerCheckpoints } from './checkpoints.ts';
import { readRegion, ServerControl } from './control.ts';
import { ServerFollowers } from './followers.ts';
import type { Outbound, ServerOptions } from './state/options.ts';
import { DelayLine, notAStandby, readVerdict, StateReceiver, stateMessages, unwrap, Verdict, wrap, type Stream } from './replica.ts';
import { ServerGroups } from './groups.ts';
import { describeWorkers } from './state/rounds.ts';
import type { ServerRequest, ServerSession } from './state/client-session.ts';
import { restoreSnapshot, takeSnapshot } from './snapshot.ts';
import { ServerState } from './state/state.ts';
import { Role } from '../protocol/singa.ts';
import { serverAddress } from '../protocol/topology.ts';
import { encodeControl, Fields, packError, packNotice, readControl, unpackError, type ControlFields } from '../protocol/wire-control.ts';
import type { ValueCounters } from '../protocol/value-space.ts';
import { encodeFailure, encodeResponse, KVMessage, makeMessage, malformed, TargetKind, type Envelope } from '../protocol/wire.ts';

export class ServerCore {
  readonly #options: ServerOptions;
  readonly #address: Address;
  #state!: ServerState;
  #control!: ServerControl;
  #barrier!: ServerBarrier;
  #followers!: ServerFollowers;
  #groups!: ServerGroups;
  #checkpoints!: ServerCheckpoints;
  #mode: 'primary' | 'standby';
  /** The term of this primary, or of the one that we stand by for. */
  #term: number;
  #delay: DelayLine | undefined;
  /** Number of the last forwarded message, whichever standby it went to. */
  #forwarded = 0;
  /** The stream to the standby, or to us as a standby: a state and the messages that followed. */
  #stream: Stream = { term: 0, number: 0 };
  /** The state that is arriving at a standby; and whether it is there. */
  #receiver = new StateReceiver();
  #informed = false;
  /** The latest term that we have heard of, by other server. */
  readonly #terms = new Map<Address, number>();
  /** Hellos of clients that have tried to reach a standby. */
  readonly #hellos = new Map<Address, Msg>();
  /** The connection that counts, by client. */
  readonly #epochs = new Map<Address, number>();
  /** The actions for messages that came while paused. */
  #paused: (() => void)[] = [];
  #pausing = 0;
  /** A standby is connected, and is sent the state when nothing is left that came while paused: it would not hear of that. */
  #standbyWaits = false;
  #attachFailed = false;
  #closed = false;
  /** Counts values that did not go, or come, straight from memory to memory. */
  readonly counters: ValueCounters;

  private constructor(options: ServerOptions) {
    this.counters = options.counters ?? { bytesCopied: 0 };
    this.#options = options;
    this.#mode = options.mode;
    this.#term = options.term;
    this.#address = serverAddress(options.group, options.server);
    this.#begin();
  }

  /** Begins as a server that knows nothing yet. */
  #begin(): void {
    const options = this.#options;
    this.#receiver = new StateReceiver();
    this.#informed = false;
    this.#paused = [];
    this.#state = new ServerState(options, {
      counters: this.counters,
      send: (destination, message) => this.#send(destination, message),
      respond: (request) => this.#respond(request),
      reply: (session, request, fields) => this.#reply(session, request, fields),
      pause: (until) => this.#pause(until),
      isSilent: () => this.#mode === 'standby',
      durable: () => (this.#mode === 'primary' ? this.#checkpoints.save() : Promise.resolve()),
      tellDurable: (session) => this.#toClient(session, KVMessage.durable, session.durable, []),
      onUnattached: () => {
        this.#attachFailed = true;
      },
      onApplied: (from, to) => this.#state.applied(from, to),
      onDue: () => this.#whenRunning(() => this.#flush()),
      onExchanged: () => {
        this.#state.dirty = true;
        this.#groups.progress();
      },
      onFollowed: () => this.#control.committed(),
      onCommit: () => this.#unblock(),
    });
    this.#groups = new ServerGroups(this.#state);
    this.#followers = new ServerFollowers(this.#state);
    this.#barrier = new ServerBarrier(this.#state);
    this.#checkpoints = new ServerCheckpoints(this.#state);
    const parts = { barrier: this.#barrier, followers: this.#followers, groups: this.#groups, checkpoints: this.#checkpoints };
    this.#control = new ServerControl(this.#state, parts);
  }

  /** Loads the latest snapshot, if there is one. @throws ShoalError of the store, `mismatch` for another server's. */
  static async start(options: ServerOptions): Promise<ServerCore> {
    const core = new ServerCore(options);
    const snapshot = options.mode === 'primary' ? await options.snapshots?.load() : undefined;
    if (snapshot !== undefined) restoreSnapshot(core.#state, snapshot, { exchange: 'drop' });
    if (options.mode === 'primary') core.#checkpoints.schedule();
    return core;
  }

  /** Whatever arrived, from clients, other servers, the primary or the standby. Never throws: see `onFault`. */
  receive(msg: Msg): void {
    if (this.#closed) return msg.release();
    // Memory that a backend lends is kept only for gradients that are about to be summed, and not for a standby, who gets them too.
    if (msg.type !== KVMessage.update || this.#options.topology.replicas === 2) this.#own(msg);
    this.#guard(msg, () => {
      if (this.#mode === 'standby') return this.#receiveAsStandby(msg);
      if (msg.type === KVMessage.forwarded) return this.#acknowledge(msg);
      if (msg.type === KVMessage.forward || msg.type === KVMessage.state) {
        // A primary whose place we have taken does not know it yet.
        if (msg.targetVersion < this.#term) return undefined;
        throw notAStandby();
      }
      if (this.#isLate(msg)) return msg.release();
      const { standby } = this.#options;
      if (this.#delay !== undefined && standby !== undefined) {
        this.#forwarded = this.#delay.add(msg);
        this.#forward(msg, standby, this.#forwarded);
        return undefined;
      }
      return this.#act(msg);
    });
  }

  /** A connection with a client, server or the standby has been made (again): what may have been lost is sent again. */
  peerUp(address: Address): void {
    if (this.#closed || this.#mode === 'standby') return;
    if (address === this.#options.standby) {
      this.#standbyWaits = true;
      return this.#welcomeStandby();
    }
    if (roleOf(address) !== Role.server) return;
    this.#whenRunning(() => {
      this.#followers.follow({ again: true });
      this.#state.sync.peerUp(groupOf(address));
      if (idOf(address) === this.#options.server) this.#groups.peerUp(groupOf(address));
      this.#flush();
      if (this.#options.server === 0) this.#barrier.update();
    });
  }

  /** A standby's connection is lost: the primary goes on alone. A client that will not come back: rounds that miss its
   *  workers fail with its error. */
  peerLost(address: Address, error: ShoalError): void {
    if (this.#closed) return;
    if (address === this.#options.standby) {
      this.#standbyWaits = false;
      return this.#goOnAlone();
    }
    // In its place among the messages, for the standby as well.
    if (this.#mode === 'primary') this.receive(this.#lossOf(address, error));
  }

  /** A client has closed its connection: what it pushed counts; what it waits for it asks again if it comes back, and its memory may be in
   *  use for other things by then. */
  peerLeft(address: Address): void {
    this.#whenRunning(() => {
      const session = this.#state.sessions.get(address);
      if (session !== undefined && !this.#closed) this.#state.transfers.abandon(session);
    });
  }

  /** A standby that has its primary's state, and can take over. */
  get informed(): boolean {
    return this.#informed;
  }

  /** The standby serves from now on. It must be `informed`. */
  promote({ term }: { readonly term: number }): void {
    if (this.#mode === 'primary' || this.#closed) return;
    this.#mode = 'primary';
    this.#term = term;
    this.#stream = { term, number: 0 };
    this.#state.sources.writes = 'targets';
    this.#checkpoints.schedule();
    const hellos = [...this.#hellos.values()];
    this.#hellos.clear();
    this.#whenRunning(() => {
      this.#followers.follow({ again: true });
      this.#state.sync.peerUp();
      this.#groups.peerUp();
      this.#flush();
    });
    for (const hello of hellos) this.receive(hello);
  }

  /** Without: another process is this server now, or another core. @returns hellos that nobody has answered. */
  abandon(): Msg[] {
    this.#closed = true;
    this.#checkpoints.close();
    return [...this.#hellos.values()];
  }

  /** After a last snapshot, when there is a place for it. Idempotent. */
  async close(): Promise<void> {
    if (this.#closed) return;
    if (this.#mode === 'primary' && this.#state.dirty) await this.#checkpoints.save();
    this.#closed = true;
    this.#state.sync.close();
    this.#checkpoints.close();
  }

  /** True for a message that an earlier connection of a client left behind: it is repeated on the present one. Decided on arrival, so that a
   *  standby hears exactly what its primary acts on. */
  #isLate(msg: Msg): boolean {
    const { source, type, targetVersion } = msg;
    if (roleOf(source) === Role.server) return this.#isOfEarlierTerm(msg);
    const epoch = this.#epochs.get(source) ?? 0;
    if (type !== KVMessage.hello) return targetVersion !== epoch;
    if (targetVersion <= epoch) return true;
    readHello(msg);
    if (epoch === 0 && this.#epochs.size >= this.#state.workers) return true;
    this.#epochs.set(source, targetVersion);
    return false;
  }

  /** True for a message of a server that another process has become since. */
  #isOfEarlierTerm(msg: Msg): boolean {
    const term = readTerm(msg);
    const known = this.#terms.get(msg.source) ?? 0;
    if (term > known) this.#terms.set(msg.source, term);
    return term < known;
  }

  // ── standby and primary ────────────────────────────────────────────────────────────────────────────────────────

  #receiveAsStandby(msg: Msg): void {
    if (msg.type === KVMessage.hello) this.#hellos.set(msg.source, msg);
    else if (msg.type === KVMessage.state) this.#receiveState(msg);
    else if (msg.type === KVMessage.forward) this.#receiveForward(msg);
  }

  /** Takes the state of a later primary, or once more of the same: earlier state counts no more. */
  #receiveState(msg: Msg): void {
    const { targetValue: number, targetVersion: term } = msg;
    const { term: knownTerm, number: known } = this.#stream;
    if (term < knownTerm || (term === knownTerm && number < known)) return;
    if (term > knownTerm || number > known) {
      this.#stream = { term, number };
      this.#term = term;
      this.#terms.clear();
      for (const client of this.#state.sessions.keys()) this.#options.valuesOf(client).close();
      this.#begin();
    }
    const whole = this.#receiver.receive(msg);
    if (whole === undefined) return;
    restoreSnapshot(this.#state, whole.snapshot, { exchange: 'keep' });
    for (const entry of whole.terms) this.#terms.set(...readTermEntry(entry));
    for (const entry of whole.regions) this.#attach(entry);
    this.#informed = true;
    this.#say(number, Verdict.informed);
  }

  #receiveForward(msg: Msg): void {
    const { targetValue: number, targetVersion: term } = msg;
    // The primary is none any more, or the message is from before the state that we have.
    if (term !== this.#stream.term || number < this.#stream.number) return;
    if (!this.#informed) return this.#say(number, Verdict.unfit);
    const inner = unwrap(msg);
    this.#whenRunning(() => {
      this.#attachFailed = false;
      if (roleOf(inner.source) === Role.server) this.#isOfEarlierTerm(inner);
      this.#guard(inner, () => this.#act(inner));
      this.#whenRunning(() => this.#say(number, this.#attachFailed ? Verdict.unattached : Verdict.attached));
    });
  }

  #say(number: number, verdict: number): void {
    const destination = this.#options.primary ?? this.#address;
    const epoch = verdict + this.#stream.term * Verdict.count;
    const envelope = { source: this.#address, destination, type: KVMessage.forwarded, request: number, epoch };
    this.#options.send(destination, makeMessage(envelope, []));
  }

  #acknowledge(msg: Msg): void {
    const { term, verdict } = readVerdict(msg);
    // A process that another primary has made its standby speaks of that one's messages.
    if (term !== this.#term || msg.targetValue < this.#stream.number || this.#delay === undefined) return;
    if (verdict === Verdict.unfit) return this.#goOnAlone();
    if (verdict === Verdict.informed) return this.#options.onStandbyInformed?.();
    const next = this.#delay.take(msg.targetValue);
    if (next === undefined) return;
    this.#guard(next, () => this.#act(next, verdict === Verdict.unattached ? 'refused' : 'allowed'));
  }

  /** Everything it must know, then everything that is not settled. */
  #welcomeStandby(): void {
    const { standby } = this.#options;
    if (!this.#standbyWaits || this.#pausing > 0 || this.#closed || standby === undefined) return;
    this.#standbyWaits = false;
    this.#goOnAlone();
    const { sessions } = this.#state;
    const regions = [...sessions.values()].flatMap((session) =>
      [...session.regions].map(([region, { handle, bytes }]) => [String(session.address), region, handle, bytes]),
    );
    const terms = [...this.#terms].map(([server, term]) => [String(server), term]);
    // Numbers go on: what was said about an earlier standby's messages is not about these.
    this.#forwarded++;
    this.#stream = { term: this.#term, number: this.#forwarded };
    const envelope = { source: this.#address, standby, stream: this.#stream };
    for (const msg of stateMessages(takeSnapshot(this.#state), envelope, { regions, terms })) this.#options.send(standby, msg);
    this.#delay = new DelayLine(this.#forwarded);
    // It acknowledges these too; a number that nobody waits for.
    for (const session of sessions.values()) {
      const { lost, member } = session;
      const losses = lost && member.gone ? [this.#lossOf(session.address, member.gone)] : [];
      for (const msg of [...session.unsettledMessages(), ...session.blocked, ...losses]) this.#options.send(standby, wrap(msg, envelope));
    }
  }

  #forward(msg: Msg, standby: Address, number: number): void {
    this.#options.send(standby, wrap(msg, { source: this.#address, standby, stream: { term: this.#term, number } }));
  }

  #goOnAlone(): void {
    const waiting = this.#delay?.drain() ?? [];
    this.#delay = undefined;
    for (const msg of waiting) this.#guard(msg, () => this.#act(msg));
  }

  #attach(entry: unknown): void {
    const [source, ...region] = entry as [string, ...unknown[]];
    const { region: number, handle, bytes } = readRegion(region);
    if (this.#options.valuesOf(BigInt(source)).attach(number, handle, bytes)) {
      this.#state.sessions.get(BigInt(source))?.regions.set(number, { handle, bytes });
      return;
    }
    throw new ShoalError('unsupported', 'a standby cannot map memory that its primary has mapped; run both on one host');
  }

  // ── acting ─────────────────────────────────────────────────────────────────────────────────────────────────────

  #act(msg: Msg, attach: 'allowed' | 'refused' = 'allowed'): void {
    if (this.#pausing > 0) {
      this.#own(msg);
      this.#paused.push(() => this.#guard(msg, () => this.#act(msg, attach)));
      return;
    }
    const { source } = msg;
    if (roleOf(source) === Role.server) this.#fromServer(msg);
    else if (msg.type === KVMessage.hello) this.#hello(msg);
    else {
      const session = this.#state.sessions.get(source);
      if (session === undefined) msg.release();
      else this.#fromClient(session, msg, attach);
    }
    if (this.#state.repeats && this.#state.hasHeardAll(isAboutAll)) this.#heardAll();
    this.#flush();
  }

  /** Hears requests that have waited until workers had repeated theirs. */
  #heardAll(): void {
    this.#state.repeats = false;
    this.#unblock();
    this.#groups.progress();
  }

  /** The standby does not decide when to exchange with another group: it is told (`#send`). */
  #flush(): void {
    if (this.#mode === 'primary' && !this.#closed) this.#state.sync.flush();
  }

  #hello(msg: Msg): void {
    const { group, first, workers, barrier, left, last } = readHello(msg);
    const session = this.#state.join(msg.source, group, first, workers);
    if (msg.targetVersion <= session.epoch) return;
    this.#state.transfers.abandon(session);
    session.renew(msg.targetVersion, last);
    session.barrier = Math.max(session.barrier, barrier);
    session.member.gone = undefined;
    session.member.broken = false;
    const { lineage, committed, optimizerNotice } = this.#state;
    const envelope = { source: this.#address, destination: msg.source, type: KVMessage.welcome, request: 0, epoch: session.epoch };
    const fields = {
      term: this.#term,
      lineage,
      committed,
      durable: session.durable,
      log: this.#options.snapshots !== undefined,
      ...packNotice(optimizerNotice),
    };
    this.#sendMsg(msg.source, makeMessage(envelope, [encodeControl(fields)]));
    this.#control.left(session, left);
    if (this.#options.server === 0) this.#barrier.update();
  }

  #lossOf(client: Address, error: ShoalError): Msg {
    const fields = { client: String(client), error: packError(error) };
    const envelope = { source: this.#address, destination: this.#address, type: KVMessage.lost, request: 0, epoch: 0 };
    return makeMessage(envelope, [encodeControl(fields), termFrame(this.#term)]);
  }

  /** Rounds that miss its workers fail with its error, and so does whatever it asks until it says hello again. */
  #loseClient(msg: Msg): void {
    const { client, error: packed } = readControl(msg.frames[0], Fields.lost);
    const session = this.#state.sessions.get(BigInt(client));
    const error = unpackError(packed);
    if (session === undefined || error === undefined) return;
    session.lost = new ShoalError(error.code, `${describeWorkers(session.member)} counts as lost: it ${error.message}`);
    session.member.gone ??= error;
    // Its memory is gone with it: what it pushed by reference cannot be read any more.
    session.member.broken = true;
    this.#state.transfers.failOf(session, session.lost);
    this.#state.transfers.failStuck(session.rounds);
    session.regions.clear();
    this.#options.valuesOf(session.address).close();
  }

  #refuse(session: ServerSession, msg: Msg, error: ShoalError): void {
    if (msg.type === KVMessage.update || msg.type === KVMessage.get)
      return this.#toClient(session, KVMessage.updateResponse, msg.targetValue, encodeFailure(error));
    return this.#reply(session, msg.targetValue, { error: packError(error) });
  }

  #fromClient(session: ServerSession, msg: Msg, attach: 'allowed' | 'refused'): void {
    if (msg.type === KVMessage.checkpoint) return this.#saveSoon();
    // It was silent for so long that nobody waits for it any more, and goes on over the same connection.
    if (session.lost !== undefined && msg.type !== KVMessage.leave) {
      msg.release();
      return this.#refuse(session, msg, session.lost);
    }
    if (msg.type === KVMessage.recall) return this.#recall(session, msg.targetValue);
    if (session.blocked.length > 0 || (this.#state.repeats && isAboutAll(msg))) {
      this.#own(msg);
      session.blocked.push(msg);
      return undefined;
    }
    const transfer = msg.type === KVMessage.update || msg.type === KVMessage.get || msg.type === KVMessage.put;
    if (!transfer) {
      session.lastRequest = Math.max(session.lastRequest, msg.targetValue);
      return this.#control.receive(session, msg, { attach });
    }
    const { transfers } = this.#state;
    const decoded = transfers.decode(msg);
    const known = msg.type === KVMessage.put ? this.#state.directory.batches : this.#state.committed;
    // A server that has come back from an old snapshot hears of these again, from worker 0.
    if (decoded.batches > known || decoded.optimizer > this.#state.optimizerVersion) {
      this.#own(msg);
      session.blocked.push(msg);
      return undefined;
    }
    session.lastRequest = Math.max(session.lastRequest, msg.targetValue);
    if (msg.type === KVMessage.put) {
      if (msg.targetValue > session.lastConfiguration) {
        transfers.put(session, msg, decoded, this.#state.committedSlots);
        session.lastConfiguration = msg.targetValue;
      }
      return this.#reply(session, msg.targetValue, {});
    }
    const request = transfers.take(session, msg, decoded);
    if (!request.answered) this.#toClient(session, KVMessage.accepted, msg.targetValue, []);
    return undefined;
  }

  #recall(session: ServerSession, request: number): void {
    const error = new ShoalError('aborted', 'the client does not wait for it any more');
    this.#state.transfers.failOf(session, error, request);
    const index = session.blocked.findIndex(({ targetValue }) => targetValue === request);
    for (const msg of index < 0 ? [] : session.blocked.splice(index, 1)) this.#refuse(session, msg, error);
  }

  /** Batches have come that messages have waited for. */
  #unblock(): void {
    for (const session of this.#state.sessions.values()) {
      const blocked = session.blocked.splice(0);
      for (const msg of blocked) this.#guard(msg, () => this.#act(msg));
    }
  }

  #fromServer(msg: Msg): void {
    const group = groupOf(msg.source);
    const { server, topology } = this.#options;
    const barrier = msg.type === KVMessage.barrierReached || msg.type === KVMessage.barrierReleased;
    if (group >= topology.serverGroups || (idOf(msg.source) !== server && !barrier))
      throw new ShoalError('protocol', 'a message of a strange server');
    switch (msg.type) {
      case KVMessage.lost:
        if (msg.source === this.#address) return this.#loseClient(msg);
        throw new ShoalError('protocol', 'a server speaks of a client that is not its own');
      case KVMessage.syncRequest:
        if (msg.source === this.#address) return this.#state.sync.adopt(msg);
        return this.#state.sync.receiveRequest(group, msg, this.#state.committedSlots);
      case KVMessage.syncResponse:
        this.#state.sync.receiveResponse(msg);
        return this.#flush();
      case KVMessage.syncNotice:
        return this.#state.sync.receiveNotice(msg, this.#state.committedSlots);
      case KVMessage.follow:
        return this.#followers.receiveFollow(group, msg);
      case KVMessage.followed:
        return this.#followers.receiveFollowed(msg);
      case KVMessage.gather:
        if (group !== 0) throw new ShoalError('protocol', 'only servers of group 0 gather');
        return this.#groups.receiveGather(msg);
      case KVMessage.gathered:
        return this.#groups.receiveGathered(group, msg);
      case KVMessage.assign:
        if (group !== 0) throw new ShoalError('protocol', 'only servers of group 0 assign');
        return this.#groups.receiveAssign(msg);
      case KVMessage.assigned:
        return this.#groups.receiveAssigned(group, msg);
      case KVMessage.barrierReached:
        return this.#barrier.reached(group, msg.targetValue);
      case KVMessage.barrierReleased:
        return this.#barrier.released(msg.targetValue);
      default:
        throw new ShoalError('protocol', `a server sent a message of type ${msg.type}`);
    }
  }

  /** Bad input ends here: whoever sent it is told, and nobody else notices. */
  #guard(msg: Msg, action: () => void): void {
    try {
      action();
    } catch (thrown) {
      const error = ShoalError.from(thrown);
      const session = this.#state.sessions.get(msg.source);
      const asked = session !== undefined && msg.targetVersion === session.epoch;
      if (asked && (msg.type === KVMessage.update || msg.type === KVMessage.get || msg.type === KVMessage.put))
        this.#refuse(session, msg, error);
      this.#options.onFault?.(msg.source, error);
    }
  }

  // ── pausing ────────────────────────────────────────────────────────────────────────────────────────────────────

  #pause(until: Promise<void>): void {
    this.#pausing++;
    const resume = (): void => {
      this.#pausing--;
      while (this.#pausing === 0 && this.#paused.length > 0) this.#paused.shift()!();
      this.#welcomeStandby();
    };
    until.then(resume, resume);
  }

  #whenRunning(action: () => void): void {
    if (this.#pausing > 0) this.#paused.push(action);
    else action();
  }

  // ── sending ────────────────────────────────────────────────────────────────────────────────────────────────────

  #respond(request: ServerRequest): void {
    const type = request.msg.type === KVMessage.get ? KVMessage.getResponse : KVMessage.updateResponse;
    const { transfers } = this.#state;
    if (request.epoch !== request.session.epoch || this.#mode === 'standby') return transfers.returnLoans(request);
    if (request.error !== undefined) {
      transfers.returnLoans(request);
      return this.#toClient(request.session, type, request.id, encodeFailure(request.error));
    }
    const { runs } = request;
    const hasValues = runs.some(({ run: { target } }) => target === TargetKind.inline || target === TargetKind.frame);
    const inline = hasValues ? [request.payload ?? new Uint8Array(0)] : [];
    const envelope = this.#envelopeTo(request.session, type, request.id);
    const states = runs.map(({ state }) => state);
    const msg = makeMessage(envelope, [encodeResponse(this.#state.optimizerNotice, states), ...inline]);
    for (const { run, frame } of runs) {
      if (run.target !== TargetKind.frame) continue;
      const values = must(frame, () => 'a run that is settled has its values');
      if (run.targetRegion === 0) msg.addFrame(values);
      else msg.addPlacedFrame(values, { rkey: run.targetRegion, offset: run.targetOffset });
    }
    if (runs.some(({ loan }) => loan !== undefined)) msg.onDelivered(() => transfers.returnLoans(request));
    this.#sendMsg(request.session.address, msg);
  }

  /** Copies what a backend has lent. The first frame is no value. */
  #own(msg: Msg): void {
    const [head] = msg.frames;
    this.counters.bytesCopied += Math.max(0, msg.own() - (head?.byteLength ?? 0));
  }

  #reply(session: ServerSession, request: number, fields: ControlFields): void {
    this.#toClient(session, KVMessage.done, request, [encodeControl(fields)]);
  }

  #toClient(session: ServerSession, type: number, request: number, frames: readonly Uint8Array[]): void {
    this.#sendMsg(session.address, makeMessage(this.#envelopeTo(session, type, request), frames));
  }

  #envelopeTo(session: ServerSession, type: number, request: number): Envelope {
    return { source: this.#address, destination: session.address, type, request, epoch: session.epoch };
  }

  #saveSoon(): void {
    // A failure is reported to `onCheckpoint`; clients keep what is not durable.
    this.#checkpoints.save().catch(() => undefined);
  }

  #send(destination: Address, { type, request, epoch, frames }: Outbound): void {
    const msg = makeMessage({ source: this.#address, destination, type, request, epoch }, [...frames, termFrame(this.#term)]);
    const { standby } = this.#options;
    if (type === KVMessage.syncRequest && this.#delay !== undefined && standby !== undefined)
      this.#forward(msg, standby, this.#stream.number);
    this.#sendMsg(destination, msg);
  }

  #sendMsg(destination: Address, msg: Msg): void {
    if (this.#mode === 'primary' && !this.#closed) this.#options.send(destination, msg);
  }
}

const termLayout = new Layout('a message between servers', { term: 'f53' });

/** The last frame of every message between servers. */
function termFrame(term: number): Uint8Array {
  return termLayout.encode({ term });
}

/** @throws ShoalError `protocol`. */
function readTerm({ frames }: Msg): number {
  const frame = frames.at(-1);
  if (frame?.byteLength !== termLayout.bytes) throw malformed('a server does not say its term');
  return termLayout.decode(frame).term;
}

function readTermEntry(entry: unknown): [Address, number] {
  const [server, term] = Array.isArray(entry) ? (entry as unknown[]) : [];
  if (typeof server !== 'string' || !isCount(term)) throw malformed('a server without its term');
  return [BigInt(server), term];
}

/** True for requests about the state of all workers, which is wrong while pushes of some are missing. */
function isAboutAll({ type }: Msg): boolean {
  return type === KVMessage.saveState || type === KVMessage.loadState;
}

/** @throws ShoalError `protocol`. */
function readHello(msg: Msg): ValueOf<typeof Fields.hello> {
  return readControl(msg.frames[0], Fields.hello);
}
