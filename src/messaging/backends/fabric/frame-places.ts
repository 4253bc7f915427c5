/** Memory of this process that peers may write frames of messages to, over the fabric of one messaging context. Each connection
 *  offers it to its peer; a place that is closed is offered to nobody any more, and nothing lands in it. */
import type { Fabric, RegisteredRegion, RemoteRegion } from '../../../fabric/fabric.ts';
import type { Region } from '../../../memory/region.ts';

/** Open at once; frames for further ones arrive as any other. */
const placesMost = 4096;

/** A connection that offers places. */
export interface PlaceOffers {
  offer(place: RemoteRegion): void;
  withdraw(rkey: number): void;
  /** The connection breaks, and with it whatever is on its way. */
  end(): void;
}

/** Large frames by how they came, in bytes. */
export interface FrameCounters {
  /** Straight to the place that the receiver had named. */
  bytesPlaced: number;
  /** Lent where they landed. */
  bytesLent: number;
  /** Copied out of where they landed. */
  bytesCopied: number;
}

export class FramePlaces {
  readonly #fabric: Fabric;
  readonly #open = new Map<number, RegisteredRegion>();
  readonly #connections = new Set<PlaceOffers>();
  readonly counters: FrameCounters = { bytesPlaced: 0, bytesLent: 0, bytesCopied: 0 };

  constructor(fabric: Fabric) {
    this.#fabric = fabric;
  }

  /** @returns the key of the place, which messages name; 0 when there are too many. */
  open(region: Region): number {
    if (this.#open.size >= placesMost) return 0;
    const place = this.#fabric.register(region);
    this.#open.set(place.rkey, place);
    for (const connection of this.#connections) connection.offer(place);
    return place.rkey;
  }

  /** @param inFlight false: no message that names it is on its way. Else peers may be writing there: connections end, because nothing else
   *  stops them at once on every fabric. They are made again, and what was on its way is sent again, elsewhere. */
  close(rkey: number, { inFlight }: { readonly inFlight: boolean }): void {
    const place = this.#open.get(rkey);
    if (place === undefined) return;
    this.#open.delete(rkey);
    place.deregister();
    for (const connection of [...this.#connections]) {
      if (inFlight) connection.end();
      else connection.withdraw(rkey);
    }
  }

  /** Bytes of a place; undefined when that is not open, or they are not all in it. */
  locate(rkey: number, offset: number, bytes: number): Uint8Array | undefined {
    const place = this.#open.get(rkey);
    if (place === undefined || !Number.isSafeInteger(offset) || offset < 0 || offset > place.bytes - bytes) return undefined;
    return new Uint8Array(place.region.buffer, offset, bytes);
  }

  /** A new connection: it hears of all places. */
  add(connection: PlaceOffers): void {
    this.#connections.add(connection);
    for (const place of this.#open.values()) connection.offer(place);
  }

  delete(connection: PlaceOffers): void {
    this.#connections.delete(connection);
  }
}
