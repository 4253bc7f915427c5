/** A fabric that copies the source of each write into staging memory first: the sender's end of the design that writes without
 *  copies replace. */
import type { Fabric, RemoteSpan, Span } from '../../src/fabric/fabric.ts';
import { decorateFabric, ForwardingConnection } from '../../src/fabric/testing/hooks/decorate.ts';
import { spanOf } from '../../src/rendezvous/value/tensor-value.ts';

export function stagedFabric(inner: Fabric): Fabric {
  return decorateFabric(inner, (connection) => new StagedConnection(connection));
}

class StagedConnection extends ForwardingConnection {
  /** Buffers that no write uses, by bytes. */
  readonly #free = new Map<number, Uint8Array[]>();

  override async write(source: Span, target: RemoteSpan, immediate?: number): Promise<void> {
    const { bytes } = source;
    const free = this.#free.get(bytes) ?? [];
    this.#free.set(bytes, free);
    const staging = free.pop() ?? new Uint8Array(bytes);
    staging.set(new Uint8Array(source.region.buffer, source.offset, bytes));
    await super.write(spanOf(staging), target, immediate);
    free.push(staging);
  }
}
