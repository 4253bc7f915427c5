/** The memory large parts land in: a registered region of the receiver, in equal slots. The sender takes free ones, the
 *  receiver gives them back in any order, so that a frame that is lent for long holds up its own slot only. Pure.
 *
 *    region │ slot 0 │ slot 1 │ … │ slot 15 │     a piece is at the beginning of a slot and within it */

export const landingSlots = 16;
/** So many the receiver may lend to the application; the others keep the pieces moving. */
export const lentSlotsMost: number = landingSlots / 2;

/** Which slots are taken, as either side sees it. */
export class Landing {
  readonly slotBytes: number;
  readonly #slots: number;
  readonly #taken = new Set<number>();
  readonly #free: number[];

  /** @param bytes of the region; `slots` as both sides agreed. */
  constructor(bytes: number, slots: number) {
    this.slotBytes = Math.floor(bytes / slots / 64) * 64;
    this.#slots = slots;
    this.#free = Array.from({ length: slots }, (_, slot) => slots - 1 - slot);
  }

  /** The sender: a free slot, or undefined when there is none now. */
  take(): number | undefined {
    const slot = this.#free.pop();
    if (slot !== undefined) this.#taken.add(slot);
    return slot;
  }

  /** The receiver: a piece says it is there. @returns false when that cannot be. */
  land(slot: number, bytes: number): boolean {
    if (slot >= this.#slots || this.#taken.has(slot) || bytes < 1 || bytes > this.slotBytes) return false;
    this.#taken.add(slot);
    return true;
  }

  /** Either side: the slot is free again. @returns false when it was not taken. */
  free(slot: number): boolean {
    if (!this.#taken.delete(slot)) return false;
    this.#free.push(slot);
    return true;
  }
}
