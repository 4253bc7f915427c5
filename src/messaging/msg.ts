/** Messages: who to whom, of what type, about which target in which version, and any number of binary frames.
 *  A message must not know sockets or how it travels.
 *
 *  Ownership. A frame is not copied: `addFrame` gives the bytes to the message, `send` gives the message to the socket.
 *  After `send` the message must not be used; its frames may be read but not changed until `socket.flushed()`
 *  resolves. A received message belongs to its receiver, who may change its frames and send them on, with one
 *  exception: sockets over a fabric with `landing: 'borrow'` lend their memory until `release()`. */
import { describeForeign } from '../memory/foreign-value.ts';
import { assert } from '../base/assert.ts';
import { ShoalError } from '../base/errors.ts';
import { anyText, checkArgument, describeValue, integer } from '../base/schema.ts';
import { checkAddress, type Address } from './address.ts';
import { decodeFormat, encodeFormat, type FormatValues } from './format.ts';

/** The place where the receiver wants a frame: memory that it has opened to its peers (backends/fabric/frame-places.ts). */
export interface FramePlace {
  readonly rkey: number;
  readonly offset: number;
}

/** A message's header and memory, as they arrived. */
type ReceivedFields = Pick<Msg, 'source' | 'destination' | 'type' | 'targetValue' | 'targetVersion'> &
  Record<'frames' | 'pointers', Uint8Array[]>;

const messageType = integer({ min: 0, max: 0xffff });

/** One message: a header of two addresses, a type and a target, and frames of bytes. It is sent once; see `copy`.
 *
 *      const msg = new Msg(dealer.address, server);
 *      msg.type = 1;
 *      msg.addFrame(new Float32Array([1, 2, 3]));
 *      dealer.send(msg); */
export class Msg {
  #source: Address;
  #destination: Address;
  #type = 0;
  #targetValue = 0;
  #targetVersion = 0;
  #frames: Uint8Array[] = [];
  #pointers: Uint8Array[] = [];
  #cursor = 0;
  #sent = false;
  #release: (() => void) | undefined;
  #places: (FramePlace | undefined)[] | undefined;
  #onDelivered: (() => void) | undefined;

  constructor(source: Address = 0n, destination: Address = 0n) {
    checkAddress(source);
    checkAddress(destination);
    this.#source = source;
    this.#destination = destination;
  }

  // ── header ─────────────────────────────────────────────────────────────────────────────────────────────────────

  /** The sender's address; a router learns by it where that address is. 0n unless set. */
  get source(): Address {
    return this.#source;
  }

  /** @throws ShoalError `usage` for anything but 64 unsigned bits; see `makeAddress`. */
  set source(address: Address) {
    checkAddress(address);
    this.#source = address;
  }

  /** The address that a router gives it to. 0n unless set. */
  get destination(): Address {
    return this.#destination;
  }

  /** @throws ShoalError `usage` as for `source`. */
  set destination(address: Address) {
    checkAddress(address);
    this.#destination = address;
  }

  /** Makes an answer of a request. */
  swapAddress(): void {
    [this.#source, this.#destination] = [this.#destination, this.#source];
  }

  /** The kind of message: a number that sender and receiver agree on, 0…65,535. Default 0. */
  get type(): number {
    return this.#type;
  }

  /** @throws ShoalError `usage` for anything but an integer from 0 to 65,535. */
  set type(type: number) {
    checkArgument('message type', type, messageType);
    this.#type = type;
  }

  /** Says what the message is about, for instance a parameter's id and version: safe integers. */
  setTarget(value: number, version: number): void {
    if (!Number.isSafeInteger(value) || !Number.isSafeInteger(version)) {
      throw new ShoalError('usage', `target (${value}, version ${version}) must be two safe integers`);
    }
    this.#targetValue = value;
    this.#targetVersion = version;
  }

  /** The first number of `setTarget`, for instance a parameter's id. Default 0. */
  get targetValue(): number {
    return this.#targetValue;
  }

  /** The second number of `setTarget`, for instance a parameter's version. Default 0. */
  get targetVersion(): number {
    return this.#targetVersion;
  }

  // ── frames ─────────────────────────────────────────────────────────────────────────────────────────────────────

  /** Number of frames. */
  get frameCount(): number {
    return this.#frames.length;
  }

  /** All frames, in the order added; not copies. */
  get frames(): readonly Uint8Array[] {
    return this.#frames;
  }

  /** Memory that `p` values refer to. */
  get pointers(): readonly Uint8Array[] {
    return this.#pointers;
  }

  /** Bytes of all frames, without header. */
  get size(): number {
    let bytes = 0;
    for (const frame of this.#frames) bytes += frame.byteLength;
    return bytes;
  }

  /** Not copied: the bytes belong to the message from now on. A string is encoded as UTF-8. */
  addFrame(bytes: ArrayBufferView | string): void {
    assert(!this.#sent, () => 'a message that was sent must not be changed; copy it first');
    if (typeof bytes !== 'string' && !ArrayBuffer.isView(bytes))
      throw new ShoalError('usage', `addFrame takes bytes or a string, not ${describeForeign(bytes)}`);
    if (typeof bytes === 'string') this.#frames.push(Buffer.from(bytes, 'utf8'));
    else this.#frames.push(bytes instanceof Uint8Array ? bytes : new Uint8Array(bytes.buffer, bytes.byteOffset, bytes.byteLength));
  }

  /** Adds a frame for a place that the receiver has named. If that can be written to from here, the bytes go straight there,
   *  and the receiver's frame is that memory; elsewhere the frame arrives as any other. */
  addPlacedFrame(bytes: Uint8Array, place: FramePlace): void {
    (this.#places ??= [])[this.#frames.length] = place;
    this.addFrame(bytes);
  }

  /** The place that `addPlacedFrame` was given for a frame, 0-based; undefined for any other. For sockets. */
  placeOf(frame: number): FramePlace | undefined {
    return this.#places?.[frame];
  }

  /** Adds a frame with one value per character of `format` (format.ts). @returns its bytes. */
  addFormatFrame<const Format extends string>(format: Format, ...values: FormatValues<Format>): number {
    checkArgument('addFormatFrame: format', format, anyText);
    const frame = encodeFormat(format, values, this.#pointers);
    this.addFrame(frame);
    return frame.byteLength;
  }

  /** The values of the current frame. Its bytes are `frameSize()`.
   *  @throws ShoalError `protocol` when it was made with another format. */
  parseFormatFrame<const Format extends string>(format: Format): FormatValues<Format> {
    checkArgument('parseFormatFrame: format', format, anyText);
    return decodeFormat(format, this.frameData(), this.#pointers) as FormatValues<Format>;
  }

  /** Bytes of the current frame. The cursor starts at the first. */
  frameSize(): number {
    return this.frameData().byteLength;
  }

  /** The current frame itself, not a copy. */
  frameData(): Uint8Array {
    const frame = this.#frames[this.#cursor];
    if (frame === undefined) throw new ShoalError('usage', 'message has no frames');
    return frame;
  }

  /** The current frame as UTF-8. */
  frameStr(): string {
    const frame = this.frameData();
    return Buffer.from(frame.buffer, frame.byteOffset, frame.byteLength).toString('utf8');
  }

  /** Moves the cursor of `frameData`, `frameStr` and `parseFormatFrame` to the first frame. */
  firstFrame(): void {
    this.#cursor = 0;
  }

  /** Moves the cursor to the last frame. */
  lastFrame(): void {
    this.#cursor = Math.max(0, this.#frames.length - 1);
  }

  /** Moves to the next frame; false, and stays, when there is none. */
  nextFrame(): boolean {
    if (this.#cursor + 1 >= this.#frames.length) return false;
    this.#cursor++;
    return true;
  }

  // ── life ───────────────────────────────────────────────────────────────────────────────────────────────────────

  /** A message of its own: frames are copied, pointers still point to the same memory. The cursor is at the first frame. */
  copy(): Msg {
    const { source, destination, type, targetValue, targetVersion } = this;
    const frames = this.#frames.map((frame) => Uint8Array.from(frame));
    return Msg.received({ source, destination, type, targetValue, targetVersion, frames, pointers: [...this.#pointers] });
  }

  /** Gives borrowed memory back; frames must not be used afterwards. Nothing to do for messages that own theirs. */
  release(): void {
    const release = this.#release;
    this.#release = undefined;
    if (release === undefined) return;
    this.#frames = [];
    release();
  }

  /** Makes it a message of its own: frames that are lent are copied and given back. @returns bytes that were copied. */
  own(): number {
    if (this.#release === undefined) return 0;
    const frames = this.#frames.map((frame) => Uint8Array.from(frame));
    this.release();
    this.#frames = frames;
    return this.size;
  }

  /** Calls back once when the peer's process has the message: its frames may be changed again. Never when that cannot be known
   *  any more. Before `send`. */
  onDelivered(callback: () => void): void {
    this.#onDelivered = callback;
  }

  /** True when `onDelivered` has been called; for sockets. */
  get isAwaited(): boolean {
    return this.#onDelivered !== undefined;
  }

  /** Calls the callback of `onDelivered`; for sockets. */
  markDelivered(): void {
    const callback = this.#onDelivered;
    this.#onDelivered = undefined;
    callback?.();
  }

  /** Takes the message over; for sockets. @throws ShoalError `usage` the second time. */
  markSent(): void {
    if (this.#sent) throw new ShoalError('usage', 'a message can be sent once; copy it to send it again');
    this.#sent = true;
  }

  /** Undoes `markSent` of a message that was refused; for sockets. */
  markRefused(): void {
    this.#sent = false;
  }

  /** A message as it arrived; for sockets. */
  static received(fields: ReceivedFields): Msg {
    const msg = new Msg();
    msg.#source = fields.source;
    msg.#destination = fields.destination;
    msg.#type = fields.type;
    msg.#targetValue = fields.targetValue;
    msg.#targetVersion = fields.targetVersion;
    msg.#frames = fields.frames;
    msg.#pointers = fields.pointers;
    return msg;
  }

  /** Sets what `release` calls once; for sockets. */
  onRelease(callback: () => void): void {
    this.#release = callback;
  }
}

/** Checks that it is a message. @throws ShoalError `usage`. */
export function checkMsg(msg: Msg): void {
  if (!(msg instanceof Msg)) throw new ShoalError('usage', `send takes a Msg, not ${describeValue(msg)}`);
}
