/** Packets as a stranger, a broken peer or an attacker may send them: valid ones, mutated, cut, lengthened, mixed. For tests
 *  of the decoder and of every backend; the same seed gives the same packets. */
import type { Random } from '../../base/random.ts';
import { messageHeaderBytes, packetPrefixBytes } from '../remote/packet.ts';

const interesting = [0, 1, 7, 8, 0x3f, 0x40, 0x7f, 0x80, 0xc0, 0xff];
const lengthenedMost = 64;
/** The fields that say how much is read: the count of messages, and of the first one the count and the lengths of its frames. Beyond
 *  the end of a shorter packet nothing is written. */
const decisive = [
  4,
  5,
  packetPrefixBytes + 2,
  packetPrefixBytes + 3,
  ...Array.from({ length: 12 }, (_, k) => packetPrefixBytes + messageHeaderBytes + k),
];

/** One packet, made of one of `corpus`; at least one part. Its bytes are its own. */
export function hostilePacket(corpus: readonly (readonly Uint8Array[])[], random: Random): Uint8Array[] {
  const original = corpus[random.integer(corpus.length)];
  const scratch = Buffer.alloc(original[0].byteLength + lengthenedMost);
  scratch.set(original[0]);
  const first = scratch.subarray(0, original[0].byteLength);
  let parts: Uint8Array[] = [first, ...original.slice(1)];
  const edits = 1 + random.integer(4);
  for (let edit = 0; edit < edits; edit++) {
    const at = random.integer(first.length);
    switch (random.integer(8)) {
      case 0:
        parts[0] = parts[0].subarray(0, random.integer(parts[0].byteLength + 1));
        break;
      case 1:
        parts[0] = scratch.subarray(0, first.length + random.integer(lengthenedMost));
        break;
      case 2:
        parts = random.integer(2) === 0 ? parts.slice(0, -1) : [...parts, first.subarray(at)];
        if (parts.length === 0) parts = [first];
        break;
      case 3:
        if (at + 4 <= first.length) first.writeUInt32LE(random.integer(2 ** 32), at);
        break;
      case 4:
        first[decisive[random.integer(decisive.length)]] = interesting[random.integer(interesting.length)];
        break;
      default:
        first[at] = interesting[random.integer(interesting.length)];
    }
  }
  return parts;
}
