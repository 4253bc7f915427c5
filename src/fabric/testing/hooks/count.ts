/** Hook that counts the traffic through a fabric, as numbers that can be read at any time. */
import type { Connection, ConnectionHandlers, Fabric, RemoteSpan, Span } from '../../fabric.ts';
import { decorateFabric, ForwardingConnection } from './decorate.ts';

export interface Traffic {
  messages: number;
  messageBytes: number;
  immediates: number;
}

export interface FabricCounts {
  /** Operations accepted for sending; one that failed later is in `failed` as well. */
  readonly sent: Traffic & { writes: number; writeBytes: number };
  /** Deliveries. A write without an immediate is not seen by its target. */
  readonly received: Traffic;
  /** Posted operations that were refused or lost. */
  failed: number;
  dialled: number;
  accepted: number;
  /** Connections that are over: `closed` in order, `lost` with an error. */
  closed: number;
  lost: number;
}

export function countFabric(inner: Fabric): { fabric: Fabric; counts: Readonly<FabricCounts> } {
  const counts: FabricCounts = {
    sent: { messages: 0, messageBytes: 0, writes: 0, writeBytes: 0, immediates: 0 },
    received: { messages: 0, messageBytes: 0, immediates: 0 },
    failed: 0,
    dialled: 0,
    accepted: 0,
    closed: 0,
    lost: 0,
  };
  const fabric = decorateFabric(inner, (connection, side) => {
    counts[side]++;
    return new CountingConnection(connection, counts);
  });
  return { fabric, counts };
}

class CountingConnection extends ForwardingConnection {
  readonly #counts: FabricCounts;
  readonly #onFailure = (): void => {
    this.#counts.failed++;
  };

  constructor(inner: Connection, counts: FabricCounts) {
    super(inner);
    this.#counts = counts;
  }

  override setHandlers(handlers: ConnectionHandlers): void {
    const counts = this.#counts;
    super.setHandlers({
      onMessage(message) {
        counts.received.messages++;
        counts.received.messageBytes += message.length;
        handlers.onMessage(message);
      },
      onImmediate(immediate) {
        counts.received.immediates++;
        handlers.onImmediate(immediate);
      },
      onClose(error) {
        if (error === undefined) counts.closed++;
        else counts.lost++;
        handlers.onClose(error);
      },
    });
  }

  override send(message: Uint8Array): Promise<void> {
    const { sent } = this.#counts;
    sent.messages++;
    sent.messageBytes += message.length;
    return this.#watched(super.send(message));
  }

  override write(source: Span, target: RemoteSpan, immediate?: number): Promise<void> {
    const { sent } = this.#counts;
    sent.writes++;
    sent.writeBytes += source.bytes;
    if (immediate !== undefined) sent.immediates++;
    return this.#watched(super.write(source, target, immediate));
  }

  #watched(operation: Promise<void>): Promise<void> {
    operation.catch(this.#onFailure);
    return operation;
  }
}
