/** Calls over the messages of a fabric, and tensors beside them over its writes. Every task listens; who calls, or receives, connects. A
 *  connection that breaks is made again for a while; both ends keep what has no answer yet. */
import type { Clock, Timer } from '../../base/clock.ts';
import { sleep } from '../../base/clock.ts';
import { ShoalError, type ErrorData } from '../../base/errors.ts';
import type { Random } from '../../base/random.ts';
import type { Connection, Fabric, FabricAddress } from '../../fabric/fabric.ts';
import type { WorkerIdentity } from '../../rendezvous/carriers/tensor-channel.ts';
import { tensorCounters, type TensorCounters } from '../../rendezvous/protocol/counters.ts';
import { MessageQueue } from './message-queue.ts';
import { encodeFrame, FrameKind, FrameReader, isFrame, type Frame } from './frames.ts';
import { LinkTensors } from './link-tensors.ts';
import { openChannel, type ChannelSurroundings } from './tensor-channels.ts';
import { TensorLane } from './tensor-lane.ts';
import {
  aborted,
  describeLoss,
  type CallOptions,
  type Pieces,
  type RpcCarrier,
  type RpcLink,
  type RpcService,
  type RpcStats,
  type TensorAsker,
  type TensorService,
} from './rpc.ts';

export interface FabricCarrierOptions {
  readonly fabric: Fabric;
  readonly clock: Clock;
  readonly random: Random;
  /** World of the fabric's identities. */
  readonly world: string;
  /** How long a lost connection is tried to be made again, and a caller without one is waited for. Default 2000. */
  readonly reconnectMs?: number;
  /** Default 10,000. */
  readonly connectMs?: number;
  /** Largest body. Default 1 GiB. */
  readonly messageBytesMax?: number;
  /** Places for tensors that are asked for and have not come. Default 4 GiB. */
  readonly tensorBytesMax?: number;
}

const fragmentBytes = 4 * 1024 * 1024;
const retryMs = 100;
/** What a caller's last attempt may take beyond the time for connecting anew. */
const lateMs = 1000;
/** Callers that one task remembers. */
const callersMax = 65_536;
/** Calls of one caller that it has no answer to yet. */
const callsMax = 262_144;

type Surroundings = Required<FabricCarrierOptions> &
  ChannelSurroundings & {
    readonly stats: RpcStats;
    /** This task, to those it receives from. */
    self(): WorkerIdentity;
  };

/** What tasks tell each other of themselves. */
interface Listening extends FabricAddress {
  readonly rank: number;
}

export class FabricCarrier implements RpcCarrier {
  readonly name: string;
  readonly stats: RpcStats = { calls: 0, bytesSent: 0, bytesReceived: 0 };
  /** What tensors have cost: requests, writes, bytes copied. */
  readonly tensorCounters: TensorCounters = tensorCounters();
  readonly #around: Surroundings;
  readonly #rank: number;
  readonly #links = new Set<FabricLink>();
  #server: CallServer | undefined;
  #tensors: TensorService | undefined;

  constructor(options: FabricCarrierOptions & { readonly rank: number }) {
    this.name = options.fabric.name;
    this.#rank = options.rank;
    const { tensorBytesMax = 4 * 2 ** 30 } = options;
    this.#around = {
      reconnectMs: 2000,
      connectMs: 10_000,
      messageBytesMax: 2 ** 30,
      ...options,
      tensorBytesMax,
      stats: this.stats,
      counters: this.tensorCounters,
      budget: { bytesMax: tensorBytesMax, bytes: 0 },
      self: () => ({ device: `rank ${this.#rank}`, incarnation: 0n, ...this.#tensors, rank: this.#rank }),
    };
  }

  async listen(service: RpcService): Promise<string> {
    const server = new CallServer(service, this.#around);
    this.#server = server;
    this.#tensors = service.tensors;
    const address = await this.#around.fabric.listen((connection) => server.accept(connection));
    const listening: Listening = { ...address, rank: this.#rank };
    return JSON.stringify(listening);
  }

  async connect(text: string, task: string): Promise<RpcLink> {
    const link = new FabricLink(JSON.parse(text) as Listening, task, this.#around);
    this.#links.add(link);
    void link.lost.then(() => this.#links.delete(link));
    await link.connect();
    return link;
  }

  async close(): Promise<void> {
    await Promise.all([...this.#links].map((link) => link.close()));
    this.#server?.close();
    await this.#around.fabric.close();
  }
}

interface OpenCall {
  readonly call: number;
  readonly method: number;
  readonly body: Pieces;
  readonly onPart: ((body: Uint8Array) => void) | undefined;
  readonly resolve: (body: Uint8Array) => void;
  readonly reject: (error: ShoalError) => void;
  parts: number;
}

/** The caller's end. */
class FabricLink implements RpcLink {
  readonly lost: Promise<void>;
  readonly tensors: LinkTensors;
  readonly #address: Listening;
  readonly #task: string;
  readonly #around: Surroundings;
  readonly #caller: string;
  /** In the order of their numbers. */
  readonly #open = new Map<number, OpenCall>();
  #connection: Connection | undefined;
  #messages: MessageQueue | undefined;
  #next = 1;
  #end: ShoalError | undefined;
  #tellLost: () => void = () => {};
  /** Ends what is being dialled. */
  readonly #ended = new AbortController();

  constructor(address: Listening, task: string, around: Surroundings) {
    this.#address = address;
    this.#task = task;
    this.#around = around;
    this.lost = new Promise((resolve) => {
      this.#tellLost = resolve;
    });
    this.#caller = Buffer.from(around.random.bytes(12)).toString('hex');
    this.tensors = new LinkTensors(task, around.stats);
  }

  /** The first time. @throws ShoalError that names the task. */
  async connect(): Promise<void> {
    try {
      await this.#dial(this.#around.connectMs);
    } catch (thrown) {
      const cause = ShoalError.from(thrown);
      throw this.#fail(new ShoalError(cause.code, `${this.#task} cannot be reached: ${cause.message}`, { cause }));
    }
  }

  async #dial(timeoutMs: number): Promise<void> {
    const { fabric, world, messageBytesMax } = this.#around;
    const peer = { world, rank: this.#address.rank };
    const connection = await fabric.connect(this.#address, { peer, timeoutMs, signal: this.#ended.signal });
    if (this.#end !== undefined) {
      await connection.close(0);
      throw this.#end;
    }
    const reader = new FrameReader(messageBytesMax);
    const lane = new TensorLane(connection, this.#around.stats);
    connection.setHandlers({
      onMessage: (message) => {
        this.#around.stats.bytesReceived += message.length;
        if (!isFrame(message)) return lane.deliver(message);
        try {
          const frame = reader.read(message);
          if (frame !== undefined) this.#onFrame(frame);
        } catch (thrown) {
          this.#fail(ShoalError.from(thrown, 'protocol'));
        }
      },
      onImmediate: (immediate) => lane.deliverImmediate(immediate),
      onClose: (error) => {
        const isCurrent = this.#connection === connection;
        if (isCurrent) this.tensors.detach();
        lane.end(error);
        if (isCurrent) this.#onClose(error);
      },
    });
    this.#connection = connection;
    this.#messages = new MessageQueue(connection);
    this.#send({ kind: FrameKind.hello, method: 0, call: 0, part: 0 }, [Buffer.from(this.#caller)]);
    for (const open of this.#open.values()) this.#request(open);
    this.tensors.attach(
      openChannel(lane, this.#around, {
        self: this.#around.self(),
        take: (_stepId, _key, waiter) => {
          waiter.fail(new ShoalError('protocol', 'tensors are asked for over a connection of who receives them'));
          return () => {};
        },
      }),
    );
  }

  call(method: number, body: Pieces, { signal, onPart }: CallOptions = {}): Promise<Uint8Array> {
    return new Promise((resolve, reject) => {
      if (this.#end !== undefined) throw this.#end;
      const cancelled = (): ShoalError => aborted(this.#task, signal);
      if (signal?.aborted === true) throw cancelled();
      const call = this.#next++;
      this.#around.stats.calls++;
      const onAbort = (): void => {
        if (!this.#open.delete(call)) return;
        this.#send({ kind: FrameKind.cancel, method, call, part: 0 }, []);
        reject(cancelled());
      };
      const settled = (): void => signal?.removeEventListener('abort', onAbort);
      signal?.addEventListener('abort', onAbort, { once: true });
      const open: OpenCall = {
        call,
        method,
        body,
        onPart,
        parts: 0,
        resolve: (answer) => {
          settled();
          resolve(answer);
        },
        reject: (error) => {
          settled();
          reject(error);
        },
      };
      this.#open.set(call, open);
      this.#request(open);
    });
  }

  async close(): Promise<void> {
    this.#fail(new ShoalError('closed', `the link to ${this.#task} is closed`));
    await this.#connection?.close();
  }

  #request({ method, call, parts, body }: OpenCall): void {
    this.#send({ kind: FrameKind.request, method, call, part: parts }, body);
  }

  #send(frame: { kind: number; method: number; call: number; part: number }, body: Pieces): void {
    // What is lost with the connection is sent again with the next.
    if (this.#messages === undefined) return;
    const [oldest = this.#next] = this.#open.keys();
    for (const message of encodeFrame({ ...frame, acked: oldest }, body, fragmentBytes)) {
      this.#around.stats.bytesSent += message.length;
      this.#messages.push(message);
    }
  }

  #onFrame({ kind, call, part, body }: Frame): void {
    const open = this.#open.get(call);
    if (open === undefined) return;
    switch (kind) {
      case FrameKind.part:
        if (part !== open.parts) return;
        open.parts++;
        open.onPart?.(body);
        return;
      case FrameKind.end:
        this.#open.delete(call);
        open.resolve(body);
        return;
      case FrameKind.error:
        this.#open.delete(call);
        open.reject(decodeError(body));
        return;
      default:
        throw new ShoalError('protocol', `${this.#task} answered with a frame of kind ${kind}`);
    }
  }

  #onClose(error: ShoalError | undefined): void {
    this.#connection = undefined;
    this.#messages = undefined;
    if (this.#end !== undefined) return;
    if (error === undefined || error.code !== 'peer-lost') {
      this.#fail(error ?? new ShoalError('peer-lost', `${this.#task} has ended`));
      return;
    }
    void this.#reconnect(error);
  }

  async #reconnect(lost: ShoalError): Promise<void> {
    const { clock, reconnectMs } = this.#around;
    const deadlineMs = clock.now() + reconnectMs;
    while (this.#end === undefined) {
      try {
        // A listener that is gone is tried again until the time is up.
        await this.#dial(Math.max(retryMs, deadlineMs - clock.now()));
        return;
      } catch {
        if (clock.now() + retryMs > deadlineMs) break;
      }
      await sleep(clock, retryMs);
    }
    this.#fail(new ShoalError('peer-lost', describeLoss(this.#task, lost.message), { cause: lost }));
  }

  /** @returns why it has ended: the first that was given. */
  #fail(error: ShoalError): ShoalError {
    if (this.#end !== undefined) return this.#end;
    this.#end = error;
    this.#tellLost();
    this.#ended.abort(error);
    const open = [...this.#open.values()];
    this.#open.clear();
    for (const { reject } of open) reject(error);
    this.tensors.fail(error);
    return error;
  }
}

/** A call that has come, until its caller has the answer. */
interface ServedCall {
  readonly abort: AbortController;
  readonly parts: Pieces[];
  answer: { readonly kind: number; readonly body: Pieces } | undefined;
}

interface Caller {
  readonly name: string;
  readonly calls: Map<number, ServedCall>;
  connection: Connection | undefined;
  messages: MessageQueue | undefined;
  /** Its tensors' side of the connection. */
  lane: TensorLane | undefined;
  /** Connections so far. */
  connections: number;
  /** Until it counts as gone. */
  leaving: Timer | undefined;
  /** Calls below are done with. */
  acked: number;
}

/** The end that answers. */
class CallServer {
  readonly #service: RpcService;
  readonly #around: Surroundings;
  readonly #callers = new Map<string, Caller>();
  #closed = false;

  constructor(service: RpcService, around: Surroundings) {
    this.#service = service;
    this.#around = around;
  }

  accept(connection: Connection): void {
    const reader = new FrameReader(this.#around.messageBytesMax);
    const lane = new TensorLane(connection, this.#around.stats);
    let caller: Caller | undefined;
    connection.setHandlers({
      onMessage: (message) => {
        this.#around.stats.bytesReceived += message.length;
        if (caller !== undefined && !isFrame(message)) return lane.deliver(message);
        try {
          const frame = reader.read(message);
          if (frame === undefined) return;
          if (caller === undefined) caller = this.#hello(frame, connection, lane);
          else this.#onFrame(caller, frame);
        } catch {
          void connection.close(0);
        }
      },
      onImmediate: (immediate) => lane.deliverImmediate(immediate),
      onClose: (error) => {
        lane.end(error);
        if (caller?.connection === connection) this.#onClose(caller, error);
      },
    });
  }

  close(): void {
    this.#closed = true;
    for (const caller of this.#callers.values()) this.#gone(caller);
  }

  #hello({ kind, body }: Frame, connection: Connection, lane: TensorLane): Caller {
    const name = Buffer.from(body).toString();
    if (kind !== FrameKind.hello || !/^[0-9a-f]{24}$/.test(name)) throw new ShoalError('protocol', 'a caller must say who it is first');
    if (this.#closed || (this.#callers.size >= callersMax && !this.#callers.has(name)))
      throw new ShoalError('out-of-memory', 'too many callers');
    const fresh = { name, calls: new Map<number, ServedCall>(), messages: undefined, lane: undefined, connections: 0, acked: 0 };
    const caller: Caller = this.#callers.get(name) ?? { ...fresh, connection: undefined, leaving: undefined };
    this.#callers.set(name, caller);
    caller.leaving?.cancel();
    caller.leaving = undefined;
    // This end may not know yet that the one before is lost: nobody listens there any more.
    const { connection: before } = caller;
    caller.lane?.end(new ShoalError('peer-lost', 'the caller has connected anew'));
    caller.connection = connection;
    caller.messages = new MessageQueue(connection);
    caller.lane = lane;
    this.#serveTensors(lane, { caller: name, connection: ++caller.connections });
    void before?.close(0);
    return caller;
  }

  #serveTensors(lane: TensorLane, asker: TensorAsker): void {
    const { tensors } = this.#service;
    openChannel(lane, this.#around, {
      self: this.#around.self(),
      take(stepId, key, waiter) {
        if (tensors !== undefined) return tensors.take(asker, stepId, key, waiter);
        waiter.fail(new ShoalError('unsupported', 'no tensors are received from here'));
        return () => {};
      },
      ...(tensors && { onAnswered: (stepId, key) => tensors.onAnswered(stepId, key) }),
    });
  }

  #onFrame(caller: Caller, frame: Frame): void {
    const { kind, call } = frame;
    for (const [number, { answer }] of caller.calls) {
      if (number >= frame.acked) break;
      if (answer !== undefined) caller.calls.delete(number);
    }
    caller.acked = Math.max(caller.acked, frame.acked);
    switch (kind) {
      case FrameKind.request:
        this.#onRequest(caller, frame);
        return;
      case FrameKind.cancel: {
        const served = caller.calls.get(call);
        caller.calls.delete(call);
        served?.abort.abort();
        return;
      }
      default:
        throw new ShoalError('protocol', `a caller sent a frame of kind ${kind}`);
    }
  }

  #onRequest(caller: Caller, { method, call, part, body }: Frame): void {
    const known = caller.calls.get(call);
    if (known !== undefined) {
      known.parts.slice(part).forEach((pieces, k) => this.#reply(caller, FrameKind.part, call, part + k, pieces));
      if (known.answer !== undefined) this.#reply(caller, known.answer.kind, call, 0, known.answer.body);
      return;
    }
    if (call < caller.acked) return;
    if (caller.calls.size >= callsMax) {
      const full = new ShoalError('out-of-memory', `${callsMax} calls of one task wait for their answers already`);
      this.#reply(caller, FrameKind.error, call, 0, [encodeError(full)]);
      return;
    }
    const served: ServedCall = { abort: new AbortController(), parts: [], answer: undefined };
    caller.calls.set(call, served);
    const answer = (kind: number, pieces: Pieces): void => {
      if (!caller.calls.has(call)) return;
      served.answer = { kind, body: pieces };
      this.#reply(caller, kind, call, 0, pieces);
    };
    const context = {
      method,
      body,
      caller: caller.name,
      signal: served.abort.signal,
      part: (pieces: Pieces) => {
        served.parts.push(pieces);
        this.#reply(caller, FrameKind.part, call, served.parts.length - 1, pieces);
      },
    };
    const handled = (async () => this.#service.handle(context))();
    handled.then(
      (pieces) => answer(FrameKind.end, pieces),
      (thrown: unknown) => answer(FrameKind.error, [encodeError(ShoalError.from(thrown))]),
    );
  }

  #reply({ messages }: Caller, kind: number, call: number, part: number, body: Pieces): void {
    if (messages === undefined) return;
    for (const message of encodeFrame({ kind, method: 0, call, part, acked: 0 }, body, fragmentBytes)) {
      this.#around.stats.bytesSent += message.length;
      messages.push(message);
    }
  }

  #onClose(caller: Caller, error: ShoalError | undefined): void {
    caller.connection = undefined;
    caller.messages = undefined;
    caller.lane = undefined;
    const { clock, reconnectMs } = this.#around;
    if (error?.code !== 'peer-lost' || this.#closed) this.#gone(caller);
    else caller.leaving = clock.setTimer(reconnectMs + lateMs, () => this.#gone(caller));
  }

  #gone(caller: Caller): void {
    caller.leaving?.cancel();
    if (!this.#callers.delete(caller.name)) return;
    const calls = [...caller.calls.values()];
    caller.calls.clear();
    for (const { abort } of calls) abort.abort();
    this.#service.callerGone(caller.name);
  }
}

export function encodeError(error: ShoalError): Uint8Array {
  return Buffer.from(JSON.stringify(error.toData()));
}

export function decodeError(body: Uint8Array): ShoalError {
  try {
    return ShoalError.fromData(JSON.parse(Buffer.from(body).toString()) as ErrorData);
  } catch (cause) {
    return new ShoalError('protocol', 'an error could not be read', { cause });
  }
}
