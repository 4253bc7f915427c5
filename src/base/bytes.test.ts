import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { ByteReader, ByteWriter, dataViewOf, isCount, Layout, textOf } from './bytes.ts';

const protocol = (message: RegExp): unknown => expect.objectContaining({ code: 'protocol', message: expect.stringMatching(message) });

describe('a layout', () => {
  const head = new Layout('a test head', { kind: 'u8', zero: 'u8', slot: 'u16', rkey: 'u32', offset: 'u53', key: 'u64', proof: 4 });

  it('puts its fields one behind the other, little-endian', () => {
    const values = { kind: 1, slot: 0x0203, rkey: 0x04050607, offset: 2 ** 40 + 5, key: 0x1122334455667788n, proof: Uint8Array.of(9, 8) };
    const encoded = head.encode(values, Uint8Array.of(255));
    expect(Buffer.from(encoded).toString('hex')).toBe('01000302070605040500000000010000887766554433221109080000ff');
    expect(head.bytes).toBe(28);
    expect(head.offsets).toEqual({ kind: 0, zero: 1, slot: 2, rkey: 4, offset: 8, key: 16, proof: 24 });
    expect(head.decode(encoded)).toEqual({ ...values, proof: Uint8Array.of(9, 8, 0, 0) });
  });

  it('leaves reserved fields of memory that is used again, at any place', () => {
    const bytes = new Uint8Array(31).fill(7);
    const values = { kind: 1, slot: 2, rkey: 3, offset: 4, key: 5n, proof: Uint8Array.of(6) };
    head.write(dataViewOf(bytes), 2, values);
    expect([...bytes.subarray(0, 6)]).toEqual([7, 7, 1, 7, 2, 0]);
    expect(head.read(dataViewOf(bytes), 2)).toEqual({ ...values, proof: Uint8Array.of(6, 7, 7, 7) });
  });

  it('names the format and the field of what it refuses', () => {
    expect(() => head.decode(new Uint8Array(27))).toThrow(protocol(/^a test head of 27 bytes is cut off: at byte 0 it needs 28$/));
    const encoded = head.encode({ kind: 1, slot: 0, rkey: 0, offset: 0, key: 0n, proof: new Uint8Array(4) });
    encoded[15] = 1;
    expect(() => head.decode(encoded)).toThrow(protocol(/^a test head \(offset\) has a number/));
  });

  it('keeps whole numbers of every kind, and refuses others', () => {
    const numbers = new Layout('numbers', { u: 'u53', i: 'i53', f: 'f53', i32: 'i32', f64: 'f64' });
    const most = Number.MAX_SAFE_INTEGER;
    fc.assert(
      fc.property(
        fc.record({ u: fc.maxSafeNat(), i: fc.maxSafeInteger(), f: fc.maxSafeNat(), i32: fc.integer(), f64: fc.double({ noNaN: true }) }),
        (values) => {
          expect(numbers.decode(numbers.encode(values))).toEqual(values);
        },
      ),
    );
    for (const i of [-most, -1, 0, most]) expect(numbers.decode(numbers.encode({ u: 0, i, f: 0, i32: 0, f64: 0 })).i).toBe(i);
    for (const f of [-1, 0.5, NaN, Infinity, 2 ** 53, -0])
      expect(() => numbers.decode(numbers.encode({ u: 0, i: 0, f, i32: 0, f64: 0 }))).toThrow(protocol(/numbers \(f\)/));
    for (const i of [2 ** 53, -(2 ** 53)])
      expect(() => numbers.decode(numbers.encode({ u: 0, i, f: 0, i32: 0, f64: 0 }))).toThrow(protocol(/numbers \(i\)/));
    for (const u of [-1, 2 ** 53])
      expect(() => numbers.decode(numbers.encode({ u, i: 0, f: 0, i32: 0, f64: 0 }))).toThrow(protocol(/numbers \(u\)/));
  });
});

describe('a reader', () => {
  /** One call of a writer, and what its twin must read. */
  const field = fc.oneof(
    fc.tuple(fc.constant('u8' as const), fc.integer({ min: 0, max: 255 })),
    fc.tuple(fc.constant('u16' as const), fc.integer({ min: 0, max: 65535 })),
    fc.tuple(fc.constant('u32' as const), fc.nat(0xffffffff)),
    fc.tuple(fc.constant('varint' as const), fc.maxSafeNat()),
    fc.tuple(fc.constant('u64' as const), fc.bigInt({ min: 0n, max: 2n ** 64n - 1n })),
    fc.tuple(
      fc.constant('text' as const),
      fc.string({ unit: 'binary' }).map((text) => textOf(Buffer.from(text))),
    ),
  );

  it('reads what a writer wrote, whatever its first capacity, and nothing of it cut off', () => {
    fc.assert(
      fc.property(fc.array(field), fc.nat(20), (fields, capacity) => {
        const writer = new ByteWriter(capacity);
        for (const [kind, value] of fields) (writer[kind] as (value: unknown) => void).call(writer, value);
        const reader = new ByteReader(writer.bytes, 'a test message');
        for (const [kind, value] of fields) expect(reader[kind]()).toBe(value);
        expect(reader.done).toBe(true);
        reader.end();
        if (writer.length === 0) return;
        const cut = new ByteReader(writer.bytes.subarray(0, writer.length - 1), 'a test message');
        expect(() => fields.forEach(([kind]) => cut[kind]())).toThrow(protocol(/^a test message /));
      }),
    );
  });

  it('says where bytes are missing, too many, or wrong', () => {
    const reader = new ByteReader(Uint8Array.of(1, 2, 0, 65, 66, 9, 9), 'a test message');
    reader.u8();
    expect(reader.text()).toBe('AB');
    expect(() => reader.u32()).toThrow(protocol(/^a test message of 7 bytes is cut off: at byte 5 it needs 4$/));
    expect(() => reader.end()).toThrow(protocol(/^a test message is malformed at byte 5 of 7: 2 bytes are too many$/));
    expect([...reader.bytes(2)]).toEqual([9, 9]);
    expect(() => new ByteReader(Uint8Array.of(3, 0, 65, 66, 67), 'a name').text(2)).toThrow(protocol(/a text has 3 bytes; at most 2/));
    expect(() => new ByteReader(new Uint8Array(9).fill(255), 'a number').varint()).toThrow(protocol(/more than 8 bytes/));
  });
});

describe('a writer', () => {
  it('forgets what is truncated, and is used again', () => {
    const writer = new ByteWriter(4);
    writer.u32(1);
    writer.u32(2);
    writer.truncate(4);
    writer.text('é');
    expect([...writer.bytes]).toEqual([1, 0, 0, 0, 2, 0, 0xc3, 0xa9]);
  });
});

describe('a count', () => {
  it('is a whole number from 0 that a double holds', () => {
    expect([0, 7, Number.MAX_SAFE_INTEGER].every(isCount)).toBe(true);
    expect([-0, -1, 0.5, 2 ** 53, NaN, '7', 7n].some(isCount)).toBe(false);
  });
});
