/** A link to another rank of the world: one connection, and the regions that rank lets us write to or map.
 *  It must not know groups or collectives. */
import { ShoalError } from '../base/errors.ts';
import type { Connection, RemoteRegion, RemoteSpan, Span } from '../fabric/fabric.ts';
import type { Region } from '../memory/region.ts';
import { MessageType } from './wire.ts';

const doorbell = Uint8Array.of(MessageType.Doorbell);

export class PeerLink {
  /** Rank in the world. */
  readonly rank: number;
  readonly fabric: string;
  /** The peer's memory can be mapped: it is on this host. */
  readonly loadStore: boolean;
  readonly connection: Connection;
  readonly #regions = new Map<number, RemoteRegion>();
  #closed: ShoalError | undefined;

  constructor(connection: Connection, fabric: { name: string; capabilities: { loadStore: boolean } }) {
    this.rank = connection.peer.rank;
    this.connection = connection;
    this.fabric = fabric.name;
    this.loadStore = fabric.capabilities.loadStore;
  }

  get closed(): boolean {
    return this.#closed !== undefined;
  }

  markClosed(error: ShoalError): void {
    this.#closed ??= error;
  }

  announce(key: number, remote: RemoteRegion): void {
    this.#regions.set(key, remote);
  }

  withdraw(key: number): void {
    this.#regions.delete(key);
  }

  hasRegion(key: number): boolean {
    return this.#regions.has(key);
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

  /** Fire and forget: loss of the connection is reported by its close, not by each message. */
  post(message: Uint8Array): void {
    if (this.closed) return;
    this.connection.send(message).catch(() => undefined);
  }

  ring(): void {
    this.post(doorbell);
  }

  write(source: Span, target: RemoteSpan, immediate: number): Promise<void> {
    if (this.#closed) return Promise.reject(this.#closed);
    return this.connection.write(source, target, immediate);
  }
}
