/** The common part of fabrics whose connections begin on a framed socket: registered regions, listening, dialling, the end. A provider adds
 *  its addresses, and the exchange that makes a connection of an authenticated stream. */
import type net from 'node:net';
import { Handshake } from '../../base/auth.ts';
import { ShoalError } from '../../base/errors.ts';
import type { LinkEnds } from '../../base/secure/link.ts';
import type { Region } from '../../memory/region.ts';
import type { ConnectOptions, Connection, Fabric, FabricAddress, FabricCapabilities, FabricOptions, RegisteredRegion } from '../fabric.ts';
import { connectionClosed, defaultMaxQueuedBytes } from '../limits.ts';
import type { Abortable } from '../abortable.ts';
import { RegionTable } from '../region-table.ts';
import { Acceptor, handshakeOptionsOf, type AcceptorOptions, type Handshaking } from './acceptor.ts';
import { dial } from './dial.ts';
import { FramedSocket, type FramedSocketOptions } from './framed-socket.ts';
import { StreamCounters } from './stream-counters.ts';

interface Ended {
  close(): Promise<void>;
  onDeregistered?(rkey: number): void;
}

export abstract class StreamFabric<C extends Ended, Options extends FabricOptions = FabricOptions> implements Fabric {
  abstract readonly name: string;
  abstract readonly capabilities: FabricCapabilities;
  readonly counters = new StreamCounters();
  protected readonly options: Options;
  protected readonly regions: RegionTable;
  protected readonly connections = new Set<C>();
  #acceptor: Acceptor | undefined;
  #isClosed = false;
  #closing: Promise<void> | undefined;

  /** @param handleOf as in RegionTableOptions. */
  constructor(options: Options, handleOf?: (region: Region) => string) {
    this.options = options;
    this.regions = new RegionTable({ random: options.random, handleOf, onDeregister: (rkey) => this.onDeregister(rkey) });
  }

  abstract listen(onConnection: (connection: Connection) => void): Promise<FabricAddress>;
  abstract connect(address: FabricAddress, options: ConnectOptions): Promise<Connection>;

  /** Number of incoming sockets that have not proved themselves yet. */
  get pendingConnections(): number {
    return this.#acceptor?.pending ?? 0;
  }

  register(region: Region): RegisteredRegion {
    return this.regions.register(region);
  }

  close(): Promise<void> {
    this.#isClosed = true;
    this.#closing ??= this.end();
    return this.#closing;
  }

  protected async end(): Promise<void> {
    this.#acceptor?.close();
    await Promise.all([...this.connections].map((connection) => connection.close()));
    this.regions.clear();
  }

  protected onDeregister(rkey: number): void {
    for (const connection of this.connections) connection.onDeregistered?.(rkey);
  }

  protected get handshaking(): Handshaking {
    return { purpose: `fabric-${this.name}` };
  }

  /** @throws ShoalError `usage` when it listens already or is closed. */
  protected makeAcceptor(parts: Pick<AcceptorOptions, 'describe' | 'onStream' | 'readAhead'>): Acceptor {
    const { name, counters, options } = this;
    if (this.#isClosed || this.#acceptor !== undefined) throw new ShoalError('usage', `${name} fabric listens already or is closed`);
    this.#acceptor = new Acceptor({ fabric: options, counters, ...this.handshaking, ...parts });
    return this.#acceptor;
  }

  /** The result of the first attempt that succeeds. @throws ShoalError `closed`, and as `dial`. */
  protected async dial<T extends Abortable>(
    address: FabricAddress,
    options: ConnectOptions,
    attempt: (candidate: string, signal: AbortSignal) => Promise<T>,
  ): Promise<T> {
    if (this.#isClosed) throw connectionClosed(this.options.identity.rank, options.peer.rank);
    return dial(address, options, this.options, attempt);
  }

  protected makeStream(
    parts: Pick<FramedSocketOptions, 'description' | 'readAhead' | 'polling'>,
    makeSocket: (onread: net.OnReadOpts) => net.Socket,
  ): FramedSocket {
    const { identity, clock, ciphers, maxQueuedBytes = defaultMaxQueuedBytes } = this.options;
    return new FramedSocket({ rank: identity.rank, clock, maxQueuedBytes, counters: this.counters, ciphers, ...parts }, makeSocket);
  }

  /** Turns a dialled socket into a stream on which both sides have proved the secret, and that into a provider's connection: an attempt
   *  of `dial`. A failure leaves nothing behind. @param exchange has to succeed on the stream before it counts. */
  protected async meet<T>(
    stream: FramedSocket,
    peer: ConnectOptions['peer'],
    signal: AbortSignal,
    exchange: () => T | Promise<T>,
  ): Promise<T> {
    const onAbort = (): void => stream.fail(new ShoalError('timeout', 'no answer yet'));
    signal.addEventListener('abort', onAbort, { once: true });
    try {
      const handshakeOf = (ends: LinkEnds): Handshake =>
        new Handshake({ role: 'dialer', expectedPeer: peer.rank, ...handshakeOptionsOf(this.options, this.handshaking, ends) });
      await stream.authenticate(handshakeOf, peer.world);
      const met = await exchange();
      if (signal.aborted) throw new ShoalError('timeout', 'answered too late');
      return met;
    } catch (thrown) {
      stream.abort();
      throw thrown;
    } finally {
      signal.removeEventListener('abort', onAbort);
    }
  }
}
