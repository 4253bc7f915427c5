import { expect, it } from 'vitest';
import { beginLineBytes } from '../../../collectives/control-block.ts';
import {
  announcedOf,
  beginBytesMax,
  decodeAccept,
  decodeGroupHeader,
  decodeNumbered,
  decodeOffer,
  encodeAccept,
  encodeBegin,
  encodeCompleted,
  encodeNumbered,
  encodeOffer,
  MessageType,
} from './wire.ts';

const hex = (bytes: Uint8Array): string => Buffer.from(bytes).toString('hex');

it('messages keep their bytes', () => {
  const offer = {
    dtypeCode: 3,
    group: 0x0102,
    tag: 0x0304,
    inline: true,
    id: 0xfffffffe,
    count: 2 ** 40,
    key: 6,
    offset: 4096,
    payload: Uint8Array.of(9),
  };
  expect(hex(encodeOffer(offer))).toBe('0503020104030100feffffff0000000000000000000070420000000000001840000000000000b04009');
  expect(decodeOffer(encodeOffer(offer))).toMatchObject(offer);
  expect(hex(encodeAccept(77, 8, 64))).toBe('060000004d00000000000000000020400000000000005040');
  expect(decodeAccept(encodeAccept(77, 8, 64))).toMatchObject({ id: 77, key: 8, offset: 64 });
  expect(hex(encodeNumbered(MessageType.Answer, 0x80000001))).toBe('0900000001000080');
  expect(decodeNumbered(encodeNumbered(MessageType.Answer, 0x80000001))).toBe(0x80000001);
  expect(hex(encodeCompleted(1023, 5))).toBe('0200ff0305000000');
  expect(decodeGroupHeader(encodeCompleted(1023, 5))).toMatchObject({ group: 1023, completed: 5 });
  const header = { group: 0x0102, slot: 7, completed: 0xfffffffe };
  const begin = encodeBegin(new Uint8Array(beginBytesMax).fill(1), header, new Uint8Array(beginLineBytes).fill(170));
  expect(hex(begin)).toBe('01070201feffffff' + 'aa'.repeat(beginLineBytes));
  expect(decodeGroupHeader(begin)).toMatchObject(header);
  expect(hex(announcedOf(begin))).toBe('aa'.repeat(beginLineBytes));
});

it('messages that are cut off are refused', () => {
  const whole = [
    encodeAccept(1, 2, 3),
    encodeNumbered(MessageType.Taken, 1),
    encodeCompleted(1, 2),
    encodeBegin(new Uint8Array(beginBytesMax), { group: 1, slot: 2, completed: 3 }, new Uint8Array(beginLineBytes)),
  ];
  const decoders = [decodeAccept, decodeNumbered, decodeGroupHeader, decodeGroupHeader];
  whole.forEach((message, k) => {
    for (let bytes = 0; bytes < message.length; bytes++)
      expect(() => decoders[k](message.subarray(0, bytes))).toThrow(expect.objectContaining({ code: 'protocol' }));
  });
});
