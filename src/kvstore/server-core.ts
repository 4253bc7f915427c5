/** One server of the parameter server, as a state machine: messages in, messages out. It must not know sockets, threads or
 *  processes; who calls it calls one method at a time. This file decides who is heard, and when; server-state.ts is what
 *  there is to know, server-transfers.ts and server-control.ts are what is done.
 *
 *    receive ─▶ standby there? ─▶ forward, wait for its word ─▶ paused? wait ─▶ epoch right? ─▶ act ─▶ send */
import { ShoalError } from '../base/errors.ts';
import { groupOf, idOf, Role, roleOf, type Address } from '../messaging/address.ts';
import type { Msg } from '../messaging/msg.ts';
import { ServerBarrier } from './server-barrier.ts';
import { ServerCheckpoints } from './server-checkpoints.ts';
import { readRegion, ServerControl } from './server-control.ts';
import { ServerFollowers } from './server-followers.ts';
import type { ServerOptions } from './server-options.ts';
import { DelayLine, notAStandby, StateReceiver, stateMessages, unwrap, wrap } from './server-replica.ts';
import type { ServerRequest } from './server-request.ts';
import type { ServerSession } from './server-session.ts';
import { restoreSnapshot, takeSnapshot } from './server-snapshot.ts';
import { ServerState, type Outbound } from './server-state.ts';
import { serverAddress } from './topology.ts';
import { Control, encodeControl, packError, packNotice, type ControlFields } from './wire-control.ts';
import { encodeFailure, encodeResponse, KVMessage, makeMessage, TargetKind } from './wire.ts';

/** What the standby says of a forwarded message: whether it could map the memory announced in it; that it cannot be a
 *  standby, because it has not got the state. */
const forwardedAttached = 0;
const forwardedUnattached = 1;
const forwardedUnfit = 2;

export class ServerCore {
  readonly #options: ServerOptions;
  readonly #address: Address;
  readonly #state: ServerState;
  readonly #control: ServerControl;
  readonly #barrier: ServerBarrier;
  readonly #followers: ServerFollowers;
  readonly #checkpoints: ServerCheckpoints;
  #mode: 'primary' | 'standby';
  #delay: DelayLine | undefined;
  /** Number of the last forwarded message, whichever standby it went to. */
  #forwarded = 0;
  /** Of a standby: the state that is arriving; whether it is there. */
  #receiver = new StateReceiver();
  #informed = false;
  /** Of a standby: who has tried to reach it. */
  readonly #hellos = new Map<Address, Msg>();
  /** By stub: its connection that counts. */
  readonly #epochs = new Map<Address, number>();
  /** Of messages that came while paused: what to do then. */
  readonly #paused: (() => void)[] = [];
  #pausing = 0;
  #attachFailed = false;
  #closed = false;

  private constructor(options: ServerOptions) {
    this.#options = options;
    this.#mode = options.mode;
    this.#address = serverAddress(options.group, options.server);
    const send = (destination: Address, message: Outbound): void => this.#send(destination, message);
    this.#state = new ServerState(options, { send, respond: (request) => this.#respond(request) });
    this.#followers = new ServerFollowers(this.#state, { send, onCommit: () => this.#control.committed() });
    this.#barrier = new ServerBarrier(this.#state, {
      send,
      done: (session, request) => this.#reply(session, request, packNotice(this.#state.optimizerNotice)),
    });
    this.#checkpoints = new ServerCheckpoints(this.#state, (session) => this.#tellDurable(session));
    this.#control = new ServerControl(
      this.#state,
      { barrier: this.#barrier, followers: this.#followers, checkpoints: this.#checkpoints },
      {
        reply: (session, request, fields) => this.#reply(session, request, fields),
        pause: (until) => this.#pause(until),
        onUnattached: () => {
          this.#attachFailed = true;
        },
        onCommit: () => this.#unblock(),
      },
    );
  }

  /** Loads the latest snapshot, if there is one. @throws ShoalError of the store, `mismatch` for another server's. */
  static async start(options: ServerOptions): Promise<ServerCore> {
    const core = new ServerCore(options);
    const snapshot = options.mode === 'primary' ? await options.snapshots?.load() : undefined;
    if (snapshot !== undefined) restoreSnapshot(core.#state, snapshot, { exchange: 'drop' });
    if (options.mode === 'primary') core.#checkpoints.schedule();
    return core;
  }

  /** Whatever arrived, from stubs, other servers, the primary or the standby. Never throws: see `onFault`. */
  receive(msg: Msg): void {
    if (this.#closed) return;
    this.#guard(msg, () => {
      if (this.#mode === 'standby') return this.#receiveAsStandby(msg);
      if (msg.type === KVMessage.forwarded) return this.#acknowledge(msg);
      if (msg.type === KVMessage.forward || msg.type === KVMessage.state) throw notAStandby();
      if (this.#isLate(msg)) return undefined;
      const { standby } = this.#options;
      if (this.#delay !== undefined && standby !== undefined) {
        this.#forwarded = this.#delay.add(msg);
        this.#options.send(standby, wrap(msg, this.#address, standby, this.#forwarded));
        return undefined;
      }
      return this.#act(msg);
    });
  }

  /** A connection with a stub, server or the standby has been made (again): what may have been lost is sent again. */
  peerUp(address: Address): void {
    if (this.#closed || this.#mode === 'standby') return;
    if (address === this.#options.standby) return this.#whenRunning(() => this.#welcomeStandby(address));
    if (roleOf(address) !== Role.server) return;
    this.#whenRunning(() => {
      this.#followers.follow({ again: true });
      this.#state.sync.resend();
      this.#flush();
      if (this.#options.server === 0) this.#barrier.update();
    });
  }

  /** A standby's connection is lost: the primary goes on alone. A stub that will not come back: rounds that miss its
   *  workers fail with its error. */
  peerLost(address: Address, error: ShoalError): void {
    if (this.#closed) return;
    if (address === this.#options.standby) return this.#goOnAlone();
    const session = this.#state.sessions.get(address);
    if (session === undefined) return;
    session.member.gone ??= error;
    // Its memory is gone with it: what it pushed by reference cannot be read any more.
    session.member.broken = true;
    this.#state.transfers.failStuck(session.rounds);
  }

  /** A standby that has its primary's state, and can take over. */
  get informed(): boolean {
    return this.#informed;
  }

  /** The standby serves from now on. It must be `informed`. */
  promote(): void {
    if (this.#mode === 'primary' || this.#closed) return;
    this.#mode = 'primary';
    this.#state.sources.writes = 'targets';
    this.#checkpoints.schedule();
    const hellos = [...this.#hellos.values()];
    this.#hellos.clear();
    this.#whenRunning(() => {
      this.#followers.follow({ again: true });
      this.#state.sync.resend();
      this.#flush();
    });
    for (const hello of hellos) this.receive(hello);
  }

  /** Resolves when the present state is durable; at once without snapshots. */
  checkpoint(): Promise<void> {
    return this.#checkpoints.save();
  }

  /** After a last snapshot, when there is a place for it. Idempotent. */
  async close(): Promise<void> {
    if (this.#closed) return;
    if (this.#mode === 'primary' && this.#state.dirty) await this.#checkpoints.save();
    this.#closed = true;
    this.#checkpoints.close();
  }

  /** What an earlier connection of a stub left behind: it is repeated on the present one. Decided on arrival, so that a
   *  standby hears exactly what its primary acts on. */
  #isLate(msg: Msg): boolean {
    const { source, type, targetVersion } = msg;
    if (roleOf(source) === Role.server) return false;
    const epoch = this.#epochs.get(source) ?? 0;
    if (type !== KVMessage.hello) return targetVersion !== epoch;
    if (targetVersion <= epoch) return true;
    readHello(msg);
    if (epoch === 0 && this.#epochs.size >= this.#state.workers) return true;
    this.#epochs.set(source, targetVersion);
    return false;
  }

  // ── standby and primary ────────────────────────────────────────────────────────────────────────────────────────

  #receiveAsStandby(msg: Msg): void {
    if (msg.type === KVMessage.hello) {
      this.#hellos.set(msg.source, msg);
    } else if (msg.type === KVMessage.state) {
      const whole = this.#receiver.receive(msg);
      if (whole === undefined) return;
      restoreSnapshot(this.#state, whole.snapshot, { exchange: 'keep' });
      for (const entry of whole.fields.list('regions')) this.#attach(entry);
      this.#informed = true;
    } else if (msg.type === KVMessage.forward && !this.#informed) {
      this.#sayForwarded(msg.targetValue, forwardedUnfit);
    } else if (msg.type === KVMessage.forward) {
      const inner = unwrap(msg);
      this.#whenRunning(() => {
        this.#attachFailed = false;
        this.#guard(inner, () => this.#act(inner));
        this.#whenRunning(() => {
          this.#sayForwarded(msg.targetValue, this.#attachFailed ? forwardedUnattached : forwardedAttached);
        });
      });
    }
  }

  #sayForwarded(request: number, epoch: number): void {
    const destination = this.#options.primary ?? this.#address;
    const envelope = { source: this.#address, destination, type: KVMessage.forwarded, request, epoch };
    this.#options.send(destination, makeMessage(envelope, []));
  }

  #acknowledge(msg: Msg): void {
    if (msg.targetVersion === forwardedUnfit) return this.#goOnAlone();
    const next = this.#delay?.take(msg.targetValue);
    if (next === undefined) return;
    this.#guard(next, () => this.#act(next, msg.targetVersion === forwardedUnattached ? 'refused' : 'allowed'));
  }

  /** Everything it must know, then everything that is not settled. */
  #welcomeStandby(standby: Address): void {
    this.#goOnAlone();
    const { sessions } = this.#state;
    const regions = [...sessions.values()].flatMap((session) =>
      [...session.regions].map(([region, { handle, bytes }]) => [String(session.address), region, handle, bytes]),
    );
    for (const msg of stateMessages(takeSnapshot(this.#state), this.#address, standby, { regions })) this.#options.send(standby, msg);
    this.#delay = new DelayLine(this.#forwarded);
    // It acknowledges these too; numbers that nobody waits for.
    for (const session of sessions.values()) {
      for (const msg of [...session.unsettledMessages(), ...session.blocked]) {
        this.#options.send(standby, wrap(msg, this.#address, standby, 0));
      }
    }
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
      this.#paused.push(() => this.#guard(msg, () => this.#act(msg, attach)));
      return;
    }
    const { source } = msg;
    if (roleOf(source) === Role.server) this.#fromServer(msg);
    else if (msg.type === KVMessage.hello) this.#hello(msg);
    else {
      const session = this.#state.sessions.get(source);
      if (session !== undefined) this.#fromStub(session, msg, attach);
    }
    this.#flush();
  }

  /** The standby does not decide when to exchange with another group: it is told (`#send`). */
  #flush(): void {
    if (this.#mode === 'primary') this.#state.sync.flush();
  }

  #hello(msg: Msg): void {
    const { group, first, workers, barrier, left } = readHello(msg);
    const session = this.#state.join(msg.source, group, first, workers);
    if (msg.targetVersion <= session.epoch) return;
    this.#state.transfers.abandon(session);
    session.renew(msg.targetVersion);
    session.barrier = Math.max(session.barrier, barrier);
    session.member.gone = undefined;
    session.member.broken = false;
    const { lineage, committed, optimizerNotice } = this.#state;
    const envelope = { source: this.#address, destination: msg.source, type: KVMessage.welcome, request: 0, epoch: session.epoch };
    const fields = {
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

  #fromStub(session: ServerSession, msg: Msg, attach: 'allowed' | 'refused'): void {
    if (msg.type === KVMessage.checkpoint) return this.#saveSoon();
    if (session.blocked.length > 0) {
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
    if (!request.answered) this.#toStub(session, KVMessage.accepted, msg.targetValue, []);
    return undefined;
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
      case KVMessage.syncRequest:
        if (msg.source === this.#address) return this.#state.sync.adopt(msg);
        return this.#state.sync.receiveRequest(group, msg, this.#state.committedSlots);
      case KVMessage.syncResponse:
        this.#state.sync.receiveResponse(msg);
        return this.#flush();
      case KVMessage.follow:
        return this.#followers.receiveFollow(group, msg);
      case KVMessage.followed:
        return this.#followers.receiveFollowed(msg);
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
      if (asked && (msg.type === KVMessage.update || msg.type === KVMessage.get))
        this.#toStub(session, KVMessage.updateResponse, msg.targetValue, encodeFailure(error));
      else if (asked && msg.type === KVMessage.put) this.#reply(session, msg.targetValue, { error: packError(error) });
      this.#options.onFault?.(msg.source, error);
    }
  }

  // ── pausing ────────────────────────────────────────────────────────────────────────────────────────────────────

  #pause(until: Promise<void>): void {
    this.#pausing++;
    const resume = (): void => {
      this.#pausing--;
      while (this.#pausing === 0 && this.#paused.length > 0) this.#paused.shift()!();
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
    if (request.epoch !== request.session.epoch) return;
    if (request.error !== undefined) return this.#toStub(request.session, type, request.id, encodeFailure(request.error));
    const inline = request.runs.some(({ target }) => target === TargetKind.inline) ? [request.payload ?? new Uint8Array(0)] : [];
    this.#toStub(request.session, type, request.id, [encodeResponse(this.#state.optimizerNotice, request.states), ...inline]);
  }

  #reply(session: ServerSession, request: number, fields: ControlFields): void {
    this.#toStub(session, KVMessage.done, request, [encodeControl(fields)]);
  }

  #toStub(session: ServerSession, type: number, request: number, frames: readonly Uint8Array[]): void {
    const envelope = { source: this.#address, destination: session.address, type, request, epoch: session.epoch };
    this.#sendMsg(session.address, makeMessage(envelope, frames));
  }

  #tellDurable(session: ServerSession): void {
    this.#toStub(session, KVMessage.durable, session.durable, []);
  }

  #saveSoon(): void {
    // A failure is reported to `onCheckpoint`; stubs keep what is not durable.
    this.#checkpoints.save().catch(() => undefined);
  }

  #send(destination: Address, { type, request, epoch, frames }: Outbound): void {
    const msg = makeMessage({ source: this.#address, destination, type, request, epoch }, frames);
    const { standby } = this.#options;
    if (type === KVMessage.syncRequest && this.#delay !== undefined && standby !== undefined) {
      this.#options.send(standby, wrap(msg, this.#address, standby, 0));
    }
    this.#sendMsg(destination, msg);
  }

  #sendMsg(destination: Address, msg: Msg): void {
    if (this.#mode === 'primary' && !this.#closed) this.#options.send(destination, msg);
  }
}

/** @throws ShoalError `protocol`. */
function readHello(msg: Msg): { group: number; first: number; workers: number; barrier: number; left: number } {
  const control = Control.decode(msg.frames[0]);
  return {
    group: control.count('group'),
    first: control.count('first'),
    workers: control.count('workers'),
    barrier: control.count('barrier'),
    left: control.count('left'),
  };
}
