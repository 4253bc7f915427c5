/** The header of every frame on a stream between two fabrics; pure. A header has one size, so a receiver that asks its
 *  socket for exactly one header, then for exactly its payload, gets each where it belongs without copying.
 *
 *    byte 0     1      2          4           8       12       16          24           32
 *         │type │flags │0x5348 LE │immediate  │rkey   │check   │offset u64 │bytes u64   │ payload: `bytes` bytes …
 *         │u8   │u8    │u16       │u32 LE     │u32 LE │u32 LE  │LE, < 2⁵³  │LE, < 2⁵³   │ except type written
 *
 *  `check` is FNV-1a over the other seven 32-bit words: a header with any one bit changed is refused, where a changed
 *  offset would otherwise put a payload elsewhere in a region. Payloads are left to TCP's own checksum.
 *
 *    type          flags bit 0       rkey  offset  bytes
 *    1 open        1: as a socket                           dialer: this connection was chosen; what follows is no frame, for the
 *                                                           purpose that the immediate names
 *    2 message                                     payload
 *    3 write       has immediate     ×     ×       payload  goes to offset of region rkey
 *    4 written     has immediate     ×     ×       none     shm: the data is there already
 *    5 immediate   1                                        of a write of no bytes
 *    6 goodbye                                              orderly end: nothing follows
 *    7 error                                       text     the sender closes; its reason, UTF-8
 *    8 probe                                       text     shm: a region to map and the nonce in it; libfabric: where an endpoint is
 *    9 probed      1: it worked                             shm: result
 *   10 claim                         ×                      shm: may I write to rkey?
 *   11 grant                         ×             text     shm: yes; how to map it
 *   12 withdraw                      ×                      shm: no more
 *   13 asleep                              ×                libfabric: polls no more; has seen so many events
 *   14 wake                                                 libfabric: something was posted */
import { dataViewOf, getU53, Layout, setWhole } from '../../base/bytes.ts';
import { ShoalError } from '../../base/errors.ts';

const layout = new Layout('a frame header', {
  type: 'u8',
  flags: 'u8',
  mark: 'u16',
  immediate: 'u32',
  rkey: 'u32',
  check: 'u32',
  offset: 'u53',
  bytes: 'u53',
});
const { bytes: bytesAt, check, flags, immediate, mark: markAt, offset, rkey, type } = layout.offsets;

export const headerBytes: number = layout.bytes;

export const FrameType = {
  Open: 1,
  Message: 2,
  Write: 3,
  Written: 4,
  Immediate: 5,
  Goodbye: 6,
  Error: 7,
  Probe: 8,
  Probed: 9,
  Claim: 10,
  Grant: 11,
  Withdraw: 12,
  Asleep: 13,
  Wake: 14,
} as const;

const lastType = FrameType.Wake;
const mark = 0x5348;
/** Bit 0 of the flags. */
export const flagSet = 1;

/** The fields of a header, mutable so that one object serves a connection for life. */
export interface FrameHeader {
  type: number;
  flags: number;
  immediate: number;
  rkey: number;
  offset: number;
  bytes: number;
}

/** Most bytes of the text of a frame of type error. */
export const errorTextBytes = 512;

/** A frame of type error. */
export function errorFrame(reason: string): Uint8Array {
  const text = Buffer.from(reason).subarray(0, errorTextBytes);
  const frame = Buffer.concat([Buffer.alloc(headerBytes), text]);
  encodeHeader(dataViewOf(frame), 0, { ...emptyHeader(), type: FrameType.Error, bytes: text.length });
  return frame;
}

export function emptyHeader(): FrameHeader {
  return { type: 0, flags: 0, immediate: 0, rkey: 0, offset: 0, bytes: 0 };
}

/** Writes the header into `view` at `at`. Numbers must be in range: they are our own. */
export function encodeHeader(view: DataView, at: number, header: Readonly<FrameHeader>): void {
  view.setUint8(at + type, header.type);
  view.setUint8(at + flags, header.flags);
  view.setUint16(at + markAt, mark, true);
  view.setUint32(at + immediate, header.immediate, true);
  view.setUint32(at + rkey, header.rkey, true);
  setWhole(view, at + offset, header.offset);
  setWhole(view, at + bytesAt, header.bytes);
  view.setUint32(at + check, checkOf(view, at), true);
}

/** Reads the header at `at` into `header`.
 *  @throws ShoalError `protocol` for bytes that are not a header. Limits of the fields are the receiver's to check. */
export function decodeHeader(view: DataView, at: number, header: FrameHeader): void {
  if (view.getUint16(at + markAt, true) !== mark || view.getUint32(at + check, true) !== checkOf(view, at)) {
    throw new ShoalError('protocol', 'frame header is damaged: its check does not match');
  }
  header.type = view.getUint8(at + type);
  header.flags = view.getUint8(at + flags);
  header.immediate = view.getUint32(at + immediate, true);
  header.rkey = view.getUint32(at + rkey, true);
  header.offset = getU53(view, at + offset, 'the offset of a frame header');
  header.bytes = getU53(view, at + bytesAt, 'the bytes of a frame header');
  if (header.type < 1 || header.type > lastType || header.flags > flagSet) {
    throw new ShoalError('protocol', `frame of unknown type ${header.type} or flags ${header.flags}`);
  }
}

function checkOf(view: DataView, at: number): number {
  let hash = 0x811c9dc5;
  for (let word = 0; word < headerBytes; word += 4) {
    if (word !== check) hash = Math.imul(hash ^ view.getUint32(at + word, true), 0x01000193);
  }
  return hash >>> 0;
}
