import { hkdfSync } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { describe, expect, it } from 'vitest';
import { decrypt, encrypt, NoiseHandshake, type Aead } from './noise.ts';

/** The vectors of cacophony, an implementation of the framework in Haskell, for NNpsk0 with the two ciphers. */
interface Vector {
  readonly aead: Aead;
  readonly prologue: string;
  readonly psk: string;
  readonly initiator: string;
  readonly responder: string;
  readonly messages: readonly { readonly payload: string; readonly ciphertext: string }[];
}

const vectors = JSON.parse(readFileSync(new URL('noise-vectors.json', import.meta.url), 'utf8')) as Vector[];
const bytes = (hex: string): Buffer => Buffer.from(hex, 'hex');
const nothing = new Uint8Array(0);

function ends({ aead, prologue, psk, initiator, responder }: Vector): [NoiseHandshake, NoiseHandshake] {
  const make = (ephemeral: string): NoiseHandshake =>
    new NoiseHandshake({ aead, prologue: bytes(prologue), psk: bytes(psk), ephemeral: bytes(ephemeral) });
  return [make(initiator), make(responder)];
}

describe.each(vectors)('Noise NNpsk0 with $aead', (vector) => {
  it('gives the published messages, and reads them', () => {
    const [first, second] = ends(vector);
    const [one, two, ...rest] = vector.messages;
    const opening = first.write(bytes(one.payload));
    expect(opening.toString('hex')).toBe(one.ciphertext);
    expect(second.read(opening)?.toString('hex')).toBe(one.payload);
    const answer = second.write(bytes(two.payload));
    expect(answer.toString('hex')).toBe(two.ciphertext);
    expect(first.read(answer)?.toString('hex')).toBe(two.payload);
    const [own, theirs] = [first.split(), second.split()];
    rest.forEach(({ payload, ciphertext }, k) => {
      const place = { aead: vector.aead, counter: BigInt(k >> 1) };
      expect(encrypt({ ...place, key: own[k % 2] }, nothing, bytes(payload)).toString('hex')).toBe(ciphertext);
      expect(decrypt({ ...place, key: theirs[k % 2] }, nothing, bytes(ciphertext))?.toString('hex')).toBe(payload);
    });
  });

  it('reads no message of another secret, prologue or point', () => {
    const [first] = ends(vector);
    const message = first.write();
    for (const change of [{ psk: '00'.repeat(32) }, { prologue: '00' }])
      expect(ends({ ...vector, ...change })[1].read(message)).toBeUndefined();
    const [, second] = ends(vector);
    second.read(message);
    second.write();
    // A point of low order gives everyone the same secret.
    expect(first.read(Buffer.alloc(48))).toBeUndefined();
  });
});

it('the key derivation is that of RFC 5869, test case 1', () => {
  const [salt, info] = [bytes('000102030405060708090a0b0c'), bytes('f0f1f2f3f4f5f6f7f8f9')];
  expect(Buffer.from(hkdfSync('sha256', Buffer.alloc(22, 0x0b), salt, info, 42)).toString('hex')).toBe(
    '3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865',
  );
});
