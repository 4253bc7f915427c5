/** Strings travel as TensorFlow's TensorProto would have them: what protobufjs writes is read here, and the other way round. */
import fc from 'fast-check';
import protobuf from 'protobufjs';
import { describe, expect, it } from 'vitest';
import { decodeStrings, encodeStrings } from './string-codec.ts';

const tensorProto = new protobuf.Type('TensorProto').add(new protobuf.Field('stringVal', 8, 'bytes', 'repeated'));
const anyStrings = fc.array(fc.oneof(fc.string({ unit: 'grapheme' }), fc.string({ minLength: 100, maxLength: 400 })), { maxLength: 20 });

describe('strings', () => {
  it('are what protobufjs reads and writes', () => {
    fc.assert(
      fc.property(anyStrings, (strings) => {
        const { stringVal = [] } = tensorProto.toObject(tensorProto.decode(encodeStrings(strings))) as { stringVal?: Uint8Array[] };
        expect(stringVal.map((each) => Buffer.from(each).toString())).toEqual(strings);
        const theirs = tensorProto.encode({ stringVal: strings.map((each) => Buffer.from(each)) }).finish();
        expect(decodeStrings(theirs, strings.length)).toEqual(strings);
      }),
    );
  });

  it('are refused when the bytes are others, or other many', () => {
    const bytes = encodeStrings(['ab', 'c'.repeat(200)]);
    for (const count of [0, 1, 3]) expect(() => decodeStrings(bytes, count)).toThrow(expect.objectContaining({ code: 'protocol' }));
    for (const bad of [bytes.subarray(0, -1), Uint8Array.of(0x42), Uint8Array.of(0x41, 0), Uint8Array.of(0x42, 255, 255, 255, 255, 255, 1)])
      expect(() => decodeStrings(bad, 1)).toThrow(expect.objectContaining({ code: 'protocol' }));
  });
});
