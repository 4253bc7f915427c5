/** The base of hooks: a fabric that wraps each connection of another one, and a connection that passes everything on. A hook
 *  keeps the name and the contract of the fabric that it wraps (and runs its conformance suite). */
import type { Region } from '../../../memory/region.ts';
import { abortConnection, type Abortable } from '../../abortable.ts';
import type {
  ConnectOptions,
  Connection,
  ConnectionHandlers,
  Fabric,
  FabricAddress,
  FabricCapabilities,
  PeerIdentity,
  RegisteredRegion,
  RemoteRegion,
  RemoteSpan,
  SocketSource,
  Span,
} from '../../fabric.ts';

export type WrapConnection = (connection: Connection, side: 'dialled' | 'accepted') => Connection;

/** `inner` with every connection wrapped. */
export function decorateFabric(inner: Fabric, wrap: WrapConnection): Fabric {
  return new DecoratedFabric(inner, wrap);
}

class DecoratedFabric implements Fabric {
  readonly name: string;
  readonly capabilities: FabricCapabilities;
  /** The inner fabric's sockets, not wrapped: their bytes do not pass the fabric. */
  readonly sockets?: SocketSource;
  readonly #inner: Fabric;
  readonly #wrap: WrapConnection;

  constructor(inner: Fabric, wrap: WrapConnection) {
    this.name = inner.name;
    this.capabilities = inner.capabilities;
    if (inner.sockets) this.sockets = inner.sockets;
    this.#inner = inner;
    this.#wrap = wrap;
  }

  register(region: Region): RegisteredRegion {
    return this.#inner.register(region);
  }

  listen(onConnection: (connection: Connection) => void): Promise<FabricAddress> {
    return this.#inner.listen((connection) => onConnection(this.#wrap(connection, 'accepted')));
  }

  async connect(address: FabricAddress, options: ConnectOptions): Promise<Connection> {
    return this.#wrap(await this.#inner.connect(address, options), 'dialled');
  }

  close(): Promise<void> {
    return this.#inner.close();
  }
}

/** Passes everything on; hooks override what they care about. */
export class ForwardingConnection implements Connection, Abortable {
  protected readonly inner: Connection;

  constructor(inner: Connection) {
    this.inner = inner;
  }

  get peer(): PeerIdentity {
    return this.inner.peer;
  }

  get description(): string {
    return this.inner.description;
  }

  setHandlers(handlers: ConnectionHandlers): void {
    this.inner.setHandlers(handlers);
  }

  send(message: Uint8Array): Promise<void> {
    return this.inner.send(message);
  }

  write(source: Span, target: RemoteSpan, immediate?: number): Promise<void> {
    return this.inner.write(source, target, immediate);
  }

  map(remote: RemoteRegion): Region {
    return this.inner.map(remote);
  }

  close(timeoutMs?: number): Promise<void> {
    return this.inner.close(timeoutMs);
  }

  abort(): void {
    abortConnection(this.inner);
  }
}
