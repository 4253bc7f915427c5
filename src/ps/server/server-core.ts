/** One server of the parameter server, as a state machine: messages in, messages out. It must not know sockets, threads or
 *  processes; its owner calls one method at a time. This file decides which messages are handled, and when; message-handler.ts handles
 *  them.
 *
 *    receive ─▶ of the present connection? ─▶ standby there? ─▶ forward, wait for its acknowledgement ─▶ paused? wait ─▶ act ─▶ send */
import { ShoalError } from '../../base/errors.ts';
import { roleOf, type Address } from '../../messaging/address.ts';
import type { Msg } from '../../messaging/msg.ts';
import { readRegion } from './control.ts';
import type { LostPlace } from '../job/lost-workers.ts';
import { MessageHandler, type Attach } from './message-handler.ts';
import type { ServerOptions } from './state/server-options.ts';
import { readVerdict, StateReceiver, stateMessages, unwrap, Verdict, wrap, type Stream } from './replica.ts';
import { restoreSnapshot, takeSnapshot } from './snapshot.ts';
import type { ServerLoad } from './server-teller.ts';
import { ServerTerms } from './terms.ts';
import { Role } from '../protocol/singa.ts';
import { serverAddress } from '../protocol/topology.ts';
import { Fields, readControl } from '../protocol/wire-control.ts';
import type { ValueCounters } from '../protocol/value-space.ts';
import { KVMessage, makeMessage } from '../protocol/wire.ts';

export class ServerCore {
  readonly #options: ServerOptions;
  readonly #address: Address;
  #handler: MessageHandler;
  #mode: 'primary' | 'standby';
  /** The term of this primary, or of the one that we stand by for. */
  #term: number;
  readonly #terms = new ServerTerms();
  /** A primary's messages that its standby has not acknowledged, in order of their numbers. Undefined: there is no standby. */
  #delayed: { readonly number: number; readonly msg: Msg }[] | undefined;
  /** Number of the last forwarded message, whichever standby it went to. */
  #forwarded = 0;
  /** The stream to the standby, or to us as a standby: a state and the messages that followed. */
  #stream: Stream = { term: 0, number: 0 };
  /** The state that is arriving at a standby; and whether it is there. */
  #receiver = new StateReceiver();
  #informed = false;
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
    this.#handler = this.#newHandler();
  }

  #newHandler(): MessageHandler {
    return new MessageHandler(this.#options, {
      counters: this.counters,
      term: () => this.#term,
      isSilent: () => this.#mode === 'standby',
      serves: () => this.#mode === 'primary' && !this.#closed,
      pause: (until) => this.#pause(until),
      whenRunning: (action) => this.#whenRunning(action),
      act: (msg) => this.#act(msg),
      forward: (msg) => this.#delayed && this.#forward(msg, this.#stream.number),
      onUnattached: () => {
        this.#attachFailed = true;
      },
    });
  }

  /** Loads the latest snapshot, if there is one. @throws ShoalError of the store, `mismatch` for another server's. */
  static async start(options: ServerOptions): Promise<ServerCore> {
    const core = new ServerCore(options);
    if (options.mode === 'standby') return core;
    const { state, checkpoints } = core.#handler;
    const snapshot = await options.snapshots?.load();
    if (snapshot !== undefined) restoreSnapshot(state, snapshot, { exchange: 'drop' });
    checkpoints.schedule();
    return core;
  }

  /** Takes any message, from clients, other servers, the primary or the standby. Never throws: see `onFault`. */
  receive(msg: Msg): void {
    if (this.#closed) return msg.release();
    // Memory that a backend lends is kept only for gradients that are about to be summed, and not for a standby, who gets them too.
    if (msg.type !== KVMessage.update || this.#options.topology.replicas === 2) this.#handler.own(msg);
    try {
      if (this.#mode === 'standby') this.#receiveAsStandby(msg);
      else this.#receiveAsPrimary(msg);
    } catch (thrown) {
      this.#handler.fault(msg, thrown);
    }
  }

  /** A connection with a client, server or the standby has been made (again): what may have been lost is sent again. */
  peerUp(address: Address): void {
    if (this.#closed || this.#mode === 'standby') return;
    if (address === this.#options.standby) {
      this.#standbyWaits = true;
      this.#welcomeStandby();
    } else if (roleOf(address) === Role.server) this.#whenRunning(() => this.#handler.serverUp(address));
  }

  /** A standby's connection is lost: the primary goes on alone. A client that will not come back: rounds that miss its
   *  workers fail with its error; where workers come and go, they are settled without them. @param place of a client that may not have come
   *  yet. */
  peerLost(address: Address, error: ShoalError, place?: LostPlace): void {
    if (this.#closed) return;
    if (address === this.#options.standby) {
      this.#standbyWaits = false;
      return this.#goOnAlone();
    }
    // In its place among the messages, for the standby as well.
    if (this.#mode === 'primary') this.receive(this.#handler.lossOf(address, error, place));
  }

  /** A client has closed its connection: what it pushed counts; what it waits for it asks again if it comes back, and its memory may be in
   *  use for other things by then. */
  peerLeft(address: Address): void {
    this.#whenRunning(() => {
      const { sessions, transfers } = this.#handler.state;
      const session = sessions.get(address);
      if (session !== undefined && !this.#closed) transfers.abandon(session);
    });
  }

  get load(): ServerLoad {
    const { sessions, slots } = this.#handler.state;
    let waiting = this.#paused.length + (this.#delayed?.length ?? 0);
    for (const session of sessions.values()) waiting += session.waiting;
    return { waiting, keys: slots.count, clients: sessions.size };
  }

  /** A standby that has its primary's state, and can take over. */
  get informed(): boolean {
    return this.#informed;
  }

  /** The standby serves from now on. It must be `informed`. @returns the clients, which may wait for answers of the primary that is lost. */
  promote({ term }: { readonly term: number }): Address[] {
    if (this.#mode === 'primary' || this.#closed) return [];
    this.#mode = 'primary';
    this.#term = term;
    this.#stream = { term, number: 0 };
    this.#handler.state.sources.writes = 'targets';
    this.#handler.checkpoints.schedule();
    this.#whenRunning(() => this.#handler.serve());
    for (const hello of this.#hellos.values()) this.receive(hello);
    this.#hellos.clear();
    return [...this.#handler.state.sessions.values()].filter(({ replaced }) => !replaced).map(({ address }) => address);
  }

  /** All workers of the client have said that they leave. */
  hasLeft(client: Address): boolean {
    const session = this.#handler.state.sessions.get(client);
    return session !== undefined && session.workersLeft >= session.member.workers;
  }

  /** Without: another process is this server now, or another core. @returns hellos that nobody has answered. */
  abandon(): Msg[] {
    this.#closed = true;
    this.#handler.checkpoints.close();
    return [...this.#hellos.values()];
  }

  /** After a last snapshot, when there is a place for it. Idempotent. */
  async close(): Promise<void> {
    if (this.#closed) return;
    const { state, checkpoints } = this.#handler;
    if (this.#mode === 'primary' && state.dirty) await checkpoints.save();
    this.#closed = true;
    state.sync.close();
    checkpoints.close();
  }

  #receiveAsPrimary(msg: Msg): void {
    if (msg.type === KVMessage.forwarded) return this.#acknowledge(msg);
    if (msg.type === KVMessage.forward || msg.type === KVMessage.state) {
      // A primary whose place we have taken does not know it yet.
      if (msg.targetVersion < this.#term) return;
      throw new ShoalError('protocol', 'a message for a standby reached a server that is none');
    }
    if (this.#isLate(msg)) return msg.release();
    if (this.#delayed === undefined) return this.#act(msg);
    this.#forwarded++;
    this.#delayed.push({ number: this.#forwarded, msg });
    return this.#forward(msg, this.#forwarded);
  }

  /** True for a message that an earlier connection of a client left behind: it is repeated on the present one. Decided on arrival, so that
   *  a standby hears exactly what its primary acts on. */
  #isLate(msg: Msg): boolean {
    const { source, type, targetVersion } = msg;
    if (roleOf(source) === Role.server) return this.#terms.isPast(msg);
    const epoch = this.#epochs.get(source) ?? 0;
    if (type !== KVMessage.hello) return targetVersion !== epoch;
    if (targetVersion <= epoch) return true;
    readControl(msg.frames[0], Fields.hello);
    const isOneTooMany = this.#options.elastic !== true && this.#epochs.size >= this.#handler.state.workers;
    if (epoch === 0 && isOneTooMany) return true;
    this.#epochs.set(source, targetVersion);
    return false;
  }

  #act(msg: Msg, attach: Attach = 'allowed'): void {
    if (this.#pausing === 0) return this.#handler.act(msg, attach);
    this.#handler.own(msg);
    this.#paused.push(() => this.#act(msg, attach));
    return undefined;
  }

  // ── the primary's standby ──────────────────────────────────────────────────────────────────────────────────────

  #acknowledge(msg: Msg): void {
    const { term, verdict } = readVerdict(msg);
    // A process that another primary has made its standby speaks of that one's messages.
    if (term !== this.#term || msg.targetValue < this.#stream.number || this.#delayed === undefined) return;
    if (verdict === Verdict.unfit) return this.#goOnAlone();
    if (verdict === Verdict.informed) return this.#options.onStandbyInformed?.();
    if (this.#delayed[0]?.number === msg.targetValue)
      this.#act(this.#delayed.shift()!.msg, verdict === Verdict.unattached ? 'refused' : 'allowed');
  }

  /** Everything it must know, then everything that is not settled. */
  #welcomeStandby(): void {
    const { standby } = this.#options;
    if (!this.#standbyWaits || this.#pausing > 0 || this.#closed || standby === undefined) return;
    this.#standbyWaits = false;
    this.#goOnAlone();
    const { state } = this.#handler;
    const sessions = [...state.sessions.values()];
    const regions = sessions.flatMap((session) =>
      [...session.regions].map(([region, { handle, bytes }]) => [String(session.address), region, handle, bytes]),
    );
    // Numbers go on: what was said about an earlier standby's messages is not about these.
    this.#forwarded++;
    this.#stream = { term: this.#term, number: this.#forwarded };
    const envelope = { source: this.#address, standby, stream: this.#stream };
    const fields = { regions, terms: this.#terms.pack() };
    for (const msg of stateMessages(takeSnapshot(state), envelope, fields)) this.#options.send(standby, msg);
    this.#delayed = [];
    // It acknowledges these too; a number that nobody waits for.
    for (const session of sessions) {
      const { lost, member } = session;
      const losses = lost && member.gone ? [this.#handler.lossOf(session.address, member.gone)] : [];
      for (const msg of [...session.unsettledMessages(), ...session.blocked, ...losses]) this.#forward(msg, this.#stream.number);
    }
  }

  #forward(msg: Msg, number: number): void {
    const { standby } = this.#options;
    if (standby === undefined) return;
    this.#options.send(standby, wrap(msg, { source: this.#address, standby, stream: { term: this.#term, number } }));
  }

  #goOnAlone(): void {
    const waiting = this.#delayed ?? [];
    this.#delayed = undefined;
    for (const { msg } of waiting) this.#act(msg);
  }

  // ── a standby ──────────────────────────────────────────────────────────────────────────────────────────────────

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
      for (const client of this.#handler.state.sessions.keys()) this.#options.valuesOf(client).close();
      this.#receiver = new StateReceiver();
      this.#informed = false;
      this.#paused = [];
      this.#handler = this.#newHandler();
    }
    const whole = this.#receiver.receive(msg);
    if (whole === undefined) return;
    restoreSnapshot(this.#handler.state, whole.snapshot, { exchange: 'keep' });
    this.#terms.unpack(whole.terms);
    for (const entry of whole.regions) this.#attach(entry);
    this.#informed = true;
    this.#say(number, Verdict.informed);
  }

  #attach(entry: unknown): void {
    const [source, ...region] = entry as [string, ...unknown[]];
    const { region: number, handle, bytes } = readRegion(region);
    if (!this.#options.valuesOf(BigInt(source)).attach(number, handle, bytes))
      throw new ShoalError('unsupported', 'a standby cannot map memory that its primary has mapped; run both on one host');
    this.#handler.state.sessions.get(BigInt(source))?.regions.set(number, { handle, bytes });
  }

  #receiveForward(msg: Msg): void {
    const { targetValue: number, targetVersion: term } = msg;
    // The primary is none any more, or the message is from before the state that we have.
    if (term !== this.#stream.term || number < this.#stream.number) return;
    if (!this.#informed) return this.#say(number, Verdict.unfit);
    const inner = unwrap(msg);
    this.#whenRunning(() => {
      this.#attachFailed = false;
      if (roleOf(inner.source) === Role.server) this.#terms.isPast(inner);
      this.#act(inner);
      this.#whenRunning(() => this.#say(number, this.#attachFailed ? Verdict.unattached : Verdict.attached));
    });
  }

  #say(number: number, verdict: number): void {
    const epoch = verdict + this.#stream.term * Verdict.count;
    const envelope = { source: this.#address, destination: this.#address, type: KVMessage.forwarded, request: number, epoch };
    this.#options.send(this.#address, makeMessage(envelope, []));
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
}
