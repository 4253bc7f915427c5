/** The sockets of an express, and the memory behind them: where announcements of the other ranks arrive.
 *
 *      region of one rank and group, mapped by both its threads
 *      │ mirrors: two slots of every other rank │ what is half received and half sent on each socket │
 *
 *  Mirrors have the layout of a slot of the control block. It must not know operations. */
import { beginPublishedOffset, mailboxOffset, type ControlBlock } from '../collectives/control-block.ts';
import { wireResults, type NativeWire, type WatchHandle, type WireHandle } from '../memory/native-wire.ts';
import { mailboxBytes } from '../plan/ir.ts';

/** Operations of an express take slots in turn. */
export const expressSlots = 2;

const lineBytes = 64;
const lineWords = (mailboxOffset - beginPublishedOffset) / 4;
const slotBytes = Math.ceil((mailboxOffset + mailboxBytes) / lineBytes) * lineBytes;
/** Of an announcement with a full mailbox. */
const payloadBytesMax = mailboxOffset + mailboxBytes - beginPublishedOffset;

export function expressMemoryBytes(native: NativeWire, ranks: number): number {
  return (ranks - 1) * expressSlots * slotBytes + native.wireMemoryBytes(ranks - 1, payloadBytesMax);
}

export interface ExpressWireOptions {
  readonly native: NativeWire;
  readonly rank: number;
  /** This rank's own block, and the first of its slots that the express uses. */
  readonly own: ControlBlock;
  readonly firstSlot: number;
  /** Of `expressMemoryBytes`, mapped by this thread. */
  readonly memory: Uint8Array;
  /** Sockets to the other ranks, in their order; the wire owns them from now on. */
  readonly descriptors: readonly number[];
}

/** Used by one thread; the other one has its own, on the same memory, and they take turns. */
export class ExpressWire {
  readonly #native: NativeWire;
  readonly #wire: WireHandle;
  /** By rank, then turn. Kept alive here, because the addon knows their addresses. */
  readonly #slots: readonly (readonly Uint8Array[])[];
  /** Announcement and contract of each slot, as words. */
  readonly #lines: readonly (readonly Uint32Array[])[];
  readonly #memory: Uint8Array;
  #watch: WatchHandle | undefined;
  #watching = false;
  #closed = false;

  constructor(options: ExpressWireOptions) {
    const { native, rank, own, firstSlot, memory, descriptors } = options;
    this.#native = native;
    const turns = Array.from({ length: expressSlots }, (_, turn) => turn);
    const slots = descriptors.map((_, peer) =>
      turns.map((turn) => memory.subarray((peer * expressSlots + turn) * slotBytes, (peer * expressSlots + turn + 1) * slotBytes)),
    );
    const ownSlots = turns.map((turn) => own.slots[firstSlot + turn]);
    this.#memory = memory.subarray(descriptors.length * expressSlots * slotBytes);
    this.#wire = native.createWire(descriptors, this.#memory, ownSlots, slots.flat(), beginPublishedOffset, payloadBytesMax);
    slots.splice(rank, 0, ownSlots);
    this.#slots = slots;
    const wordsOf = (slot: Uint8Array): Uint32Array => new Uint32Array(slot.buffer, slot.byteOffset + beginPublishedOffset, lineWords);
    this.#lines = slots.map((each) => each.map(wordsOf));
  }

  /** A rank's slot as it is known here; own ones are the block's. */
  slot(rank: number, turn: number): Uint8Array {
    return this.#slots[rank][turn];
  }

  /** Announcement and contract in a rank's slot: the sequence number + 1, then from word 4 on the contract. */
  line(rank: number, turn: number): Uint32Array {
    return this.#lines[rank][turn];
  }

  /** Tells all what the own slot announces, with the first bytes of its mailbox. */
  send(turn: number, mailboxFilled: number): void {
    this.#native.wireSend(this.#wire, turn, mailboxOffset - beginPublishedOffset + mailboxFilled);
  }

  /** Until everyone has announced `value`; `ended`: someone who has not can do so no more. */
  poll(turn: number, value: number, { spinNs, sleepMs }: ExpressPatience): 'there' | 'not yet' | 'ended' {
    const result = this.#native.wirePoll(this.#wire, turn, value, spinNs, sleepMs);
    if (result === wireResults.there) return 'there';
    return result === wireResults.notYet ? 'not yet' : 'ended';
  }

  /** Calls `onReadable` from the event loop while there is something to poll. One callback for the wire's life. */
  watch(onReadable: () => void, { on }: { readonly on: boolean }): void {
    if (this.#closed || this.#watching === on) return;
    this.#watch ??= this.#native.watchWire(this.#wire, onReadable);
    this.#watching = on;
    this.#native.setWatching(this.#watch, on);
  }

  close(): void {
    if (this.#closed) return;
    this.#closed = true;
    if (this.#watch) this.#native.closeWatch(this.#watch);
    this.#native.closeWire(this.#wire);
  }
}

/** How long to wait: first looking all the time, then asleep. */
export interface ExpressPatience {
  readonly spinNs: number;
  readonly sleepMs: number;
}
