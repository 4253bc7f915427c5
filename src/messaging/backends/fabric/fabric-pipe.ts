/** A pipe over a connection of the data plane. Small parts are messages of the connection; large ones are written one-sided into registered
 *  memory of the receiver, from the sender's frame itself.
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
 *  Messages of the connection, little-endian; the first byte is the kind:
 *    1 part     u8 last part of its packet │ bytes of the part
 *    2 piece    u8 flags: 1 last of its part, 2 last part │ u16 slot │ u32 bytes │ f64 bytes of the part
 *    3 want     –
 *    4 landing  u8 0 │ u16 slots │ u32 rkey │ f64 bytes │ handle, ASCII
 *    5 freed    u8 0 │ u16 slot
 *    6 offer    u8 0 │ u16 0 │ u32 rkey │ f64 bytes │ handle, ASCII
 *    7 withdrawn  u8 0 │ u16 0 │ u32 rkey
 *    8 placed   u8 last part of its packet │ u16 0 │ u32 rkey │ f64 offset │ f64 bytes */
import { Layout } from '../../../base/bytes.ts';
import type { Clock } from '../../../base/clock.ts';
import { ShoalError } from '../../../base/errors.ts';
import { Fifo } from '../../../base/collections/fifo.ts';
import { abortConnection } from '../../../fabric/abortable.ts';
import type { Connection, Fabric, RegisteredRegion, RemoteRegion } from '../../../fabric/fabric.ts';
import type { Region, RegionAllocator } from '../../../memory/region.ts';
import { memoryRegion } from '../../../memory/regions/thread.ts';
import type { FramePlace } from '../../msg.ts';
import { BackendPipe } from '../backend-pipe.ts';
import { IncomingPacket } from '../incoming-packet.ts';
import type { FramePlaces, PlaceOffers } from './frame-places.ts';
import { Landing, landingSlots } from './landing.ts';

/** Least bytes of a landing region. */
export const landingLeast: number = 256 * 1024;

const kind = { part: 1, piece: 2, want: 3, landing: 4, freed: 5, offer: 6, withdrawn: 7, placed: 8 } as const;
/** Parts up to this size are messages. */
const inlineMost = 32 * 1024;
const handleMost = 256;
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

export interface FabricPipeOptions {
  readonly fabric: Fabric;
  readonly clock: Clock;
  /** Makes landing regions of `landingBytes`. */
  readonly regions: RegionAllocator;
  readonly landingBytes: number;
  /** Frames may be lent where they landed. */
  readonly lends: boolean;
  /** Largest packet that is accepted. */
  readonly packetBytes: number;
  readonly places: FramePlaces;
}

/** A packet on its way; `part` and `offset` say how far. */
interface Outgoing {
  readonly parts: readonly Uint8Array[];
  readonly places: readonly (FramePlace | undefined)[];
  part: number;
  offset: number;
}

export class FabricPipe extends BackendPipe implements PlaceOffers {
  readonly #connection: Connection;
  readonly #options: FabricPipeOptions;

  // Sending.
  readonly #backlog = new Fifo<Outgoing>();
  #target: { readonly region: RemoteRegion; readonly slots: Landing } | undefined;
  #wanted = false;
  /** Regions that the peer has opened to us, by rkey. */
  readonly #offered = new Map<number, RemoteRegion>();

  // Receiving.
  #region: Region | undefined;
  #registered: RegisteredRegion | undefined;
  #slots: Landing | undefined;
  #lent = 0;
  readonly #packet: IncomingPacket;
  /** Slots under the parts of the packet that is arriving. */
  #loans: number[] = [];
  #filling: { readonly bytes: Uint8Array; filled: number } | undefined;

  constructor(connection: Connection, options: FabricPipeOptions, onEnded: () => void) {
    super({ description: `fabric ${connection.description} to rank ${connection.peer.rank}`, clock: options.clock, onEnded });
    this.#connection = connection;
    this.#options = options;
    this.#packet = new IncomingPacket(options.packetBytes);
    connection.setHandlers({
      onMessage: (message) => this.#onMessage(message),
      onImmediate: () => this.lose(violation('an immediate')),
      onClose: (error) => this.lose(error ?? new ShoalError('peer-lost', `${this.description} was closed by the peer`)),
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

  protected override release(timeoutMs = 0): Promise<void> {
    this.#options.places.delete(this);
    this.#registered?.deregister();
    // Lent memory is still read.
    if (this.#lent > 0) this.#region?.retire();
    else this.#region?.close();
    return this.#connection.close(Math.max(timeoutMs, goodbyeMs));
  }

  // ── sending ────────────────────────────────────────────────────────────────────────────────────────────────────

  override send(parts: readonly Uint8Array[], _pointers?: readonly Uint8Array[], places: Outgoing['places'] = []): void {
    if (!this.isOpen) return;
    this.#backlog.push({ parts, places, part: 0, offset: 0 });
    if (this.#backlog.length === 1) this.#continue();
  }

  protected override get isSending(): boolean {
    return this.#backlog.length > 0;
  }

  /** Posts what can be posted, in order; the rest waits for landing space. */
  #continue(): void {
    for (let out = this.#backlog.peek(); out !== undefined && this.isOpen; out = this.#backlog.peek()) {
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
    this.flushed();
  }

  /** @returns false when the peer has not opened the place to this connection. */
  #writePlaced(part: Uint8Array, { rkey, offset }: FramePlace, last: boolean): boolean {
    const region = this.#offered.get(rkey);
    if (region === undefined || part.byteLength > region.bytes - offset) return false;
    const source = { region: memoryRegion(part.buffer), offset: part.byteOffset, bytes: part.byteLength };
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
      const source = { region: memoryRegion(part.buffer), offset: part.byteOffset + out.offset, bytes };
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
      if (error.code !== 'peer-lost' && error.code !== 'closed') this.lose(error);
    });
  }

  // ── receiving ──────────────────────────────────────────────────────────────────────────────────────────────────

  #onMessage(message: Uint8Array): void {
    if (!this.isOpen) return;
    try {
      this.#take(message);
    } catch (thrown) {
      this.lose(ShoalError.from(thrown, 'protocol'));
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
    if (partBytes < bytes || partBytes > this.#packet.room) throw violation(`a part of ${partBytes} bytes`);
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
    const parts = this.#packet.add(part, last);
    if (parts === undefined) return;
    const loans = this.#loans;
    this.#loans = [];
    this.deliver(parts, [], loans.length === 0 ? undefined : () => this.#returnLoans(loans));
  }

  #returnLoans(loans: readonly number[]): void {
    for (const slot of loans) this.#lent -= this.#giveBack(slot);
  }

  /** @returns how many slots it had. */
  #giveBack(slot: number): number {
    if (!this.isOpen) return 0;
    const slots = this.#slots?.free(slot) ?? 0;
    this.#post(this.#connection.send(freedLayout.encode({ kind: kind.freed, slot })));
    return slots;
  }

  #announceLanding(): void {
    if (this.#region !== undefined) throw violation('a second want');
    const { regions, fabric, landingBytes: bytes } = this.#options;
    this.#region = regions.create(bytes);
    this.#slots = new Landing(bytes, landingSlots);
    this.#registered = fabric.register(this.#region);
    const { rkey, handle } = this.#registered;
    const message = regionLayout.encode({ kind: kind.landing, slots: landingSlots, rkey, bytes }, Buffer.from(handle, 'latin1'));
    this.#post(this.#connection.send(message));
  }
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
