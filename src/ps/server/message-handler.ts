/** Acts on messages of clients and other servers, and sends the answers. The core decides which messages are handled, and when; the parts
 *  of the state (state/server-state.ts) and of the server do what they ask for. Begins as a server that knows nothing yet. */
import { must } from '../../base/assert.ts';
import type { Timer } from '../../base/clock.ts';
import { ShoalError } from '../../base/errors.ts';
import { groupOf, idOf, roleOf, type Address } from '../../messaging/address.ts';
import type { Msg } from '../../messaging/msg.ts';
import type { LostPlace } from '../job/lost-workers.ts';
import { ServerBarrier } from './barrier.ts';
import { ServerCheckpoints } from './checkpoints.ts';
import { ServerControl } from './control.ts';
import { ServerFollowers } from './followers.ts';
import { ServerGroups } from './groups.ts';
import type { Outbound, ServerActions, ServerOptions } from './state/server-options.ts';
import { describeWorkers } from './state/rounds.ts';
import type { ServerRequest, ServerSession } from './state/client-session.ts';
import { ServerState } from './state/server-state.ts';
import { withTerm } from './terms.ts';
import { Role } from '../protocol/singa.ts';
import { serverAddress } from '../protocol/topology.ts';
import { encodeControl, Fields, packError, packNotice, readControl, unpackError, type ControlFields } from '../protocol/wire-control.ts';
import { encodeFailure, encodeResponse, KVMessage, makeMessage, TargetKind, type Envelope } from '../protocol/wire.ts';

/** A client with credit left hears within this time that its request waits. */
const acceptedMs = 1;

/** Whether memory that a message announces may be mapped: the standby must be able to map it as well. */
export type Attach = 'allowed' | 'refused';

/** The core, as its handler sees it. */
export interface HandlingCore extends Pick<ServerActions, 'counters' | 'pause' | 'isSilent' | 'onUnattached'> {
  /** The term of this primary, or of the one that we stand by for. */
  readonly term: () => number;
  /** False for a standby, and when the core is closed: nothing is sent. */
  readonly serves: () => boolean;
  /** Tells the standby what this server asks of another group by itself. */
  readonly forward: (msg: Msg) => void;
  /** Handles a message that has waited, when nothing is paused. */
  readonly act: (msg: Msg) => void;
  readonly whenRunning: (action: () => void) => void;
}

export class MessageHandler {
  readonly state: ServerState;
  readonly checkpoints: ServerCheckpoints;
  readonly #options: ServerOptions;
  readonly #core: HandlingCore;
  readonly #address: Address;
  readonly #control: ServerControl;
  readonly #barrier: ServerBarrier;
  readonly #followers: ServerFollowers;
  readonly #groups: ServerGroups;
  /** Requests that have been accepted, of which their clients do not know yet. */
  readonly #accepted: ServerRequest[] = [];
  #acceptedTimer: Timer | undefined;
  /** Handlers of messages between servers, by type; `group` is the sender's. A server also speaks to itself, and a primary to its
   *  standby. */
  readonly #fromServers: Readonly<Record<number, (msg: Msg, group: number) => void>> = {
    [KVMessage.lost]: (msg) => this.#loseClient(msg),
    [KVMessage.syncRequest]: (msg, group) =>
      // An exchange that comes from the primary is taken over by its standby.
      msg.source === this.#address ? this.state.sync.adopt(msg) : this.state.sync.receiveRequest(group, msg),
    [KVMessage.syncResponse]: (msg) => this.state.sync.receiveResponse(msg),
    [KVMessage.syncNotice]: (msg) => this.state.sync.receiveNotice(msg),
    [KVMessage.follow]: (msg, group) => this.#followers.receiveFollow(group, msg),
    [KVMessage.followed]: (msg) => this.#followers.receiveFollowed(msg),
    [KVMessage.gather]: (msg, group) => this.#groups.receiveGather(group, msg),
    [KVMessage.gathered]: (msg, group) => this.#groups.receiveGathered(group, msg),
    [KVMessage.assign]: (msg, group) => this.#groups.receiveAssign(group, msg),
    [KVMessage.assigned]: (msg, group) => this.#groups.receiveAssigned(group, msg),
    [KVMessage.barrierReached]: (msg, group) => this.#barrier.reached(group, msg.targetValue),
    [KVMessage.barrierReleased]: (msg) => this.#barrier.released(msg.targetValue),
  };

  constructor(options: ServerOptions, core: HandlingCore) {
    this.#options = options;
    this.#core = core;
    this.#address = serverAddress(options.group, options.server);
    this.state = new ServerState(options, {
      ...core,
      send: (group, message) => this.#toServer(group, message),
      respond: (request) => this.#respond(request),
      reply: (session, request, fields) => this.#reply(session, request, fields),
      durable: () => (core.isSilent() ? Promise.resolve() : this.checkpoints.save()),
      tellDurable: (session) => this.#toClient(session, KVMessage.durable, session.durable, []),
      onDue: () => core.whenRunning(() => this.flush()),
      onExchanged: () => {
        this.state.dirty = true;
        this.#groups.progress();
      },
      onFollowed: () => this.#control.committed(),
      onCommit: () => this.#unblock(),
    });
    this.#groups = new ServerGroups(this.state);
    this.#followers = new ServerFollowers(this.state);
    this.#barrier = new ServerBarrier(this.state);
    this.checkpoints = new ServerCheckpoints(this.state);
    const parts = { barrier: this.#barrier, followers: this.#followers, groups: this.#groups, checkpoints: this.checkpoints };
    this.#control = new ServerControl(this.state, parts);
  }

  /** Bad input ends here: whoever sent it is told, and nobody else notices. */
  act(msg: Msg, attach: Attach): void {
    try {
      this.#act(msg, attach);
    } catch (thrown) {
      this.fault(msg, thrown);
    }
  }

  fault(msg: Msg, thrown: unknown): void {
    const error = ShoalError.from(thrown);
    const session = this.state.sessions.get(msg.source);
    if (session !== undefined && msg.targetVersion === session.epoch && isTransfer(msg)) this.#refuse(session, msg, error);
    this.#options.onFault?.(msg.source, error);
  }

  /** Serves from now on, with what a standby knows. */
  serve(): void {
    this.#followers.follow({ again: true });
    this.state.sync.peerUp();
    this.#groups.peerUp();
    this.flush();
  }

  /** A connection with another server has been made (again): what may have been lost is sent again. */
  serverUp(address: Address): void {
    this.#followers.follow({ again: true });
    this.state.sync.peerUp(groupOf(address));
    if (idOf(address) === this.#options.server) this.#groups.peerUp(groupOf(address));
    this.flush();
    if (this.#options.server === 0) this.#barrier.update();
  }

  /** The standby does not decide when to exchange with another group: it is told (`#toServer`). */
  flush(): void {
    if (this.#core.serves()) this.state.sync.flush();
  }

  /** Copies what a backend has lent. The first frame is no value. */
  own(msg: Msg): void {
    const [head] = msg.frames;
    this.#core.counters.bytesCopied += Math.max(0, msg.own() - (head?.byteLength ?? 0));
  }

  /** The message from a primary to itself, and with that to its standby, that a client counts as lost. */
  lossOf(client: Address, error: ShoalError, place?: LostPlace): Msg {
    const fields = { client: String(client), error: packError(error), ...place };
    const envelope = { source: this.#address, destination: this.#address, type: KVMessage.lost, request: 0, epoch: 0 };
    return makeMessage(envelope, withTerm([encodeControl(fields)], this.#core.term()));
  }

  #act(msg: Msg, attach: Attach): void {
    const { source } = msg;
    if (roleOf(source) === Role.server) this.#fromServer(msg);
    else if (msg.type === KVMessage.hello) this.#hello(msg);
    else {
      const session = this.state.sessions.get(source);
      if (session === undefined) msg.release();
      else this.#fromClient(session, msg, attach);
    }
    if (this.state.repeats && this.state.hasHeardAll(isAboutAll)) {
      // Takes requests that have waited until workers had repeated theirs.
      this.state.repeats = false;
      this.#unblock();
      this.#groups.progress();
    }
    this.flush();
  }

  // ── clients ────────────────────────────────────────────────────────────────────────────────────────────────────

  #hello(msg: Msg): void {
    const { group, first, workers, barrier, left, last, joins = false } = readControl(msg.frames[0], Fields.hello);
    const { elastic = false } = this.#options;
    const known = this.state.sessions.get(msg.source);
    const { lost } = known ?? {};
    // Whoever was taken out stays out, and is told so when it asks for something.
    const session = known?.replaced === true ? known : this.state.join(msg.source, group, first, workers, elastic && joins);
    if (msg.targetVersion <= session.epoch) return;
    this.state.transfers.abandon(session);
    session.renew(msg.targetVersion, last);
    if (elastic) session.lost = lost;
    session.barrier = Math.max(session.barrier, barrier);
    session.member.gone = undefined;
    session.member.broken = false;
    const { lineage, committed, optimizerNotice } = this.state;
    const fields = {
      term: this.#core.term(),
      lineage,
      committed,
      durable: session.durable,
      log: this.#options.snapshots !== undefined,
      ...packNotice(optimizerNotice),
    };
    this.#toClient(session, KVMessage.welcome, 0, [encodeControl(fields)]);
    this.#control.left(session, left);
    if (this.#options.server === 0) this.#barrier.update();
  }

  /** Rounds that miss its workers fail with its error, and so does whatever it asks until it says hello again. */
  #loseClient(msg: Msg): void {
    if (msg.source !== this.#address) throw new ShoalError('protocol', 'a server speaks of a client that is not its own');
    const { client, error: packed, group, first, workers, returns = true } = readControl(msg.frames[0], Fields.lost);
    const address = BigInt(client);
    let session = this.state.sessions.get(address);
    // One that was lost before it said hello, unless another has come in its place.
    const isFree = ![...this.state.sessions.values()].some(({ member }) => member.firstWorker === first);
    if (first !== undefined && isFree) session ??= this.state.join(address, group!, first, workers!);
    const error = unpackError(packed);
    if (session === undefined || error === undefined) return;
    const lost = new ShoalError(error.code, `${describeWorkers(session.member)} counts as lost: it ${error.message}`);
    if (this.#options.elastic === true) {
      this.state.dismiss(session, lost);
      session.returns = returns;
      if (this.#options.server === 0) this.#barrier.update();
    } else {
      session.lost = lost;
      session.member.gone ??= error;
      // Its memory is gone with it: what it pushed by reference cannot be read any more.
      session.member.broken = true;
      this.state.transfers.failOf(session, session.lost);
      this.state.transfers.failStuck(session.rounds);
    }
    session.regions.clear();
    this.#options.valuesOf(session.address).close();
  }

  #fromClient(session: ServerSession, msg: Msg, attach: Attach): void {
    // A failure is reported to `onCheckpoint`; clients keep what is not durable.
    if (msg.type === KVMessage.checkpoint) return void this.checkpoints.save().catch(() => undefined);
    // It was silent for so long that nobody waits for it any more, and goes on over the same connection.
    if (session.lost !== undefined && msg.type !== KVMessage.leave) {
      msg.release();
      return this.#refuse(session, msg, session.lost);
    }
    if (msg.type === KVMessage.recall) return this.#recall(session, msg.targetValue);
    const isEarly = msg.type === KVMessage.enter && this.#entersEarly(msg);
    if (session.blocked.length > 0 || isEarly || (this.state.repeats && isAboutAll(msg))) return this.#block(session, msg);
    if (isTransfer(msg)) return this.#transfer(session, msg);
    session.lastRequest = Math.max(session.lastRequest, msg.targetValue);
    return this.#control.receive(session, msg, { attach });
  }

  #transfer(session: ServerSession, msg: Msg): void {
    const { transfers, directory, committed, committedSlots, optimizerVersion } = this.state;
    const decoded = transfers.decode(msg);
    const isPut = msg.type === KVMessage.put;
    // A server that has come back from an old snapshot hears of these again, from worker 0. First values need no optimiser.
    const isMissing = decoded.batches > (isPut ? directory.batches : committed) || (!isPut && decoded.optimizer > optimizerVersion);
    if (isMissing) return this.#block(session, msg);
    session.lastRequest = Math.max(session.lastRequest, msg.targetValue);
    if (isPut) {
      if (msg.targetValue > session.lastConfiguration) {
        transfers.put(session, msg, decoded, committedSlots);
        session.lastConfiguration = msg.targetValue;
      }
      return this.#reply(session, msg.targetValue, {});
    }
    const request = transfers.take(session, msg, decoded);
    if (request.answered) return undefined;
    this.#accepted.push(request);
    if (decoded.shortOfCredit) this.#tellAccepted();
    else this.#acceptedTimer ??= this.#options.clock.setTimer(acceptedMs, () => this.#tellAccepted());
    return undefined;
  }

  /** Tells clients which of their requests wait here. Most are answered before, and need no message of their own. */
  #tellAccepted(): void {
    this.#acceptedTimer?.cancel();
    this.#acceptedTimer = undefined;
    for (const { session, id, epoch, answered } of this.#accepted.splice(0))
      if (!answered && epoch === session.epoch) this.#toClient(session, KVMessage.accepted, id, []);
  }

  /** Not all parameters are there again, or not all rounds, in which a client that comes later would be told how far they are. */
  #entersEarly(msg: Msg): boolean {
    const { batches, rounds } = readControl(msg.frames[0], Fields.enter);
    return batches > this.state.committed || (this.state.repeats && rounds === undefined);
  }

  #block(session: ServerSession, msg: Msg): void {
    this.own(msg);
    session.blocked.push(msg);
  }

  /** Batches have come that messages have waited for. */
  #unblock(): void {
    for (const session of this.state.sessions.values()) for (const msg of session.blocked.splice(0)) this.#core.act(msg);
  }

  #recall(session: ServerSession, request: number): void {
    const error = new ShoalError('aborted', 'the client does not wait for it any more');
    this.state.transfers.failOf(session, error, request);
    const index = session.blocked.findIndex(({ targetValue }) => targetValue === request);
    for (const msg of index < 0 ? [] : session.blocked.splice(index, 1)) this.#refuse(session, msg, error);
  }

  // ── other servers ──────────────────────────────────────────────────────────────────────────────────────────────

  #fromServer(msg: Msg): void {
    const group = groupOf(msg.source);
    const { server, topology } = this.#options;
    if (group >= topology.serverGroups || idOf(msg.source) !== server) throw new ShoalError('protocol', 'a message of a strange server');
    const take = this.#fromServers[msg.type];
    if (take === undefined) throw new ShoalError('protocol', `a server sent a message of type ${msg.type}`);
    take(msg, group);
  }

  // ── sending ────────────────────────────────────────────────────────────────────────────────────────────────────

  #respond(request: ServerRequest): void {
    const type = request.msg.type === KVMessage.get ? KVMessage.getResponse : KVMessage.updateResponse;
    const { transfers } = this.state;
    if (request.epoch !== request.session.epoch || this.#core.isSilent()) return transfers.returnLoans(request);
    if (request.error !== undefined) {
      transfers.returnLoans(request);
      return this.#toClient(request.session, type, request.id, encodeFailure(request.error));
    }
    const { runs } = request;
    const hasValues = runs.some(({ run: { target } }) => target === TargetKind.inline || target === TargetKind.frame);
    const inline = hasValues ? [request.payload ?? new Uint8Array(0)] : [];
    const states = runs.map(({ state }) => state);
    const msg = makeMessage(this.#envelopeTo(request.session, type, request.id), [
      encodeResponse(this.state.optimizerNotice, states),
      ...inline,
    ]);
    for (const { run, frame } of runs) {
      if (run.target !== TargetKind.frame) continue;
      const values = must(frame, () => 'a run that is settled has its values');
      if (run.targetRegion === 0) msg.addFrame(values);
      else msg.addPlacedFrame(values, { rkey: run.targetRegion, offset: run.targetOffset });
    }
    if (runs.some(({ loan }) => loan !== undefined)) msg.onDelivered(() => transfers.returnLoans(request));
    this.#send(request.session.address, msg);
  }

  #refuse(session: ServerSession, msg: Msg, error: ShoalError): void {
    if (msg.type === KVMessage.update || msg.type === KVMessage.get)
      return this.#toClient(session, KVMessage.updateResponse, msg.targetValue, encodeFailure(error));
    return this.#reply(session, msg.targetValue, { error: packError(error) });
  }

  #reply(session: ServerSession, request: number, fields: ControlFields): void {
    this.#toClient(session, KVMessage.done, request, [encodeControl(fields)]);
  }

  #toClient(session: ServerSession, type: number, request: number, frames: readonly Uint8Array[]): void {
    this.#send(session.address, makeMessage(this.#envelopeTo(session, type, request), frames));
  }

  #envelopeTo(session: ServerSession, type: number, request: number): Envelope {
    return { source: this.#address, destination: session.address, type, request, epoch: session.epoch };
  }

  #toServer(group: number, { type, request = 0, epoch = 0, frames = [] }: Outbound): void {
    const destination = serverAddress(group, this.#options.server);
    const msg = makeMessage({ source: this.#address, destination, type, request, epoch }, withTerm(frames, this.#core.term()));
    if (type === KVMessage.syncRequest) this.#core.forward(msg);
    this.#send(destination, msg);
  }

  #send(destination: Address, msg: Msg): void {
    if (this.#core.serves()) this.#options.send(destination, msg);
  }
}

function isTransfer({ type }: Msg): boolean {
  return type === KVMessage.update || type === KVMessage.get || type === KVMessage.put;
}

/** True for requests about the state of all workers, which is wrong while pushes of some are missing. */
function isAboutAll({ type }: Msg): boolean {
  return type === KVMessage.saveState || type === KVMessage.loadState;
}
