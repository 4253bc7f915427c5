/** The data plane: connections between processes with the semantics of RDMA verbs. One-sided writes land in the
 *  destination's registered memory, optionally announced by a 32-bit immediate; small two-sided messages go beside them.
 *  A fabric must not know ranks' collectives, plans or tensors.
 *
 *  Contract (checked by the conformance suite on every provider):
 *  - On one connection everything is delivered in the order it was posted: messages, immediates, and the data of writes
 *    before their immediate. Nothing is ordered between connections.
 *  - `send` and `write` may be called while earlier ones are in flight; they never overtake.
 *  - The source of a write must not change before its promise resolves. Resolution means the source may be reused, not
 *    that the target has the data. A message given to `send` may be reused when `send` returns.
 *  - The target checks every write. Unknown rkey or a range outside the region: nothing is written, and both sides see
 *    the connection close with a `protocol` error.
 *  - When a connection is lost, every pending promise rejects with `peer-lost` (fields `peer`, `bytes`), `onClose` fires
 *    once with that error, and later calls reject with `closed`.
 *  - Posted bytes that the peer does not take are bounded by `maxQueuedBytes`; beyond, `send` and `write` wait.
 *  - Callbacks run on the thread that made the fabric, never inside a call to it. */
import type { Clock } from '../base/clock.ts';
import type { ShoalError } from '../base/errors.ts';
import type { Random } from '../base/random.ts';
import type { RecordCiphers } from '../base/secure/records.ts';
import type { Settings } from '../base/settings/settings.ts';
import type { Region, RegionAllocator } from '../memory/region.ts';
import type { EventPolling } from './event-polling.ts';

export interface FabricCapabilities {
  /** Peer memory can be mapped: `Connection.map` works, loads and stores replace writes. */
  readonly loadStore: boolean;
}

/** Everything about a registered region that a peer needs to write to it or map it; plain data, goes over the wire. */
export interface RemoteRegion {
  readonly rkey: number;
  readonly bytes: number;
  /** Provider-specific text (how to map it); empty where not mappable. At most 256 characters. */
  readonly handle: string;
}

/** A region the provider accepts remote writes into. */
export interface RegisteredRegion extends RemoteRegion {
  readonly region: Region;
  /** Ends the registration: later writes to the region are refused. Idempotent. */
  deregister(): void;
}

/** Local bytes: part of a region. */
export interface Span {
  readonly region: Region;
  readonly offset: number;
  readonly bytes: number;
}

/** The place where a write lands. */
export interface RemoteSpan {
  readonly region: RemoteRegion;
  readonly offset: number;
}

/** The way to reach a listening fabric: provider name and URL-like candidates, best first (`tcp://10.0.0.4:41234`). */
export interface FabricAddress {
  readonly provider: string;
  readonly candidates: readonly string[];
}

/** The process at the other end, as proved by the job secret during the handshake. */
export interface PeerIdentity {
  /** World name: connections of another world are refused. */
  readonly world: string;
  readonly rank: number;
}

export interface ConnectionHandlers {
  /** `message` is valid during the call only. */
  onMessage(message: Uint8Array): void;
  onImmediate(immediate: number): void;
  /** Called exactly once. `undefined` after an orderly close by either side. */
  onClose(error: ShoalError | undefined): void;
}

export interface Connection {
  readonly peer: PeerIdentity;
  /** The path of the connection, as text for people: `shm`, `tcp 10.0.0.4:41234`. */
  readonly description: string;
  /** Must be called once, in the same turn as the connection was received; deliveries wait for it. */
  setHandlers(handlers: ConnectionHandlers): void;
  send(message: Uint8Array): Promise<void>;
  /** `source.bytes` may be 0; then only the immediate travels, and, as in verbs, the target's region is not checked. Immediates
   *  are integers 0…2³²−1. */
  write(source: Span, target: RemoteSpan, immediate?: number): Promise<void>;
  /** One write from several sources, whose bytes land one behind the other: the gather list of verbs. With providers that have
   *  it, many small writes to one place cost hardly more than one. */
  gather?(sources: readonly Span[], target: RemoteSpan): Promise<void>;
  /** loadStore fabrics: maps the peer's region here, cached by rkey. The mapping stays valid until the peer deregisters the
   *  region or this fabric closes; the end of the connection does not end it.
   *  @throws ShoalError `unsupported` on other fabrics. */
  map(remote: RemoteRegion): Region;
  /** Flushes posted operations (bounded by `timeoutMs`, default 1000), then closes both directions. Idempotent. */
  close(timeoutMs?: number): Promise<void>;
}

export interface FabricOptions {
  readonly identity: PeerIdentity;
  /** Number of ranks that may dial at once. Default: unknown. */
  readonly worldSize?: number;
  /** Secret of the job; proves membership in both directions and is never sent. */
  readonly secret: Uint8Array;
  readonly clock: Clock;
  readonly random: Random;
  /** Unsent bytes per connection beyond which senders wait. Default 64 MiB. */
  readonly maxQueuedBytes?: number;
  /** Looks for frames before the thread sleeps until they come. Default: sleeps at once. */
  readonly polling?: EventPolling;
  /** Addresses to listen on, where the provider has addresses; `0.0.0.0` and `::` offer every usable interface. Default: 127.0.0.1 only. */
  readonly listenHosts?: readonly string[];
  /** Allocator of the regions of this process, which may map those of peers. Default: one of the provider's own. */
  readonly regions?: RegionAllocator;
  /** The user's settings, of which a provider reads those that concern it. Default: the settings' defaults. */
  readonly settings?: Settings;
  /** Called for every incoming connection that was turned away, with the reason; for logs. */
  readonly onRefused?: (error: ShoalError) => void;
  /** Ciphers of encrypted streams. Default: those of node:crypto. */
  readonly ciphers?: RecordCiphers;
  /** Takes what a provider has noticed about a link; for logs. */
  readonly onNote?: (message: string) => void;
}

export interface ConnectOptions {
  readonly peer: PeerIdentity;
  readonly timeoutMs: number;
  readonly signal?: AbortSignal;
}

/** A source of sockets to give away: authenticated streams to peers, for native code that reads and writes them itself. */
export interface SocketSource {
  /** Addresses where peers open such sockets; empty before the fabric listens. */
  readonly candidates: readonly string[];
  /** Opens a socket to the rank that listens at `address`; `tag`, a uint32, tells that rank its purpose. `take` is called with
   *  its descriptor and duplicates it: the given one is closed afterwards. Rejects like `connect`. */
  open(address: FabricAddress, options: ConnectOptions & { readonly tag: number }, take: TakeDescriptor): Promise<GivenSocket>;
  /** Called with each socket that a peer has opened. Without it, or when `accept` is not called in the same turn, the socket is closed. */
  onSocket: ((peer: PeerIdentity, tag: number, accept: (take: TakeDescriptor) => GivenSocket) => void) | undefined;
}

export type TakeDescriptor = (descriptor: number) => number;

/** A socket that was given away, by the descriptor that its taker has. */
export interface GivenSocket {
  readonly descriptor: number;
  /** May choose another congestion control. Called by the taker when the socket seems slow, while it is open. */
  review(): void;
}

export interface Fabric {
  readonly name: string;
  readonly capabilities: FabricCapabilities;
  /** Sockets to give away; only on fabrics over sockets with descriptors. */
  readonly sockets?: SocketSource;
  register(region: Region): RegisteredRegion;
  /** Starts accepting. `onConnection` receives connections whose handshake succeeded. */
  listen(onConnection: (connection: Connection) => void): Promise<FabricAddress>;
  /** Tries the candidates (in parallel where that is useful) and keeps the best that authenticates.
   *  @throws ShoalError `timeout` or `peer-lost` when none answers (the message lists each candidate and why),
   *          `auth` when the secret is wrong, `unsupported` when the provider cannot reach that host (shm, other host). */
  connect(address: FabricAddress, options: ConnectOptions): Promise<Connection>;
  close(): Promise<void>;
}

/** One line of the registry of providers. */
export interface FabricProvider {
  readonly name: string;
  readonly description: string;
  /** Whether groups use the provider without being asked to. */
  isUsedUnasked(): boolean;
  /** The reason why this host cannot use the provider with these settings, or undefined when it can. */
  unavailable(settings?: Settings): string | undefined;
  create(options: FabricOptions): Fabric;
}
