/** Fabric over TCP. A write is one frame: header, then the bytes from the source; the receiver checks the header and has
 *  the kernel put the bytes straight into the destination region. No copies in user space on either side.
 *
 *  Dead peers are seen by the end of their socket; a host that vanishes without a word is seen by keepalive and the
 *  retransmission timeout only (Node has no TCP_USER_TIMEOUT): deadlines above must cover that. */
import { ShoalError } from '../../base/errors.ts';
import { loadNative } from '../../memory/native.ts';
import { recordCiphers } from '../../memory/native-records.ts';
import { congestionTuner, type SocketTuning } from '../congestion.ts';
import type {
  ConnectOptions,
  Connection,
  FabricAddress,
  FabricCapabilities,
  FabricOptions,
  FabricProvider,
  GivenSocket,
  RemoteSpan,
  SocketSource,
  Span,
  TakeDescriptor,
} from '../fabric.ts';
import { flagSet, FrameType, type FrameHeader } from '../stream/frame.ts';
import type { FramedSocket } from '../stream/framed-socket.ts';
import { connect } from '../stream/stream-network.ts';
import { hostsToListenOn, parseCandidate } from '../stream/candidates.ts';
import { checkSource, defaultListenHosts } from '../limits.ts';
import type { RegionTable } from '../region-table.ts';
import { StreamFabric } from '../stream/stream-fabric.ts';
import { StreamConnection } from '../stream/stream-connection.ts';

/** Largest frame: longer writes travel as several frames, and only the last carries the immediate. */
const frameBytesMax = 2 ** 30;
/** Bytes written to a connection between two reviews of its socket. */
const reviewBytes = 512 * 1024;

export interface TcpOptions extends FabricOptions {
  /** The interfaces to offer for `0.0.0.0` and `::` (`eth0`, `ib*`, `10.0.0.0/8`, `^docker0`). Default: all but loopback. */
  readonly interfaces?: readonly string[];
  /** Sets options of a connected socket that Node does not offer. `link`: its description, for messages. Default: sockets stay as the
   *  system makes them. */
  readonly tuneSocket?: (descriptor: number, link: string) => SocketTuning;
}

export const tcpProvider: FabricProvider = {
  name: 'tcp',
  description: 'any hosts; the kernel receives straight into registered memory',
  isUsedUnasked: () => true,
  unavailable: () => undefined,
  create(options) {
    const { settings, onNote = () => {} } = options;
    if (settings === undefined) return new TcpFabric(options);
    const { interfaces, congestionControl: wanted } = settings;
    const native = loadNative({ enabled: settings.native });
    const ciphers = recordCiphers(native);
    return new TcpFabric({
      ciphers,
      ...options,
      interfaces,
      ...(native && { tuneSocket: congestionTuner({ native, wanted, onLoss: onNote }) }),
    });
  },
};

export class TcpFabric extends StreamFabric<StreamConnection, TcpOptions> {
  readonly name = 'tcp';
  readonly capabilities: FabricCapabilities = { loadStore: false };
  readonly sockets: { -readonly [K in keyof SocketSource]: SocketSource[K] } = {
    candidates: [],
    open: async (address, options, take) => {
      const stream = await this.#dial(address, options);
      try {
        await stream.post(FrameType.Open, { flags: flagSet, immediate: options.tag });
        return this.#giveAway(stream, take);
      } catch (thrown) {
        stream.abort();
        throw thrown;
      }
    },
    onSocket: undefined,
  };

  async listen(onConnection: (connection: Connection) => void): Promise<FabricAddress> {
    const { listenHosts = defaultListenHosts, interfaces } = this.options;
    const acceptor = this.makeAcceptor({
      describe: ({ remoteAddress, remotePort }) => `tcp from ${remoteAddress}:${remotePort}`,
      onStream: (stream) => this.#awaitOpen(stream, onConnection),
    });
    const candidates = await acceptor.listenOnHosts('tcp', hostsToListenOn(listenHosts, interfaces));
    this.sockets.candidates = candidates;
    return { provider: this.name, candidates };
  }

  async connect(address: FabricAddress, options: ConnectOptions): Promise<Connection> {
    const stream = await this.#dial(address, options);
    const connection = this.#newConnection(stream);
    this.connections.add(connection);
    stream.hold();
    stream.start(connection);
    stream.postControl(FrameType.Open, {});
    return connection;
  }

  #dial(address: FabricAddress, options: ConnectOptions): Promise<FramedSocket> {
    return this.dial(address, options, (candidate, signal) => {
      const { host, port } = parseCandidate('tcp', candidate);
      const description = `tcp ${candidate.slice('tcp://'.length)}`;
      const stream = this.makeStream({ description, polling: this.options.polling }, (onread) => connect({ host, port, onread }));
      return this.meet(stream, options.peer, signal, () => stream);
    });
  }

  #newConnection(stream: FramedSocket, onOpen?: (header: Readonly<FrameHeader>) => void): TcpConnection {
    const connection = new TcpConnection(stream, (ended) => this.connections.delete(ended), this.regions, onOpen);
    connection.tune(this.options);
    return connection;
  }

  /** The taker's socket is tuned as those of connections are. */
  #giveAway(stream: FramedSocket, take: TakeDescriptor): GivenSocket {
    const descriptor = stream.giveAway(take);
    const tuning = this.options.tuneSocket?.(descriptor, stream.description);
    return { descriptor, review: () => tuning?.review(descriptor) };
  }

  /** Waits for the dialer's choice: of several addresses that it probed it opens one; the others end here without having been a
   *  connection. */
  #awaitOpen(stream: FramedSocket, onConnection: (connection: Connection) => void): Promise<void> {
    return new Promise((resolve) => {
      const onOpen = ({ flags, immediate }: Readonly<FrameHeader>): void => {
        if ((flags & flagSet) !== 0) {
          this.sockets.onSocket?.(stream.peer, immediate, (take) => this.#giveAway(stream, take));
          if (stream.open) stream.abort();
          resolve();
          return;
        }
        this.connections.add(connection);
        stream.hold();
        resolve();
        onConnection(connection);
      };
      const connection = this.#newConnection(stream, onOpen);
      void stream.ended.then(resolve);
      stream.start(connection);
    });
  }
}

class TcpConnection extends StreamConnection {
  readonly #regions: RegionTable;
  #onOpen: ((header: Readonly<FrameHeader>) => void) | undefined;
  #receivingRkey = 0;
  #tuning: SocketTuning | undefined;
  #unreviewedBytes = 0;

  constructor(
    stream: FramedSocket,
    onEnded: (connection: StreamConnection) => void,
    regions: RegionTable,
    onOpen?: (header: Readonly<FrameHeader>) => void,
  ) {
    super(stream, onEnded);
    this.#regions = regions;
    this.#onOpen = onOpen;
  }

  /** Tunes the socket. Both ends do it: each decides for the data that it sends. */
  tune({ tuneSocket }: TcpOptions): void {
    const { descriptor } = this.stream;
    if (descriptor !== undefined) this.#tuning = tuneSocket?.(descriptor, super.description);
  }

  override get description(): string {
    const control = this.#tuning?.congestionControl;
    return control === undefined ? super.description : `${super.description}, ${control}`;
  }

  override async write(source: Span, target: RemoteSpan, immediate?: number): Promise<void> {
    checkSource(source, immediate);
    const flags = immediate === undefined ? 0 : flagSet;
    if (source.bytes === 0) return immediate === undefined ? undefined : this.postOrdered(FrameType.Immediate, { immediate, flags });
    const { rkey } = target.region;
    let done = 0;
    for (; source.bytes - done > frameBytesMax; done += frameBytesMax) {
      const part = Buffer.from(source.region.buffer, source.offset + done, frameBytesMax);
      this.stream.postControl(FrameType.Write, { rkey, offset: target.offset + done }, part);
    }
    this.#noteWritten(source.bytes);
    const payload = Buffer.from(source.region.buffer, source.offset + done, source.bytes - done);
    return this.postOrdered(FrameType.Write, { immediate, flags, rkey, offset: target.offset + done }, payload);
  }

  async gather(sources: readonly Span[], target: RemoteSpan): Promise<void> {
    let bytes = 0;
    const pieces: Buffer[] = [];
    for (const source of sources) {
      checkSource(source, undefined);
      bytes += source.bytes;
      if (source.bytes > 0) pieces.push(Buffer.from(source.region.buffer, source.offset, source.bytes));
    }
    if (bytes === 0) return undefined;
    if (bytes > frameBytesMax) throw new ShoalError('usage', `gather: ${bytes} bytes; at most ${frameBytesMax} go together`);
    this.#noteWritten(bytes);
    const [first, ...more] = pieces;
    return this.stream.post(FrameType.Write, { rkey: target.region.rkey, offset: target.offset }, first, more);
  }

  #noteWritten(bytes: number): void {
    this.#unreviewedBytes += bytes;
    if (this.#tuning === undefined || this.#unreviewedBytes < reviewBytes) return;
    this.#unreviewedBytes = 0;
    const { descriptor } = this.stream;
    if (descriptor !== undefined) this.#tuning.review(descriptor);
  }

  /** Ends the socket if the kernel may be filling the region right now: nothing else stops that at once. */
  override onDeregistered(rkey: number): void {
    if (this.stream.receivingInto === undefined || this.#receivingRkey !== rkey) return;
    const fields = { peer: this.peer.rank };
    this.stream.fail(
      new ShoalError('protocol', `region with rkey ${rkey} was deregistered while rank ${this.peer.rank} was writing to it`, fields),
    );
  }

  override place(header: Readonly<FrameHeader>): Uint8Array {
    this.#checkOpen(header);
    if (header.type !== FrameType.Write) return super.place(header);
    this.#receivingRkey = header.rkey;
    return this.#regions.locate(header.rkey, header.offset, header.bytes);
  }

  override onFrame(header: Readonly<FrameHeader>, payload: Uint8Array | undefined): void {
    this.#checkOpen(header);
    if (header.type === FrameType.Write && payload !== undefined) {
      this.#receivingRkey = 0;
      this.deliverImmediate(header);
    } else if (header.type === FrameType.Open && this.#onOpen !== undefined) {
      const onOpen = this.#onOpen;
      this.#onOpen = undefined;
      onOpen(header);
    } else {
      super.onFrame(header, payload);
    }
  }

  /** Checks that the first frame of a dialer is `open`. */
  #checkOpen(header: Readonly<FrameHeader>): void {
    if (this.#onOpen !== undefined && header.type !== FrameType.Open)
      throw new ShoalError('protocol', `frame of type ${header.type} before open`);
  }
}
