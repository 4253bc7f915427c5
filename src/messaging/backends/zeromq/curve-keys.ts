/** CURVE keys out of the job's secret: both ends derive the same two key pairs (RFC 5869 HKDF, RFC 7748 X25519), so that
 *  knowing the secret is knowing whom to trust, and nothing has to be distributed. Text form: Z85 (ZeroMQ RFC 32). */
import { hkdfSync } from 'node:crypto';
import { x25519Key, x25519Public } from '../../../base/secure/noise.ts';

export interface CurveKeys {
  readonly publicKey: string;
  /** The same, raw. */
  readonly publicBytes: Buffer;
  readonly secretKey: string;
}

/** `role` and `world` are under the derivation: jobs with one secret still do not meet. */
export function deriveCurveKeys(secret: Uint8Array, world: string, role: 'router' | 'dealer'): CurveKeys {
  const seed = Buffer.from(hkdfSync('sha256', secret, Buffer.from(world, 'utf8'), `shoal-messaging-1 ${role}`, 32));
  const publicBytes = x25519Public(x25519Key(seed));
  return { publicKey: z85(publicBytes), publicBytes, secretKey: z85(seed) };
}

const digits = '0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#';

/** Four bytes, big-endian, as five digits of base 85. */
export function z85(bytes: Buffer): string {
  let text = '';
  for (let at = 0; at < bytes.length; at += 4) {
    const word = bytes.readUInt32BE(at);
    for (let power = 85 ** 4; power >= 1; power /= 85) text += digits[Math.floor(word / power) % 85];
  }
  return text;
}
