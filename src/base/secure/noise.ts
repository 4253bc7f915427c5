/** The handshake NNpsk0 of the Noise Protocol Framework, revision 34, with X25519 and SHA-256: two ends that share a secret agree on keys
 *  that the secret alone does not give. Pure: bytes in, bytes out.
 *
 *      -> psk, e
 *      <- e, ee          then split(): a key for each direction
 *
 *  The spec's HKDF is that of RFC 5869 without info. X25519: RFC 7748; AES-256-GCM: NIST SP 800-38D; ChaCha20-Poly1305: RFC 8439. */
import {
  createCipheriv,
  createDecipheriv,
  createHash,
  createPrivateKey,
  createPublicKey,
  diffieHellman,
  hkdfSync,
  type KeyObject,
} from 'node:crypto';
import { must } from '../assert.ts';

/** Authenticated ciphers, each at its number on the wire. */
export const aeads = ['aes-256-gcm', 'chacha20-poly1305'] as const;
export type Aead = (typeof aeads)[number];

export const keyBytes = 32;
export const tagBytes = 16;
/** Most bytes of a message of the framework, tag included. */
export const noiseMessageBytesMax = 65_535;

const protocols = { 'aes-256-gcm': 'Noise_NNpsk0_25519_AESGCM_SHA256', 'chacha20-poly1305': 'Noise_NNpsk0_25519_ChaChaPoly_SHA256' };
const nothing = new Uint8Array(0);

/** A place of a nonce: the key that it is used with, and the number of the message. */
export interface Sealing {
  readonly aead: Aead;
  readonly key: Uint8Array;
  /** Never the same twice with one key. */
  readonly counter: bigint;
}

/** Ciphertext and tag. */
export function encrypt({ aead, key, counter }: Sealing, associated: Uint8Array, plaintext: Uint8Array): Buffer {
  const cipher = createCipheriv(aead as 'aes-256-gcm', key, nonceOf(aead, counter), { authTagLength: tagBytes });
  cipher.setAAD(associated);
  return Buffer.concat([cipher.update(plaintext), cipher.final(), cipher.getAuthTag()]);
}

/** Opens sealed bytes. @returns undefined when they are not what the other end has sealed. */
export function decrypt({ aead, key, counter }: Sealing, associated: Uint8Array, sealed: Uint8Array): Buffer | undefined {
  if (sealed.length < tagBytes) return undefined;
  const decipher = createDecipheriv(aead as 'aes-256-gcm', key, nonceOf(aead, counter), { authTagLength: tagBytes });
  decipher.setAAD(associated);
  decipher.setAuthTag(sealed.subarray(sealed.length - tagBytes));
  const plaintext = decipher.update(sealed.subarray(0, sealed.length - tagBytes));
  try {
    decipher.final();
    return plaintext;
  } catch {
    return undefined;
  }
}

/** The key that follows a key: `REKEY` of the framework. */
export function nextKey(aead: Aead, key: Uint8Array): Buffer {
  return encrypt({ aead, key, counter: 2n ** 64n - 1n }, nothing, new Uint8Array(keyBytes)).subarray(0, keyBytes);
}

/** 32 zero bits and the counter of 64 bits, in the order that the framework gives for each cipher. */
function nonceOf(aead: Aead, counter: bigint): Buffer {
  const nonce = Buffer.alloc(12);
  if (aead === 'aes-256-gcm') nonce.writeBigUInt64BE(counter, 4);
  else nonce.writeBigUInt64LE(counter, 4);
  return nonce;
}

export interface NoiseOptions {
  readonly aead: Aead;
  /** All that the ends have said before. */
  readonly prologue: Uint8Array;
  /** The pre-shared key, 32 bytes. */
  readonly psk: Uint8Array;
  /** Private key of this handshake alone: 32 random bytes. */
  readonly ephemeral: Uint8Array;
}

/** @param raw 32 bytes. PKCS #8 around them (RFC 8410): a JWK would have to have the public key as well. */
export function x25519Key(raw: Uint8Array): KeyObject {
  const der = Buffer.concat([Buffer.from('302e020100300506032b656e04220420', 'hex'), raw]);
  return createPrivateKey({ key: der, format: 'der', type: 'pkcs8' });
}

/** The raw public key of a private one. */
export function x25519Public(key: KeyObject): Buffer {
  const { x } = createPublicKey(key).export({ format: 'jwk' });
  return Buffer.from(
    must(x, () => 'a public key of X25519 has an x'),
    'base64url',
  );
}

/** One end: the first speaker writes, then reads; the other reads, then writes. */
export class NoiseHandshake {
  readonly #aead: Aead;
  readonly #own: KeyObject;
  #hash: Buffer;
  #chaining: Buffer;
  #key: Buffer;
  #hasWritten = false;
  #peer: Uint8Array | undefined;

  constructor({ aead, prologue, psk, ephemeral }: NoiseOptions) {
    const name = Buffer.from(protocols[aead]);
    this.#aead = aead;
    this.#own = x25519Key(ephemeral);
    this.#hash = name.length > 32 ? createHash('sha256').update(name).digest() : name;
    this.#chaining = this.#hash;
    this.#mixHash(prologue);
    const [chaining, hash, key] = this.#derive(psk, 3);
    this.#chaining = chaining;
    this.#mixHash(hash);
    this.#key = key;
  }

  write(payload: Uint8Array = nothing): Buffer {
    const ephemeral = x25519Public(this.#own);
    this.#mixEphemeral(ephemeral, this.#peer);
    this.#hasWritten = true;
    const sealed = encrypt(this.#sealing, this.#hash, payload);
    this.#mixHash(sealed);
    return Buffer.concat([ephemeral, sealed]);
  }

  /** The payload; undefined when the other end does not have the secret, or its bytes were changed on their way. */
  read(message: Uint8Array): Buffer | undefined {
    this.#peer = Uint8Array.from(message.subarray(0, keyBytes));
    try {
      this.#mixEphemeral(this.#peer, this.#hasWritten ? this.#peer : undefined);
    } catch {
      // The system refuses points whose result would be the same for every key.
      return undefined;
    }
    const sealed = message.subarray(keyBytes);
    const payload = decrypt(this.#sealing, this.#hash, sealed);
    this.#mixHash(sealed);
    return payload;
  }

  /** Keys of the directions: from the first speaker, and to it. */
  split(): readonly Buffer[] {
    return this.#derive(nothing, 2);
  }

  /** Each key seals one payload. */
  get #sealing(): Sealing {
    return { aead: this.#aead, key: this.#key, counter: 0n };
  }

  #mixHash(bytes: Uint8Array): void {
    this.#hash = createHash('sha256').update(this.#hash).update(bytes).digest();
  }

  #mixKey(secret: Uint8Array): void {
    [this.#chaining, this.#key] = this.#derive(secret, 2);
  }

  #mixEphemeral(ephemeral: Uint8Array, peer: Uint8Array | undefined): void {
    this.#mixHash(ephemeral);
    this.#mixKey(ephemeral);
    if (peer === undefined) return;
    const x = Buffer.from(peer).toString('base64url');
    const publicKey = createPublicKey({ key: { kty: 'OKP', crv: 'X25519', x }, format: 'jwk' });
    this.#mixKey(diffieHellman({ privateKey: this.#own, publicKey }));
  }

  #derive(secret: Uint8Array, keys: number): Buffer[] {
    const derived = Buffer.from(hkdfSync('sha256', secret, this.#chaining, nothing, keys * keyBytes));
    return Array.from({ length: keys }, (_, k) => derived.subarray(k * keyBytes, (k + 1) * keyBytes));
  }
}
