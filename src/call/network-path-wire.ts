/** The sockets of a network path, and the memory in which announcements of the other ranks arrive. It must not know operations. */
import { must } from '../base/assert.ts';
import { beginPublishedOffset, mailboxOffset, signalOffset, type ControlBlock } from '../collectives/control-block.ts';
import type { NetworkCall } from '../collectives/lower.ts';
import { wireBuffers, wireResults, type NativeWire, type WatchHandle, type WireHandle } from '../memory/native-wire.ts';
import { mailboxBytes, type BufferName } from '../plan/ir.ts';
import type { LocalBuffers } from './local-buffers.ts';

/** Operations of a network path take slots in turn. */
export const networkPathSlots = 2;

/** Scratch of an operation. */
export const networkPathScratchBytes = 1024 * 1024;

const lineBytes = 64;

/** Most bytes of one put; a rank may be sent twice as many in one operation. That is enough for any plan up to 128 KiB, and above it for
 *  plans in which ranks exchange parts. */
export function networkPathPutBytes(ranks: number): number {
  return Math.max(128 * 1024, Math.ceil(networkPathScratchBytes / ranks / lineBytes) * lineBytes);
}

const lineWords = (mailboxOffset - beginPublishedOffset) / 4;
const slotBytes = Math.ceil((mailboxOffset + mailboxBytes) / lineBytes) * lineBytes;
/** Bytes of an announcement with a full mailbox. */
const payloadBytesMax = mailboxOffset + mailboxBytes - beginPublishedOffset;

export function networkPathMemoryBytes(native: NativeWire, ranks: number): number {
  const memory = networkPathSlots * ((ranks - 1) * slotBytes + networkPathScratchBytes);
  return memory + native.wireMemoryBytes(ranks - 1, payloadBytesMax, networkPathPutBytes(ranks));
}

export interface NetworkPathWireOptions {
  readonly native: NativeWire;
  readonly rank: number;
  /** This rank's own block, and the first of its slots that the network path uses. */
  readonly own: ControlBlock;
  readonly firstSlot: number;
  /** Signals of a slot. */
  readonly signalCount: number;
  /** Memory of `networkPathMemoryBytes`, mapped by this thread. */
  readonly memory: Uint8Array;
  /** Sockets to the other ranks, in their order; the wire owns them from now on. */
  readonly descriptors: readonly number[];
}

/** The sockets of a network path, and the memory in which announcements of the other ranks arrive. Each thread has its own wire on the same
 *  memory, and they take turns.
 *
 *      region of one rank and group, mapped by both its threads
 *      │ mirrors: two slots of every other rank │ scratch, twice │ what is half received and half sent on each socket │
 *
 *  Mirrors have the layout of a slot of the control block. It must not know operations. */
export class NetworkPathWire {
  /** Scratch by turn. */
  readonly scratch: readonly Uint8Array[];
  readonly #native: NativeWire;
  readonly #rank: number;
  /** Kept alive here, too. */
  readonly #bound: (LocalBuffers | undefined)[] = [];
  readonly #wire: WireHandle;
  /** Slots by rank, then turn. Kept alive here, because the addon knows their addresses. */
  readonly #slots: readonly (readonly Uint8Array[])[];
  /** Announcement and contract of each slot, as words. */
  readonly #lines: readonly (readonly Uint32Array[])[];
  readonly #memory: Uint8Array;
  #watch: WatchHandle | undefined;
  #watching = false;
  /** Something has come that no peer has sent so: a record was changed, lost, repeated or moved on its way. */
  isForged = false;
  #closed = false;

  constructor(options: NetworkPathWireOptions) {
    const { native, rank, own, firstSlot, signalCount, memory, descriptors } = options;
    this.#native = native;
    const turns = Array.from({ length: networkPathSlots }, (_, turn) => turn);
    const slots = descriptors.map((_, peer) =>
      turns.map((turn) => memory.subarray((peer * networkPathSlots + turn) * slotBytes, (peer * networkPathSlots + turn + 1) * slotBytes)),
    );
    const ownSlots = turns.map((turn) => own.slot(firstSlot + turn));
    const scratchAt = descriptors.length * networkPathSlots * slotBytes;
    this.scratch = turns.map((turn) =>
      memory.subarray(scratchAt + turn * networkPathScratchBytes, scratchAt + (turn + 1) * networkPathScratchBytes),
    );
    this.#memory = memory.subarray(scratchAt + networkPathSlots * networkPathScratchBytes);
    const putBytes = networkPathPutBytes(descriptors.length + 1);
    const layout = Float64Array.of(beginPublishedOffset, payloadBytesMax, signalOffset(0), signalCount, putBytes);
    this.#wire = native.createWire(descriptors, this.#memory, ownSlots, slots.flat(), this.scratch, layout);
    this.#rank = rank;
    slots.splice(rank, 0, ownSlots);
    this.#slots = slots;
    this.#lines = slots.map((each) =>
      each.map(({ buffer, byteOffset }) => new Uint32Array(buffer, byteOffset + beginPublishedOffset, lineWords)),
    );
  }

  /** A rank's slot as it is known here; own ones are the block's. */
  slot(rank: number, turn: number): Uint8Array {
    return this.#slots[rank][turn];
  }

  /** Announcement and contract in a rank's slot: the number of the operation on the network path, from 1, then the contract. */
  line(rank: number, turn: number): Uint32Array {
    return this.#lines[rank][turn];
  }

  /** Binds the buffers that puts go to and come from. */
  bind(turn: number, buffers: LocalBuffers): void {
    if (this.#bound[turn] === buffers) return;
    this.#bound[turn] = buffers;
    this.#native.wireBind(this.#wire, turn, (buffers.data ?? buffers.input)?.view ?? nothing, buffers.output?.view ?? nothing);
  }

  /** Tells some ranks what the own slot announces, with the first bytes of its mailbox. */
  announce(turn: number, mailboxFilled: number, to: RankSet): void {
    this.#native.wireAnnounce(this.#wire, turn, announcementBytes(mailboxFilled), this.#peersOf(to));
  }

  /** `announcing`: what the own slot announces goes before, with so many bytes of its mailbox. */
  put(turn: number, call: Exclude<NetworkCall, { kind: 'flush' }>, announcing?: { readonly mailboxFilled: number }): void {
    const peer = call.peer < this.#rank ? call.peer : call.peer - 1;
    const before = announcing ? announcementBytes(announcing.mailboxFilled) : 0;
    const { buffer, offset, bytes, targetBuffer, targetOffset } = call.kind === 'signal' ? noBytes : call;
    const [source, target] = [codeOf(buffer), codeOf(targetBuffer)];
    this.#native.wirePut(this.#wire, peer, turn, source, offset, bytes, target, targetOffset, call.signal, before);
  }

  /** Waits until something has come from some ranks, or has gone to them; `ended`: one of them sends no more. */
  progress(from: RankSet, spinNs: number): WireStatus {
    return this.#statusOf(this.#native.wireProgress(this.#wire, this.#peersOf(from), spinNs));
  }

  /** The kernel has not taken all that was sent. */
  get unsent(): boolean {
    return this.#native.wireUnsent(this.#wire);
  }

  /** Waits until everyone has announced `value`; `ended`: some rank that has not can do so no more. */
  poll(turn: number, value: number, spinNs: number): WireStatus {
    return this.#statusOf(this.#native.wirePoll(this.#wire, turn, value, spinNs));
  }

  /** Calls `onReadable` from the event loop while there is something to poll. One callback for the wire's life. */
  watch(onReadable: () => void, { on }: { readonly on: boolean }): void {
    if (this.#closed || this.#watching === on) return;
    this.#watch ??= this.#native.watchWire(this.#wire, onReadable);
    this.#watching = on;
    this.#native.setWatching(this.#watch, on);
  }

  #statusOf(result: number): WireStatus {
    if (result === wireResults.there) return 'there';
    this.isForged ||= result === wireResults.forged;
    return result === wireResults.notYet ? 'not yet' : 'ended';
  }

  /** Positions among the others. */
  #peersOf(ranks: RankSet): number {
    const before = (1 << this.#rank) - 1;
    return ((ranks & before) | ((ranks >>> 1) & ~before)) >>> 0;
  }

  close(): void {
    if (this.#closed) return;
    this.#closed = true;
    if (this.#watch) this.#native.closeWatch(this.#watch);
    this.#native.closeWire(this.#wire);
  }
}

/** A bit per rank; own bits mean nothing. */
export type RankSet = number;

export type WireStatus = 'there' | 'not yet' | 'ended';

function announcementBytes(mailboxFilled: number): number {
  return mailboxOffset - beginPublishedOffset + mailboxFilled;
}

const nothing = new Uint8Array(0);
/** The data of a message that only raises a signal. */
const noBytes = { buffer: 'scratch', offset: 0, bytes: 0, targetBuffer: 'scratch', targetOffset: 0 } as const;

function codeOf(buffer: BufferName): number {
  return must(buffer === 'mailbox' ? undefined : wireBuffers[buffer], () => 'nothing is put from or into a mailbox');
}
