/** Messages, addresses and format frames: the document's calls and what the original got wrong. */
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { checkAddress, formatAddress, groupOf, idOf, makeAddress, parseAddress, roleOf } from './address.ts';
import { Msg } from './msg.ts';

describe('addresses', () => {
  it('keep their parts, whatever their size', () => {
    fc.assert(
      fc.property(fc.nat(0xffffff), fc.integer({ min: 0, max: 0xffffffff }), fc.nat(255), (group, id, role) => {
        const address = makeAddress({ group, id, role });
        expect(parseAddress(address)).toEqual({ group, id, role });
        expect([groupOf(address), idOf(address), roleOf(address)]).toEqual([group, id, role]);
        checkAddress(address);
      }),
    );
  });

  it('with an id of 256 and more do not run into the group', () => {
    expect(makeAddress({ group: 1, id: 256, role: 0 })).not.toBe(makeAddress({ group: 2, id: 0, role: 0 }));
  });

  it('refuse parts that do not fit, instead of cutting them', () => {
    for (const parts of [
      { group: 2 ** 24, id: 0, role: 0 },
      { group: 0, id: 2 ** 32, role: 0 },
      { group: 0, id: 0, role: 256 },
      { group: -1, id: 0, role: 0 },
      { group: 0, id: 1.5, role: 0 },
    ]) {
      expect(() => makeAddress(parts)).toThrow(expect.objectContaining({ code: 'usage' }));
    }
    expect(() => new Msg(-1n)).toThrow(expect.objectContaining({ code: 'usage' }));
  });

  it('can be read', () => {
    expect(formatAddress(makeAddress({ group: 2, id: 300, role: 99 }))).toBe('address 300 of group 2 in role 99');
  });
});

describe('Msg', () => {
  it('has the header of the document', () => {
    const msg = new Msg(1n, 2n);
    msg.type = 1;
    msg.setTarget(1234, 20);
    msg.swapAddress();
    expect([msg.source, msg.destination, msg.type, msg.targetValue, msg.targetVersion]).toEqual([2n, 1n, 1, 1234, 20]);
    expect(() => (msg.type = 65_536)).toThrow(expect.objectContaining({ code: 'usage' }));
    expect(() => msg.setTarget(0.5, 0)).toThrow(expect.objectContaining({ code: 'usage' }));
  });

  it('walks its frames with a cursor', () => {
    const msg = new Msg();
    expect(() => msg.frameData()).toThrow(expect.objectContaining({ code: 'usage' }));
    msg.addFrame('abc');
    msg.addFrame(new Float32Array([1, 2]));
    msg.addFrame('größe');
    expect([msg.frameStr(), msg.frameSize(), msg.nextFrame(), msg.frameSize()]).toEqual(['abc', 3, true, 8]);
    msg.lastFrame();
    expect([msg.frameStr(), msg.nextFrame(), msg.frameStr()]).toEqual(['größe', false, 'größe']);
    msg.firstFrame();
    expect(msg.frameStr()).toBe('abc');
    expect([msg.size, msg.frameCount]).toEqual([3 + 8 + 7, 3]);
  });

  it('does not copy frames; its copy has its own', () => {
    const bytes = Uint8Array.of(1, 2, 3);
    const msg = new Msg(1n, 2n);
    msg.addFrame(bytes);
    msg.markSent();
    const copy = msg.copy();
    bytes[0] = 9;
    expect([...msg.frameData()]).toEqual([9, 2, 3]);
    expect([...copy.frameData()]).toEqual([1, 2, 3]);
    expect([copy.source, copy.destination]).toEqual([1n, 2n]);
    copy.addFrame('more');
    expect(() => msg.markSent()).toThrow(expect.objectContaining({ code: 'usage' }));
    expect(() => msg.addFrame('late')).toThrow(/copy it first/);
  });
});

describe('format frames', () => {
  const values = fc.array(
    fc.oneof(
      fc.integer().map((value) => ['i', value] as const),
      fc.nat(255).map((value) => ['1', value] as const),
      fc.nat(65_535).map((value) => ['2', value] as const),
      fc.integer({ min: 0, max: 0xffffffff }).map((value) => ['4', value] as const),
      fc.bigInt({ min: 0n, max: 0xffffffffffffffffn }).map((value) => ['8', value] as const),
      fc.string({ unit: 'grapheme' }).map((value) => ['s', value] as const),
      fc.constant(['p', new Uint8Array(new SharedArrayBuffer(16), 8)] as const),
    ),
    { maxLength: 12 },
  );

  it('keep their bytes', () => {
    const msg = new Msg();
    msg.addFormatFrame('i1248s8', -2, 255, 515, 0xfffffffe, 0x0102030405060708n, 'né', 7n);
    expect(Buffer.from(msg.frames[0]).toString('hex')).toBe(
      '69feffffff31ff32030234feffffff38080706050403020173030000006ec3a9380700000000000000',
    );
  });

  it('give back what was put in', () => {
    fc.assert(
      fc.property(values, (pairs) => {
        const format = pairs.map(([code]) => code).join('');
        const msg = new Msg();
        expect(msg.addFormatFrame(format, ...pairs.map(([, value]) => value))).toBe(msg.frameSize());
        expect(msg.parseFormatFrame(format)).toEqual(pairs.map(([, value]) => value));
      }),
    );
  });

  it('are typed by their format', () => {
    const msg = new Msg();
    msg.addFormatFrame('i1248s', -7, 1, 2, 4, 2n ** 63n, 'text');
    const [signed, , , , wide, text] = msg.parseFormatFrame('i1248s');
    const sum: number = signed + text.length;
    expect([sum, wide]).toEqual([-3, 2n ** 63n]);
    // @ts-expect-error A string is not an integer.
    expect(() => msg.addFormatFrame('i', 'x')).toThrow(expect.objectContaining({ code: 'usage' }));
  });

  it('pass shared memory itself, and nothing else', () => {
    const shared = new Uint8Array(new SharedArrayBuffer(4));
    const msg = new Msg();
    msg.addFormatFrame('p', shared);
    expect(msg.parseFormatFrame('p')[0]).toBe(shared);
    expect(() => msg.addFormatFrame('p', new Uint8Array(4))).toThrow(expect.objectContaining({ code: 'usage' }));
  });

  it.each([
    ['i', [2 ** 31]],
    ['1', [256]],
    ['2', [-1]],
    ['4', [1.5]],
    ['8', [-1n]],
    ['8', [2n ** 64n]],
    ['x', [1]],
    ['ii', [1]],
  ])('refuse format %s with %s', (format, given) => {
    expect(() => new Msg().addFormatFrame(format, ...given)).toThrow(expect.objectContaining({ code: 'usage' }));
  });

  it('refuse another format, cut frames and anything else, without crashing', () => {
    const msg = new Msg();
    msg.addFormatFrame('i4s', 1, 2, 'abc');
    for (const format of ['44s', 'i4', 'i4ss', 'i4p']) {
      expect(() => msg.parseFormatFrame(format)).toThrow(expect.objectContaining({ code: 'protocol' }));
    }
    fc.assert(
      fc.property(
        fc.uint8Array({ maxLength: 30 }),
        fc.string({ unit: fc.constantFrom('i', '1', '2', '4', '8', 's', 'p'), maxLength: 6 }),
        (bytes, format) => {
          const hostile = new Msg();
          hostile.addFrame(bytes);
          try {
            hostile.parseFormatFrame(format);
          } catch (error) {
            expect(error).toMatchObject({ code: 'protocol' });
          }
        },
      ),
      { numRuns: 5000 },
    );
  });
});
