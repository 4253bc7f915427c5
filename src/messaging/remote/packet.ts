/** Packets: the units in which two sockets talk, over whatever pipe. Bytes to packets and back, no I/O; every byte
 *  from outside is checked before it is used. A packet is one or more *parts* (buffers whose boundaries the pipe keeps):
 *  the first has the prefix and small frames, large frames are parts of their own, so that nobody copies them.
 *
 *  All little-endian. Messages are numbered with 48 bits: nine years at a million per second. i64 are within ±2⁵³.
 *
 *    byte 0       2        3     4       6          12         18         24              32
 *        │'SM'   │version │kind │count  │sequence  │received  │consumed  │consumed bytes │ by kind …
 *        │u16    │u8      │u8   │u16    │u48       │u48       │u48       │i64            │
 *
 *    kind      count     from byte 32
 *    1 hello   brief     session i64 │ known session i64 │ address u64 │    "I am; I have `received` of what you sent"
 *                        window messages i64 │ window bytes i64
 *                        message bytes i64 │ frames i64                      what the receiver of the greeting may send
 *                        brief: 1 when the dealer keeps nothing for a connection that breaks, and nothing is kept for it; else 0
 *    2 welcome brief     the same                                           the answer
 *    3 data    messages  messages, back to back                             the first has number `sequence`
 *    4 credit  0         –                                                  only the counters
 *    5 goodbye 0         –                                                  nothing more comes
 *    6 reset   0         –                                                  "who are you? say hello"
 *    7 error   code      text, at most 512 bytes of UTF-8                   the sender closes; why
 *
 *  A message, aligned to 8 bytes, with its frames aligned to 8 bytes:
 *
 *    byte 0     2       4       12           20            24       28
 *        │type │frames │source │destination │target value │version │ lengths u32 × frames, padded │ frames, each padded …
 *        │u16  │u16    │u64    │u64         │i32          │i32     │
 *
 *    count     bit 15 of data: the target values and versions of this packet are i64, and headers 36 bytes
 *    length    bits 31…30: 0 the frame is inline, 1 it is the packet's next part, 2 it is the packet's next pointer
 *              (memory that threads share; inproc only); bits 29…0: its bytes
 *
 *  So a message with one frame of 64 bytes is a packet of 128 bytes: what the package zeromq copies instead of lending. */
import { dataViewOf, getI53, getU48, getU53, Layout, setU48, setWhole, textOf } from '../../base/bytes.ts';
import type { ErrorCode } from '../../base/errors.ts';
import { ShoalError } from '../../base/errors.ts';
import type { Counters, Greeting as SessionGreeting } from '../../session/session.ts';
import type { Address } from '../address.ts';
import { frameBytesMost, type MessagingLimits } from '../limits.ts';
import { Msg, type FramePlace } from '../msg.ts';

export const PacketKind = { hello: 1, welcome: 2, data: 3, credit: 4, goodbye: 5, reset: 6, error: 7 } as const;

/** Frames from this size on travel as parts of their own. Below, a copy is cheaper than a part. */
export const detachedBytes: number = 16 * 1024;
const format = 'a packet';
const prefix = new Layout(format, {
  magic: 'u16',
  version: 'u8',
  kind: 'u8',
  count: 'u16',
  sequence: 'u48',
  received: 'u48',
  consumed: 'u48',
  consumedBytes: 'u53',
});
const greetingFields = new Layout('a greeting', {
  session: 'u53',
  knownSession: 'u53',
  address: 'u64',
  windowMessages: 'u53',
  windowBytes: 'u53',
  messageBytes: 'u53',
  frames: 'u53',
});
const messageHeader = { type: 'u16', frames: 'u16', source: 'u64', destination: 'u64' } as const;
const narrow = new Layout(format, { ...messageHeader, targetValue: 'i32', targetVersion: 'i32' });
const wide = new Layout(format, { ...messageHeader, targetValue: 'i53', targetVersion: 'i53' });
const { magic: magicAt, version: versionAt, kind: kindAt, count: countAt, sequence: sequenceAt } = prefix.offsets;
const { received: receivedAt, consumed: consumedAt, consumedBytes: consumedBytesAt } = prefix.offsets;
const {
  frames: entriesAt,
  source: sourceAt,
  destination: destinationAt,
  targetValue: targetAt,
  targetVersion: targetVersionAt,
} = narrow.offsets;
const { targetVersion: wideVersionAt } = wide.offsets;
export const packetPrefixBytes: number = prefix.bytes;
const helloBytes = prefix.bytes + greetingFields.bytes;
export const messageHeaderBytes: number = narrow.bytes;
const wideHeaderBytes = wide.bytes;
const errorTextBytes = 512;
const magic = 0x4d53;
const version = 3;
const wideFlag = 0x8000;
const lengthMask = frameBytesMost;
const detachedFlag = 0x40000000;
const pointerFlag = 0x80000000;

/** Error codes by their number on the wire. */
const errorCodes: readonly ErrorCode[] = ['protocol', 'config', 'aborted', 'auth', 'out-of-memory'];

/** Bounds of the messages that an end takes. */
export type MessageBounds = Pick<MessagingLimits, 'messageBytes' | 'frames'>;

/** A session's greeting, with the end's address and bounds. */
export interface Greeting extends SessionGreeting, MessageBounds {
  readonly address: Address;
  /** Nothing is kept for a connection that breaks. */
  readonly brief: boolean;
}

export type Packet = Counters &
  (
    | ({ readonly kind: 1 | 2 } & Greeting)
    | { readonly kind: 3; readonly sequence: number; readonly messages: Msg[]; readonly bytes: number[] }
    | { readonly kind: 4 | 5 | 6 }
    | { readonly kind: 7; readonly code: ErrorCode; readonly text: string }
  );

// ── writing ───────────────────────────────────────────────────────────────────────────────────────────────────────

/** The cost of a message, which counts against windows, queues and limits: header, lengths and all frames. */
export function messageCost(msg: Msg): number {
  return wideHeaderBytes + 4 * (msg.frameCount + msg.pointers.length) + msg.size;
}

/** Checks at the sender what no receiver may refuse later.
 *  @throws ShoalError `usage` for a message that is larger. */
export function checkMessage(msg: Msg, { messageBytes, frames }: MessageBounds, whose: string): void {
  const entries = msg.frameCount + msg.pointers.length;
  const bytes = messageCost(msg);
  if (entries <= frames && bytes <= messageBytes && !hasLargeFrame(msg)) return;
  throw new ShoalError(
    'usage',
    entries > frames || bytes > messageBytes
      ? `message of ${bytes} bytes in ${entries} frames is beyond the limits ${whose} (${messageBytes} bytes, ${frames} frames)`
      : `a frame or pointer of the message has more than ${frameBytesMost} bytes; cut it`,
    { bytes },
  );
}

function hasLargeFrame({ frames, pointers }: Msg): boolean {
  for (const { byteLength } of frames) if (byteLength > frameBytesMost) return true;
  for (const { byteLength } of pointers) if (byteLength > frameBytesMost) return true;
  return false;
}

/** Bytes of the message within the packet's first part, at most. */
export function inlineBytes(msg: Msg, headerBytes: number = wideHeaderBytes): number {
  const { frames, pointers } = msg;
  let bytes = padded(headerBytes + 4 * (frames.length + pointers.length));
  for (const frame of frames) if (frame.byteLength < detachedBytes) bytes += padded(frame.byteLength);
  return bytes;
}

export interface DataPacket {
  readonly parts: Uint8Array[];
  readonly pointers: Uint8Array[];
  /** The places where the receiver wants parts, by part. */
  readonly places: (FramePlace | undefined)[];
}

/** Encodes at most 2¹⁵ − 1 messages. */
export function encodeData(messages: readonly Msg[], sequence: number, counters: Counters): DataPacket {
  const isWide = !messages.every(hasNarrowTarget);
  const headerBytes = isWide ? wideHeaderBytes : messageHeaderBytes;
  let bytes = packetPrefixBytes;
  for (const msg of messages) bytes += inlineBytes(msg, headerBytes);
  const first = Buffer.allocUnsafe(bytes);
  const view = dataViewOf(first);
  writePrefix(view, PacketKind.data, isWide ? messages.length + wideFlag : messages.length, sequence, counters);
  const parts: Uint8Array[] = [first];
  const pointers: Uint8Array[] = [];
  const places: (FramePlace | undefined)[] = [];
  let at = packetPrefixBytes;
  for (const msg of messages) at = writeMessage(msg, first, view, at, { isWide, parts, pointers, places });
  return { parts, pointers, places };
}

/** Writes newer counters into a data packet that is sent again. Its other parts stay. */
export function refreshCounters(first: Uint8Array, counters: Counters): void {
  writeCounters(dataViewOf(first), counters);
}

/** Gives an encoded data packet another place in the sequence: its peer starts counting anew. */
export function rebaseSequence(first: Uint8Array, sequence: number): void {
  setU48(dataViewOf(first), sequenceAt, sequence);
}

export function encodeGreeting(kind: 'hello' | 'welcome', greeting: Greeting, counters: Counters): Uint8Array {
  const bytes = Buffer.alloc(helloBytes);
  const view = dataViewOf(bytes);
  writePrefix(view, PacketKind[kind], greeting.brief ? 1 : 0, 0, counters);
  greetingFields.write(view, prefix.bytes, greeting);
  return bytes;
}

export function encodeControl(kind: 'credit' | 'goodbye' | 'reset', counters: Counters): Uint8Array {
  const bytes = Buffer.allocUnsafe(packetPrefixBytes);
  writePrefix(dataViewOf(bytes), PacketKind[kind], 0, 0, counters);
  return bytes;
}

export function encodeError(error: ShoalError): Uint8Array {
  const text = Buffer.from(error.message, 'utf8').subarray(0, errorTextBytes);
  const bytes = Buffer.alloc(packetPrefixBytes + text.length);
  const code = Math.max(0, errorCodes.indexOf(error.code));
  writePrefix(dataViewOf(bytes), PacketKind.error, code, 0, noCounters);
  text.copy(bytes, packetPrefixBytes);
  return bytes;
}

export const noCounters: Counters = { received: 0, consumed: 0, consumedBytes: 0 };

function writePrefix(view: DataView, kind: number, count: number, sequence: number, counters: Counters): void {
  view.setUint16(magicAt, magic, true);
  view.setUint8(versionAt, version);
  view.setUint8(kindAt, kind);
  view.setUint16(countAt, count, true);
  setU48(view, sequenceAt, sequence);
  writeCounters(view, counters);
}

function writeCounters(view: DataView, { received, consumed, consumedBytes }: Counters): void {
  setU48(view, receivedAt, received);
  setU48(view, consumedAt, consumed);
  setWhole(view, consumedBytesAt, consumedBytes);
}

function hasNarrowTarget({ targetValue, targetVersion }: Msg): boolean {
  return (targetValue | 0) === targetValue && (targetVersion | 0) === targetVersion;
}

/** @returns where the next message begins. */
function writeMessage(msg: Msg, first: Buffer, view: DataView, start: number, out: DataPacket & { readonly isWide: boolean }): number {
  const { frames, pointers } = msg;
  const entries = frames.length + pointers.length;
  view.setUint16(start, msg.type, true);
  view.setUint16(start + entriesAt, entries, true);
  view.setBigUint64(start + sourceAt, msg.source, true);
  view.setBigUint64(start + destinationAt, msg.destination, true);
  let lengthAt = start + (out.isWide ? wideHeaderBytes : messageHeaderBytes);
  if (out.isWide) {
    setWhole(view, start + targetAt, msg.targetValue);
    setWhole(view, start + wideVersionAt, msg.targetVersion);
  } else {
    view.setInt32(start + targetAt, msg.targetValue, true);
    view.setInt32(start + targetVersionAt, msg.targetVersion, true);
  }
  let at = padded(lengthAt + 4 * entries);
  for (const [k, frame] of frames.entries()) {
    const bytes = frame.byteLength;
    if (bytes < detachedBytes) {
      view.setUint32(lengthAt, bytes, true);
      first.set(frame, at);
      at = fillTo(first, at + bytes);
    } else {
      view.setUint32(lengthAt, bytes + detachedFlag, true);
      const place = msg.placeOf(k);
      if (place !== undefined) out.places[out.parts.length] = place;
      out.parts.push(frame);
    }
    lengthAt += 4;
  }
  for (const pointer of pointers) {
    view.setUint32(lengthAt, pointer.byteLength + pointerFlag, true);
    out.pointers.push(pointer);
    lengthAt += 4;
  }
  if (lengthAt % 8 !== 0) view.setUint32(lengthAt, 0, true);
  return at;
}

/** Zeroes up to the next multiple of 8. */
function fillTo(bytes: Buffer, at: number): number {
  const end = padded(at);
  for (let k = at; k < end; k++) bytes[k] = 0;
  return end;
}

function padded(bytes: number): number {
  return (bytes + 7) & ~7;
}

// ── reading ───────────────────────────────────────────────────────────────────────────────────────────────────────

export interface DecodeOptions {
  readonly limits: MessagingLimits;
  /** Memory that came with the parts by reference. */
  readonly pointers?: readonly Uint8Array[];
  /** The parts are lent: called when the last message of the packet is released, at once for any other packet. */
  readonly release?: (() => void) | undefined;
}

/** The packet. Frames are views of the parts.
 *  @throws ShoalError `protocol` for anything a correct peer does not send. */
export function decodePacket(parts: readonly Uint8Array[], options: DecodeOptions): Packet {
  const first = parts[0];
  if (first === undefined || first.byteLength < packetPrefixBytes) throw malformed(`its first part has ${first?.byteLength ?? 0} bytes`);
  const view = dataViewOf(first);
  if (view.getUint16(magicAt, true) !== magic) throw malformed('it does not begin with SM');
  const spoken = view.getUint8(versionAt);
  if (spoken !== version) throw malformed(`it has version ${spoken}, here is ${version}; run the same Shoal everywhere`);
  const kind = view.getUint8(kindAt);
  const count = view.getUint16(countAt, true);
  const sequence = getU48(view, sequenceAt);
  const received = getU48(view, receivedAt);
  const consumed = getU48(view, consumedAt);
  const consumedBytes = getU53(view, consumedBytesAt, format);
  if (kind === PacketKind.data) {
    const { messages, bytes } = readMessages(parts, view, count, options);
    if (options.release !== undefined) lend(messages, options.release);
    return { kind, sequence, received, consumed, consumedBytes, messages, bytes };
  }
  options.release?.();
  const counters = { received, consumed, consumedBytes };
  if (parts.length > 1) throw malformed(`kind ${kind} with ${parts.length} parts`);
  if (kind === PacketKind.error) {
    if (first.byteLength > packetPrefixBytes + errorTextBytes) throw malformed(`an error text of ${first.byteLength} bytes`);
    const text = textOf(first.subarray(packetPrefixBytes));
    return { kind, code: errorCodes[count] ?? 'protocol', text: text.replace(/\p{Cc}/gu, '?'), ...counters };
  }
  const isGreeting = kind === PacketKind.hello || kind === PacketKind.welcome;
  if (count > (isGreeting ? 1 : 0) || sequence !== 0) throw malformed(`kind ${kind} with count ${count} and sequence ${sequence}`);
  if (isGreeting) {
    if (first.byteLength !== helloBytes) throw malformed(`a greeting of ${first.byteLength} bytes`);
    const greeting = greetingFields.read(view, prefix.bytes);
    if (greeting.session === 0) throw malformed('a greeting without session');
    if (greeting.windowMessages === 0 || greeting.windowBytes === 0) throw malformed('a greeting without window');
    if (greeting.messageBytes === 0 || greeting.frames === 0) throw malformed('a greeting of an end that takes nothing');
    return { kind, ...greeting, brief: count === 1, ...counters };
  }
  if (kind !== PacketKind.credit && kind !== PacketKind.goodbye && kind !== PacketKind.reset)
    throw malformed(`it has the unknown kind ${kind}`);
  if (first.byteLength !== packetPrefixBytes) throw malformed(`kind ${kind} of ${first.byteLength} bytes`);
  return { kind, ...counters };
}

function lend(messages: readonly Msg[], release: () => void): void {
  let borrowers = messages.length;
  for (const msg of messages) {
    msg.onRelease(() => {
      if (--borrowers === 0) release();
    });
  }
}

function readMessages(
  parts: readonly Uint8Array[],
  view: DataView,
  flaggedCount: number,
  options: DecodeOptions,
): { messages: Msg[]; bytes: number[] } {
  const end = view.byteLength;
  const isWide = flaggedCount >= wideFlag;
  const count = isWide ? flaggedCount - wideFlag : flaggedCount;
  // Each message has at least its header, so that a claimed count cannot make us allocate more than was sent.
  if (count === 0 || count > (end - packetPrefixBytes) / messageHeaderBytes) throw malformed(`${count} messages in ${end} bytes`);
  const messages: Msg[] = [];
  const bytes: number[] = [];
  const { pointers = [] } = options;
  const headerBytes = isWide ? wideHeaderBytes : messageHeaderBytes;
  const reader: Reader = { parts, pointers, view, headerBytes, at: packetPrefixBytes, nextPart: 1, nextPointer: 0, options };
  for (let k = 0; k < count; k++) {
    const msg = readMessage(reader);
    messages.push(msg);
    bytes.push(messageCost(msg));
  }
  if (reader.at !== end) throw malformed(`${end - reader.at} bytes follow the last message`);
  if (reader.nextPart !== parts.length) throw malformed(`${parts.length - reader.nextPart} parts belong to no frame`);
  if (reader.nextPointer !== pointers.length) throw malformed(`${pointers.length - reader.nextPointer} pointers belong to no message`);
  return { messages, bytes };
}

interface Reader {
  readonly parts: readonly Uint8Array[];
  readonly view: DataView;
  readonly pointers: readonly Uint8Array[];
  readonly headerBytes: number;
  /** The beginning of the next message; at most `view.byteLength`. */
  at: number;
  nextPart: number;
  nextPointer: number;
  readonly options: DecodeOptions;
}

function readMessage(reader: Reader): Msg {
  const { view, at: start, headerBytes } = reader;
  const { limits } = reader.options;
  const end = view.byteLength;
  const lengthsAt = start + headerBytes;
  if (lengthsAt > end) throw malformed(`a message begins at byte ${start} of ${end}`);
  const entries = view.getUint16(start + entriesAt, true);
  const lengthsEnd = lengthsAt + 4 * entries;
  let at = padded(lengthsEnd);
  if (at > end) throw malformed(`${entries} frame lengths in ${end - lengthsAt} bytes`);
  if (entries > limits.frames) throw malformed(`a message of ${entries} frames; at most ${limits.frames} are accepted`);
  if (at > lengthsEnd && view.getUint32(lengthsEnd, true) !== 0) throw malformed('padding that is not zero');
  const { buffer, byteOffset } = reader.view;
  const frames: Uint8Array[] = [];
  const pointers: Uint8Array[] = [];
  let size = 0;
  for (let k = 0; k < entries; k++) {
    const entry = view.getUint32(lengthsAt + 4 * k, true);
    const bytes = entry & lengthMask;
    const flags = (entry & ~lengthMask) >>> 0;
    if (flags === 0) {
      if (bytes > end - at) throw malformed(`frame ${k} claims ${bytes} of ${end - at} bytes`);
      frames.push(new Uint8Array(buffer, byteOffset + at, bytes));
      at += padded(bytes);
      if (at > end) throw malformed(`frame ${k} ends in the middle of its padding`);
    } else if (flags === detachedFlag || flags === pointerFlag) {
      const part = flags === detachedFlag ? reader.parts[reader.nextPart++] : reader.pointers[reader.nextPointer++];
      if (part?.byteLength !== bytes) throw malformed(`frame ${k} claims a part of ${bytes} bytes, there is ${part?.byteLength ?? 'none'}`);
      (flags === detachedFlag ? frames : pointers).push(part);
      if (flags === pointerFlag) continue;
    } else throw malformed(`frame ${k} has flags that mean nothing`);
    size += bytes;
  }
  const cost = wideHeaderBytes + 4 * entries + size;
  if (cost > limits.messageBytes) throw malformed(`a message of ${cost} bytes; at most ${limits.messageBytes} are accepted`);
  reader.at = at;
  const isWide = headerBytes === wideHeaderBytes;
  return Msg.received({
    source: view.getBigUint64(start + sourceAt, true),
    destination: view.getBigUint64(start + destinationAt, true),
    type: view.getUint16(start, true),
    targetValue: isWide ? getI53(view, start + targetAt, format) : view.getInt32(start + targetAt, true),
    targetVersion: isWide ? getI53(view, start + wideVersionAt, format) : view.getInt32(start + targetVersionAt, true),
    frames,
    pointers,
  });
}

function malformed(what: string): ShoalError {
  return new ShoalError('protocol', `malformed packet: ${what}; does something else than Shoal send to this address?`);
}
