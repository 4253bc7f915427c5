/** The tensors' side of a connection that calls share: rendezvous' control messages, and writes with their immediates. Messages are told
 *  apart by their first byte: a version of rendezvous' protocol, or the kind of a call's frame. */
import type { ShoalError } from '../../base/errors.ts';
import type { Connection, ConnectionHandlers, PeerIdentity, RemoteRegion, RemoteSpan, Span } from '../../fabric/fabric.ts';
import type { Region } from '../../memory/region.ts';
import type { RpcStats } from './rpc.ts';

export class TensorLane implements Connection {
  readonly #connection: Connection;
  readonly #stats: RpcStats;
  readonly gather?: (sources: readonly Span[], target: RemoteSpan) => Promise<void>;
  #handlers: ConnectionHandlers | undefined;

  constructor(connection: Connection, stats: RpcStats) {
    this.#connection = connection;
    this.#stats = stats;
    if (connection.gather === undefined) return;
    this.gather = (sources, target) => {
      for (const { bytes } of sources) stats.bytesSent += bytes;
      return connection.gather!(sources, target);
    };
  }

  get peer(): PeerIdentity {
    return this.#connection.peer;
  }

  get description(): string {
    return this.#connection.description;
  }

  setHandlers(handlers: ConnectionHandlers): void {
    this.#handlers = handlers;
  }

  send(message: Uint8Array): Promise<void> {
    this.#stats.bytesSent += message.length;
    return this.#connection.send(message);
  }

  write(source: Span, target: RemoteSpan, immediate?: number): Promise<void> {
    this.#stats.bytesSent += source.bytes;
    return this.#connection.write(source, target, immediate);
  }

  map(remote: RemoteRegion): Region {
    return this.#connection.map(remote);
  }

  close(timeoutMs?: number): Promise<void> {
    return this.#connection.close(timeoutMs);
  }

  // ── what comes over the connection ─────────────────────────────────────────────────────────────────────────────

  deliver(message: Uint8Array): void {
    this.#handlers?.onMessage(message);
  }

  deliverImmediate(immediate: number): void {
    this.#handlers?.onImmediate(immediate);
  }

  /** The connection is over, or given up for another. Idempotent. */
  end(error: ShoalError | undefined): void {
    const handlers = this.#handlers;
    this.#handlers = undefined;
    handlers?.onClose(error);
  }
}
