/** Randomness as an argument: the system's for secrets and identities, seeded for everything that must replay. */
import { randomBytes } from 'node:crypto';
import { ShoalError } from './errors.ts';
import { describeValue } from './schema.ts';

export interface Random {
  /** Uniform in [0, 1). */
  next(): number;
  /** Uniform integer in [0, bound). */
  integer(bound: number): number;
  /** `count` random bytes. */
  bytes(count: number): Uint8Array;
}

/** Bytes that are asked of the machine at once: callers want 8 or 32, some hundred times while ranks join. */
const pool = { bytes: new Uint8Array(0), used: 0 };
const poolBytes = 1024;

/** Random bytes, each given once and not kept. */
function randomOf(count: number): Uint8Array {
  if (count > poolBytes / 4) return new Uint8Array(randomBytes(count));
  if (pool.used + count > pool.bytes.length) Object.assign(pool, { bytes: randomBytes(poolBytes), used: 0 });
  const taken = Uint8Array.from(pool.bytes.subarray(pool.used, pool.used + count));
  pool.bytes.fill(0, pool.used, pool.used + count);
  pool.used += count;
  return taken;
}

/** Cryptographic randomness of the machine. */
export const systemRandom: Random = {
  next: () => randomBytes(6).readUIntLE(0, 6) / 2 ** 48,
  integer: (bound) => Math.floor(systemRandom.next() * bound),
  bytes: randomOf,
};

/** xoshiro128** seeded by SplitMix32: the same seed gives the same sequence on every machine. Blackman & Vigna, "Scrambled linear
 *  pseudorandom number generators", 2018.
 *  @throws ShoalError `usage` for a seed that is not an integer; its low 32 bits count. */
export function seededRandom(seed: number): Random {
  if (!Number.isSafeInteger(seed)) throw new ShoalError('usage', `seededRandom: the seed must be an integer, not ${describeValue(seed)}`);
  let mix = seed >>> 0;
  const splitMix = (): number => {
    mix = (mix + 0x9e3779b9) >>> 0;
    let z = mix;
    z = Math.imul(z ^ (z >>> 16), 0x85ebca6b);
    z = Math.imul(z ^ (z >>> 13), 0xc2b2ae35);
    return (z ^ (z >>> 16)) >>> 0;
  };
  const s = [splitMix(), splitMix(), splitMix(), splitMix()];
  const rotl = (x: number, k: number): number => ((x << k) | (x >>> (32 - k))) >>> 0;
  const nextUint32 = (): number => {
    const result = Math.imul(rotl(Math.imul(s[1], 5) >>> 0, 7), 9) >>> 0;
    const t = (s[1] << 9) >>> 0;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotl(s[3] >>> 0, 11);
    return result;
  };
  const next = (): number => (nextUint32() * 2 ** 21 + (nextUint32() >>> 11)) / 2 ** 53;
  return {
    next,
    integer: (bound) => Math.floor(next() * checkSize('integer: the bound', bound)),
    bytes: (count) => Uint8Array.from({ length: checkSize('bytes: the count', count) }, () => nextUint32() & 0xff),
  };
}

/** The numbers 0…count−1 in random order. */
export function shuffled(count: number, random: Random): number[] {
  return shuffle([...new Array<number>(count).keys()], random);
}

/** Brings numbers into random order, in place: Fisher and Yates. */
export function shuffle<Numbers extends number[] | Uint32Array>(order: Numbers, random: Random): Numbers {
  for (let left = order.length - 1; left > 0; left--) {
    const other = random.integer(left + 1);
    [order[left], order[other]] = [order[other], order[left]];
  }
  return order;
}

function checkSize(role: string, size: number): number {
  if (Number.isSafeInteger(size) && size >= 0) return size;
  throw new ShoalError('usage', `${role} must be a non-negative integer, not ${describeValue(size)}`);
}
