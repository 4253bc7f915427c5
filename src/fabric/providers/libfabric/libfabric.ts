/** Fabric over libfabric: writes with an immediate and messages over any network that its providers drive, by endpoints of type
 *  RDM. The library is optional and found at run time.
 *
 *    dialer                                             acceptor
 *      hello, proof            ◀── handshake, TCP ──▶     hello, proof
 *      makes an endpoint
 *      open, probe(provider, address, token)  ───────▶    makes an endpoint
 *                              ◀──────────────────────    probe(provider, address, token)
 *      hello                   ═══ endpoint to endpoint ▶
 *                              ◀═════════════════════     hello; both have the connection
 *      messages, writes        ◀════════════════════▶     libfabric-connection.ts
 *      the end, death          ◀── goodbye, end ──▶       on the TCP stream, which carries nothing else meanwhile
 *
 *  The stream has what RDM endpoints lack: it proves who the peer is, and ends when the peer does. A message without the token that was
 *  told over the stream is dropped. Each connection has an endpoint of its own, so that its end ends everything under way on it. */
import net from 'node:net';
import { getOrMake } from '../../../base/collections/lists.ts';
import { setServedTimer, type Timer } from '../../../base/clock.ts';
import { messageOf, ShoalError } from '../../../base/errors.ts';
import { checkDescriptors, exhaustion } from '../../../base/exhaustion.ts';
import { nativeUnavailableReason } from '../../../memory/native.ts';
import {
  loadNativeWithOfi,
  ofiLocalRegistration,
  type NativeWithOfi,
  type OfiDeviceFacts,
  type OfiDeviceHandle,
  type OfiRegistrationHandle,
} from './native-ofi.ts';
import type { WatchHandle } from '../../../memory/native-wire.ts';
import type { Region } from '../../../memory/region.ts';
import type { ConnectOptions, Connection, FabricAddress, FabricCapabilities, FabricOptions, FabricProvider } from '../../fabric.ts';
import { hostIdentity } from '../../../base/files/host-identity.ts';
import { defaultListenHosts, defaultMaxQueuedBytes } from '../../limits.ts';
import { hostsToListenOn, parseCandidate, type ListenHost } from '../../stream/candidates.ts';
import type { Handshaking } from '../../stream/acceptor.ts';
import type { FramedSocket } from '../../stream/framed-socket.ts';
import { connect } from '../../stream/stream-network.ts';
import type { Grant, LibfabricConnectionOptions, WriteOrder } from './libfabric-connection-options.ts';
import { LibfabricConnection } from './libfabric-connection.ts';
import {
  chooseDevice,
  hasRdmaDevice,
  isIpv6,
  isSocketProvider,
  libfabricChoice,
  libfabricUnavailable,
  orderOf,
  type LibfabricChoice,
} from './libfabric-devices.ts';
import { LibfabricEndpoint } from './libfabric-endpoint.ts';
import { tokenBytes } from './libfabric-message.ts';
import { LibfabricProgress } from './libfabric-progress.ts';
import { StreamFabric } from '../../stream/stream-fabric.ts';
import { sharedMemoryName, sweepSharedMemory } from './libfabric-shm-files.ts';

const defaultQueueDepth = 128;
/** Receives beyond the credits, for messages that only give credits back. */
const spareReceives = 8;
const writeBytesMax = 2 ** 30;
/** Descriptors that an endpoint may need. */
const endpointDescriptors = 12;
/** Time in which peers confirm that they do not write to a region any more. */
const confirmMs = 10_000;

export interface LibfabricOptions extends FabricOptions {
  /** The provider and device to use, and their parameters. Default: the best there is. */
  readonly libfabric?: LibfabricChoice;
  /** The interfaces to offer for `0.0.0.0` and `::`. Default: all but loopback. */
  readonly interfaces?: readonly string[];
  /** Replaces the probed identity of this host; for tests that play several hosts on one. */
  readonly hostId?: string;
  /** Weaker way to keep order than the provider's best; for tests. */
  readonly order?: WriteOrder;
}

/** Comes before tcp where there is hardware for it. */
export const libfabricProvider: FabricProvider = {
  name: 'libfabric',
  description: 'networks that libfabric drives: verbs, efa, and without hardware tcp and shm',
  isUsedUnasked: hasRdmaDevice,
  unavailable: (settings) => libfabricUnavailable(settings && libfabricChoice(settings)),
  create(options) {
    const { settings } = options;
    if (settings === undefined) return new LibfabricFabric(options);
    return new LibfabricFabric({ ...options, libfabric: libfabricChoice(settings), interfaces: settings.interfaces });
  },
};

interface Registered {
  readonly region: Region;
  readonly handle: OfiRegistrationHandle;
  readonly grant: Grant;
}

interface OpenDevice {
  readonly handle: OfiDeviceHandle;
  readonly facts: OfiDeviceFacts;
  readonly order: WriteOrder;
}

export class LibfabricFabric extends StreamFabric<LibfabricConnection, LibfabricOptions> {
  readonly name = 'libfabric';
  readonly capabilities: FabricCapabilities = { loadStore: false };
  /** Name of libfabric's provider. */
  readonly provider: string;
  readonly order: WriteOrder;
  readonly #native: NativeWithOfi;
  readonly #device: OpenDevice;
  #depth = defaultQueueDepth;
  readonly #hostId: string;
  /** Regions that a peer has asked to write to, with their registrations, by rkey. */
  readonly #registered = new Map<number, Registered>();
  readonly #sources = new WeakMap<object, { source: Uint8Array; registration: OfiRegistrationHandle | undefined }>();
  readonly #opening = new Set<FramedSocket>();
  readonly #progress: LibfabricProgress;

  /** @throws ShoalError `unsupported` without a usable provider, `out-of-memory` when a resource of the system is used up. */
  constructor(options: LibfabricOptions) {
    super(options);
    const native = loadNativeWithOfi();
    if (native === undefined) throw new ShoalError('unsupported', `libfabric needs the native addon: ${nativeUnavailableReason()}`);
    this.#native = native;
    this.#device = this.#openDevice();
    this.provider = this.#device.facts.provider;
    this.order = this.#device.order;
    this.#hostId = options.hostId || hostIdentity();
    this.#progress = new LibfabricProgress(options.clock);
    if (this.#sharesHost) sweepSharedMemory();
  }

  async listen(onConnection: (connection: Connection) => void): Promise<FabricAddress> {
    const acceptor = this.makeAcceptor({
      describe: ({ remoteAddress, remotePort }) => `libfabric from ${remoteAddress}:${remotePort}`,
      onStream: (stream) => this.#awaitPeer(stream, onConnection),
    });
    const addresses = await acceptor.listenOnHosts('libfabric', this.#hosts());
    return { provider: this.name, candidates: addresses.map((address) => `${address}?${this.#candidateQuery()}`) };
  }

  async connect(address: FabricAddress, options: ConnectOptions): Promise<Connection> {
    return this.dial(address, options, (candidate, signal) => this.#attempt(candidate, options.peer, signal));
  }

  /** One-sided writes go past this process. */
  protected override get handshaking(): Handshaking {
    return { ...super.handshaking, encryption: 'impossible' };
  }

  protected override async end(): Promise<void> {
    for (const stream of this.#opening) stream.abort();
    await super.end();
    this.#progress.close();
    this.#native.ofiCloseDevice(this.#device.handle);
  }

  // ── the device ─────────────────────────────────────────────────────────────────────────────────────────────────

  #openDevice(): OpenDevice {
    const { libfabric = {}, order, identity } = this.options;
    const chosen = chooseDevice(this.#native, libfabric);
    if (typeof chosen === 'string') throw new ShoalError('unsupported', chosen);
    // The depth is limited by the provider's room.
    this.#depth = Math.min(libfabric.queueDepth ?? defaultQueueDepth, chosen.transmits, chosen.receives - spareReceives);
    const open = (ordered: boolean): OfiDeviceFacts & { readonly handle: OfiDeviceHandle } => {
      const { provider, device, addressFormat } = chosen;
      const receives = this.#depth + spareReceives;
      return this.#native.ofiOpen(provider, device, addressFormat, this.#depth, receives, libfabric.trafficClass ?? 0, ordered);
    };
    // Order must be asked for, and not every provider grants it.
    const openInOrder = (): ReturnType<typeof open> => {
      try {
        return open(true);
      } catch (thrown) {
        if ((thrown as { code?: string }).code !== 'ENODATA') throw thrown;
        return open(false);
      }
    };
    try {
      const opened = order === undefined || order === 'ordered' ? openInOrder() : open(false);
      return { handle: opened.handle, facts: opened, order: order ?? orderOf(opened, Math.min(writeBytesMax, opened.maxMessageBytes)) };
    } catch (thrown) {
      const who = `rank ${identity.rank}`;
      const doing = `opening libfabric's ${chosen.provider} on ${chosen.device}`;
      throw exhaustion(who, thrown, doing) ?? new ShoalError('unsupported', `${who}, ${doing}: ${messageOf(thrown)}`, { cause: thrown });
    }
  }

  /** True if endpoints reach processes of this host only. */
  get #sharesHost(): boolean {
    return this.#device.facts.provider === 'shm';
  }

  #hosts(): readonly ListenHost[] {
    const { listenHosts = defaultListenHosts, interfaces } = this.options;
    if (this.#sharesHost) return [{ host: '127.0.0.1', addresses: ['127.0.0.1'] }];
    const { facts } = this.#device;
    // An endpoint takes addresses of one family.
    const family = isIpv6(facts) ? 6 : 4;
    const hosts = isSocketProvider(facts) ? listenHosts.filter((host) => net.isIP(host) === family) : listenHosts;
    return hostsToListenOn(hosts.length > 0 ? hosts : [family === 6 ? '::1' : '127.0.0.1'], interfaces);
  }

  #candidateQuery(): string {
    const query = new URLSearchParams({ provider: this.provider });
    if (this.#sharesHost) query.set('host', this.#hostId);
    return query.toString();
  }

  /** @throws ShoalError. */
  #newEndpoint(stream: FramedSocket): LibfabricEndpoint {
    const { identity, random } = this.options;
    const { facts, handle } = this.#device;
    const source = this.#sharesHost
      ? sharedMemoryName(random)
      : isSocketProvider(facts)
        ? (stream.localAddress ?? '').replace(/^::ffff:/, '')
        : '';
    try {
      const receives = this.#depth + spareReceives;
      return new LibfabricEndpoint({ native: this.#native, device: handle, source, receives, transmits: this.#depth });
    } catch (thrown) {
      const who = `rank ${identity.rank}`;
      const doing = `making an endpoint of ${facts.provider} for rank ${stream.peer.rank}`;
      const ranOut = exhaustion(who, thrown, doing);
      // Providers report EIO as well when descriptors have run out.
      if (ranOut === undefined) checkDescriptors(who, endpointDescriptors, doing);
      throw ranOut ?? new ShoalError('system', `${who}, ${doing}: ${messageOf(thrown)}`, { cause: thrown });
    }
  }

  /** @throws ShoalError with which the stream has ended. */
  #newConnection(stream: FramedSocket, opening: Pick<LibfabricConnectionOptions, 'dials' | 'onReady' | 'onFailed'>): LibfabricConnection {
    const { clock, random, onRefused, maxQueuedBytes = defaultMaxQueuedBytes } = this.options;
    const { facts, order } = this.#device;
    let endpoint: LibfabricEndpoint;
    try {
      endpoint = this.#newEndpoint(stream);
    } catch (thrown) {
      stream.fail(ShoalError.from(thrown));
      throw thrown;
    }
    let watch: WatchHandle | undefined;
    const connection: LibfabricConnection = new LibfabricConnection(stream, endpoint, {
      ...opening,
      provider: facts.provider,
      token: random.bytes(tokenBytes),
      clock,
      maxQueuedBytes,
      credits: this.#depth,
      order,
      maxWriteBytes: Math.min(writeBytesMax, facts.maxMessageBytes),
      sourceOf: (region) => this.#sourceOf(region),
      grantOf: (rkey) => this.#grantOf(rkey),
      onActive: () => this.#progress.wake(connection),
      watch: (on) => {
        if (watch !== undefined) this.#native.setWatching(watch, on);
      },
      onEnded: () => {
        if (watch !== undefined) this.#native.closeWatch(watch);
        this.#progress.forget(connection);
        this.connections.delete(connection);
      },
      onStrange: (error) => onRefused?.(error),
    });
    if (endpoint.waitFd >= 0) {
      watch = this.#native.watchDescriptor(endpoint.waitFd, () => this.#progress.onReadable(connection));
      this.#native.setWatching(watch, true);
    }
    this.connections.add(connection);
    return connection;
  }

  // ── meeting ────────────────────────────────────────────────────────────────────────────────────────────────────

  async #attempt(candidate: string, peer: ConnectOptions['peer'], signal: AbortSignal): Promise<LibfabricConnection> {
    const { host, port } = this.#parseCandidate(candidate, peer.rank);
    const description = `libfabric ${net.isIP(host) === 6 ? `[${host}]` : host}:${port}`;
    const stream = this.makeStream({ description }, (onread) => connect({ host, port, onread }));
    const exchange = (): Promise<LibfabricConnection> =>
      new Promise((resolve, reject) => {
        const made = this.#newConnection(stream, { dials: true, onReady: () => resolve(made), onFailed: reject });
      });
    this.#opening.add(stream);
    try {
      return await this.meet(stream, peer, signal, exchange);
    } finally {
      this.#opening.delete(stream);
    }
  }

  #awaitPeer(stream: FramedSocket, onConnection: (connection: Connection) => void): Promise<void> {
    return new Promise((resolve, reject) => {
      const onReady = (): void => {
        resolve();
        onConnection(connection);
      };
      const connection = this.#newConnection(stream, { dials: false, onReady, onFailed: reject });
    });
  }

  #parseCandidate(candidate: string, rank: number): { host: string; port: number } {
    const [address, query = ''] = candidate.split('?', 2);
    const parsed = parseCandidate('libfabric', address);
    const asked = new URLSearchParams(query);
    const provider = asked.get('provider');
    if (provider !== this.provider) {
      const message = `rank ${rank} uses libfabric's ${provider}, this process ${this.provider}; set SHOAL_LIBFABRIC_PROVIDER`;
      throw new ShoalError('unsupported', message);
    }
    const hostId = asked.get('host');
    if (this.#sharesHost && hostId !== this.#hostId)
      throw new ShoalError('unsupported', `rank ${rank} is on another host or in another container (${hostId}; here ${this.#hostId})`);
    return parsed;
  }

  // ── regions ────────────────────────────────────────────────────────────────────────────────────────────────────

  #sourceOf(region: Region): { source: Uint8Array; registration: OfiRegistrationHandle | undefined } {
    const known = this.#sources.get(region.buffer);
    if (known !== undefined) return known;
    const source = new Uint8Array(region.buffer, 0, region.bytes);
    const local = (this.#device.facts.registrationModes & ofiLocalRegistration) !== 0;
    const made = { source, registration: local ? this.#register(region, false).handle : undefined };
    this.#sources.set(region.buffer, made);
    return made;
  }

  #grantOf(rkey: number): Grant | undefined {
    const region = this.regions.get(rkey)?.region;
    if (region === undefined) return undefined;
    const { grant } = getOrMake(this.#registered, rkey, () => {
      const { handle, address, key } = this.#register(region, true);
      return { region, handle, grant: { address, key, bytes: region.bytes } };
    });
    return grant;
  }

  #register(region: Region, remote: boolean): ReturnType<NativeWithOfi['ofiRegister']> {
    const { random, identity } = this.options;
    const { handle, facts } = this.#device;
    const key = Buffer.from(random.bytes(8)).readBigUInt64LE() >> BigInt(8 * (8 - facts.keyBytes));
    try {
      return this.#native.ofiRegister(handle, new Uint8Array(region.buffer, 0, region.bytes), remote, key);
    } catch (thrown) {
      const who = `rank ${identity.rank}`;
      const doing = `registering ${region.bytes} bytes with ${facts.provider}`;
      throw exhaustion(who, thrown, doing) ?? new ShoalError('system', `${who}, ${doing}: ${messageOf(thrown)}`, { cause: thrown });
    }
  }

  /** Refuses writes to the region from now on; its pages stay until no peer writes to it any more. The device takes writes until all peers
   *  have confirmed that, because it drops what comes behind one that it refuses; but not from one that does not confirm. */
  protected override onDeregister(rkey: number): void {
    const registered = this.#registered.get(rkey);
    if (registered === undefined) return;
    this.#registered.delete(rkey);
    const { handle } = registered;
    let late: Timer | undefined;
    let writers = 1;
    const done = (): void => {
      if (--writers > 0) return;
      late?.cancel();
      this.#native.ofiRelease(handle);
    };
    for (const connection of this.connections) if (connection.withdraw(rkey, done)) writers++;
    if (writers > 1) late = setServedTimer(this.options.clock, confirmMs, () => this.#native.ofiRevoke(handle), { keepAlive: false });
    done();
  }
}
