/** `fabric://`: packets over connections of the data plane. Small parts are messages of the connection; large ones are
 *  written one-sided into registered memory of the receiver, from the sender's frame itself.
 *
 *    sender                                            receiver
 *      want                     ────────────────────▶    registers a landing region (the first time only)
 *      its address              ◀────────────────────    landing(rkey, bytes, handle)
 *      write(frame → landing)   ═══ one-sided ═══════▶   (memory)
 *      piece(slot, bytes …)     ────────────────────▶    the bytes are there: copies them out, or lends them
 *      may be written again     ◀────────────────────    freed(slot)
 *
 *  A frame whose place the receiver has named goes straight there; its frame of the message is that memory:
 *
 *      its memory               ◀────────────────────    offer(rkey, bytes, handle); withdrawn(rkey)
 *      write(frame → place)     ═══ one-sided ═══════▶   (memory)
 *      placed(rkey, offset …)   ────────────────────▶
 *
 *  The fabric is the caller's and only for messaging: a context listens on it once. URLs hold its address:
 *  `fabric://shm/3?world=job&at=shm%3A%2F%2F…` is rank 3.
 *
 *  Messages of the connection, little-endian; the first byte is the kind:
 *    1 part     u8 last part of its packet │ bytes of the part
 *    2 piece    u8 flags: 1 last of its part, 2 last part │ u16 slot │ u32 bytes │ f64 bytes of the part
 *    3 want     –
 *    4 landing  u8 0 │ u16 slots │ u32 rkey │ f64 bytes │ handle, ASCII
 *    5 freed    u8 0 │ u16 slot
 *    6 offer    u8 0 │ u16 0 │ u32 rkey │ f64 bytes │ handle, ASCII
 *    7 withdrawn  u8 0 │ u16 0 │ u32 rkey
 *    8 placed   u8 last part of its packet │ u16 0 │ u32 rkey │ f64 offset │ f64 bytes */
import { Layout } from '../../base/bytes.ts';
import { ShoalError } from '../../base/errors.ts';
import { abortConnection } from '../../fabric/abortable.ts';
import type { Connection, Fabric, PeerIdentity, RegisteredRegion, RemoteRegion } from '../../fabric/fabric.ts';
import { Fifo } from '../../base/fifo.ts';
import { loadNative } from '../../memory/native.ts';
import type { Region, RegionAllocator } from '../../memory/region.ts';
import { createRegionAllocator } from '../../memory/regions/allocator.ts';
import type { Backend, BackendOptions, Listener, Pipe, PipeConnectOptions, PipeHandlers } from '../backend.ts';
import { packetBytesMost } from '../limits.ts';
import type { FramePlace } from '../msg.ts';
import type { FramePlaces, PlaceOffers } from './frame-places.ts';
import { Landing, landingSlots } from './landing.ts';

/** The data plane that messages go over. */
export interface FabricEndpoint {
  /** A fabric that only messaging uses. The context does not close it. */
  readonly fabric: Fabric;
  /** This process's identity on it, with which the fabric was made. */
  readonly identity: PeerIdentity;
  /** Makes landing regions, of the kind the fabric needs. Default: the best of this host. */
  readonly regions?: RegionAllocator;
  /** Large received frames are copied out of registered memory, or lent until `msg.release()`; when many are lent
   *  already, further ones are copied. Default `copy`. */
  readonly landing?: 'copy' | 'borrow';
  /** Registered memory per connection that receives large frames. Default 16 MiB, taken when the
   *  first one comes. */
  readonly landingBytes?: number;
}

const defaultLandingBytes = 16 * 2 ** 20;
const landingLeast = 256 * 1024;

const kind = { part: 1, piece: 2, want: 3, landing: 4, freed: 5, offer: 6, withdrawn: 7, placed: 8 } as const;
/** Parts up to this size are messages. */
const inlineMost = 32 * 1024;
const handleMost = 256;
const partsMost = 70_000;
const format = 'a message of a messaging connection';
const pieceLayout = new Layout(format, { kind: 'u8', flags: 'u8', slot: 'u16', bytes: 'u32', partBytes: 'f53' });
/** A landing or an offer; its handle follows. */
const regionLayout = new Layout(format, { kind: 'u8', zero: 'u8', slots: 'u16', rkey: 'u32', bytes: 'f53' });
const freedLayout = new Layout(format, { kind: 'u8', zero: 'u8', slot: 'u16' });
const withdrawnLayout = new Layout(format, { kind: 'u8', zero: 3, rkey: 'u32' });
const placedLayout = new Layout(format, { kind: 'u8', last: 'u8', zero: 'u16', rkey: 'u32', offset: 'f53', bytes: 'f53' });
const offersMost = 65_536;
/** The time that packets posted before the end are given. */
const goodbyeMs = 200;

export interface FabricBackendOptions extends BackendOptions {
  readonly fabric?: FabricEndpoint;
  /** Memory that peers may write to, over that fabric. */
  readonly places?: FramePlaces;
}

/** @throws ShoalError `usage` without a fabric. */
export async function createFabricBackend(options: FabricBackendOptions): Promise<Backend> {
  const { fabric, places } = options;
  if (fabric === undefined || places === undefined)
    throw new ShoalError('usage', 'fabric:// needs a fabric: give the messaging context the option fabric');
  return new FabricBackend(options, fabric, places);
}

class FabricBackend implements Backend {
  readonly #endpoint: FabricEndpoint;
  readonly #landing: LandingOptions;
  readonly #pipes = new Set<FabricPipe>();
  #onPipe: ((pipe: Pipe) => void) | undefined;
  #url: string | undefined;

  constructor(options: BackendOptions, endpoint: FabricEndpoint, places: FramePlaces) {
    this.#endpoint = endpoint;
    const { landing = 'copy', landingBytes = defaultLandingBytes } = endpoint;
    if (!Number.isSafeInteger(landingBytes) || landingBytes < landingLeast) {
      throw new ShoalError('usage', `landingBytes ${landingBytes} must be an integer from ${landingLeast}`);
    }
    const regions = endpoint.regions ?? createRegionAllocator({ native: loadNative({ enabled: true }) });
    this.#landing = {
      lends: landing === 'borrow',
      bytes: landingBytes,
      regions,
      fabric: endpoint.fabric,
      packetBytes: packetBytesMost(options.limits),
      places,
    };
  }

  async listen(url: string, onPipe: (pipe: Pipe) => void): Promise<Listener> {
    const { fabric } = this.#endpoint;
    if (url !== `fabric://${fabric.name}`)
      throw new ShoalError('usage', `'${url}': this context's fabric is bound as fabric://${fabric.name}`);
    if (this.#onPipe !== undefined) throw new ShoalError('system', `${url} is bound already; a fabric listens once`);
    this.#onPipe = onPipe;
    this.#url ??= await this.#listenOnce();
    return {
      url: this.#url,
      close: async () => {
        this.#onPipe = undefined;
      },
    };
  }

  async connect(url: string, { timeoutMs, signal }: PipeConnectOptions): Promise<Pipe> {
    const { provider, world, rank, candidates } = parseFabricUrl(url);
    const { fabric } = this.#endpoint;
    if (provider !== fabric.name) throw new ShoalError('usage', `'${url}' needs the fabric ${provider}; this context has ${fabric.name}`);
    const connection = await fabric.connect({ provider, candidates }, { peer: { world, rank }, timeoutMs, signal });
    return this.#open(connection);
  }

  async close(): Promise<void> {
    this.#onPipe = undefined;
    await Promise.all([...this.#pipes].map((pipe) => pipe.close(0)));
  }

  async #listenOnce(): Promise<string> {
    const { fabric, identity } = this.#endpoint;
    const address = await fabric.listen((connection) => {
      const pipe = this.#open(connection);
      // No router is bound at the moment: the peer comes again later.
      if (this.#onPipe === undefined) pipe.close(0).catch(() => undefined);
      else this.#onPipe(pipe);
    });
    const query = new URLSearchParams({ world: identity.world });
    for (const candidate of address.candidates) query.append('at', candidate);
    return `fabric://${address.provider}/${identity.rank}?${query.toString()}`;
  }

  #open(connection: Connection): FabricPipe {
    const pipe = new FabricPipe(connection, this.#landing, () => this.#pipes.delete(pipe));
    this.#pipes.add(pipe);
    return pipe;
  }
}

interface LandingOptions {
  readonly lends: boolean;
  readonly bytes: number;
  readonly regions: RegionAllocator;
  readonly fabric: Fabric;
  /** Largest packet that is accepted. */
  readonly packetBytes: number;
  readonly places: FramePlaces;
}

interface Outgoing {
  readonly parts: readonly Uint8Array[];
  readonly places: readonly (FramePlace | undefined)[];
  part: number;
  offset: number;
}

class FabricPipe implements Pipe, PlaceOffers {
  readonly pointers = false;
  readonly description: string;
  readonly #connection: Connection;
  readonly #options: LandingOptions;
  readonly #onClosed: () => void;
  #handlers: PipeHandlers | undefined;
  #early: Uint8Array[][] = [];
  #open = true;

  // Sending.
  readonly #backlog = new Fifo<Outgoing>();
  #target: { readonly region: RemoteRegion; readonly slots: Landing } | undefined;
  #wanted = false;
  /** Regions that the peer has opened to us, by rkey. */
  readonly #offered = new Map<number, RemoteRegion>();
  #onFlushed: (() => void) | undefined;

  // Receiving.
  #region: Region | undefined;
  #registered: RegisteredRegion | undefined;
  #slots: Landing | undefined;
  #lent = 0;
  #parts: Uint8Array[] = [];
  #partsBytes = 0;
  /** Slots under the parts of the packet that is arriving. */
  #loans: number[] = [];
  #filling: { readonly bytes: Uint8Array; filled: number } | undefined;

  constructor(connection: Connection, options: LandingOptions, onClosed: () => void) {
    this.#connection = connection;
    this.#options = options;
    this.#onClosed = onClosed;
    this.description = `fabric ${connection.description} to rank ${connection.peer.rank}`;
    connection.setHandlers({
      onMessage: (message) => this.#onMessage(message),
      onImmediate: () => this.#fail(violation('an immediate')),
      onClose: (error) => this.#end(error ?? new ShoalError('peer-lost', `${this.description} was closed by the peer`)),
    });
    options.places.add(this);
  }

  offer({ rkey, bytes, handle }: RemoteRegion): void {
    const message = regionLayout.encode({ kind: kind.offer, slots: 0, rkey, bytes }, Buffer.from(handle, 'latin1'));
    this.#post(this.#connection.send(message));
  }

  withdraw(rkey: number): void {
    this.#post(this.#connection.send(withdrawnLayout.encode({ kind: kind.withdrawn, rkey })));
  }

  end(): void {
    abortConnection(this.#connection);
  }

  setHandlers(handlers: PipeHandlers): void {
    this.#handlers = handlers;
    for (const parts of this.#early.splice(0)) handlers.onParts(parts, []);
  }

  send(parts: readonly Uint8Array[], _pointers?: readonly Uint8Array[], places: readonly (FramePlace | undefined)[] = []): void {
    if (!this.#open) return;
    this.#backlog.push({ parts, places, part: 0, offset: 0 });
    if (this.#backlog.length === 1) this.#continue();
  }

  async close(timeoutMs: number): Promise<void> {
    if (!this.#open) return;
    if (timeoutMs > 0 && this.#backlog.length > 0) {
      // The socket above has its own deadline and calls again with none left; a lost connection ends this too.
      await new Promise<void>((resolve) => {
        this.#onFlushed = resolve;
      });
    }
    this.#release();
    await this.#connection.close(Math.max(timeoutMs, goodbyeMs));
  }

  // ── sending ────────────────────────────────────────────────────────────────────────────────────────────────────

  /** Posts what can be posted, in order; the rest waits for landing space. */
  #continue(): void {
    for (let out = this.#backlog.peek(); out !== undefined && this.#open; out = this.#backlog.peek()) {
      for (; out.part < out.parts.length; out.part++, out.offset = 0) {
        const part = out.parts[out.part];
        const last = out.part === out.parts.length - 1;
        const place = out.offset === 0 ? out.places[out.part] : undefined;
        if (place !== undefined && this.#writePlaced(part, place, last)) continue;
        if (part.byteLength <= inlineMost) {
          const message = Buffer.allocUnsafe(2 + part.byteLength);
          message[0] = kind.part;
          message[1] = last ? 1 : 0;
          message.set(part, 2);
          this.#post(this.#connection.send(message));
        } else if (!this.#writePieces(part, out, last)) return;
      }
      this.#backlog.shift();
    }
    this.#onFlushed?.();
  }

  /** @returns false when the peer has not opened the place to this connection. */
  #writePlaced(part: Uint8Array, { rkey, offset }: FramePlace, last: boolean): boolean {
    const region = this.#offered.get(rkey);
    if (region === undefined || part.byteLength > region.bytes - offset) return false;
    const source = { region: regionOver(part.buffer), offset: part.byteOffset, bytes: part.byteLength };
    this.#post(this.#connection.write(source, { region, offset }));
    const message = placedLayout.encode({ kind: kind.placed, last: last ? 1 : 0, rkey, offset, bytes: part.byteLength });
    this.#post(this.#connection.send(message));
    return true;
  }

  /** @returns the part is written. */
  #writePieces(part: Uint8Array, out: Outgoing, last: boolean): boolean {
    if (this.#target === undefined) {
      if (!this.#wanted) this.#post(this.#connection.send(Uint8Array.of(kind.want)));
      this.#wanted = true;
      return false;
    }
    const { region, slots } = this.#target;
    while (out.offset < part.byteLength) {
      const taken = slots.take(part.byteLength - out.offset);
      if (taken === undefined) return false;
      const { slot, bytes } = taken;
      const source = { region: regionOver(part.buffer), offset: part.byteOffset + out.offset, bytes };
      this.#post(this.#connection.write(source, { region, offset: slot * slots.slotBytes }));
      out.offset += bytes;
      const flags = (out.offset === part.byteLength ? 1 : 0) + (last ? 2 : 0);
      const message = pieceLayout.encode({ kind: kind.piece, flags, slot, bytes, partBytes: part.byteLength });
      this.#post(this.#connection.send(message));
    }
    return true;
  }

  #post(posted: Promise<void>): void {
    // A lost connection reports itself once, by onClose; anything else is our own mistake and must not go unseen.
    posted.catch((thrown: unknown) => {
      const error = ShoalError.from(thrown);
      if (error.code !== 'peer-lost' && error.code !== 'closed') this.#fail(error);
    });
  }

  // ── receiving ──────────────────────────────────────────────────────────────────────────────────────────────────

  #onMessage(message: Uint8Array): void {
    if (!this.#open) return;
    try {
      this.#take(message);
    } catch (thrown) {
      this.#fail(ShoalError.from(thrown, 'protocol'));
    }
  }

  #take(message: Uint8Array): void {
    switch (message[0]) {
      case kind.part:
        if (message.length < 2 || message.length > 2 + inlineMost || this.#filling !== undefined)
          throw violation('a part that does not belong');
        this.#finishPart(Uint8Array.from(message.subarray(2)), message[1] === 1);
        return;
      case kind.piece:
        this.#onPiece(message);
        return;
      case kind.want:
        this.#announceLanding();
        return;
      case kind.landing: {
        const { slots, region } = regionOf(message);
        if (this.#target !== undefined || region.bytes < landingLeast || slots < 1)
          throw violation(`a landing of ${region.bytes} bytes in ${slots} slots that does not belong`);
        this.#target = { region, slots: new Landing(region.bytes, slots) };
        this.#continue();
        return;
      }
      case kind.freed:
        if (message.length !== freedLayout.bytes || !this.#target?.slots.free(freedLayout.decode(message).slot))
          throw violation('a slot that was never taken');
        this.#continue();
        return;
      case kind.offer: {
        const { region } = regionOf(message);
        if (this.#offered.size >= offersMost) throw violation('an offer that cannot be');
        this.#offered.set(region.rkey, region);
        return;
      }
      case kind.withdrawn:
        if (message.length !== withdrawnLayout.bytes) throw violation('a withdrawal that cannot be');
        this.#offered.delete(withdrawnLayout.decode(message).rkey);
        return;
      case kind.placed:
        this.#onPlaced(message);
        return;
      default:
        throw violation(`a message of kind ${message[0]}`);
    }
  }

  #onPlaced(message: Uint8Array): void {
    if (message.length !== placedLayout.bytes || this.#filling !== undefined) throw violation('a placed part that does not belong');
    const { places } = this.#options;
    const { last, rkey, offset, bytes } = placedLayout.decode(message);
    const part = bytes > 0 ? places.locate(rkey, offset, bytes) : undefined;
    if (part === undefined) throw violation('a placed part outside of what was offered');
    places.counters.bytesPlaced += bytes;
    this.#finishPart(part, last === 1);
  }

  #onPiece(message: Uint8Array): void {
    const region = this.#region;
    const slots = this.#slots;
    if (message.length !== pieceLayout.bytes || region === undefined || slots === undefined)
      throw violation('a piece that does not belong');
    const { flags, slot, bytes, partBytes } = pieceLayout.decode(message);
    if (!slots.land(slot, bytes)) throw violation(`a piece of ${bytes} bytes in slot ${slot}`);
    // Before anything is allocated; a packet is no larger than a message.
    const most = this.#options.packetBytes - this.#partsBytes;
    if (partBytes < bytes || partBytes > most) throw violation(`a part of ${partBytes} bytes`);
    const landed = new Uint8Array(region.buffer, slot * slots.slotBytes, bytes);
    const { lends, places } = this.#options;
    if (lends && slots.mayLend(this.#lent, bytes) && bytes === partBytes && this.#filling === undefined && flags % 2 === 1) {
      this.#lent += Math.ceil(bytes / slots.slotBytes);
      places.counters.bytesLent += bytes;
      this.#loans.push(slot);
      this.#finishPart(landed, flags >= 2);
      return;
    }
    // The part is allocated as a whole by the first piece; its size was checked.
    // All of it is written before anybody sees it, so that it need not be zeroed first.
    this.#filling ??= { bytes: Buffer.allocUnsafeSlow(partBytes), filled: 0 };
    const { filled } = this.#filling;
    if (this.#filling.bytes.byteLength !== partBytes || filled + bytes > partBytes) throw violation('pieces that do not fit');
    this.#filling.bytes.set(landed, filled);
    places.counters.bytesCopied += bytes;
    this.#filling.filled += bytes;
    this.#giveBack(slot);
    if ((flags % 2 === 1) !== (this.#filling.filled === partBytes)) throw violation('a part that ends elsewhere than it said');
    if (flags % 2 === 0) return;
    const part = this.#filling.bytes;
    this.#filling = undefined;
    this.#finishPart(part, flags >= 2);
  }

  #finishPart(part: Uint8Array, last: boolean): void {
    this.#parts.push(part);
    this.#partsBytes += part.byteLength;
    if (this.#parts.length > partsMost || this.#partsBytes > this.#options.packetBytes) {
      throw violation(`a packet of ${this.#parts.length} parts with ${this.#partsBytes} bytes`);
    }
    if (!last) return;
    const parts = this.#parts;
    const loans = this.#loans;
    this.#parts = [];
    this.#partsBytes = 0;
    this.#loans = [];
    if (this.#handlers === undefined) this.#early.push(parts);
    else this.#handlers.onParts(parts, [], loans.length === 0 ? undefined : () => this.#returnLoans(loans));
  }

  #returnLoans(loans: readonly number[]): void {
    for (const slot of loans) this.#lent -= this.#giveBack(slot);
  }

  /** @returns how many slots it had. */
  #giveBack(slot: number): number {
    if (!this.#open) return 0;
    const slots = this.#slots?.free(slot) ?? 0;
    this.#post(this.#connection.send(freedLayout.encode({ kind: kind.freed, slot })));
    return slots;
  }

  #announceLanding(): void {
    if (this.#region !== undefined) throw violation('a second want');
    const { regions, fabric, bytes } = this.#options;
    this.#region = regions.create(bytes);
    this.#slots = new Landing(bytes, landingSlots);
    this.#registered = fabric.register(this.#region);
    const { rkey, handle } = this.#registered;
    const message = regionLayout.encode({ kind: kind.landing, slots: landingSlots, rkey, bytes }, Buffer.from(handle, 'latin1'));
    this.#post(this.#connection.send(message));
  }

  // ── end ────────────────────────────────────────────────────────────────────────────────────────────────────────

  /** The peer breaks the rules, or we cannot go on. */
  #fail(why: ShoalError): void {
    if (!this.#open) return;
    this.#connection.close(goodbyeMs).catch(() => undefined);
    this.#end(why);
  }

  #end(error: ShoalError): void {
    if (!this.#open) return;
    this.#release();
    this.#handlers?.onClose(error);
  }

  #release(): void {
    this.#open = false;
    this.#options.places.delete(this);
    this.#registered?.deregister();
    // Lent memory is still read.
    if (this.#lent > 0) this.#region?.retire();
    else this.#region?.close();
    this.#onFlushed?.();
    this.#onClosed();
  }
}

/** A frame's memory as the source of a write: only its bytes are looked at. */
function regionOver(buffer: ArrayBufferLike): Region {
  const share = { kind: 'thread', id: '', bytes: buffer.byteLength, buffer: buffer as SharedArrayBuffer } as const;
  return { id: '', bytes: buffer.byteLength, buffer, share, close: () => undefined, retire: () => undefined };
}

/** The region of a landing or an offer. */
function regionOf(message: Uint8Array): { slots: number; region: RemoteRegion } {
  const { slots, rkey, bytes } = regionLayout.decode(message);
  if (message.length > regionLayout.bytes + handleMost) throw violation('a handle that is too long');
  return { slots, region: { rkey, bytes, handle: Buffer.from(message.subarray(regionLayout.bytes)).toString('latin1') } };
}

function violation(what: string): ShoalError {
  return new ShoalError('protocol', `peer sent ${what} over a messaging connection`);
}

interface FabricUrl {
  readonly provider: string;
  readonly rank: number;
  readonly world: string;
  readonly candidates: readonly string[];
}

function parseFabricUrl(url: string): FabricUrl {
  const match = /^fabric:\/\/([\w;-]+)\/(\d{1,10})\?(.+)$/.exec(url);
  const query = new URLSearchParams(match?.[3] ?? '');
  const world = query.get('world');
  const candidates = query.getAll('at');
  if (match === null || world === null || candidates.length === 0) {
    throw new ShoalError('usage', `'${url}' is not what binding fabric:// returned, like fabric://shm/3?world=job&at=…`);
  }
  return { provider: match[1], rank: Number(match[2]), world, candidates };
}
