/** Calls over messages: every task has a router on its fabric, who calls it connects a dealer. Under each pair is a session
 *  (session/session.ts), which brings every message once and in order whatever happens to connections; so a call is executed
 *  once, and nothing is repeated or remembered here. A session ends with either process, and with it the link:
 *
 *      caller                            task
 *        request(call, method) ───────▶
 *        cancel(call) ────────────────▶
 *        ◀──── end or error(call) */
import { setServedTimer, type Clock, type Timer } from '../../base/clock.ts';
import { failureOf, ShoalError } from '../../base/errors.ts';
import type { Random } from '../../base/random.ts';
import type { Fabric, PeerIdentity } from '../../fabric/fabric.ts';
import { makeAddress, type Address } from '../../messaging/address.ts';
import { MessagingContext } from '../../messaging/context.ts';
import { Dealer } from '../../messaging/dealer.ts';
import { Msg } from '../../messaging/msg.ts';
import { Router, type PeerEvent } from '../../messaging/router.ts';
import { decodeError, encodeError, joinPieces, type Pieces, type RpcLink, type RpcService, type RpcStats } from './rpc.ts';

/** Time limit of the first connection to a task, which may share its CPUs with dozens. One that has ended is noticed by other ways. */
export const connectMs = 60_000;

export interface FabricCarrierOptions extends PeerIdentity {
  /** Carries the calls. The carrier closes it. */
  readonly fabric: Fabric;
  readonly clock: Clock;
  readonly random: Random;
  /** Time limit for making a broken connection again, and for the return of a caller without one. Default 2000. */
  readonly reconnectMs?: number;
  /** Default 60,000. */
  readonly connectMs?: number;
  /** Largest body. Default 1 GiB less 1 MiB. */
  readonly messageBytesMax?: number;
}

/** Role of callers' addresses. */
const callerRole = 4;
const Kind = { request: 1, end: 2, error: 3, cancel: 4 } as const;

/** Time that a caller's last attempt may take beyond the limit for connecting anew. */
const lateMs = 1000;
/** Callers that one task remembers. */
const callersMax = 65_536;
/** Calls of one caller that it has no answer to yet. */
const callsMax = 262_144;
/** Messages and bytes that may wait for one peer; their callers bound the calls. */
const queueMessages = 4 * callsMax;
const queueBytes = 2 ** 34;
/** Bytes of a message beside its body. */
const slackBytes = 2 ** 20;
/** Time for last words. */
const closeMs = 200;

type Surroundings = Required<FabricCarrierOptions> & { readonly stats: RpcStats; readonly messaging: MessagingContext };

export class FabricCarrier {
  readonly #around: Surroundings;
  readonly #links = new Set<FabricLink>();
  #server: CallServer | undefined;
  #closed = false;

  constructor(options: FabricCarrierOptions) {
    const around = { reconnectMs: 2000, connectMs, messageBytesMax: 2 ** 30 - slackBytes, ...options };
    const { fabric, clock, random, world, rank, reconnectMs, messageBytesMax } = around;
    const messaging = new MessagingContext({
      world,
      // The fabric authenticates.
      secret: new Uint8Array(0),
      clock,
      random,
      limits: { queueMessages, queueBytes, messageBytes: messageBytesMax + slackBytes, peers: callersMax, reconnectMs },
      fabric: { fabric, identity: { world, rank } },
    });
    this.#around = { ...around, messaging, stats: { calls: 0, bytesSent: 0, bytesReceived: 0 } };
  }

  get stats(): Readonly<RpcStats> {
    return this.#around.stats;
  }

  /** @returns where others connect, as text for the job's store. */
  listen(service: RpcService): Promise<string> {
    this.#server = new CallServer(service, this.#around);
    return this.#server.listen();
  }

  /** @param task for messages. */
  async connect(text: string, task: string): Promise<RpcLink> {
    if (this.#closed) throw new ShoalError('closed', `${task} cannot be reached: this carrier is closed`);
    const link = new FabricLink(text, task, this.#around);
    this.#links.add(link);
    void link.lost.then(() => this.#links.delete(link));
    await link.connect();
    return link;
  }

  async close(): Promise<void> {
    this.#closed = true;
    await Promise.all([...this.#links].map((link) => link.close()));
    await this.#server?.close();
    await this.#around.messaging.close();
    await this.#around.fabric.close();
  }
}

interface OpenCall {
  readonly resolve: (body: Uint8Array) => void;
  readonly reject: (error: ShoalError) => void;
}

/** The caller's end. */
class FabricLink implements RpcLink {
  readonly lost: Promise<void>;
  /** That of the router. */
  readonly #address: string;
  readonly #task: string;
  readonly #around: Surroundings;
  readonly #dealer: Dealer;
  readonly #open = new Map<number, OpenCall>();
  #next = 1;
  #end: ShoalError | undefined;
  #tellLost: () => void = () => {};

  constructor(address: string, task: string, around: Surroundings) {
    this.#address = address;
    this.#task = task;
    this.#around = around;
    this.lost = new Promise((resolve) => {
      this.#tellLost = resolve;
    });
    const own = Buffer.from(around.random.bytes(8));
    const caller = makeAddress({ group: own.readUIntLE(4, 3), id: own.readUInt32LE(0), role: callerRole });
    this.#dealer = new Dealer(around.messaging, { address: caller, routers: 'one' });
  }

  /** The first time. @throws ShoalError that names the task. */
  async connect(): Promise<void> {
    try {
      await this.#dealer.connect(this.#address, { timeoutMs: this.#around.connectMs });
    } catch (thrown) {
      const cause = ShoalError.from(thrown);
      throw this.#fail(failureOf(`${this.#task} cannot be reached`, cause));
    }
    this.#dealer.watch(() => this.#drain());
    this.#drain();
  }

  call(method: number, body: Pieces, { signal }: { readonly signal?: AbortSignal } = {}): Promise<Uint8Array> {
    return new Promise((resolve, reject) => {
      if (this.#end !== undefined) throw this.#end;
      const cancelled = (): ShoalError => new ShoalError('aborted', `a call of ${this.#task} was cancelled`, { cause: signal?.reason });
      if (signal?.aborted === true) throw cancelled();
      const call = this.#next++;
      const onAbort = (): void => {
        if (!this.#open.delete(call)) return;
        reject(cancelled());
        try {
          this.#send(Kind.cancel, call, 0, []);
        } catch {
          // Too much waits for the task: it answers, and nobody listens.
        }
      };
      const settle =
        <T>(then: (value: T) => void) =>
        (value: T): void => {
          signal?.removeEventListener('abort', onAbort);
          then(value);
        };
      this.#send(Kind.request, call, method, body);
      this.#around.stats.calls++;
      this.#open.set(call, { resolve: settle(resolve), reject: settle(reject) });
      signal?.addEventListener('abort', onAbort, { once: true });
    });
  }

  async close(): Promise<void> {
    this.#fail(new ShoalError('closed', `the link to ${this.#task} is closed`));
    await this.#dealer.close({ timeoutMs: closeMs });
  }

  #send(kind: number, call: number, method: number, body: Pieces): void {
    send(this.#dealer, this.#around, message({ source: this.#dealer.address, destination: 0n, kind, call, method }, body));
  }

  #drain(): void {
    try {
      for (let msg = this.#dealer.tryReceive(); msg !== undefined; msg = this.#dealer.tryReceive()) this.#onMessage(msg);
    } catch (thrown) {
      const error = ShoalError.from(thrown);
      const isLost = error.code !== 'protocol';
      this.#fail(isLost ? new ShoalError('peer-lost', `${this.#task} is lost: ${error.message}`, { cause: error }) : error);
    }
  }

  #onMessage(msg: Msg): void {
    const { type, targetValue: call } = msg;
    const body = bodyOf(msg, this.#around.stats);
    const open = this.#open.get(call);
    switch (type) {
      case Kind.end:
        this.#open.delete(call);
        open?.resolve(body);
        return;
      case Kind.error:
        this.#open.delete(call);
        open?.reject(decodeError(body));
        return;
      default:
        throw new ShoalError('protocol', `${this.#task} answered with a message of kind ${type}`);
    }
  }

  /** @returns why it has ended: the first that was given. */
  #fail(error: ShoalError): ShoalError {
    if (this.#end !== undefined) return this.#end;
    this.#end = error;
    this.#tellLost();
    const open = [...this.#open.values()];
    this.#open.clear();
    for (const { reject } of open) reject(error);
    void this.#dealer.close({ timeoutMs: closeMs });
    return error;
  }
}

interface Caller {
  readonly address: Address;
  /** Calls under way, by number. */
  readonly calls: Map<number, AbortController>;
  /** Runs until it counts as gone. */
  leaving: Timer | undefined;
}

/** The end that answers. */
class CallServer {
  readonly #service: RpcService;
  readonly #around: Surroundings;
  readonly #router: Router;
  readonly #callers = new Map<Address, Caller>();
  #closed = false;

  constructor(service: RpcService, around: Surroundings) {
    this.#service = service;
    this.#around = around;
    this.#router = new Router(around.messaging, { onPeer: (event) => this.#onPeer(event) });
    this.#router.watch(() => this.#drain());
  }

  listen(): Promise<string> {
    return this.#router.bind(`fabric://${this.#around.fabric.name}`);
  }

  async close(): Promise<void> {
    this.#closed = true;
    for (const caller of this.#callers.values()) this.#gone(caller);
    await this.#router.close({ timeoutMs: closeMs });
  }

  #onPeer({ address, state }: PeerEvent): void {
    if (address === undefined || this.#closed) return;
    const known = this.#callers.get(address);
    known?.leaving?.cancel();
    if (state === 'connected') {
      if (known === undefined) this.#callers.set(address, { address, calls: new Map(), leaving: undefined });
    } else if (known !== undefined) {
      const { clock, reconnectMs } = this.#around;
      if (state === 'left') this.#gone(known);
      else known.leaving = setServedTimer(clock, reconnectMs + lateMs, () => this.#gone(known), { keepAlive: false });
    }
  }

  #drain(): void {
    if (this.#closed) return;
    for (let msg = this.#router.tryReceive(); msg !== undefined; msg = this.#router.tryReceive()) {
      const caller = this.#callers.get(msg.source);
      const body = bodyOf(msg, this.#around.stats);
      const { type, targetValue: call, targetVersion: method } = msg;
      if (caller === undefined) continue;
      if (type === Kind.request) this.#onRequest(caller, { call, method, body });
      else if (type === Kind.cancel) {
        caller.calls.get(call)?.abort();
        caller.calls.delete(call);
      }
    }
  }

  #onRequest(caller: Caller, { call, method, body }: { call: number; method: number; body: Uint8Array }): void {
    const { calls, address } = caller;
    if (calls.size >= callsMax) {
      const full = new ShoalError('out-of-memory', `${callsMax} calls of one task wait for their answers already`);
      this.#reply(address, Kind.error, call, [encodeError(full)]);
      return;
    }
    const abort = new AbortController();
    calls.set(call, abort);
    const answer = (kind: number, pieces: Pieces): void => {
      if (calls.get(call) !== abort) return;
      calls.delete(call);
      this.#reply(address, kind, call, pieces);
    };
    const handled = (async () => this.#service.handle({ method, body, caller: String(address), signal: abort.signal }))();
    handled.then(
      (pieces) => answer(Kind.end, pieces),
      (thrown: unknown) => answer(Kind.error, [encodeError(ShoalError.from(thrown))]),
    );
  }

  #reply(address: Address, kind: number, call: number, body: Pieces): void {
    try {
      send(this.#router, this.#around, message({ source: 0n, destination: address, kind, call, method: 0 }, body));
    } catch (thrown) {
      const error = ShoalError.from(thrown);
      if (error.code !== 'closed') void this.#replyWhy(address, call, error);
    }
  }

  /** Says why, as soon as the caller takes anything. */
  async #replyWhy(address: Address, call: number, error: ShoalError): Promise<void> {
    await this.#router.writable(address);
    if (this.#callers.has(address)) this.#reply(address, Kind.error, call, [encodeError(error)]);
  }

  #gone(caller: Caller): void {
    caller.leaving?.cancel();
    if (!this.#callers.delete(caller.address)) return;
    const calls = [...caller.calls.values()];
    caller.calls.clear();
    for (const abort of calls) abort.abort();
    // If it is there after all, it learns that its calls are lost.
    if (!this.#closed) this.#router.forget(caller.address);
    this.#service.callerGone(String(caller.address));
  }
}

interface Head {
  readonly source: Address;
  readonly destination: Address;
  readonly kind: number;
  readonly call: number;
  readonly method: number;
}

/** The body is copied: a session keeps it until the peer has it, and tensors change before. */
function message({ source, destination, kind, call, method }: Head, body: Pieces): Msg {
  const msg = new Msg(source, destination);
  msg.type = kind;
  msg.setTarget(call, method);
  if (body.length > 0) msg.addFrame(joinPieces(body));
  return msg;
}

function send(socket: Dealer | Router, { stats, messageBytesMax }: Surroundings, msg: Msg): void {
  const { size } = msg;
  if (size > messageBytesMax)
    throw new ShoalError('out-of-memory', `a call with ${size} bytes; it takes ${messageBytesMax} at most: raise messageBytesMax`);
  socket.send(msg);
  stats.bytesSent += size;
}

/** Its owner's alone, at an address that is a multiple of 8. */
function bodyOf({ frames: [frame] }: Msg, stats: RpcStats): Uint8Array {
  if (frame === undefined) return new Uint8Array(0);
  stats.bytesReceived += frame.byteLength;
  const { buffer, byteLength } = frame;
  return byteLength === buffer.byteLength ? new Uint8Array(buffer) : Uint8Array.from(frame);
}
