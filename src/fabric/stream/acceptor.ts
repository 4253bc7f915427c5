/** The accepting side of stream fabrics: listens, authenticates, and hands over streams. It must not know what flows on
 *  them. Strangers are few, for a short time (base/connections/strangers.ts), and cost a few hundred bytes each. */
import net from 'node:net';
import { Handshake, type HandshakeOptions } from '../../base/auth.ts';
import { Strangers, strangersMost } from '../../base/connections/strangers.ts';
import { isShoalError, ShoalError } from '../../base/errors.ts';
import { exhaustion } from '../../base/exhaustion.ts';
import { claimOf, type LinkEnds } from '../../base/secure/link.ts';
import type { FabricOptions } from '../fabric.ts';
import { candidateText, type ListenHost } from './candidates.ts';
import { FramedSocket } from './framed-socket.ts';
import type { StreamCounters } from './stream-counters.ts';
import { defaultMaxQueuedBytes } from '../limits.ts';

export interface AcceptorOptions {
  readonly fabric: FabricOptions;
  readonly purpose: string;
  /** The streams are no network's. */
  readonly isLocal?: boolean;
  /** The same as in HandshakeOptions. */
  readonly encryption?: HandshakeOptions['encryption'];
  readonly counters: StreamCounters;
  /** Buffer to read ahead into, as in FramedSocketOptions. */
  readonly readAhead?: Buffer;
  /** Describes one accepted socket, as text for people. */
  readonly describe: (socket: net.Socket) => string;
  /** Called when the peer is authenticated. Resolves when the stream is ready for use; until then it counts as pending. */
  readonly onStream: (stream: FramedSocket) => Promise<void>;
}

/** The options that all handshakes of a fabric have in common. */
export type Handshaking = Pick<AcceptorOptions, 'purpose' | 'encryption' | 'isLocal'>;

/** Options of the handshakes of either role. */
export function handshakeOptionsOf(
  { identity, secret, random, settings }: FabricOptions,
  { purpose, encryption, isLocal }: Handshaking,
  ends: LinkEnds,
): Omit<HandshakeOptions, 'role'> {
  return {
    secret,
    purpose,
    encryption,
    world: identity.world,
    rank: identity.rank,
    random,
    link: claimOf(isLocal ? 'local' : ends, settings),
  };
}

export class Acceptor {
  readonly #options: AcceptorOptions;
  readonly #servers: net.Server[] = [];
  readonly #pending: Strangers<FramedSocket>;

  constructor(options: AcceptorOptions) {
    this.#options = options;
    const { clock, worldSize } = options.fabric;
    this.#pending = new Strangers({
      clock,
      most: strangersMost(worldSize),
      end: (stream, { code, message, timeoutMs }) =>
        stream.fail(new ShoalError(code, `${stream.description}: ${message}`, timeoutMs === undefined ? {} : { timeoutMs })),
    });
  }

  /** Number of sockets that have not proved themselves yet. */
  get pending(): number {
    return this.#pending.size;
  }

  /** @returns the address listened on. @throws ShoalError `system` naming the address. */
  async listen(where: net.ListenOptions): Promise<net.AddressInfo | string> {
    const server = net.createServer({ pauseOnConnect: true, noDelay: true }, (socket) => void this.#accept(socket));
    await new Promise<void>((resolve, reject) => {
      server.once('error', (cause) => {
        const name = where.path === undefined ? `${where.host}:${where.port}` : where.path.replace('\0', '@');
        const who = `rank ${this.#options.fabric.identity.rank}`;
        const ranOut = exhaustion(who, cause, `listening on ${name}`);
        reject(ranOut ?? new ShoalError('system', `${who} cannot listen on ${name}: ${cause.message}`, { cause }));
      });
      server.listen({ backlog: 511, ...where }, resolve);
    });
    server.on('error', () => undefined); // a failed accept (no descriptors left) concerns that connection alone
    this.#servers.push(server);
    return server.address()!;
  }

  /** Listens on all hosts, or none. @returns the candidates to offer to peers: `tcp://10.0.0.4:41234`. @throws like `listen`. */
  async listenOnHosts(scheme: string, hosts: readonly ListenHost[]): Promise<string[]> {
    const candidates: string[] = [];
    try {
      for (const { host, addresses } of hosts) {
        const { port } = (await this.listen({ host, port: 0, ipv6Only: host === '::' })) as net.AddressInfo;
        for (const address of addresses) candidates.push(candidateText(scheme, address, port));
      }
    } catch (error) {
      this.close();
      throw error;
    }
    return candidates;
  }

  close(): void {
    for (const server of this.#servers) server.close();
    this.#pending.close();
  }

  async #accept(accepted: net.Socket): Promise<void> {
    const { fabric, counters, readAhead, describe, onStream } = this.#options;
    const { identity, clock, polling, ciphers, maxQueuedBytes = defaultMaxQueuedBytes } = fabric;
    const description = describe(accepted);
    const options = { rank: identity.rank, description, clock, maxQueuedBytes, counters, polling, readAhead, ciphers };
    const stream = new FramedSocket(options, (onread) => rewrap(accepted, onread));
    this.#pending.enter(stream);
    void stream.ended.then(() => this.#pending.leave(stream));
    try {
      await stream.authenticate(
        (ends) => new Handshake({ role: 'acceptor', ...handshakeOptionsOf(fabric, this.#options, ends) }),
        identity.world,
      );
      this.#pending.trust(stream);
      await onStream(stream);
      this.#pending.leave(stream);
    } catch (thrown) {
      if (!isShoalError(thrown)) throw thrown;
      fabric.onRefused?.(thrown);
    }
  }
}

/** Wraps the accepted connection in a socket that asks where to read to. Node offers `onread` for dialled sockets only, so the
 *  handle changes its owner; the first socket, now without one, is released. */
function rewrap(accepted: net.Socket, onread: net.OnReadOpts): net.Socket {
  const holder = accepted as unknown as { _handle: unknown };
  const handle = holder._handle;
  holder._handle = null;
  accepted.destroy();
  const options = { handle, onread, readable: true, writable: true };
  return new net.Socket(options);
}
