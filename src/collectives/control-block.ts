/** The control block: through it the ranks of a group announce operations and raise each other's signals. One per rank and group,
 *  in the owner's memory. Ranks of the same host map it; for ranks elsewhere each side keeps a mirror of the begin lines that
 *  messages fill in, and signals arrive as immediates.
 *
 *      0  header     +0 completed u32: operations finished, contiguous    +4 sleeping u32: ring before you expect an answer
 *                    +12 failed u32: the group has failed, as its owner knows
 *                    +128 called f64: calls made so far; apart from the fields that peers read in every call
 *    256  slot 0     addresses 64 B · begin line · mailbox · signalMax lines of 64 B with one u32 signal each
 *         slot 1 …   operation k of those that take this way uses slot k mod slotCount
 *
 *    addresses       +0 data or input: rkey f64, offset f64   +16 output   +32 scratch
 *    begin line      +64 published u32 = k + 1, written last   +68 contract, 28 B, which begins with the
 *                    number of the call among all of the group, from 1
 *    call log        after the slots: the contracts of the owner's latest calls that its calling thread ran by itself, call s in
 *                    place s mod loggedCalls: +0 s + 1, 0 while it is written   +4 the contract without its sequence number
 *    staging         after the log, on a page: blocks of private buffers pass through it; only where all ranks share memory
 *    mailbox         +96 mailboxBytes: written by the operation's entry steps; its first 32 bytes share the cache line of
 *                    the announcement, so that a tiny operation moves one line per rank
 *
 *  A slot may be used again once every rank has completed the operation before: hence `completed`. Layout only; the order of
 *  writes is the business of the group. */
import { must } from '../base/assert.ts';
import { dataViewOf } from '../base/bytes.ts';
import { hasReached, serialOf, type Serial } from '../base/serial.ts';
import { mailboxBytes, type BufferName } from '../plan/ir.ts';

export const headerBytes = 256;
const headerCompletedOffset = 0;
export const headerSleepingOffset = 4;
const headerFailedOffset = 12;
const headerCalledOffset = 128;
/** Bytes of addresses, announcement and contract: the contents of a begin message. */
export const beginLineBytes = 96;
export const beginPublishedOffset = 64;
export const beginContractOffset = 68;
export const contractBytes = 28;
export const mailboxOffset = 96;
const signalsOffset = Math.ceil((mailboxOffset + mailboxBytes) / 64) * 64;
const signalLineBytes = 64;
const pageBytes = 4096;
/** Number of calls that the log holds: a power of two. */
const loggedCalls = 64;
const contractWords = contractBytes / 4;
const nothing = new Uint8Array(0);

/** Byte offset of a signal within a slot. */
export function signalOffset(signal: number): number {
  return signalsOffset + signal * signalLineBytes;
}

export function slotBytes(signalMax: number): number {
  return signalsOffset + signalMax * signalLineBytes;
}

/** The sizes of a control block. */
export interface ControlBlockShape {
  readonly slotCount: number;
  /** Signals of a slot. */
  readonly signalMax: number;
  /** Bytes of each staging area, and their number. Default: none. */
  readonly staging?: { readonly bytes: number; readonly count: number };
}

export function controlBlockBytes(shape: ControlBlockShape): number {
  const { bytes, count } = shape.staging ?? { bytes: 0, count: 0 };
  return count === 0 ? logEnd(shape) : stagingStart(shape) + count * bytes;
}

function slotsEnd({ slotCount, signalMax }: ControlBlockShape): number {
  return headerBytes + slotCount * slotBytes(signalMax);
}

function logEnd(shape: ControlBlockShape): number {
  return slotsEnd(shape) + loggedCalls * contractBytes;
}

function stagingStart(shape: ControlBlockShape): number {
  return Math.ceil(logEnd(shape) / pageBytes) * pageBytes;
}

/** Byte offset, within the begin line, of a buffer's address: rkey, then offset, both float64. `data` shares its place
 *  with `input`: no collective has both. */
export function beginBufferOffset(buffer: BufferName): number {
  switch (buffer) {
    case 'data':
    case 'input':
      return 0;
    case 'output':
      return 16;
    case 'scratch':
      return 32;
    case 'mailbox':
      throw new Error('assertion failed: the mailbox has no address, it lies in the slot');
  }
}

/** Views of one block: of all its words, and of the bytes of a slot that the machine works on. The latter are made when they are
 *  first asked for: a rank has a block of every other one, and most slots of most of them are never used. */
export class ControlBlock {
  readonly header: Uint8Array;
  readonly #whole: Uint8Array;
  readonly #shape: ControlBlockShape;
  readonly #words: Int32Array;
  readonly #called: Float64Array;
  readonly #slots: (Uint8Array | undefined)[] = [];
  readonly #staging: (Uint8Array | undefined)[] = [];
  readonly #lines: (DataView | undefined)[] = [];
  readonly #log: Uint32Array;
  readonly #slotBytes: number;

  constructor(buffer: ArrayBufferLike, byteOffset: number, shape: ControlBlockShape) {
    this.#shape = shape;
    this.#slotBytes = slotBytes(shape.signalMax);
    this.#whole = new Uint8Array(buffer, byteOffset, controlBlockBytes(shape));
    this.#words = new Int32Array(buffer, byteOffset, slotsEnd(shape) / 4);
    this.#called = new Float64Array(buffer, byteOffset + headerCalledOffset, 1);
    this.header = this.#whole.subarray(0, headerBytes);
    this.#log = new Uint32Array(buffer, byteOffset + slotsEnd(shape), loggedCalls * contractWords);
  }

  slot(slot: number): Uint8Array {
    return (this.#slots[slot] ??= this.#part(headerBytes + slot * this.#slotBytes, this.#slotBytes));
  }

  /** Memory that operations of the host paths pass blocks through; these decide which operation uses which area when. */
  staging(index: number): Uint8Array {
    const { bytes } = must(this.#shape.staging, () => 'the block has staging');
    return (this.#staging[index] ??= this.#part(stagingStart(this.#shape) + index * bytes, bytes));
  }

  /** A part of the block; empty once the block's memory has been given back. */
  #part(offset: number, bytes: number): Uint8Array {
    return this.#whole.length === 0 ? nothing : this.#whole.subarray(offset, offset + bytes);
  }

  #line(slot: number): DataView {
    return (this.#lines[slot] ??= dataViewOf(this.slot(slot)));
  }

  /** True once the owner has finished this many operations. */
  hasCompleted(count: number): boolean {
    return hasReached(serialOf(Atomics.load(this.#words, headerCompletedOffset / 4)), serialOf(count));
  }

  set completed(count: number) {
    Atomics.store(this.#words, headerCompletedOffset / 4, serialOf(count) | 0);
  }

  get sleeping(): boolean {
    return Atomics.load(this.#words, headerSleepingOffset / 4) !== 0;
  }

  set sleeping(value: boolean) {
    Atomics.store(this.#words, headerSleepingOffset / 4, value ? 1 : 0);
  }

  /** Number of calls that the owner has made on the group, by whichever path. */
  get called(): number {
    return this.#called[0];
  }

  set called(count: number) {
    this.#called[0] = count;
  }

  get failed(): boolean {
    return Atomics.load(this.#words, headerFailedOffset / 4) !== 0;
  }

  set failed(value: boolean) {
    Atomics.store(this.#words, headerFailedOffset / 4, value ? 1 : 0);
  }

  /** Logs the contract of the owner's call number `sequence`, for reports after a failure. Its first word is not stored. Plain
   *  stores: calls that take less than a microsecond pass here. Where CPUs reorder them, a report may be wrong. */
  logCall(sequence: number, contract: Uint32Array): void {
    const log = this.#log;
    const at = placeInLog(sequence);
    log[at] = 0;
    for (let word = 1; word < contractWords; word++) log[at + word] = contract[word];
    log[at] = sequence + 1;
  }

  /** The memory that a repetition writes and reads before each run. */
  get callWords(): { readonly runs: Float64Array; readonly stop: Uint32Array; readonly log: Uint32Array } {
    const { buffer, byteOffset } = this.#whole;
    return { runs: this.#called, stop: new Uint32Array(buffer, byteOffset + headerFailedOffset, 1), log: this.#log };
  }

  /** The contract of a call, while its place in the log has not been used again. */
  loggedCall(sequence: number): Uint8Array | undefined {
    const at = placeInLog(sequence);
    const isThere = (): boolean => Atomics.load(this.#log, at) === serialOf(sequence + 1);
    if (!isThere()) return undefined;
    const contract = Uint32Array.of(sequence + 1, ...this.#log.subarray(at + 1, at + contractWords));
    return isThere() ? new Uint8Array(contract.buffer) : undefined;
  }

  /** Sequence numbers of the calls in the log, ascending. */
  get loggedSequences(): number[] {
    const places = Array.from({ length: loggedCalls }, (_, place) => Atomics.load(this.#log, place * contractWords));
    const { called } = this;
    return places.flatMap((word) => (word === 0 ? [] : [called - serialOf(called + 1 - word)])).sort((a, b) => a - b);
  }

  /** The number that `publish` has stored; 0: nothing yet. */
  published(slot: number): Serial {
    return serialOf(Atomics.load(this.#words, this.#slotWord(slot) + beginPublishedOffset / 4));
  }

  /** @param count number of operations that have taken this way, the one in the slot included. */
  publish(slot: number, count: number): void {
    Atomics.store(this.#words, this.#slotWord(slot) + beginPublishedOffset / 4, serialOf(count) | 0);
  }

  /** True if the owner has announced its call `sequence` in the slot, or is just about to. */
  holds(slot: number, sequence: number): boolean {
    if (this.published(slot) === 0) return false;
    return serialOf(Atomics.load(this.#words, this.#slotWord(slot) + beginContractOffset / 4)) === serialOf(sequence + 1);
  }

  contract(slot: number): Uint8Array {
    return this.slot(slot).subarray(beginContractOffset, beginContractOffset + contractBytes);
  }

  /** Address of the owner's buffer of the operation in this slot. */
  bufferAddress(slot: number, buffer: BufferName): { rkey: number; offset: number } {
    const at = beginBufferOffset(buffer);
    return { rkey: this.#line(slot).getFloat64(at, true), offset: this.#line(slot).getFloat64(at + 8, true) };
  }

  setBufferAddress(slot: number, buffer: BufferName, address: { rkey: number; offset: number }): void {
    const at = beginBufferOffset(buffer);
    this.#line(slot).setFloat64(at, address.rkey, true);
    this.#line(slot).setFloat64(at + 8, address.offset, true);
  }

  /** The part of a slot that ranks of other hosts are sent: addresses, announcement and contract, and the mailbox's first bytes. */
  announced(slot: number, mailboxFilled: number): Uint8Array {
    return this.slot(slot).subarray(0, mailboxFilled === 0 ? beginLineBytes : mailboxOffset + mailboxFilled);
  }

  raise(slot: number, signal: number): void {
    Atomics.add(this.#words, this.#slotWord(slot) + signalOffset(signal) / 4, 1);
  }

  /** Number of times that a signal has been raised. */
  raised(slot: number, signal: number): number {
    return Atomics.load(this.#words, this.#slotWord(slot) + signalOffset(signal) / 4) >>> 0;
  }

  clearSignals(slot: number, signalCount: number): void {
    const first = this.#slotWord(slot);
    for (let signal = 0; signal < signalCount; signal++) Atomics.store(this.#words, first + signalOffset(signal) / 4, 0);
  }

  #slotWord(slot: number): number {
    return (headerBytes + slot * this.#slotBytes) / 4;
  }
}

function placeInLog(sequence: number): number {
  return (sequence & (loggedCalls - 1)) * contractWords;
}
