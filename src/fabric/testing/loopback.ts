/** Fabric within one thread: a write is a copy, a message a queue entry. It keeps the whole contract (handshake, order, checks,
 *  bounds, deferred callbacks), so that code which runs over it runs over the others. */
import { Handshake } from '../../base/auth.ts';
import { ShoalError } from '../../base/errors.ts';
import { claimOf } from '../../base/secure/link.ts';
import type { Region } from '../../memory/region.ts';
import type {
  ConnectOptions,
  Connection,
  ConnectionHandlers,
  Fabric,
  FabricAddress,
  FabricCapabilities,
  FabricOptions,
  PeerIdentity,
  RegisteredRegion,
  RemoteRegion,
  RemoteSpan,
  Span,
} from '../fabric.ts';
import { Fifo } from '../../base/collections/fifo.ts';
import {
  checkBacklog,
  checkMessage,
  checkSource,
  connectionClosed,
  defaultCloseTimeoutMs,
  defaultMaxQueuedBytes,
  peerLost,
} from '../limits.ts';
import { encodeHandle } from '../region-handle.ts';
import { RegionTable } from '../region-table.ts';

/** Calls back in a later turn of the event loop of this rank. */
export type TurnOf = (rank: number, callback: () => void) => void;

/** The network in which loopback fabrics find each other; make one per set of fabrics. */
export class LoopbackNetwork {
  readonly turn: TurnOf;
  /** Like `turn`, for the end of a connection. */
  readonly soon: TurnOf;
  readonly #listening = new Map<string, LoopbackFabric>();
  #names = 0;

  /** @param turn default: the next turn, in the order of the calls. */
  constructor(turn?: TurnOf) {
    this.turn = turn ?? ((_rank, callback) => void setImmediate(callback));
    this.soon = turn ?? ((_rank, callback) => queueMicrotask(callback));
  }

  /** Number of fabrics that can be found. */
  get size(): number {
    return this.#listening.size;
  }

  createFabric(options: FabricOptions): LoopbackFabric {
    return new LoopbackFabric(this, options);
  }

  /** @returns the candidate under which the fabric is found. */
  attach(fabric: LoopbackFabric): string {
    const candidate = `loopback://${this.#names++}`;
    this.#listening.set(candidate, fabric);
    return candidate;
  }

  detach(candidate: string): void {
    this.#listening.delete(candidate);
  }

  find(candidate: string): LoopbackFabric | undefined {
    return this.#listening.get(candidate);
  }
}

export class LoopbackFabric implements Fabric {
  readonly name = 'loopback';
  readonly capabilities: FabricCapabilities = { loadStore: true };
  readonly options: FabricOptions;
  readonly regions: RegionTable;
  readonly #network: LoopbackNetwork;
  readonly #connections = new Set<LoopbackConnection>();
  #candidate: string | undefined;
  #onConnection: ((connection: Connection) => void) | undefined;
  #closed = false;

  constructor(network: LoopbackNetwork, options: FabricOptions) {
    this.#network = network;
    this.options = options;
    this.regions = new RegionTable({
      random: options.random,
      // Shared regions get a handle, so that code that maps memory by one works here as well.
      handleOf: (region) => (region.share.kind === 'shared' ? encodeHandle(region) : ''),
    });
  }

  register(region: Region): RegisteredRegion {
    return this.regions.register(region);
  }

  async listen(onConnection: (connection: Connection) => void): Promise<FabricAddress> {
    if (this.#closed || this.#candidate !== undefined) throw new ShoalError('usage', 'loopback fabric listens already or is closed');
    this.#onConnection = onConnection;
    this.#candidate = this.#network.attach(this);
    return { provider: this.name, candidates: [this.#candidate] };
  }

  async connect(address: FabricAddress, options: ConnectOptions): Promise<Connection> {
    if (this.#closed) throw connectionClosed(this.options.identity.rank, options.peer.rank);
    options.signal?.throwIfAborted();
    const target = address.candidates.map((candidate) => this.#network.find(candidate)).find((fabric) => fabric !== undefined);
    const onConnection = target === undefined ? undefined : target.#onConnection;
    if (target === undefined || onConnection === undefined) {
      throw new ShoalError('peer-lost', `rank ${options.peer.rank} does not listen at ${address.candidates.join(', ')} in this process`, {
        peer: options.peer.rank,
      });
    }
    this.#authenticate(target, options.peer);
    const near = new LoopbackConnection(this, options.peer, (connection) => this.#connections.delete(connection));
    const far = new LoopbackConnection(target, this.options.identity, (connection) => target.#connections.delete(connection));
    near.join(far);
    far.join(near);
    this.#connections.add(near);
    target.#connections.add(far);
    this.#network.turn(target.options.identity.rank, () => onConnection(far));
    return near;
  }

  async close(): Promise<void> {
    this.#closed = true;
    if (this.#candidate !== undefined) this.#network.detach(this.#candidate);
    this.#onConnection = undefined;
    await Promise.all([...this.#connections].map((connection) => connection.close()));
    this.regions.clear();
  }

  /** Simulates that the fabric's process is killed: the others lose it, and it hears nothing of that. `arriving` says how many of
   *  the operations queued on a connection still arrive. */
  crash(arriving: (queued: number) => number): void {
    this.#closed = true;
    if (this.#candidate !== undefined) this.#network.detach(this.#candidate);
    this.#onConnection = undefined;
    for (const connection of [...this.#connections]) connection.crash(arriving);
  }

  /** Open connections, in the order in which they were made. */
  get connections(): readonly { readonly peer: PeerIdentity; abort(): void }[] {
    return [...this.#connections];
  }

  turn(callback: () => void): void {
    this.#network.turn(this.options.identity.rank, callback);
  }

  soon(callback: () => void): void {
    this.#network.soon(this.options.identity.rank, callback);
  }

  /** Runs the same handshake as over a socket. */
  #authenticate(target: LoopbackFabric, peer: PeerIdentity): void {
    const { identity, secret, random } = this.options;
    const dialer = new Handshake({
      role: 'dialer',
      secret,
      purpose: 'loopback',
      world: identity.world,
      rank: identity.rank,
      expectedPeer: peer.rank,
      random,
      link: claimOf('local'),
    });
    const other = target.options;
    const acceptor = new Handshake({
      role: 'acceptor',
      secret: other.secret,
      purpose: 'loopback',
      world: other.identity.world,
      rank: other.identity.rank,
      random: other.random,
      link: claimOf('local'),
    });
    let bytes = dialer.start();
    try {
      while (bytes !== undefined) {
        const answer = acceptor.push(bytes).send;
        bytes = answer && dialer.push(answer).send;
      }
    } catch (thrown) {
      const error = ShoalError.from(thrown);
      other.onRefused?.(error);
      const fields = { rank: identity.rank, peer: peer.rank, operation: 'connect', cause: error };
      throw new ShoalError(error.code, `rank ${identity.rank} cannot connect to rank ${peer.rank}: ${error.message}`, fields);
    }
  }
}

interface Operation {
  /** A message (a copy) or the source of a write. */
  readonly message: Uint8Array | undefined;
  readonly source: Span | undefined;
  readonly target: RemoteSpan | undefined;
  /** Copy of the source's bytes, when the source may be gone before they arrive. */
  readonly taken?: Uint8Array | undefined;
  readonly immediate: number | undefined;
  readonly bytes: number;
  resolve(): void;
  reject(error: ShoalError): void;
}

class LoopbackConnection implements Connection {
  readonly peer: PeerIdentity;
  readonly description = 'loopback';
  readonly #fabric: LoopbackFabric;
  readonly #onClosed: (connection: LoopbackConnection) => void;
  readonly #queue = new Fifo<Operation>();
  #other!: LoopbackConnection;
  #handlers: ConnectionHandlers | undefined;
  #pendingBytes = 0;
  #messageBytes = 0;
  #draining = false;
  #state: 'open' | 'closing' | 'closed' = 'open';
  #closeError: ShoalError | undefined;
  #crashed = false;
  #flushed: (() => void) | undefined;

  constructor(fabric: LoopbackFabric, peer: PeerIdentity, onClosed: (connection: LoopbackConnection) => void) {
    this.#fabric = fabric;
    this.peer = peer;
    this.#onClosed = onClosed;
  }

  join(other: LoopbackConnection): void {
    this.#other = other;
  }

  setHandlers(handlers: ConnectionHandlers): void {
    if (this.#handlers !== undefined) throw new ShoalError('usage', 'handlers of a connection are set once');
    this.#handlers = handlers;
    if (this.#state === 'closed') this.#fabric.soon(() => handlers.onClose(this.#closeError));
    this.#other.#scheduleDrain();
  }

  async send(message: Uint8Array): Promise<void> {
    checkMessage(message);
    return this.#post({
      message: Uint8Array.from(message),
      source: undefined,
      target: undefined,
      immediate: undefined,
      bytes: message.length,
    });
  }

  async write(source: Span, target: RemoteSpan, immediate?: number): Promise<void> {
    checkSource(source, immediate);
    return this.#post({ message: undefined, source, target, immediate, bytes: source.bytes });
  }

  /** The peer's region itself, as both are in one thread. */
  map(remote: RemoteRegion): Region {
    const registered = this.#other.#fabric.regions.get(remote.rkey);
    if (registered === undefined) {
      throw new ShoalError('unsupported', `rank ${this.peer.rank} has no region with rkey ${remote.rkey}; was it deregistered?`, {
        peer: this.peer.rank,
      });
    }
    return registered.region;
  }

  async close(timeoutMs: number = defaultCloseTimeoutMs): Promise<void> {
    if (this.#state !== 'open') return;
    this.#state = 'closing';
    if (this.#queue.length > 0) {
      await new Promise<void>((resolve) => {
        const timer = this.#fabric.options.clock.setTimer(timeoutMs, resolve, { keepAlive: true });
        this.#flushed = () => {
          timer.cancel();
          resolve();
        };
      });
    }
    const left = this.#taken();
    this.#finish(undefined);
    if (left.length === 0) this.#other.#finish(undefined);
    else this.#other.#fabric.turn(() => this.#deliverLast(left));
  }

  /** Operations that the system would have taken from this process: they still arrive, as on a socket that is closed. */
  #taken(): Operation[] {
    const left: Operation[] = [];
    if (this.#other.#handlers === undefined) return left;
    for (let operation = this.#queue.shift(); operation !== undefined; operation = this.#queue.shift()) {
      left.push({ ...operation, taken: operation.source && viewOf(operation.source).slice() });
      this.#forget(operation).reject(connectionClosed(this.#fabric.options.identity.rank, this.peer.rank));
    }
    return left;
  }

  #deliverLast(left: readonly Operation[]): void {
    try {
      for (const operation of left) this.#deliver(operation);
      this.#other.#finish(undefined);
    } catch (thrown) {
      this.#other.#finish(this.#other.#broken(ShoalError.from(thrown), 'closes its connection'));
    }
  }

  /** Breaks the connection as a crash of this process would. */
  abort(): void {
    this.#finish(this.#lost('the connection was aborted here'));
    this.#other.#finish(this.#other.#lost('the peer ended without a goodbye'));
  }

  /** Simulates that the process of this end is killed. */
  crash(arriving: (queued: number) => number): void {
    const count = arriving(this.#queue.length + 1);
    this.#crashed = true;
    this.#onClosed(this);
    this.#handlers = undefined;
    this.#other.#fabric.turn(() => {
      if (this.#other.#handlers !== undefined) this.#drain(Math.min(count, this.#queue.length));
      this.#state = 'closed';
      while (this.#queue.shift() !== undefined);
      this.#other.#finish(this.#other.#lost('the peer ended without a goodbye'));
    });
  }

  #post(operation: Omit<Operation, 'resolve' | 'reject'>): Promise<void> {
    const { maxQueuedBytes = defaultMaxQueuedBytes } = this.#fabric.options;
    if (this.#state !== 'open') throw connectionClosed(this.#fabric.options.identity.rank, this.peer.rank);
    checkBacklog(
      this.peer,
      { operations: this.#queue.length, bytes: this.#pendingBytes, messageBytes: this.#messageBytes },
      maxQueuedBytes,
    );
    return new Promise((resolve, reject) => {
      this.#queue.push({ ...operation, resolve, reject });
      this.#pendingBytes += operation.bytes;
      if (operation.message !== undefined) this.#messageBytes += operation.bytes;
      this.#scheduleDrain();
    });
  }

  #scheduleDrain(): void {
    if (this.#draining || this.#queue.length === 0 || this.#other.#handlers === undefined) return;
    this.#draining = true;
    this.#other.#fabric.turn(() => {
      this.#draining = false;
      this.#drain(this.#queue.length);
      this.#scheduleDrain();
    });
  }

  /** Delivers up to `count` operations; operations that their delivery posts wait for the next turn. */
  #drain(count: number): void {
    for (let k = 0; k < count && this.#state !== 'closed'; k++) {
      const operation = this.#queue.peek()!;
      try {
        this.#deliver(operation);
      } catch (thrown) {
        const error = ShoalError.from(thrown);
        this.#finish(this.#broken(error, 'the peer closed the connection'));
        this.#other.#finish(this.#other.#broken(error, 'closes its connection'));
        return;
      }
      if (this.#isClosed()) return;
      const done = this.#forget(this.#queue.shift()!);
      // The code of a crashed process does not go on.
      if (!this.#crashed) done.resolve();
    }
    if (this.#queue.length === 0) this.#flushed?.();
  }

  #isClosed(): boolean {
    return this.#state === 'closed';
  }

  #deliver(operation: Operation): void {
    const { message, source, target, taken, immediate } = operation;
    const other = this.#other;
    if (source !== undefined && target !== undefined && source.bytes > 0) {
      const destination = other.#fabric.regions.locate(target.region.rkey, target.offset, source.bytes);
      destination.set(taken ?? viewOf(source));
    }
    if (other.#state !== 'open') return;
    if (message !== undefined) other.#handlers?.onMessage(message);
    if (immediate !== undefined) other.#handlers?.onImmediate(immediate);
  }

  #forget(operation: Operation): Operation {
    this.#pendingBytes -= operation.bytes;
    if (operation.message !== undefined) this.#messageBytes -= operation.bytes;
    return operation;
  }

  #broken(cause: ShoalError, what: string): ShoalError {
    const { rank } = this.#fabric.options.identity;
    const fields = { rank, peer: this.peer.rank, cause };
    return new ShoalError(
      cause.code,
      `rank ${rank}, connected to rank ${this.peer.rank} (${this.description}): ${what}: ${cause.message}`,
      fields,
    );
  }

  #lost(reason: string): ShoalError {
    const { rank } = this.#fabric.options.identity;
    const inFlight = { operations: this.#queue.length, bytes: this.#pendingBytes };
    return peerLost({ rank, peer: this.peer.rank, description: this.description, inFlight, reason });
  }

  #finish(error: ShoalError | undefined): void {
    if (this.#state === 'closed') return;
    this.#state = 'closed';
    this.#closeError = error;
    const pendingError = error ?? connectionClosed(this.#fabric.options.identity.rank, this.peer.rank);
    for (let operation = this.#queue.shift(); operation !== undefined; operation = this.#queue.shift())
      this.#forget(operation).reject(pendingError);
    this.#flushed?.();
    this.#onClosed(this);
    const handlers = this.#handlers;
    if (handlers !== undefined) this.#fabric.soon(() => handlers.onClose(error));
  }
}

function viewOf({ region, offset, bytes }: Span): Uint8Array {
  return new Uint8Array(region.buffer, offset, bytes);
}
