import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { isShoalError } from '../../base/errors.ts';
import { decodeHeader, emptyHeader, encodeHeader, headerBytes, type FrameHeader } from './frame.ts';

const header = fc.record<FrameHeader>({
  type: fc.integer({ min: 1, max: 12 }),
  flags: fc.integer({ min: 0, max: 1 }),
  immediate: fc.integer({ min: 0, max: 0xffffffff }),
  rkey: fc.integer({ min: 0, max: 0xffffffff }),
  offset: fc.maxSafeNat(),
  bytes: fc.maxSafeNat(),
});

describe('frame header', () => {
  it('keeps its bytes', () => {
    const view = new DataView(new ArrayBuffer(headerBytes));
    encodeHeader(view, 0, { type: 3, flags: 1, immediate: 0xfffffffe, rkey: 0x01020304, offset: 2 ** 53 - 1, bytes: 2 ** 33 + 7 });
    expect(Buffer.from(view.buffer).toString('hex')).toBe('03014853feffffff0403020173eeb37cffffffffffff1f000700000002000000');
  });

  it('survives encoding at any offset', () => {
    fc.assert(
      fc.property(header, fc.nat(7), (sent, at) => {
        const view = new DataView(new ArrayBuffer(headerBytes + 8));
        encodeHeader(view, at, sent);
        const received = emptyHeader();
        decodeHeader(view, at, received);
        expect(received).toEqual(sent);
      }),
    );
  });

  it('is refused when any one bit is changed', () => {
    fc.assert(
      fc.property(header, fc.nat(headerBytes * 8 - 1), (sent, bit) => {
        const view = new DataView(new ArrayBuffer(headerBytes));
        encodeHeader(view, 0, sent);
        view.setUint8(bit >> 3, view.getUint8(bit >> 3) ^ (1 << (bit & 7)));
        expect(() => decodeHeader(view, 0, emptyHeader())).toThrow(expect.objectContaining({ code: 'protocol' }));
      }),
      { numRuns: 1000 },
    );
  });

  it('any 32 bytes either decode to safe numbers or are a protocol error', () => {
    fc.assert(
      fc.property(fc.uint8Array({ minLength: headerBytes, maxLength: headerBytes }), (bytes) => {
        const received = emptyHeader();
        try {
          decodeHeader(new DataView(bytes.buffer, bytes.byteOffset), 0, received);
        } catch (thrown) {
          expect(isShoalError(thrown) && thrown.code).toBe('protocol');
        }
      }),
      { numRuns: 1000 },
    );
  });
});
