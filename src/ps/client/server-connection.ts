/** A client's state for one server: waiting requests, requests in flight, requests kept for a server that
 *  restarts, and the repetition of requests after the connection was lost.
 *
 *    enqueue ─▶ waiting ─by priority, within credit─▶ sent ─accepted (credit returns)─▶ answered ─durable─▶ dropped
 *                                                       └──────── connection lost: sent again, in order ────────┘
 *
 *  Credit bounds the bytes that a server has not accepted, and so the time that an urgent request waits behind others. It returns when the
 *  request is accepted, not when it is answered: a reply may need other workers, which may wait for ours. */
import { ShoalError } from '../../base/errors.ts';
import type { Address } from '../../messaging/address.ts';
import type { WorkerFacts } from '../../metrics/worker-report.ts';
import type { Msg } from '../../messaging/msg.ts';
import type { Arbiter, CreditAccount, SharedResource } from '../../scheduler/arbiter.ts';
import { AnnouncedRegions } from './announced-regions.ts';
import type { ClientRequest } from './client-request.ts';
import { WaitingRequests, type Waiting } from './waiting-requests.ts';
import type { OwnValues } from '../protocol/value-space.ts';
import { encodeControl, Fields, readControl, unpackError, unpackNotice } from '../protocol/wire-control.ts';
import { decodeAnswer, KVMessage, makeMessage, type OptimizerNotice } from '../protocol/wire.ts';

export interface ServerConnectionOptions {
  readonly address: Address;
  readonly server: Address;
  /** The server's name for people. */
  readonly name: string;
  readonly values: OwnValues;
  readonly creditBytes: number;
  /** The arbiter of all that this process sends. */
  readonly arbiter: Arbiter;
  /** Bytes of requests that are kept although they have been answered. */
  readonly replayBytes: number;
  readonly send: (msg: Msg) => void;
  /** The fields of a greeting that describe this process. */
  readonly greeting: () => Record<string, unknown>;
  /** The server's state is lost, or waiting requests cannot be sent. */
  readonly onBroken: (error: ShoalError) => void;
  /** The server has said how many batches can be used. */
  readonly onCommitted: () => void;
  /** Knowledge that all connections of the client share. */
  readonly knowledge: OptimizerKnowledge;
  /** True if worker 0 is in this process. */
  readonly leads: boolean;
  /** True if another process has all that the server knows. */
  readonly hasStandby: boolean;
}

/** The newest that any server has said. */
export type OptimizerKnowledge = { -readonly [Fact in keyof OptimizerNotice]: OptimizerNotice[Fact] };

const survival = 'start servers with --checkpoint-dir <folder>, or with --replicas 2';

interface Entry extends Waiting {
  id: number;
  /** True while it is in flight and counts against the credit. */
  holdsCredit: boolean;
  accepted: boolean;
  answered: boolean;
  /** The lineage of the server that answered. */
  answeredBy: number;
  keptBytes: number;
  /** The optimiser's version that we knew when it was sent first; 0 when we knew of none. */
  optimizer: number;
}

export class ServerConnection implements Disposable {
  readonly options: ServerConnectionOptions;
  #state: 'down' | 'greeting' | 'up' | 'over' = 'down';
  #epoch = 0;
  #lineage = 0;
  /** The term of the server process that we have heard of last. */
  #term = 0;
  /** Requests up to this one were dropped, because a snapshot had them. */
  #durable = 0;
  #logs = false;
  #downReason = 'it has not been reached yet';
  #nextId = 1;
  readonly #waiting = new WaitingRequests<Entry>();
  /** Requests by number, ascending: sent and not answered, or answered and not durable. */
  readonly #sent = new Map<number, Entry>();
  #creditBytes: number;
  readonly #account: CreditAccount;
  #isPumping = false;
  #keptBytes = 0;
  #settledBytes = 0;
  #checkpointAsked = false;
  /** True while the next request waits for a snapshot of the server. */
  #logFull = false;
  /** Batches that can be used on this server. */
  committed = 0;
  readonly #regions: AnnouncedRegions;

  constructor(options: ServerConnectionOptions) {
    this.options = options;
    this.#creditBytes = options.creditBytes;
    this.#regions = new AnnouncedRegions(options.values, (request) => this.#sendFirst(this.#entry(request)));
    this.#account = options.arbiter.open({ creditBytes: () => this.#creditBytes, isDestination: true, onRoom: () => this.#onRoom() });
  }

  /** Sets the credit; requests on their way go on to count. */
  setCredit(creditBytes: number): void {
    this.#creditBytes = creditBytes;
    this.pump();
  }

  /** The requests and bytes on the way to the server, and those that wait. */
  get load(): WorkerFacts['servers'][number] {
    const { creditBytes, inFlightBytes } = this.#account;
    return { name: this.options.name, creditBytes, inFlightBytes, queued: this.#waiting.length, reconnects: Math.max(0, this.#epoch - 1) };
  }

  get isUp(): boolean {
    return this.#state === 'up';
  }

  /** The server has ended, and what it knew with it. */
  get isOver(): boolean {
    return this.#state === 'over';
  }

  /** The reason why nothing moves, for an error; undefined when the server is there. */
  get trouble(): string | undefined {
    return this.#state === 'up' ? undefined : `${this.options.name} cannot be reached: ${this.#downReason}`;
  }

  /** Requests wait until the server has saved what came before. */
  get awaitsSnapshot(): boolean {
    return this.#logFull;
  }

  /** Number of the request; undefined when the server has not taken it. Those that wait for no credit are taken as they come. */
  holds(request: ClientRequest): number | undefined {
    for (const entry of this.#sent.values())
      if (entry.request === request && (entry.accepted || request.priority === Infinity)) return entry.id;
    return undefined;
  }

  /** Requests are sent by the next `pump`. */
  enqueue(request: ClientRequest): void {
    this.#waiting.add(this.#entry(request));
  }

  /** Enqueues a request, and sends what may be sent. */
  ask(request: ClientRequest): void {
    this.enqueue(request);
    this.pump();
  }

  /** Takes a request back that has not been sent. @returns false when it has. */
  withdraw(request: ClientRequest): boolean {
    const waited = this.#waiting.delete(request);
    if (waited && this.#waiting.length === 0) this.#account.withdraw();
    return waited;
  }

  /** Asks for the answer to a request for which the server may write to this process's memory. @returns whether there will be one. */
  recall(request: ClientRequest): boolean {
    const entry = [...this.#sent.values()].find((each) => each.request === request && !each.answered);
    if (entry === undefined || this.#state !== 'up' || !request.regions.some((region) => this.#regions.isAttached(region))) return false;
    this.#send(KVMessage.recall, entry.id, []);
    return true;
  }

  // ── connection ─────────────────────────────────────────────────────────────────────────────────────────────────

  /** @param resource what the way to the server takes, which others of this process need as well. */
  up(resource?: SharedResource): void {
    this.#account.resource = resource;
    this.#state = 'greeting';
    this.#downReason = 'it does not answer';
    this.#epoch++;
    // Until it has heard this one, a server that was started again may lack what it had answered.
    let last = 0;
    for (const id of this.#sent.keys()) last = Math.max(last, id);
    this.#send(KVMessage.hello, 0, [encodeControl({ ...this.options.greeting(), last })]);
  }

  down(error: ShoalError, how: 'lost' | 'ended'): void {
    if (this.isOver) return;
    this.#downReason = error.message;
    if (how === 'ended' && this.#lineage !== 0 && !this.#logs && !this.options.hasStandby) {
      return this.#onForgotten('over', `${error.message}, and all that it knew is lost; ${survival}`);
    }
    this.#state = 'down';
    this.#releaseCredit();
    this.#account.offerRoom();
  }

  [Symbol.dispose](): void {
    for (const { request } of this.#sent.values()) request.drop();
    this.#sent.clear();
    this.#waiting.clear();
    this.#account[Symbol.dispose]();
  }

  /** @throws ShoalError `protocol`. */
  receive(msg: Msg): void {
    if (msg.targetVersion !== this.#epoch) return;
    switch (msg.type) {
      case KVMessage.welcome:
        return this.#welcome(msg);
      case KVMessage.accepted: {
        const entry = this.#sent.get(msg.targetValue);
        if (entry !== undefined) this.#accept(entry);
        return this.#account.offerRoom();
      }
      case KVMessage.durable:
        this.#checkpointAsked = false;
        this.#forget(msg.targetValue);
        return this.pump();
      case KVMessage.done:
      case KVMessage.updateResponse:
      case KVMessage.getResponse:
        this.#answer(msg);
        return this.#account.offerRoom();
      default:
        throw new ShoalError('protocol', `${this.options.name} sent a message of type ${msg.type}`);
    }
  }

  #welcome(msg: Msg): void {
    const welcome = readControl(msg.frames[0], Fields.welcome);
    const { term, lineage, durable } = welcome;
    // Another process has become the server since; the dialer will find it.
    if (term < this.#term) return;
    this.#term = term;
    const before = this.#lineage;
    const forgotten = before !== 0 && lineage !== before;
    if (forgotten && !this.#logs) {
      this.#lineage = lineage;
      return this.#onForgotten('up', `${this.options.name} has restarted without its state; ${survival}`);
    }
    if (forgotten && durable < this.#durable) {
      const message = `${this.options.name} has come back with an older state than it had saved: what was pushed in between is lost`;
      this.#lineage = lineage;
      return this.#onForgotten('up', message);
    }
    this.#state = 'up';
    this.#lineage = lineage;
    this.#logs = welcome.log;
    this.#checkpointAsked = false;
    this.#forget(durable);
    this.#regions.clear();
    this.#releaseCredit();
    for (const entry of this.#sent.values()) {
      // A server that goes on where the other stopped has whatever was answered.
      if (entry.answered && entry.answeredBy === lineage) continue;
      entry.accepted = false;
      this.#transmit(entry);
    }
    this.committed = Math.max(this.committed, welcome.committed);
    this.#learn(unpackNotice(welcome));
    this.options.onCommitted();
    this.pump();
  }

  /** Nothing that was asked can be answered. What is left to say to a server that is there is that this client leaves. */
  #onForgotten(state: 'up' | 'over', message: string): void {
    for (const { request } of this.#sent.values()) request.drop();
    this.#sent.clear();
    this.#waiting.clear();
    this.#regions.clear();
    this.#releaseCredit();
    this.#state = state;
    this.options.onBroken(new ShoalError('peer-lost', message));
  }

  // ── sending ────────────────────────────────────────────────────────────────────────────────────────────────────

  /** Sends what there is room for. Others of the process call this, so an error here is not thrown to them. */
  #onRoom(): void {
    try {
      this.pump();
    } catch (thrown) {
      this.options.onBroken(ShoalError.from(thrown));
    }
  }

  /** Sends what may be sent. */
  pump(): void {
    if (this.#isPumping) return;
    this.#isPumping = true;
    try {
      this.#sendWaiting();
    } finally {
      this.#isPumping = false;
    }
  }

  #sendWaiting(): void {
    this.#logFull = false;
    for (;;) {
      const entry = this.#state === 'up' ? this.#waiting.mostUrgent() : undefined;
      if (entry === undefined) return;
      const { request } = entry;
      if (needsCredit(request) && !this.#account.admits(request.bytes, -request.priority)) return;
      if (request.repeats && this.#logs && entry.keptBytes === 0) {
        this.#logFull = this.#logIsFull(request.bytes);
        if (this.#logFull) return;
        entry.keptBytes = request.retain();
        this.#keptBytes += entry.keptBytes;
        if (this.#keptBytes > this.options.replayBytes / 2) this.#askForCheckpoint();
      }
      if (this.#regions.announce(request.regions, this.#account.resource)) return;
      this.#waiting.delete(request);
      this.#sendFirst(entry);
    }
  }

  #transmit(entry: Entry): void {
    const { request } = entry;
    entry.after = [];
    entry.holdsCredit = needsCredit(request);
    if (entry.holdsCredit) this.#account.started(request.bytes);
    const { knowledge, leads } = this.options;
    // Pushes of worker 0 from before it set an optimiser do not wait for that; the knowledge of others may be out of date.
    if (!entry.sent || (entry.optimizer === 0 && !leads)) entry.optimizer = knowledge.version;
    entry.sent = true;
    const { optimizer } = entry;
    const shortOfCredit = 2 * this.#account.inFlightBytes > this.#creditBytes;
    const values = entry.answered ? 'none' : 'wanted';
    this.#send(request.type, entry.id, request.encode({ regions: this.#regions, optimizer, shortOfCredit, values }));
  }

  #accept(entry: Entry): void {
    if (entry.accepted) return;
    entry.accepted = true;
    if (!entry.holdsCredit) return;
    entry.holdsCredit = false;
    this.#account.finished(entry.request.bytes);
  }

  /** Requests on their way got lost with the connection. */
  #releaseCredit(): void {
    for (const entry of this.#sent.values()) entry.holdsCredit = false;
    this.#account.reset();
  }

  #answer(msg: Msg): void {
    const entry = this.#sent.get(msg.targetValue);
    if (entry === undefined) return;
    this.#accept(entry);
    entry.answeredBy = this.#lineage;
    // An answer to what was repeated for the server's sake.
    if (entry.answered) return;
    entry.answered = true;
    const { request } = entry;
    const error = this.#readAnswer(msg);
    if (request.repeats && this.#logs) {
      this.#settledBytes += entry.keptBytes;
      this.#checkpointAsked = false;
      if (this.#keptBytes > this.options.replayBytes / 2) this.#askForCheckpoint();
    } else {
      this.#remove(entry);
    }
    request.finish(error, msg);
  }

  #readAnswer(msg: Msg): ShoalError | undefined {
    if (msg.type !== KVMessage.done) {
      const answer = decodeAnswer(msg.frames);
      if (answer instanceof ShoalError) return answer;
      return this.#learn(answer);
    }
    const done = readControl(msg.frames[0], Fields.done);
    this.#learn(unpackNotice(done));
    return unpackError(done.error);
  }

  #learn(notice: OptimizerNotice | undefined): undefined {
    const { knowledge } = this.options;
    if (notice !== undefined && notice.version > knowledge.version) Object.assign(knowledge, notice);
  }

  /** Requests up to this one survive the server. */
  #forget(durable: number): void {
    this.#durable = Math.max(this.#durable, durable);
    for (const entry of this.#sent.values()) {
      if (entry.id > durable) break;
      if (!entry.answered) continue;
      this.#settledBytes -= entry.keptBytes;
      this.#remove(entry);
    }
  }

  #remove(entry: Entry): void {
    this.#sent.delete(entry.id);
    this.#keptBytes -= entry.keptBytes;
    entry.request.drop();
  }

  /** True when the request must wait for a snapshot. A snapshot frees what was answered before the first that was not;
   *  when that is nothing, waiting could be for ever: others may wait for this very push. */
  #logIsFull(bytes: number): boolean {
    if (this.#keptBytes + bytes <= this.options.replayBytes) return false;
    let freeable = 0;
    for (const { request, answered: isAnswered, keptBytes } of this.#sent.values()) {
      if (request.repeats && !isAnswered) break;
      freeable += keptBytes;
    }
    if (freeable === 0) return false;
    this.#askForCheckpoint();
    return true;
  }

  #askForCheckpoint(): void {
    if (this.#checkpointAsked || this.#settledBytes === 0) return;
    this.#checkpointAsked = true;
    this.#send(KVMessage.checkpoint, 0, []);
  }

  /** A region is about to be freed. */
  forgetRegion(region: number): void {
    this.#regions.forget(region, { isUp: this.isUp });
  }

  /** Sends a request for the first time, over a connection that is up. */
  #sendFirst(entry: Entry): void {
    entry.id = this.#nextId++;
    this.#sent.set(entry.id, entry);
    this.#transmit(entry);
  }

  #entry(request: ClientRequest): Entry {
    return {
      request,
      id: 0,
      sent: false,
      holdsCredit: false,
      accepted: false,
      answered: false,
      answeredBy: 0,
      keptBytes: 0,
      optimizer: 0,
      after: [],
    };
  }

  #send(type: number, request: number, frames: readonly Uint8Array[]): void {
    const { address, server, send } = this.options;
    send(makeMessage({ source: address, destination: server, type, request, epoch: this.#epoch }, frames));
  }
}

/** A request that waits for no credit does not count: a server may keep it until other workers are there. */
function needsCredit({ priority }: ClientRequest): boolean {
  return priority !== Infinity;
}
