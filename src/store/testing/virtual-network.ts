/** Streams between roles of a seeded world, as node:net has them. What is sent arrives in pieces, in turns of the receiver; between two
 *  connections there is no order. A stream takes only so much that the other side has not read. When a role ends, its streams break. */
import { EventEmitter } from 'node:events';
import type { Server, Socket } from 'node:net';
import { Duplex } from 'node:stream';
import { Fifo } from '../../base/collections/fifo.ts';
import type { Role, SeededWorld } from '../../base/testing/seeded-world.ts';
import type { StreamNetwork } from '../../fabric/stream/stream-network.ts';

/** Under way in one direction, at most; the rest waits at the sender. */
const windowBytes = 16 * 1024;

export class VirtualNetwork {
  readonly #world: SeededWorld;
  readonly #listening = new Map<number, VirtualServer>();
  readonly #open = new Set<VirtualSocket>();
  #ports = 1024;

  constructor(world: SeededWorld) {
    this.#world = world;
  }

  /** Streams that are open, both ends counted, and servers. */
  get size(): number {
    return this.#open.size + this.#listening.size;
  }

  /** The network as a role sees it. */
  of(role: Role): StreamNetwork {
    role.onEnd(() => this.#crash(role));
    return {
      connect: (options) => {
        const { port } = options as { port: number };
        const near = this.#socket(role);
        near.accepted = true;
        role.turn(() => this.#connect(near, port));
        return near as unknown as Socket;
      },
      createServer: (_options, onConnection) => {
        const server = new VirtualServer(role, {
          listen: (port) => this.#listen(server, port),
          close: (port) => this.#unlisten(role, port),
        });
        server.on('connection', onConnection);
        return server as unknown as Server;
      },
    };
  }

  /** Breaks one stream of the role. @returns whose the other end is; undefined when it has none. */
  cut(role: Role, index: number): Role | undefined {
    const own = [...this.#open].filter((socket) => socket.role === role && socket.peer !== undefined);
    if (own.length === 0) return undefined;
    const chosen = own[index % own.length];
    const { peer } = chosen;
    chosen.break('ECONNRESET');
    return peer;
  }

  #listen(server: VirtualServer, port: number): number | undefined {
    const chosen = port === 0 ? this.#ports++ : port;
    if (this.#listening.has(chosen)) return undefined;
    this.#listening.set(chosen, server);
    return chosen;
  }

  /** Closes a port: connections that have not been accepted are reset. */
  #unlisten(role: Role, port: number): void {
    this.#listening.delete(port);
    for (const socket of this.#open) if (socket.role === role && !socket.accepted) socket.destroy();
  }

  #connect(near: VirtualSocket, port: number): void {
    if (near.destroyed) return;
    const server = this.#listening.get(port);
    if (server === undefined) {
      near.destroy(Object.assign(new Error(`connect ECONNREFUSED 127.0.0.1:${port}`), { code: 'ECONNREFUSED' }));
      return;
    }
    const far = this.#socket(server.role);
    near.join(far);
    far.join(near);
    // A connection that is reset before it is accepted never reaches the server.
    server.role.turn(() => {
      if (far.destroyed) return;
      far.accepted = true;
      server.emit('connection', far);
    });
    near.emit('connect');
  }

  #socket(role: Role): VirtualSocket {
    const socket = new VirtualSocket(role, this.#world);
    // A killed process opens nothing more.
    if (!role.ended) this.#open.add(socket);
    socket.once('close', () => this.#open.delete(socket));
    return socket;
  }

  #crash(role: Role): void {
    for (const [port, server] of this.#listening) if (server.role === role) this.#listening.delete(port);
    for (const socket of this.#open) {
      if (socket.role !== role) continue;
      this.#open.delete(socket);
      socket.crash();
    }
  }
}

class VirtualServer extends EventEmitter {
  readonly role: Role;
  readonly #ports: { listen(port: number): number | undefined; close(port: number): void };
  #port: number | undefined;

  constructor(role: Role, ports: { listen(port: number): number | undefined; close(port: number): void }) {
    super();
    this.role = role;
    this.#ports = ports;
  }

  get listening(): boolean {
    return this.#port !== undefined;
  }

  address(): { port: number } {
    return { port: this.#port ?? 0 };
  }

  listen({ port }: { port: number }, onListening: () => void): this {
    this.role.turn(() => {
      this.#port = this.#ports.listen(port);
      if (this.#port !== undefined) onListening();
      else this.emit('error', Object.assign(new Error('listen EADDRINUSE'), { code: 'EADDRINUSE' }));
    });
    return this;
  }

  close(onClosed: () => void): this {
    if (this.#port !== undefined) this.#ports.close(this.#port);
    this.#port = undefined;
    this.role.turn(onClosed);
    return this;
  }

  unref(): this {
    return this;
  }
}

class VirtualSocket extends Duplex {
  readonly role: Role;
  /** Its role has it. */
  accepted = false;
  readonly #world: SeededWorld;
  /** On their way to us, or not read yet. */
  readonly #arriving = new Fifo<Uint8Array | null>();
  #bytes = 0;
  #wanted = false;
  #delivering = false;
  #other: VirtualSocket | undefined;
  #lost = false;
  /** The write that waits for room. */
  #unsent: { chunk: Uint8Array; done: () => void } | undefined;

  constructor(role: Role, world: SeededWorld) {
    super({ allowHalfOpen: false });
    this.role = role;
    this.#world = world;
  }

  join(other: VirtualSocket): void {
    this.#other = other;
    this.#flush();
  }

  get peer(): Role | undefined {
    return this.#other?.role;
  }

  ref(): this {
    return this;
  }

  unref(): this {
    return this;
  }

  /** Resets the connection as the network may: both ends hear of it. */
  break(code: string): void {
    for (const end of [this, this.#other]) {
      end?.role.turn(() => end.destroy(end.accepted ? Object.assign(new Error(`read ${code}`), { code }) : undefined));
    }
  }

  /** Our end is gone: what the stream had taken arrives. */
  crash(): void {
    const other = this.#other;
    this.#other = undefined;
    if (other !== undefined) other.#lose();
  }

  override _write(chunk: Uint8Array, _encoding: BufferEncoding, done: () => void): void {
    this.#unsent = { chunk, done };
    this.#flush();
  }

  override _final(done: () => void): void {
    if (this.#other !== undefined) this.#other.#arrive(null);
    done();
  }

  override _read(): void {
    this.#wanted = true;
    this.#deliver();
  }

  override _destroy(error: Error | null, done: (error: Error | null) => void): void {
    this.crash();
    done(error);
  }

  /** The other end is gone: what is written goes nowhere, and what had come is followed by the end. */
  #lose(): void {
    this.#other = undefined;
    this.#lost = true;
    this.#flush();
    this.#arrive(null);
  }

  #flush(): void {
    const unsent = this.#unsent;
    const other = this.#other;
    const isFull = other === undefined || other.#bytes >= windowBytes;
    if (unsent === undefined || (isFull && !this.#lost)) return;
    this.#unsent = undefined;
    const { chunk, done } = unsent;
    if (other === undefined) {
      done();
      return;
    }
    const cut = this.#world.random.integer(chunk.length + 1);
    for (const piece of [chunk.subarray(0, cut), chunk.subarray(cut)]) if (piece.length > 0) other.#arrive(Uint8Array.from(piece));
    done();
  }

  #arrive(piece: Uint8Array | null): void {
    this.#arriving.push(piece);
    this.#bytes += piece?.length ?? 0;
    this.#deliver();
  }

  #deliver(): void {
    if (this.#delivering || !this.#wanted || this.#arriving.length === 0) return;
    this.#delivering = true;
    this.role.turn(() => {
      this.#delivering = false;
      if (this.destroyed) return;
      const piece = this.#arriving.shift() ?? null;
      this.#bytes -= piece?.length ?? 0;
      this.#wanted = this.push(piece === null ? null : Buffer.from(piece));
      if (this.#other !== undefined) this.#other.#flush();
      this.#deliver();
    });
  }
}
