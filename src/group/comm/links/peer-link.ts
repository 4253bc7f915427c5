/** A link to another rank of the world: one connection, and the regions that rank lets us write to or map.
 *  It must not know groups or collectives. */
import type { WorldFacts } from '../../../metrics/rank-report.ts';
import { isShoalError, ShoalError, type ErrorData } from '../../../base/errors.ts';
import type { Connection, RemoteRegion, RemoteSpan, Span } from '../../../fabric/fabric.ts';
import type { Region } from '../../../memory/region.ts';
import { MessageType } from './wire.ts';

/** Whoever finished an operation has read and written all that it does: what it frees then, or leaves with, is not touched any
 *  more by those who are still at it. Touching nothing is an error of the step machine. */
const nowhere = new Uint8Array(0);
/** Keys of freed memory that slower ranks may still ask for. */
const withdrawnMax = 1024;

const doorbell = Uint8Array.of(MessageType.Doorbell);

export class PeerLink {
  /** Rank in the world. */
  readonly rank: number;
  readonly fabric: string;
  /** The peer's memory can be mapped: it is on this host. */
  readonly loadStore: boolean;
  readonly connection: Connection;
  readonly #onRefused: (error: ShoalError) => void;
  readonly #regions = new Map<number, RemoteRegion>();
  readonly #withdrawn = new Set<number>();
  /** The reason that the peer may end for. */
  trouble: ShoalError | undefined;
  /** The error of a group of the peer, as it said last: if it ends, that is the reason for every other group, too. */
  failure: ErrorData | undefined;
  /** Bytes given to the connection. */
  bytesSent = 0;
  /** The peer waits to be taken into the group of the world. */
  waits = false;
  #closed = false;
  #left = false;
  #loss: ShoalError | undefined;

  /** @param onRefused the connection has not taken a message, and goes on: what comes next would have a gap before it. */
  constructor(
    connection: Connection,
    fabric: { name: string; capabilities: { loadStore: boolean } },
    onRefused: (error: ShoalError) => void,
  ) {
    this.rank = connection.peer.rank;
    this.connection = connection;
    this.#onRefused = onRefused;
    this.fabric = fabric.name;
    this.loadStore = fabric.capabilities.loadStore;
  }

  get closed(): boolean {
    return this.#closed;
  }

  get facts(): WorldFacts['links'][number] {
    const state = !this.#closed ? 'open' : this.#loss === undefined ? 'left' : 'lost';
    return { rank: this.rank, fabric: this.fabric, bytesSent: this.bytesSent, state };
  }

  /** The error with which it ended; undefined: it has not, or in an orderly way. */
  get loss(): ShoalError | undefined {
    return this.#loss;
  }

  /** @param error undefined: in an orderly way. */
  markClosed(error: ShoalError | undefined): void {
    if (this.#closed) return;
    this.#closed = true;
    this.#left = error === undefined;
    this.#loss = error;
  }

  announce(key: number, remote: RemoteRegion): void {
    this.#regions.set(key, remote);
  }

  withdraw(key: number): void {
    if (!this.#regions.delete(key)) return;
    this.#withdrawn.add(key);
    if (this.#withdrawn.size > withdrawnMax) for (const oldest of this.#withdrawn) return void this.#withdrawn.delete(oldest);
  }

  /** `memory` would find it. */
  knows(key: number): boolean {
    return this.#regions.has(key) || this.#withdrawn.has(key);
  }

  /** The peer's memory as seen from here; nothing where the peer has freed it or has left; undefined: not announced yet. */
  memory(key: number): Uint8Array | undefined {
    if (this.#withdrawn.has(key)) return nowhere;
    if (!this.#regions.has(key)) return undefined;
    if (this.#left) return nowhere;
    const region = this.#mapUnlessGone(key);
    return region ? new Uint8Array(region.buffer, 0, region.bytes) : nowhere;
  }

  remote(key: number): RemoteRegion {
    const remote = this.#regions.get(key);
    if (!remote) throw new ShoalError('protocol', `rank ${this.rank} named memory ${key}, which it has not announced`, { peer: this.rank });
    return remote;
  }

  /** The peer's memory as seen from here. */
  map(key: number): Region {
    return this.connection.map(this.remote(key));
  }

  /** Memory of the peer could be mapped when the link was made: what cannot be any more has been freed, and the news is on its way. */
  #mapUnlessGone(key: number): Region | undefined {
    try {
      return this.map(key);
    } catch (thrown) {
      if (isShoalError(thrown) && thrown.code === 'unsupported') return undefined;
      throw thrown;
    }
  }

  /** Fire and forget: loss of the connection is reported by its close, not by each message; a message that it does not take, to
   *  whoever made the link. */
  post(message: Uint8Array): void {
    if (this.closed) return;
    this.bytesSent += message.length;
    this.connection.send(message).catch((thrown: unknown) => {
      if (isShoalError(thrown) && thrown.code === 'out-of-memory' && !this.closed) this.#onRefused(thrown);
    });
  }

  ring(): void {
    this.post(doorbell);
  }

  write(source: Span, target: RemoteSpan, immediate: number): Promise<void> {
    if (this.#closed) return Promise.reject(this.#loss ?? new ShoalError('closed', `rank ${this.rank} has left`, { peer: this.rank }));
    this.bytesSent += source.bytes;
    return this.connection.write(source, target, immediate);
  }
}
