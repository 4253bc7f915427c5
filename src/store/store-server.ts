/** Serves one `StoreTable` over TCP, in whichever process hosts it: the launcher or rank 0. Nothing of a request is
 *  parsed before the client has proved that it knows the job's secret; everything a stranger can make us hold is bounded:
 *
 *      accepted ──handshake ≤ 5 s, ≤ 140 bytes, ≤ 64 such sockets──▶ client (≤ maxClients)
 *          │ wrong bytes, wrong secret, too slow, pushed out by newer ones     │ request ─▶ table ─▶ result
 *          ▼                                                                   │ get/wait ─▶ watch … result
 *        closed                                                                ▼ malformed request: closed
 *
 *  It must not know what is stored. Wire format: store-wire.ts; handshake: base/auth.ts. */
import type { AddressInfo, Server, Socket } from 'node:net';
import { Handshake } from '../base/auth.ts';
import { claimOf, type LinkSettings } from '../base/secure/link.ts';
import { SecureStream } from '../base/secure/secure-stream.ts';
import { within, type Clock } from '../base/clock.ts';
import { Strangers, strangersMost } from '../base/connections/strangers.ts';
import { messageOf, ShoalError } from '../base/errors.ts';
import { exhaustion } from '../base/exhaustion.ts';
import type { Random } from '../base/random.ts';
import { apply, found, keysOf, resultOf } from './apply-operation.ts';
import { defaultStoreLimits } from './store-limits.ts';
import { StoreTable, type Watch } from './store-table.ts';
import { systemNetwork, type StreamNetwork } from '../fabric/stream/stream-network.ts';
import { decodeRequest, encodeResult, FrameReader, type StoreRequest } from './store-wire.ts';
import { isImmediate, type StoreResult } from './store.ts';

/** The purpose that both ends of a store connection name in the handshake. */
export const storePurpose = 'store';

export interface StoreServerOptions {
  readonly clock: Clock;
  readonly random: Random;
  /** Default: the system's. */
  readonly network?: StreamNetwork | undefined;
  /** Proved by both ends, never sent. An empty secret proves nothing. */
  readonly secret: Uint8Array;
  /** Whether connections that leave the host are encrypted. Default: they are. */
  readonly settings?: LinkSettings | undefined;
  /** Clients of another world are refused. */
  readonly world: string;
  /** Clients that name another size are refused. Default: any. */
  readonly worldSize?: number;
  /** Address to bind; `any`: all of this host. Default 127.0.0.1. */
  readonly host?: string;
  /** Default 0: the system chooses. */
  readonly port?: number;
  /** Authenticated connections at once. Default 16384. */
  readonly maxClients?: number;
  /** Connections that have not authenticated yet; a newer one pushes the oldest out. Default 64, or as many as there are ranks. */
  readonly maxStrangers?: number;
  /** Default 5000. */
  readonly handshakeMs?: number;
  /** `no`: the server alone does not keep its process from ending. Default `yes`. */
  readonly keepProcessAlive?: 'yes' | 'no';
  /** An authenticated connection began or ended; `peer` is the number the client gave in the handshake. */
  readonly onConnect?: (peer: number) => void;
  readonly onDisconnect?: (peer: number) => void;
}

interface Client {
  readonly peer: number;
  readonly socket: Socket;
  readonly stream: SecureStream;
  readonly watches: Map<number, Watch>;
}

const pauseAboveBytes = 1024 * 1024;
/** Results a client does not read, beyond which it is cut off. */
const cutOffBytes = 256 * 1024 * 1024;

export class StoreServer {
  /** The state itself, for clients in the same process. */
  readonly table: StoreTable;
  readonly #options: StoreServerOptions;
  readonly #server: Server;
  readonly #strangers: Strangers<Socket>;
  readonly #clients = new Set<Client>();
  #idle: (() => void)[] = [];
  #requests = 0;

  private constructor(options: StoreServerOptions) {
    this.#options = options;
    const { clock, maxStrangers = strangersMost(options.worldSize), handshakeMs } = options;
    this.#strangers = new Strangers({ clock, most: maxStrangers, timeoutMs: handshakeMs, end: (socket) => socket.destroy() });
    this.table = new StoreTable(defaultStoreLimits);
    const { network = systemNetwork } = options;
    this.#server = network.createServer({ noDelay: true, keepAlive: true, keepAliveInitialDelay: 30_000 }, (socket) =>
      this.#accept(socket),
    );
  }

  /** Binds and listens. @throws ShoalError `config` when the port is taken, `system` otherwise. */
  static async listen(options: StoreServerOptions): Promise<StoreServer> {
    const store = new StoreServer(options);
    const { host = '127.0.0.1', port = 0 } = options;
    await new Promise<void>((resolve, reject) => {
      store.#server.once('error', (error) => reject(cannotListen(`${host}:${port}`, error)));
      // Without a host, IPv6 and IPv4 alike, or IPv4 alone where there is no IPv6.
      store.#server.listen({ ...(host === 'any' ? {} : { host }), port, backlog: 1024 }, resolve);
    });
    store.#server.removeAllListeners('error');
    if (options.keepProcessAlive === 'no') store.#server.unref();
    // Accepting fails when descriptors run out; the clients that are there go on, the others try again.
    store.#server.on('error', () => undefined);
    return store;
  }

  get host(): string {
    return this.#options.host ?? '127.0.0.1';
  }

  get port(): number {
    return (this.#server.address() as AddressInfo).port;
  }

  get clients(): number {
    return this.#clients.size;
  }

  get strangers(): number {
    return this.#strangers.size;
  }

  /** Requests of clients so far. */
  get requests(): number {
    return this.#requests;
  }

  /** Resolves when no client is connected, at the latest after `timeoutMs`. */
  async drained(timeoutMs: number): Promise<void> {
    if (this.#clients.size === 0) return;
    const idle = new Promise<void>((resolve) => this.#idle.push(resolve));
    await within<void>(this.#options.clock, timeoutMs, idle, () => undefined);
  }

  /** Cuts every connection off; clients see `peer-lost`. Idempotent. */
  async close(): Promise<void> {
    if (!this.#server.listening) return;
    await new Promise<void>((resolve) => {
      this.#server.close(() => resolve());
      this.#strangers.close();
      for (const { socket } of this.#clients) {
        // Answers of this turn are still sent.
        socket.uncork();
        socket.destroy();
      }
    });
  }

  #accept(socket: Socket): void {
    const { random, secret, world, worldSize, settings } = this.#options;
    socket.on('error', () => socket.destroy());
    if (this.#options.keepProcessAlive === 'no') socket.unref();
    const link = claimOf(socket, settings);
    const handshake = new Handshake({ role: 'acceptor', secret, purpose: storePurpose, world, worldSize, rank: 0, random, link });
    this.#strangers.enter(socket);
    const leave = (): void => this.#strangers.leave(socket);
    const onData = (chunk: Buffer): void => {
      try {
        const { send, done } = handshake.push(chunk);
        if (done !== undefined && this.#clients.size >= (this.#options.maxClients ?? 16_384)) {
          return refuse(handshake.refuse(`the store already has ${this.#clients.size} clients`));
        }
        if (send !== undefined) socket.write(send);
        if (done === undefined) return;
        leave();
        socket.off('data', onData).off('close', leave);
        this.#serve({ peer: done.peerRank, socket, stream: new SecureStream(socket, done.keys), watches: new Map() }, done.rest);
      } catch {
        refuse(handshake.refusal);
      }
    };
    const refuse = (refusal: Uint8Array | undefined): void => {
      socket.off('data', onData);
      if (refusal === undefined) return void socket.destroy();
      socket.end(refusal);
      socket.resume();
    };
    socket.on('data', onData).on('close', leave);
  }

  #serve(client: Client, rest: Uint8Array): void {
    const { peer, socket, stream } = client;
    const reader = new FrameReader(this.table.limits);
    const onData = (chunk: Uint8Array): void => {
      try {
        const onFrame = (frame: Uint8Array): void => {
          const { id, message } = decodeRequest(frame, this.table.limits);
          this.#answer(client, id, message);
        };
        stream.open(chunk, (bytes) => reader.push(bytes, onFrame));
      } catch {
        // Authenticated, but not speaking our protocol: nothing after this byte can be trusted.
        socket.destroy();
        return;
      }
      if (socket.writableLength > pauseAboveBytes) socket.pause();
    };
    this.#clients.add(client);
    socket.on('data', onData);
    socket.on('drain', () => socket.resume());
    socket.on('close', () => this.#forget(client));
    this.#options.onConnect?.(peer);
    if (rest.length > 0) onData(rest);
  }

  #forget(client: Client): void {
    this.#clients.delete(client);
    for (const watch of client.watches.values()) watch.cancel();
    client.watches.clear();
    this.#options.onDisconnect?.(client.peer);
    if (this.#clients.size > 0) return;
    const idle = this.#idle;
    this.#idle = [];
    for (const resolve of idle) resolve();
  }

  #answer(client: Client, id: number, request: StoreRequest): void {
    this.#requests++;
    if (request.op === 'cancel') return this.#cancel(client, request.target);
    if (isImmediate(request)) {
      const result = resultOf(() => apply(this.table, request));
      return this.#send(client, id, result);
    }
    if (client.watches.size >= this.table.limits.maxPending || client.watches.has(id)) {
      throw new ShoalError('protocol', `client ${client.peer} has too many waits or reuses an id`);
    }
    let answered = false;
    const watch = this.#tryWatch(client, id, keysOf(request), () => {
      answered = true;
      client.watches.delete(id);
      const result = resultOf(() => found(this.table, request));
      this.#send(client, id, result);
    });
    if (watch !== undefined && !answered) client.watches.set(id, watch);
  }

  #tryWatch(client: Client, id: number, keys: readonly string[], callback: () => void): Watch | undefined {
    try {
      return this.table.watch(keys, callback);
    } catch (error) {
      const { code, message } = ShoalError.from(error);
      this.#send(client, id, { kind: 'error', code, message });
      return undefined;
    }
  }

  /** A wait that was answered meanwhile needs no second answer. */
  #cancel(client: Client, target: number): void {
    const watch = client.watches.get(target);
    if (watch === undefined) return;
    client.watches.delete(target);
    const keys = watch.missing();
    watch.cancel();
    this.#send(client, target, { kind: 'missing', keys });
  }

  #send(client: Client, id: number, result: StoreResult): void {
    const { socket, stream } = client;
    if (socket.destroyed) return;
    stream.write(encodeResult(id, result));
    if (socket.writableLength > cutOffBytes) socket.destroy();
  }
}

function cannotListen(where: string, cause: NodeJS.ErrnoException): ShoalError {
  const taken = cause.code === 'EADDRINUSE';
  const next = taken ? 'another job uses the port; choose another one (--master-port, MASTER_PORT)' : 'is it an address of this host?';
  const message = `the store cannot listen on ${where}: ${messageOf(cause)}; ${next}`;
  const ranOut = exhaustion('this process', cause, `listening on ${where} for the store`);
  return ranOut ?? new ShoalError(taken ? 'config' : 'system', message, { cause });
}
