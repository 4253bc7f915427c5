import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { isShoalError } from '../base/errors.ts';
import { seededRandom } from '../base/random.ts';
import { aeads, decrypt, nextKey, type Aead } from '../base/secure/noise.ts';
import {
  lengthBytes,
  recordPlainBytesMax,
  RecordReader,
  recordsPerKey,
  scriptCiphers,
  sealParts,
  type RecordCiphers,
} from '../base/secure/records.ts';
import { loadNative } from './native.ts';
import { recordCiphers } from './native-records.ts';

const key = seededRandom(1).bytes(32);
const nothing = new Uint8Array(0);
const native = loadNative({ enabled: true });
const kinds = aeads.flatMap((aead) => [
  { aead, by: 'node:crypto', ciphers: scriptCiphers },
  ...(native ? [{ aead, by: 'the addon', ciphers: recordCiphers(native) }] : []),
]);

/** The records that come out of a stream, and the error that ended it. */
function opened(
  stream: Uint8Array,
  aead: Aead,
  ciphers: RecordCiphers,
  pieceBytes = stream.length,
): { records: Buffer[]; code: string | undefined } {
  const records: Buffer[] = [];
  const reader = new RecordReader({
    opener: ciphers.opener(aead, key),
    isReady: () => true,
    target: (bytes) => Buffer.alloc(bytes),
    onOpened: (target) => records.push(Buffer.from(target)),
  });
  try {
    for (let at = 0; at < stream.length; at += pieceBytes) reader.push(stream.subarray(at, at + pieceBytes));
    return { records, code: undefined };
  } catch (thrown) {
    if (!isShoalError(thrown)) throw thrown;
    return { records, code: thrown.code };
  }
}

/** Ciphertexts of a stream. */
function recordsIn(stream: Buffer): Buffer[] {
  const found: Buffer[] = [];
  for (let at = 0; at < stream.length; at += lengthBytes + stream.readUInt16BE(at))
    found.push(stream.subarray(at + lengthBytes, at + lengthBytes + stream.readUInt16BE(at)));
  return found;
}

describe.each(kinds)('records of $aead by $by', ({ aead, ciphers }) => {
  it('give back all parts, however they are cut', () => {
    fc.assert(
      fc.property(
        fc.array(fc.oneof(fc.integer({ min: 1, max: 9000 }), fc.integer({ min: 65_000, max: 140_000 })), { minLength: 1, maxLength: 6 }),
        fc.integer({ min: 1, max: 100_000 }),
        (sizes, pieceBytes) => {
          const parts = sizes.map((bytes, k) => Buffer.alloc(bytes, k + 1));
          const sealer = ciphers.sealer(aead, key);
          const stream = Buffer.concat([sealParts(sealer, parts), sealParts(sealer, [Buffer.from('last')])]);
          const { records, code } = opened(stream, aead, ciphers, Math.max(pieceBytes, stream.length >> 8));
          expect(code).toBeUndefined();
          expect(Buffer.concat(records).equals(Buffer.concat([...parts, Buffer.from('last')]))).toBe(true);
        },
      ),
      { numRuns: 30 },
    );
  });

  it('never use a nonce twice: each opens with its own number and no other', () => {
    fc.assert(
      fc.property(fc.array(fc.integer({ min: 1, max: 3 * recordPlainBytesMax }), { minLength: 1, maxLength: 8 }), (sizes) => {
        const sealer = ciphers.sealer(aead, key);
        const records = sizes.flatMap((bytes) => recordsIn(sealParts(sealer, [Buffer.alloc(bytes)])));
        records.forEach((record, counter) => {
          expect(decrypt({ aead, key, counter: BigInt(counter) }, nothing, record)?.length).toBe(record.length - 16);
          if (counter > 0) expect(decrypt({ aead, key, counter: BigInt(counter - 1) }, nothing, record)).toBeUndefined();
        });
      }),
      { numRuns: 20 },
    );
  });

  it('a man in the middle who changes, drops, repeats, moves or cuts at any offset gets nothing through but what came before', () => {
    const sealer = ciphers.sealer(aead, key);
    const plain = ['one', 'two', 'three'].map((text) => Buffer.from(text));
    const sealed = plain.map((part) => sealParts(sealer, [part]));
    const stream = Buffer.concat(sealed);
    const attacks: Buffer[] = [
      Buffer.concat([sealed[1], sealed[0], sealed[2]]),
      Buffer.concat([sealed[0], sealed[2]]),
      Buffer.concat([sealed[0], sealed[0], sealed[1], sealed[2]]),
    ];
    for (let at = 0; at < stream.length; at++) {
      for (let bit = 0; bit < 8; bit++) {
        const flipped = Buffer.from(stream);
        flipped[at] ^= 1 << bit;
        attacks.push(flipped);
      }
      attacks.push(Buffer.concat([stream.subarray(0, at), stream.subarray(at + 1)]));
      attacks.push(Buffer.concat([stream.subarray(0, at), stream.subarray(at, at + 1), stream.subarray(at)]));
      attacks.push(stream.subarray(0, at));
    }
    for (const attack of attacks) {
      const { records, code } = opened(attack, aead, ciphers);
      expect([undefined, 'protocol']).toContain(code);
      // Bytes behind the last record are the beginning of one that has not come yet.
      if (records.length === plain.length) expect(attack.subarray(0, stream.length).equals(stream)).toBe(true);
      records.forEach((record, k) => expect(record.equals(plain[k])).toBe(true));
    }
  });

  it('nothing of a record that is not authentic is left in its destination', () => {
    const [record] = recordsIn(sealParts(ciphers.sealer(aead, key), [Buffer.alloc(1000, 7)]));
    record[500] ^= 1;
    const target = Buffer.alloc(1000);
    expect(ciphers.opener(aead, key).open(record, target)).toBe(false);
    expect(target.equals(Buffer.alloc(1000))).toBe(true);
  });
});

it('the key changes every 2^20 records, to the one that the framework says', (context) => {
  if (native === undefined) context.skip('a million records take the twin of the addon too long');
  const aead = 'aes-256-gcm';
  const ciphers = recordCiphers(native);
  const [sealer, opener] = [ciphers.sealer(aead, key), ciphers.opener(aead, key)];
  const record = Buffer.alloc(19);
  const target = Buffer.alloc(1);
  for (let k = 0; k < recordsPerKey; k++) {
    sealer.seal(target, record, 0);
    if (!opener.open(record.subarray(2), target)) throw new Error(`record ${k} does not open`);
  }
  sealer.seal(Buffer.of(9), record, 0);
  expect(decrypt({ aead, key: nextKey(aead, key), counter: BigInt(recordsPerKey) }, nothing, record.subarray(2))).toEqual(Buffer.of(9));
  expect(opener.open(record.subarray(2), target)).toBe(true);
  expect(target[0]).toBe(9);
});
