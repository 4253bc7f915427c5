/** One connection of shm: claims and grants of regions, writes by memcpy, the probing at its beginning. The figure of the
 *  exchange and its guarantee are in shm.ts. */
import { within, type Clock } from '../../base/clock.ts';
import { messageOf, ShoalError } from '../../base/errors.ts';
import { isExhaustion } from '../../base/exhaustion.ts';
import type { Region, RegionAllocator } from '../../memory/region.ts';
import type { RemoteRegion, RemoteSpan, Span } from '../fabric.ts';
import { Fifo } from '../../base/collections/fifo.ts';
import { flagSet, FrameType, type FrameHeader } from '../stream/frame.ts';
import type { FramedSocket } from '../stream/framed-socket.ts';
import { checkSource, connectionClosed, defaultCloseTimeoutMs, maxPendingOperations } from '../limits.ts';
import { decodeHandle } from '../region-handle.ts';
import { checkRange, type RegionTable } from '../region-table.ts';
import { StreamConnection } from '../stream/stream-connection.ts';
import { lockBytes, type Lives } from './lives.ts';

const controlTextBytes = 512;
/** Bytes of the probe region before the lock of its process. */
export const nonceBytes = 32;

/** Callbacks and role for the probing at the beginning of a connection. */
export interface Opening {
  readonly dials: boolean;
  ready(): void;
  failed(error: ShoalError): void;
}

export interface ShmConnectionOptions {
  readonly clock: Clock;
  readonly regions: RegionTable;
  readonly allocator: RegionAllocator;
  readonly lives: Lives;
  readonly opening: Opening;
  readonly onEnded: (connection: StreamConnection) => void;
  /** Takes over mappings when the connection has ended. */
  retire(regions: readonly Region[]): void;
}

/** A region of the peer, mapped here. */
interface Mapping {
  readonly region: Region;
  readonly view: Uint8Array;
  /** True once the peer has confirmed the rkey: writes may use it. */
  granted: boolean;
}

/** An operation that waits for a grant, or that was posted behind such a one. */
interface Deferred {
  /** The rkey whose grant it needs; 0 for none. */
  readonly rkey: number;
  run(): Promise<void>;
  resolve(done: Promise<void>): void;
  reject(error: ShoalError): void;
}

/** A connection to an authenticated peer; first probing, then open. */
export class ShmConnection extends StreamConnection {
  readonly #options: ShmConnectionOptions;
  #opening: Opening | undefined;
  readonly #mappings = new Map<number, Mapping>();
  /** The peer's probe region and the lock in it, once the region is mapped. */
  #life: { readonly region: Region; readonly lock: Uint32Array } | undefined;
  /** Regions of this end that the peer has mapped, by rkey. */
  readonly #grantedToPeer = new Set<number>();
  readonly #deferred = new Fifo<Deferred>();
  /** A close that waits for the deferred operations. */
  #closing: Promise<void> | undefined;
  #onDrained: (() => void) | undefined;
  readonly #controlText = Buffer.allocUnsafe(controlTextBytes);

  constructor(stream: FramedSocket, options: ShmConnectionOptions) {
    super(stream, options.onEnded);
    this.#options = options;
    this.#opening = options.opening;
  }

  postOpen(): void {
    this.stream.postControl(FrameType.Open, {});
  }

  override async write(source: Span, target: RemoteSpan, immediate?: number): Promise<void> {
    checkSource(source, immediate);
    if (source.bytes === 0) {
      return immediate === undefined ? undefined : this.postOrdered(FrameType.Immediate, { immediate, flags: flagSet });
    }
    const { rkey } = target.region;
    if (this.#deferred.length === 0 && this.#closing === undefined && this.#mappings.get(rkey)?.granted)
      return this.#place(source, target, immediate);
    return this.#defer(rkey, () => this.#place(source, target, immediate));
  }

  override close(timeoutMs: number = defaultCloseTimeoutMs): Promise<void> {
    if (this.#deferred.length === 0 || !this.stream.open) return super.close(timeoutMs);
    const { clock } = this.#options;
    const deadlineMs = clock.now() + timeoutMs;
    const drained = (): Promise<void> => new Promise((resolve) => (this.#onDrained = resolve));
    this.#closing ??= within<void>(clock, timeoutMs, drained(), () => undefined).then(() =>
      super.close(Math.max(0, deadlineMs - clock.now())),
    );
    return this.#closing;
  }

  /** The mapping lives until the peer deregisters the region or the connection ends; then its views are empty. */
  override map(remote: RemoteRegion): Region {
    const known = this.#mappings.get(remote.rkey);
    if (known !== undefined) return known.region;
    if (!this.stream.open) throw connectionClosed(this.stream.rank, this.peer.rank);
    const share = decodeHandle(remote.handle);
    if (share.bytes !== remote.bytes) {
      throw new ShoalError('protocol', `region with rkey ${remote.rkey} has ${share.bytes} bytes, not ${remote.bytes}`, {
        peer: this.peer.rank,
      });
    }
    const { region } = this.#addMapping(remote.rkey, this.#options.allocator.open(share));
    // The claim makes the peer tell us when the region goes.
    this.stream.postControl(FrameType.Claim, { rkey: remote.rkey });
    return region;
  }

  override onDeregistered(rkey: number): void {
    if (this.#grantedToPeer.delete(rkey)) this.stream.postControl(FrameType.Withdraw, { rkey });
  }

  protected override postOrdered(type: number, fields: Partial<FrameHeader>, payload?: Uint8Array): Promise<void> {
    if (this.#closing !== undefined) return Promise.reject(connectionClosed(this.stream.rank, this.peer.rank));
    if (this.#deferred.length === 0) return super.postOrdered(type, fields, payload);
    return this.#defer(0, () => super.postOrdered(type, fields, payload));
  }

  protected override postMessage(joined: Buffer): Promise<void> {
    if (this.#closing !== undefined) return Promise.reject(connectionClosed(this.stream.rank, this.peer.rank));
    if (this.#deferred.length === 0) return super.postMessage(joined);
    return this.#defer(0, () => super.postMessage(joined));
  }

  // ── writing ────────────────────────────────────────────────────────────────────────────────────────────────────

  #place(source: Span, target: RemoteSpan, immediate: number | undefined): Promise<void> {
    const { offset } = target;
    const { rkey } = target.region;
    const { bytes } = source;
    if (!this.stream.open) return Promise.reject(connectionClosed(this.stream.rank, this.peer.rank));
    const mapping = this.#mappings.get(rkey);
    if (mapping === undefined) return this.#defer(rkey, () => this.#place(source, target, immediate));
    try {
      checkRange(rkey, mapping.view.length, offset, bytes);
    } catch (thrown) {
      const error = ShoalError.from(thrown);
      this.stream.refuse(error);
      return Promise.reject(error);
    }
    mapping.view.set(new Uint8Array(source.region.buffer, source.offset, bytes), offset);
    return immediate === undefined
      ? Promise.resolve()
      : super.postOrdered(FrameType.Written, { rkey, offset, bytes, immediate, flags: flagSet });
  }

  #defer(rkey: number, run: () => Promise<void>): Promise<void> {
    if (!this.stream.open || this.#closing !== undefined) return Promise.reject(connectionClosed(this.stream.rank, this.peer.rank));
    if (this.#deferred.length >= maxPendingOperations) {
      return Promise.reject(
        new ShoalError('out-of-memory', `rank ${this.peer.rank} has not granted rkey ${rkey}; ${maxPendingOperations} operations wait`),
      );
    }
    return new Promise((resolve, reject) => {
      this.#deferred.push({ rkey, run, resolve, reject });
      if (this.#deferred.length === 1) this.#runDeferred();
    });
  }

  /** Runs deferred operations, in order, up to the first that lacks its grant, and claims that. */
  #runDeferred(): void {
    for (let next = this.#deferred.peek(); next !== undefined; next = this.#deferred.peek()) {
      if (next.rkey !== 0 && !this.#mappings.get(next.rkey)?.granted) {
        super.postOrdered(FrameType.Claim, { rkey: next.rkey, flags: flagSet }).catch(() => undefined);
        return;
      }
      next.resolve(next.run());
      this.#deferred.shift();
    }
    this.#onDrained?.();
  }

  #rejectDeferred(error: ShoalError): void {
    for (let next = this.#deferred.shift(); next !== undefined; next = this.#deferred.shift()) next.reject(error);
    this.#onDrained?.();
  }

  #addMapping(rkey: number, region: Region): Mapping {
    const mapping = { region, view: new Uint8Array(region.buffer, 0, region.bytes), granted: false };
    this.#mappings.set(rkey, mapping);
    return mapping;
  }

  // ── frames ─────────────────────────────────────────────────────────────────────────────────────────────────────

  override place(header: Readonly<FrameHeader>): Uint8Array {
    this.#checkOpening(header);
    const isText = header.type === FrameType.Probe || header.type === FrameType.Grant;
    return isText && header.bytes <= controlTextBytes ? this.#controlText.subarray(0, header.bytes) : super.place(header);
  }

  override onFrame(header: Readonly<FrameHeader>, payload: Uint8Array | undefined): void {
    this.#checkOpening(header);
    const { type, flags, rkey, offset, bytes } = header;
    switch (type) {
      case FrameType.Written:
        this.#options.regions.locate(rkey, offset, bytes);
        this.deliverImmediate(header);
        break;
      case FrameType.Claim:
        this.#onClaim(rkey, flags === flagSet);
        break;
      case FrameType.Grant:
        this.#onGrant(rkey, textOf(payload));
        break;
      case FrameType.Withdraw:
        this.#mappings.get(rkey)?.region.close();
        this.#mappings.delete(rkey);
        break;
      case FrameType.Probe:
        this.#onProbe(textOf(payload));
        break;
      case FrameType.Probed:
        this.#onProbed(flags === flagSet);
        break;
      case FrameType.Open:
        this.#onOpen();
        break;
      default:
        super.onFrame(header, payload);
    }
  }

  protected override onEnded(error: ShoalError | undefined): void {
    this.#opening?.failed(error ?? connectionClosed(this.stream.rank, this.peer.rank));
    this.#opening = undefined;
    if (this.#deferred.length > 0) this.#rejectDeferred(error ?? connectionClosed(this.stream.rank, this.peer.rank));
    else this.#onDrained?.();
    if (this.#life) {
      this.#options.lives.delete(this.#life.lock);
      this.#life.region.close();
    }
    // The peer may have ended well while results that it took part in are still being read here, so mappings outlive the connection.
    this.#options.retire([...this.#mappings.values()].map(({ region }) => region));
    this.#mappings.clear();
  }

  #onClaim(rkey: number, forWrite: boolean): void {
    const registered = this.#options.regions.get(rkey);
    if (registered === undefined) {
      if (forWrite) throw new ShoalError('protocol', `write to unknown rkey ${rkey}; was the region deregistered?`);
      this.stream.postControl(FrameType.Withdraw, { rkey });
      return;
    }
    this.#grantedToPeer.add(rkey);
    this.stream.postControl(FrameType.Grant, { rkey }, Buffer.from(registered.handle));
  }

  #onGrant(rkey: number, handle: string): void {
    const share = decodeHandle(handle);
    let mapping = this.#mappings.get(rkey);
    if (mapping !== undefined && mapping.region.id !== share.id)
      throw new ShoalError('protocol', `rkey ${rkey} is granted for another region than was mapped`);
    try {
      mapping ??= this.#addMapping(rkey, this.#options.allocator.open(share));
    } catch (thrown) {
      if (!isExhaustion(thrown)) throw thrown;
      // The peer has done nothing wrong: operations that wait for the memory fail, and nothing is sent out of order.
      this.#rejectDeferred(thrown);
      return;
    }
    mapping.granted = true;
    this.#runDeferred();
  }

  // ── opening ────────────────────────────────────────────────────────────────────────────────────────────────────

  /** Accepts only frames of the probing until both ends have mapped each other's probe, and none of them afterwards. */
  #checkOpening({ type }: Readonly<FrameHeader>): void {
    const opens = type === FrameType.Probe || type === FrameType.Probed || type === FrameType.Open;
    if (opens !== (this.#opening !== undefined))
      throw new ShoalError('protocol', `frame of type ${type} ${opens ? 'after' : 'before'} open`);
  }

  #onProbe(text: string): void {
    if (this.#life) throw new ShoalError('protocol', 'a second probe');
    let worked: string | undefined;
    try {
      worked = this.#mapsProbe(text);
    } catch (thrown) {
      // This error must not say that the peer is on another host, or the peer would try another way.
      this.#opening!.failed(ShoalError.from(thrown));
      throw thrown;
    }
    this.stream.postControl(FrameType.Probed, { flags: worked === undefined ? flagSet : 0 });
    if (worked === undefined) return;
    this.#opening!.failed(new ShoalError('unsupported', `rank ${this.peer.rank} does not share memory with this process: ${worked}`));
    void this.stream.close();
  }

  /** The reason why the peer's memory cannot be seen here, or undefined when it can. @throws ShoalError when a resource is used up. */
  #mapsProbe(text: string): string | undefined {
    const [handle = '', nonce = ''] = text.split(' ');
    let region: Region | undefined;
    try {
      region = this.#options.allocator.open(decodeHandle(handle));
      const isProbe = region.bytes === nonceBytes + lockBytes && Buffer.from(region.buffer, 0, nonceBytes).toString('hex') === nonce;
      if (!isProbe) return 'a probe region has other contents there';
      this.#life = { region, lock: new Uint32Array(region.buffer, nonceBytes, 1) };
      this.#options.lives.add(this.#life.lock, this.stream);
      return undefined;
    } catch (error) {
      if (isExhaustion(error)) throw error;
      return messageOf(error);
    } finally {
      if (this.#life === undefined) region?.close();
    }
  }

  #onProbed(worked: boolean): void {
    if (!worked) {
      this.stream.fail(new ShoalError('unsupported', `rank ${this.peer.rank} cannot map memory of this process`));
    } else if (this.#opening!.dials) {
      this.#becomeReady();
    }
  }

  #onOpen(): void {
    if (this.#opening!.dials) throw new ShoalError('protocol', 'open from the side that was dialled');
    this.#becomeReady();
  }

  #becomeReady(): void {
    const opening = this.#opening!;
    this.#opening = undefined;
    this.stream.hold(); // until the handlers are set
    opening.ready();
  }
}

function textOf(payload: Uint8Array | undefined): string {
  return payload === undefined ? '' : Buffer.from(payload).toString('latin1');
}
