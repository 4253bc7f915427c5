/** Fabric between processes of one host: a write is one memcpy into the peer's region, mapped here. A Unix socket in the abstract
 *  namespace (unix(7): no file, gone with its process) carries everything else: the handshake, messages, immediates, which also
 *  wake the peer's event loop, and the end. Death is seen by a lock in the probe region, before the socket ends (lives.ts).
 *
 *    dialer                                            acceptor
 *      hello, proof            ◀── handshake ──▶         hello, proof
 *      probe(region, nonce)    ◀───────────────▶         probe(region, nonce)     both map and compare: this is one host
 *      probed(worked)          ◀───────────────▶         probed(worked)
 *      open                    ────────────────▶
 *      claim(rkey)             ────────────────▶         first write to a region: is it registered?
 *      maps the region         ◀────────────────         grant(rkey, how to map it)
 *      memcpy, written(…, imm) ────────────────▶         checks, delivers the immediate
 *      unmaps                  ◀────────────────         withdraw(rkey): it was deregistered
 *
 *  Guarantee: a write never leaves the region its rkey was granted for; the writer checks the range, the target checks each
 *  announced write again. A write that is under way while the target deregisters may still change the region's bytes, and its
 *  announcement is then refused; writes posted after `withdraw` has arrived change nothing. */
import net from 'node:net';
import { ShoalError } from '../../base/errors.ts';
import { loadNative, nativeUnavailableReason } from '../../memory/native.ts';
import type { Region, RegionAllocator } from '../../memory/region.ts';
import { createRegionAllocator } from '../../memory/regions/allocator.ts';
import type { ConnectOptions, Connection, FabricAddress, FabricCapabilities, FabricOptions, FabricProvider } from '../fabric.ts';
import { FrameType } from '../stream/frame.ts';
import type { Handshaking } from '../stream/acceptor.ts';
import type { FramedSocket } from '../stream/framed-socket.ts';
import { hostIdentity } from '../../base/files/host-identity.ts';
import { encodeHandle } from '../region-handle.ts';
import { StreamFabric } from '../stream/stream-fabric.ts';
import { Lives, lockBytes } from './lives.ts';
import { nonceBytes, ShmConnection, type Opening } from './shm-connection.ts';

const readAheadBytes = 4096;

/** The reason why this host cannot use shared memory between processes, or undefined when it can. */
export function shmUnavailable(): string | undefined {
  return process.platform === 'linux' ? nativeUnavailableReason() : `shm needs Linux, this is ${process.platform}`;
}

export interface ShmOptions extends FabricOptions {
  /** Replaces the probed identity of this host; for tests that play several hosts on one. */
  readonly hostId?: string;
}

export const shmProvider: FabricProvider = {
  name: 'shm',
  description: "processes of one host; a write is one copy into the peer's mapped memory",
  isUsedUnasked: () => true,
  unavailable: shmUnavailable,
  create: (options) => new ShmFabric({ ...options, hostId: options.settings?.hostId }),
};

export class ShmFabric extends StreamFabric<ShmConnection, ShmOptions> {
  readonly name = 'shm';
  readonly capabilities: FabricCapabilities = { loadStore: true };
  readonly #hostId: string;
  readonly #allocator: RegionAllocator;
  /** Memory of peers whose connection has ended; unmapped when the fabric closes. */
  readonly #retired: Region[] = [];
  /** Region that peers map to see that they are on this host, and that this process lives, and its description. */
  readonly #probe: { region: Region; text: Buffer };
  readonly #lives: Lives;
  /** Buffer that all connections read ahead into: frames are small here. */
  readonly #readAhead = Buffer.allocUnsafeSlow(readAheadBytes);

  /** @throws ShoalError `unsupported` without memory that processes share. */
  constructor(options: ShmOptions) {
    super(options, encodeHandle);
    this.#hostId = options.hostId || hostIdentity();
    const native = loadNative({ enabled: true });
    this.#allocator = options.regions ?? createRegionAllocator({ native });
    if (this.#allocator.kind !== 'shared' || native === undefined)
      throw new ShoalError('unsupported', `shm needs shared memory: ${shmUnavailable() ?? 'the allocator given has none'}`);
    const region = this.#allocator.create(nonceBytes + lockBytes);
    const nonce = options.random.bytes(nonceBytes);
    new Uint8Array(region.buffer).set(nonce);
    this.#lives = new Lives(native, new Uint32Array(region.buffer, nonceBytes, 1));
    this.#probe = { region, text: Buffer.from(`${encodeHandle(region)} ${Buffer.from(nonce).toString('hex')}`) };
  }

  async listen(onConnection: (connection: Connection) => void): Promise<FabricAddress> {
    const acceptor = this.makeAcceptor({
      readAhead: this.#readAhead,
      describe: () => 'shm',
      onStream: (stream) => this.#awaitOpen(stream, onConnection),
    });
    const name = `shoal-${process.pid}-${Buffer.from(this.options.random.bytes(12)).toString('hex')}`;
    await acceptor.listen({ path: `\0${name}` });
    return { provider: this.name, candidates: [`shm://${name}?host=${encodeURIComponent(this.#hostId)}`] };
  }

  async connect(address: FabricAddress, options: ConnectOptions): Promise<Connection> {
    const connection = await this.dial(address, options, (candidate, signal) => this.#attempt(candidate, options.peer, signal));
    this.connections.add(connection);
    connection.postOpen();
    return connection;
  }

  protected override get handshaking(): Handshaking {
    return { ...super.handshaking, isLocal: true };
  }

  protected override async end(): Promise<void> {
    await super.end();
    for (const region of this.#retired) region.close();
    this.#retired.length = 0;
    this.#probe.region.close();
  }

  async #attempt(candidate: string, peer: ConnectOptions['peer'], signal: AbortSignal): Promise<ShmConnection> {
    const { name, hostId } = parseCandidate(candidate);
    if (hostId !== this.#hostId) {
      throw new ShoalError('unsupported', `rank ${peer.rank} is on another host or in another container (${hostId}; here ${this.#hostId})`);
    }
    const parts = { description: 'shm', readAhead: this.#readAhead, polling: this.options.polling };
    const stream = this.makeStream(parts, (onread) => net.connect({ path: `\0${name}`, onread }));
    const exchange = (): Promise<ShmConnection> =>
      new Promise((resolve, reject) => {
        const made = this.#startConnection(stream, { dials: true, ready: () => resolve(made), failed: reject });
      });
    return this.meet(stream, peer, signal, exchange);
  }

  #awaitOpen(stream: FramedSocket, onConnection: (connection: Connection) => void): Promise<void> {
    return new Promise((resolve, reject) => {
      const ready = (): void => {
        this.connections.add(connection);
        resolve();
        onConnection(connection);
      };
      const connection = this.#startConnection(stream, { dials: false, ready, failed: reject });
    });
  }

  #startConnection(stream: FramedSocket, opening: Opening): ShmConnection {
    const connection: ShmConnection = new ShmConnection(stream, {
      clock: this.options.clock,
      regions: this.regions,
      allocator: this.#allocator,
      lives: this.#lives,
      opening,
      onEnded: () => this.connections.delete(connection),
      retire: (regions) => this.#retired.push(...regions),
    });
    stream.start(connection);
    stream.postControl(FrameType.Probe, {}, this.#probe.text);
    return connection;
  }
}

function parseCandidate(candidate: string): { name: string; hostId: string } {
  const parts = /^shm:\/\/([\w-]{1,80})\?host=(.+)$/.exec(candidate);
  if (parts === null) throw new ShoalError('config', `'${candidate}' is not an address like shm://shoal-1234?host=…`);
  return { name: parts[1], hostId: decodeURIComponent(parts[2]) };
}
