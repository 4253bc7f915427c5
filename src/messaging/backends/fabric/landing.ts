/** The memory large parts land in: a registered region of the receiver, in equal slots. A piece takes neighbouring slots; the
 *  sender takes free ones, the receiver gives them back in any order, so that a frame that is lent for long holds up its own
 *  slots only. Pure.
 *
 *    region │ slot 0 │ slot 1 │ … │ slot 63 │     a piece is at the beginning of a slot and in as many as it needs */

export const landingSlots = 64;

/** The slots that are taken, as either side sees them. */
export class Landing {
  readonly slotBytes: number;
  /** Most bytes of one piece. Half of the slots may be lent: even then there is room for one. */
  readonly pieceBytes: number;
  readonly #slots: number;
  /** The number of slots of each piece, by its first. */
  readonly #pieces = new Map<number, number>();
  readonly #taken: Uint8Array;
  #free: number;

  /** @param bytes of the region; `slots` as both sides agreed. */
  constructor(bytes: number, slots: number) {
    this.slotBytes = Math.floor(bytes / slots / 64) * 64;
    this.pieceBytes = Math.max(1, slots >> 2) * this.slotBytes;
    this.#slots = slots;
    this.#free = slots;
    this.#taken = new Uint8Array(slots);
  }

  /** The sender: where a piece goes, and how many of the bytes that are left it has; undefined when there is no room now. */
  take(bytesLeft: number): { readonly slot: number; readonly bytes: number } | undefined {
    const wanted = this.#count(Math.min(bytesLeft, this.pieceBytes));
    if (this.#free < wanted) return undefined;
    // Where free slots are scattered, the longest stretch: what is lent may stay for long.
    let [slot, count] = [0, 0];
    for (let at = 0; at < this.#slots && count < wanted; at++) {
      const from = at;
      while (at < this.#slots && this.#taken[at] === 0 && at - from < wanted) at++;
      if (at - from > count) [slot, count] = [from, at - from];
    }
    this.#mark(slot, count);
    return { slot, bytes: Math.min(bytesLeft, this.pieceBytes, count * this.slotBytes) };
  }

  /** The receiver: a piece says it is there. @returns false when that cannot be. */
  land(slot: number, bytes: number): boolean {
    if (bytes < 1 || bytes > this.pieceBytes) return false;
    const count = this.#count(bytes);
    if (slot + count > this.#slots) return false;
    for (let at = slot; at < slot + count; at++) if (this.#taken[at] !== 0) return false;
    this.#mark(slot, count);
    return true;
  }

  /** Either side: the piece's slots are free again. @returns how many; 0 when no piece begins there. */
  free(slot: number): number {
    const count = this.#pieces.get(slot);
    if (count === undefined) return 0;
    this.#pieces.delete(slot);
    this.#taken.fill(0, slot, slot + count);
    this.#free += count;
    return count;
  }

  /** Whether so many bytes may be lent when `lent` slots are: the others keep the pieces moving. */
  mayLend(lent: number, bytes: number): boolean {
    return lent + this.#count(bytes) <= this.#slots >> 1;
  }

  #mark(slot: number, count: number): void {
    this.#pieces.set(slot, count);
    this.#taken.fill(1, slot, slot + count);
    this.#free -= count;
  }

  #count(bytes: number): number {
    return Math.ceil(bytes / this.slotBytes);
  }
}
