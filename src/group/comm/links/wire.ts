/** Messages between the comm threads of two ranks, on one fabric connection. The connection is authenticated; every
 *  field is still bounds-checked. Little endian.
 *
 *    begin      1  slot u8  group u16  completed u32  addresses, begin line 96 B, mailbox as far as it is filled, at most 8 KiB
 *                                                                     a collective was called (ranks of other hosts)
 *    completed  2  0  group u16  completed u32                        slots may be reused (ranks of other hosts)
 *    doorbell   3                                                     look at your control blocks
 *    control    4  JSON                                               rare events, see control-message.ts
 *    offer      5  dtype u8  group u16  tag u16  inline u16  id u32  count f64  key f64  offset f64  payload…
 *    accept     6  0 …  id u32  key f64  offset f64                   write the offered data there
 *    taken      7  0 …  id u32                                        the offered data was read
 *    probe      8  0 …  id u32                                        answer this: the link is being timed
 *    answer     9  0 …  id u32                                        the probe has come, and all writes before it
 *
 *  Immediates: bit 31 set: point-to-point transfer (31-bit id) has landed; else group (10 bits), slot (6), signal (15). */
import { dataViewOf, Layout } from '../../../base/bytes.ts';
import { ShoalError } from '../../../base/errors.ts';
import { beginLineBytes, mailboxOffset } from '../../../collectives/control-block.ts';
import { mailboxBytes } from '../../../plan/ir.ts';

export const MessageType = { Begin: 1, Completed: 2, Doorbell: 3, Control: 4, Offer: 5, Accept: 6, Taken: 7, Probe: 8, Answer: 9 } as const;

const groupHeader = new Layout('a message about a group', { type: 'u8', slot: 'u8', group: 'u16', completed: 'u32' });
const { slot: slotAt, group: groupAt, completed: completedAt } = groupHeader.offsets;
const offerHeader = new Layout('an offer', {
  type: 'u8',
  dtypeCode: 'u8',
  group: 'u16',
  tag: 'u16',
  inline: 'u16',
  id: 'u32',
  zero: 'u32',
  count: 'f64',
  key: 'f64',
  offset: 'f64',
});
const acceptLayout = new Layout('an acceptance', { type: 'u8', zero: 3, id: 'u32', key: 'f64', offset: 'f64' });
const numbered = new Layout('a numbered message', { type: 'u8', zero: 3, id: 'u32' });

export const beginBytesMax: number = groupHeader.bytes + mailboxOffset + mailboxBytes;

/** Memory that is lent while a link is timed. */
export const probeBytesMax = 2 ** 20;

const transferBit = 0x80000000;

export function signalImmediate(group: number, slot: number, signal: number): number {
  return ((group << 21) | (slot << 15) | signal) >>> 0;
}

export function transferImmediate(id: number): number {
  return (transferBit | id) >>> 0;
}

export function decodeImmediate(immediate: number): { transfer: number } | { group: number; slot: number; signal: number } {
  if (immediate >= transferBit) return { transfer: immediate - transferBit };
  return { group: immediate >>> 21, slot: (immediate >>> 15) & 0x3f, signal: immediate & 0x7fff };
}

export function encodeCompleted(group: number, completed: number): Uint8Array {
  return groupHeader.encode({ type: MessageType.Completed, slot: 0, group, completed });
}

export interface BeginHeader {
  readonly group: number;
  /** Slot of the sender's control block. */
  readonly slot: number;
  /** Operations that the sender has finished. */
  readonly completed: number;
}

/** Writes a begin message into `target` and returns the part that it fills. `announced`: the slot's bytes from its addresses
 *  to the end of what the mailbox holds. */
export function encodeBegin(target: Uint8Array, { group, slot, completed }: BeginHeader, announced: Uint8Array): Uint8Array {
  const view = dataViewOf(target);
  view.setUint8(0, MessageType.Begin);
  view.setUint8(slotAt, slot);
  view.setUint16(groupAt, group, true);
  view.setUint32(completedAt, completed, true);
  target.set(announced, groupHeader.bytes);
  return target.subarray(0, groupHeader.bytes + announced.length);
}

/** The slot's bytes that a begin message carries. @throws ShoalError `protocol` when they are more than a mailbox holds. */
export function announcedOf(message: Uint8Array): Uint8Array {
  if (message.length > beginBytesMax)
    throw new ShoalError('protocol', `begin message of ${message.length} bytes; at most ${beginBytesMax} are allowed`);
  return message.subarray(groupHeader.bytes);
}

export interface Offer {
  readonly dtypeCode: number;
  readonly group: number;
  readonly tag: number;
  /** The data follows in the message; otherwise it lies at (key, offset) in the sender's memory. */
  readonly inline: boolean;
  readonly id: number;
  readonly count: number;
  readonly key: number;
  readonly offset: number;
  readonly payload: Uint8Array;
}

export function encodeOffer(offer: Offer): Uint8Array {
  return offerHeader.encode({ ...offer, type: MessageType.Offer, inline: offer.inline ? 1 : 0 }, offer.payload);
}

export function decodeOffer(message: Uint8Array): Offer {
  const header = offerHeader.decode(message);
  return { ...header, inline: header.inline === 1, payload: message.subarray(offerHeader.bytes) };
}

export function encodeAccept(id: number, key: number, offset: number): Uint8Array {
  return acceptLayout.encode({ type: MessageType.Accept, id, key, offset });
}

export function decodeAccept(message: Uint8Array): { id: number; key: number; offset: number } {
  return acceptLayout.decode(message);
}

/** A message that has nothing but a number. */
export function encodeNumbered(
  type: typeof MessageType.Taken | typeof MessageType.Probe | typeof MessageType.Answer,
  id: number,
): Uint8Array {
  return numbered.encode({ type, id });
}

/** The number of such a message. */
export function decodeNumbered(message: Uint8Array): number {
  return numbered.decode(message).id;
}

/** Header of a begin or completed message; the latter has no slot. @throws ShoalError `protocol` for a begin message without its line. */
export function decodeGroupHeader(message: Uint8Array): BeginHeader {
  const view = groupHeader.viewOf(message);
  const least = groupHeader.bytes + (message[0] === MessageType.Begin ? beginLineBytes : 0);
  if (message.length < least) throw new ShoalError('protocol', `begin message of ${message.length} bytes, needs ${least}`);
  return { group: view.getUint16(groupAt, true), slot: view.getUint8(slotAt), completed: view.getUint32(completedAt, true) };
}
