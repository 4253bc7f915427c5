/** Messages between the two ends of a libfabric connection, the data that a write announces, and the probe by which each end tells the
 *  other on the stream where its endpoint is; pure.
 *
 *    byte 0      1        2          4          8                16      20      24
 *         │kind  │0       │credits   │sequence  │token of the    │a      │b      │ payload …
 *         │u8    │        │u16 LE    │u32 LE    │connection (8)  │u32 LE │u32 LE │
 *
 *    kind          a           b        payload
 *    1 hello       version                                 the first message each way
 *    2 data        its length  offset   this part of it    a message
 *    3 immediate   immediate                               of a write of no bytes, or where a write cannot announce
 *    4 credit                                              returns credits only; has none itself, and no number
 *    5 claim       rkey                                    may I write to rkey?
 *    6 grant       rkey                 address, key,      yes
 *                                       length (3 × 8)
 *    7 withdraw    rkey                                    no more
 *    8 withdrawn   rkey                                    nothing of mine is under way to it
 *    9 last                                                nothing follows */
import { Layout } from '../../../base/bytes.ts';
import { ShoalError } from '../../../base/errors.ts';
import { maxMessageBytes } from '../../limits.ts';
import type { Probe } from './libfabric-connection-options.ts';

export const tokenBytes = 8;
const layout = new Layout('a libfabric message', {
  kind: 'u8',
  zero: 'u8',
  credits: 'u16',
  sequence: 'u32',
  token: tokenBytes,
  a: 'u32',
  b: 'u32',
});
const { a, b, credits, kind, sequence, token: tokenOffset, zero } = layout.offsets;
export const messageHeaderBytes: number = layout.bytes;
/** The payload of a grant. */
export const grantLayout = new Layout('a grant', { address: 'u64', key: 'u64', bytes: 'f53' });
export const protocolVersion = 1;

export const MessageKind = {
  Hello: 1,
  Data: 2,
  Immediate: 3,
  Credit: 4,
  Claim: 5,
  Grant: 6,
  Withdraw: 7,
  Withdrawn: 8,
  Last: 9,
} as const;

/** Mutable: one object serves a connection. */
export interface MessageHeader {
  kind: number;
  credits: number;
  sequence: number;
  a: number;
  b: number;
}

export function encodeMessageHeader(view: DataView, at: number, header: Readonly<MessageHeader>, token: Uint8Array): void {
  view.setUint8(at + kind, header.kind);
  view.setUint8(at + zero, 0);
  view.setUint16(at + credits, header.credits, true);
  view.setUint32(at + sequence, header.sequence, true);
  const tokenAt = at + tokenOffset;
  for (let k = 0; k < tokenBytes; k++) view.setUint8(tokenAt + k, token[k]);
  view.setUint32(at + a, header.a, true);
  view.setUint32(at + b, header.b, true);
}

/** Decodes a header. @returns false for bytes of another connection. @throws ShoalError `protocol` for a message that no member sends. */
export function decodeMessageHeader(view: DataView, at: number, bytes: number, token: Uint8Array, header: MessageHeader): boolean {
  if (bytes < messageHeaderBytes) return false;
  const tokenAt = at + tokenOffset;
  for (let k = 0; k < tokenBytes; k++) if (view.getUint8(tokenAt + k) !== token[k]) return false;
  header.kind = view.getUint8(at + kind);
  header.credits = view.getUint16(at + credits, true);
  header.sequence = view.getUint32(at + sequence, true);
  header.a = view.getUint32(at + a, true);
  header.b = view.getUint32(at + b, true);
  const payload = bytes - messageHeaderBytes;
  const { Data, Grant, Hello, Last } = MessageKind;
  const valid =
    header.kind >= Hello &&
    header.kind <= Last &&
    (header.kind === Data ? header.a - header.b >= payload : payload === (header.kind === Grant ? grantLayout.bytes : 0));
  if (!valid) throw new ShoalError('protocol', `message of kind ${header.kind} with ${payload} bytes is not expected here`);
  return true;
}

/** Low bits of a sequence number, as many as travel with a write. */
const sequenceMask = 0xfffff;
const immediateRange = 2 ** 32;

/** The number that a write carries where the provider carries eight bytes, but keeps no order: the immediate, whether there is
 *  one, and the sequence number. 53 bits. */
export function encodeSequenced(sequence: number, immediate: number | undefined): number {
  return ((sequence & sequenceMask) * 2 + (immediate === undefined ? 0 : 1)) * immediateRange + (immediate ?? 0);
}

export interface Sequenced {
  /** The next sequence number at or after `expected` with these bits. */
  readonly sequence: number;
  readonly immediate: number | undefined;
}

export function decodeSequenced(data: number, expected: number): Sequenced {
  const upper = Math.floor(data / immediateRange);
  const ahead = ((upper >>> 1) - expected) & sequenceMask;
  return { sequence: (expected + ahead) >>> 0, immediate: upper % 2 === 0 ? undefined : data % immediateRange };
}

export const probeTextBytes = 1024;

export function probeText({ provider, name, token, credits }: Probe): Buffer {
  return Buffer.from([provider, Buffer.from(name).toString('hex'), Buffer.from(token).toString('hex'), credits].join(' '));
}

/** @throws ShoalError `protocol`. */
export function parseProbe(text: string): Probe {
  const parts = /^(\S{1,128}) ((?:[0-9a-f]{2}){1,255}) ([0-9a-f]{16}) (\d{1,5})$/.exec(text);
  if (parts === null) throw new ShoalError('protocol', `'${text.slice(0, 40)}' does not say where an endpoint is`);
  const [, provider, name, token, credits] = parts;
  return { provider, name: Buffer.from(name, 'hex'), token: Buffer.from(token, 'hex'), credits: Number(credits) };
}

/** Puts messages longer than one slot together from their parts. */
export class Assembly {
  #message: Buffer | undefined;
  #filled = 0;

  /** Adds a part. @returns the message when this was its last part; valid as long as the part. @throws ShoalError `protocol` for
   *  a part that is not the next one. */
  add(total: number, offset: number, part: Buffer): Buffer | undefined {
    const begun = this.#message;
    if (
      total > maxMessageBytes ||
      offset !== this.#filled ||
      (begun !== undefined && begun.length !== total) ||
      (part.length === 0 && total > 0)
    )
      throw new ShoalError('protocol', `${part.length} bytes at ${offset} of a message of ${total} bytes are not expected here`);
    if (part.length === total) return part;
    const message = (this.#message ??= Buffer.alloc(total));
    message.set(part, offset);
    this.#filled += part.length;
    if (this.#filled < total) return undefined;
    this.#filled = 0;
    this.#message = undefined;
    return message;
  }
}
