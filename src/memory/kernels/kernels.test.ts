/** The contract of Kernels on both implementations, and their agreement bit for bit. */
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { seededRandom } from '../../base/random.ts';
import { dtypeInfo, dtypes, viewOf, type DType, type TypedArray } from '../dtype.ts';
import { balancedTree, type Kernels } from '../kernels.ts';
import { loadNative, nativeUnavailableReason } from '../native.ts';
import { checkReduceOp, type CombineOp } from '../reduce-op.ts';
import { createKernels } from './create-kernels.ts';

const native = loadNative({ enabled: true });
const js = createKernels();
/** The addon's kernels, for every instruction set this CPU has. */
const loops = native === undefined ? [] : [native, ...native.others];
const addons: Kernels[] = loops.map((each) => createKernels({ native: { ...native!, ...each } }));
const implementations = [js, ...addons].map((kernels, k) => ({ kernels, label: k === 0 ? 'js' : `native ${loops[k - 1].isa}` }));
const combineOps: readonly CombineOp[] = ['sum', 'product', 'min', 'max', 'bit-and', 'bit-or', 'bit-xor'];
const dtypeNames = dtypes.map((dtype) => dtype.name);

function isDefined(op: CombineOp, dtype: DType): boolean {
  try {
    checkReduceOp(op, dtype);
    return true;
  } catch {
    return false;
  }
}

function bytesOf(array: TypedArray): Uint8Array {
  return new Uint8Array(array.buffer, array.byteOffset, array.byteLength);
}

/** The bits with every NaN made the same: payloads are not part of the contract. */
function canonicalBits(dtype: DType, bytes: Uint8Array): Uint8Array {
  const copy = bytes.slice();
  const count = copy.byteLength / dtypeInfo(dtype).bytes;
  const view = viewOf(dtype, copy.buffer, 0, count) as TypedArray;
  for (let i = 0; i < count; i++) {
    const bits = Number(view[i]);
    const isNaN16 = (dtype === 'float16' && (bits & 0x7fff) > 0x7c00) || (dtype === 'bfloat16' && (bits & 0x7fff) > 0x7f80);
    if (isNaN16) view[i] = 0x7fff;
    else if ((dtype === 'float32' || dtype === 'float64') && Number.isNaN(bits)) view[i] = NaN;
  }
  return copy;
}

const elementBytes = Object.fromEntries(dtypes.map(({ name, bytes }) => [name, bytes])) as { readonly [D in DType]: number };

const specials: { readonly [D in DType]: readonly (number | bigint)[] } = {
  float64: [
    0,
    -0,
    1,
    -1,
    NaN,
    Infinity,
    -Infinity,
    5e-324,
    -2.2e-308,
    1.7e308,
    65519.999,
    65520,
    1e39,
    3.4028235677973366e38,
    2 ** 63,
    -(2 ** 63),
    2 ** 31,
    255.5,
  ],
  float32: [0, -0, 1, -1, NaN, Infinity, -Infinity, 1e-45, -1.1e-38, 3.4e38, 65520, 6e-8, 2 ** 63, -129, 255.9, 2 ** 32],
  float16: [0, 0x8000, 0x3c00, 0xbc00, 0x7e01, 0x7c00, 0xfc00, 1, 0x8001, 0x03ff, 0x0400, 0x7bff, 0xfbff],
  bfloat16: [0, 0x8000, 0x3f80, 0xbf80, 0x7fc1, 0x7f80, 0xff80, 1, 0x8001, 0x007f, 0x0080, 0x7f7f, 0xff7f],
  int64: [
    0n,
    1n,
    -1n,
    2n ** 63n - 1n,
    -(2n ** 63n),
    2n ** 53n + 1n,
    -(2n ** 53n) - 1n,
    2n ** 62n + 2n ** 38n + 1n,
    2n ** 62n + 2n ** 38n,
    65520n,
  ],
  int32: [0, 1, -1, 2 ** 31 - 1, -(2 ** 31), 2 ** 24 + 1, 46341],
  int16: [0, 1, -1, 32767, -32768, 182],
  int8: [0, 1, -1, 127, -128, 12],
  uint32: [0, 1, 2 ** 32 - 1, 2 ** 31, 65536, 2 ** 24 + 1],
  uint16: [0, 1, 65535, 32768, 257],
  uint8: [0, 1, 255, 128, 17],
  bool: [0, 1, 1, 0, 2, 255],
};

/** One pool of elements per dtype: random bits, special values, and floats of ordinary size (or all sums overflow). */
const pools = new Map<DType, TypedArray>(dtypeNames.map((dtype) => [dtype, elementPool(dtype)]));

function elementPool(dtype: DType): TypedArray {
  const random = seededRandom(20_000 + dtypeInfo(dtype).code);
  const count = 20_000;
  const bytes = random.bytes(count * dtypeInfo(dtype).bytes);
  const view = viewOf(dtype, bytes.buffer, 0, count) as TypedArray;
  const { [dtype]: known } = specials;
  for (let i = 0; i < count; i++) {
    if (random.integer(4) === 0) view[i] = known[random.integer(known.length)];
    else if ((dtype === 'float32' || dtype === 'float64') && random.integer(2) === 0) view[i] = random.next() * 2 - 1;
    else if (dtype === 'float16' && random.integer(2) === 0) view[i] = 0x3000 + random.integer(0x1000);
  }
  return view;
}

/** A stretch of the pool, chosen by the seed. */
function randomElements(dtype: DType, count: number, seed: number, misalignBy = 0): Uint8Array {
  const { [dtype]: bytes } = elementBytes;
  const pool = bytesOf(pools.get(dtype)!);
  const from = (Math.imul(seed, 2654435761) >>> 0) % (pool.byteLength / bytes - count);
  const copy = new Uint8Array((count + misalignBy) * bytes);
  copy.set(pool.subarray(from * bytes, (from + count) * bytes), misalignBy * bytes);
  return copy.subarray(misalignBy * bytes);
}

function expectSameBytes(actual: Uint8Array, expected: Uint8Array): void {
  // The whole difference is shown only when there is one: comparing long arrays element by element is slow.
  if (Buffer.compare(actual, expected) !== 0) expect(actual).toEqual(expected);
}

/** A random postfix tree over all n sources, each used once, in any order. */
function randomTree(n: number, seed: number): number[] {
  const random = seededRandom(seed);
  const leaves = Array.from({ length: n }, (_, k) => k);
  for (let k = n - 1; k > 0; k--) {
    const other = random.integer(k + 1);
    [leaves[k], leaves[other]] = [leaves[other], leaves[k]];
  }
  const tree: number[] = [];
  let height = 0;
  while (leaves.length > 0 || height > 1) {
    if (leaves.length > 0 && (height < 2 || random.integer(2) === 0)) {
      tree.push(leaves.pop()!);
      height++;
    } else {
      tree.push(-1);
      height--;
    }
  }
  return tree;
}

/** The operators as reduce-op.ts describes them, one element at a time, written as plainly as possible. */
const combineNumbers: { readonly [O in CombineOp]: (a: number, b: number) => number } = {
  sum: (a, b) => a + b,
  product: (a, b) => a * b,
  min: (a, b) => Math.min(a, b),
  max: (a, b) => Math.max(a, b),
  'bit-and': (a, b) => a & b,
  'bit-or': (a, b) => a | b,
  'bit-xor': (a, b) => a ^ b,
};

describe.each(implementations)('Kernels $label', ({ kernels }) => {
  describe('reduce', () => {
    it.each(['float64', 'float32', 'int16', 'int8', 'uint16', 'uint8'] as const)('agrees with plain numbers on %s', (dtype) => {
      for (const op of combineOps.filter((candidate) => isDefined(candidate, dtype))) {
        for (const n of [1, 2, 3, 4, 5, 8, 9]) {
          const count = 700;
          const sources = Array.from({ length: n }, (_, k) => randomElements(dtype, count, k + 10 * n));
          const expected = viewOf(dtype, sources[0].slice().buffer, 0, count) as Float64Array;
          // The tree goes left to right, so that the oracle is a plain loop.
          const tree = Array.from({ length: n }, (_, k) => (k === 0 ? [0] : [k, -1])).flat();
          for (let k = 1; k < n; k++) {
            const view = viewOf(dtype, sources[k].buffer, 0, count) as Float64Array;
            for (let i = 0; i < count; i++) expected[i] = combineNumbers[op](expected[i], view[i]);
          }
          const target = new Uint8Array(sources[0].byteLength);
          kernels.reduce(dtype, op, [target], sources, tree);
          expectSameBytes(canonicalBits(dtype, target), canonicalBits(dtype, bytesOf(expected)));
        }
      }
    });

    it('wraps 32- and 64-bit integers', () => {
      const reduced = (dtype: DType, op: CombineOp, a: TypedArray, b: TypedArray) => {
        const target = new Uint8Array(a.byteLength);
        kernels.reduce(dtype, op, [target], [bytesOf(a), bytesOf(b)], [0, 1, -1]);
        return Array.from(viewOf(dtype, target.buffer, 0, a.length) as Int32Array) as (number | bigint)[];
      };
      expect(reduced('int32', 'sum', Int32Array.of(2147483647, -5), Int32Array.of(1, 7))).toEqual([-2147483648, 2]);
      expect(reduced('int32', 'product', Int32Array.of(123456789, -3), Int32Array.of(987654321, 7))).toEqual([-67153019, -21]);
      expect(reduced('uint32', 'sum', Uint32Array.of(4294967295), Uint32Array.of(2))).toEqual([1]);
      expect(reduced('uint32', 'product', Uint32Array.of(4294967295), Uint32Array.of(4294967295))).toEqual([1]);
      expect(reduced('uint32', 'max', Uint32Array.of(4294967295), Uint32Array.of(1))).toEqual([4294967295]);
      expect(reduced('uint32', 'min', Uint32Array.of(4294967295), Uint32Array.of(1))).toEqual([1]);
      expect(reduced('uint32', 'bit-xor', Uint32Array.of(0xf0000001), Uint32Array.of(0x0000000f))).toEqual([0xf000000e]);
      expect(reduced('int64', 'sum', BigInt64Array.of(2n ** 63n - 1n), BigInt64Array.of(1n))).toEqual([-(2n ** 63n)]);
      expect(reduced('int64', 'product', BigInt64Array.of(2n ** 62n + 3n), BigInt64Array.of(4n))).toEqual([12n]);
      expect(reduced('int64', 'min', BigInt64Array.of(-1n), BigInt64Array.of(1n))).toEqual([-1n]);
    });

    it('orders zeros and keeps NaN in min and max', () => {
      const run = (op: CombineOp, a: number, b: number): number => {
        const target = new Float32Array(1);
        kernels.reduce('float32', op, [bytesOf(target)], [bytesOf(Float32Array.of(a)), bytesOf(Float32Array.of(b))], [0, 1, -1]);
        return target[0];
      };
      for (const [a, b] of [
        [0, -0],
        [-0, 0],
      ]) {
        expect(run('min', a, b)).toBe(-0);
        expect(run('max', a, b)).toBe(0);
      }
      for (const [a, b] of [
        [NaN, 1],
        [1, NaN],
        [NaN, -Infinity],
      ]) {
        expect(run('min', a, b)).toBeNaN();
        expect(run('max', a, b)).toBeNaN();
      }
    });

    it('reads any byte but 0 as true and stores 0 or 1', () => {
      const a = Uint8Array.of(0, 0, 2, 255);
      const b = Uint8Array.of(0, 7, 0, 3);
      const run = (op: CombineOp, ...sources: Uint8Array[]): number[] => {
        const target = new Uint8Array(4);
        kernels.reduce('bool', op, [target], sources, sources.length === 1 ? [0] : [0, 1, -1]);
        return [...target];
      };
      for (const op of ['sum', 'max', 'bit-or'] as const) expect(run(op, a, b)).toEqual([0, 1, 1, 1]);
      for (const op of ['product', 'min', 'bit-and'] as const) expect(run(op, a, b)).toEqual([0, 0, 0, 1]);
      expect(run('bit-xor', a, b)).toEqual([0, 1, 1, 0]);
      expect(run('sum', a)).toEqual([0, 0, 1, 1]);
    });

    it('accumulates 16-bit floats in float32 and rounds once', () => {
      // 1 + 2^-11 + 2^-11: rounding after each step would stay at 1.
      const halves = [0x3c00, 0x1000, 0x1000].map((bits) => bytesOf(Uint16Array.of(bits)));
      const target = new Uint16Array(1);
      kernels.reduce('float16', 'sum', [bytesOf(target)], halves, [0, 1, -1, 2, -1]);
      expect(target[0]).toBe(0x3c01);
      // 1 + 2^-8 + 2^-8 in bfloat16.
      const brains = [0x3f80, 0x3b80, 0x3b80].map((bits) => bytesOf(Uint16Array.of(bits)));
      kernels.reduce('bfloat16', 'sum', [bytesOf(target)], brains, [0, 1, -1, 2, -1]);
      expect(target[0]).toBe(0x3f81);
      // The division comes before rounding: 65504 + 65504 overflows a half, its half does not.
      const large = [0x7bff, 0x7bff].map((bits) => bytesOf(Uint16Array.of(bits)));
      kernels.reduce('float16', 'sum', [bytesOf(target)], large, [0, 1, -1], 2);
      expect(target[0]).toBe(0x7bff);
    });

    it('divides, which is not to multiply by the reciprocal', () => {
      for (const divisor of [1, 2, 3, 5, 6, 7, 8, 10, 64, 96]) {
        const x = Float32Array.from({ length: 1000 }, (_, i) => i * 0.7 + 2 ** -140 * i);
        const wide = Float64Array.from(x, (value) => value / 3);
        for (const targets of [1, 2]) {
          const [float32, float64] = [new Float32Array(1000), new Float64Array(1000)];
          const others = { float32: new Float32Array(1000), float64: new Float64Array(1000) };
          const zeros = { float32: new Float32Array(1000), float64: new Float64Array(1000) };
          const into = (first: TypedArray, other: TypedArray): Uint8Array[] => [first, other].slice(0, targets).map(bytesOf);
          kernels.reduce('float32', 'sum', into(float32, others.float32), [bytesOf(x), bytesOf(zeros.float32)], [0, 1, -1], divisor);
          kernels.reduce('float64', 'sum', into(float64, others.float64), [bytesOf(wide), bytesOf(zeros.float64)], [0, 1, -1], divisor);
          expect(float32).toEqual(x.map((value) => value / divisor));
          expect(float64).toEqual(wide.map((value) => value / divisor));
        }
      }
    });

    it('follows the tree', () => {
      const sources = [1, 2 ** -24, 2 ** -24].map((value) => bytesOf(Float32Array.of(value)));
      const target = new Float32Array(1);
      kernels.reduce('float32', 'sum', [bytesOf(target)], sources, [0, 1, -1, 2, -1]);
      expect(target[0]).toBe(1);
      kernels.reduce('float32', 'sum', [bytesOf(target)], sources, [0, 1, 2, -1, -1]);
      expect(target[0]).toBe(1 + 2 ** -23);
    });

    it('keeps denormals', () => {
      const target = new Float32Array(1);
      const least = bytesOf(Float32Array.of(2 ** -149));
      kernels.reduce('float32', 'sum', [bytesOf(target)], [least, bytesOf(Float32Array.of(2 ** -149))], [0, 1, -1]);
      expect(target[0]).toBe(2 ** -148);
    });

    it('writes the same bits to every target, a target being one of the sources or not', () => {
      for (const n of [2, 3, 5, 8]) {
        const sources = Array.from({ length: n }, (_, k) => randomElements('float32', 1003, k));
        const expected = new Uint8Array(1003 * 4);
        kernels.reduce(
          'float32',
          'sum',
          [expected],
          sources.map((source) => source.slice()),
          balancedTree(n),
          0.25,
        );
        const extra = new Uint8Array(1003 * 4);
        kernels.reduce('float32', 'sum', [...sources, extra], sources, balancedTree(n), 0.25);
        for (const target of [...sources, extra]) expect(canonicalBits('float32', target)).toEqual(canonicalBits('float32', expected));
      }
    });

    it('accepts empty operands and shared buffers', () => {
      kernels.reduce('float32', 'sum', [new Uint8Array(0)], [new Uint8Array(0), new Uint8Array(0)], [0, 1, -1]);
      const shared = new Float32Array(new SharedArrayBuffer(24));
      shared.set([1, 2, 3, 4]);
      const part = (from: number) => new Uint8Array(shared.buffer, from * 4, 8);
      kernels.reduce('float32', 'sum', [part(4)], [part(0), part(2)], [0, 1, -1]);
      expect([...shared]).toEqual([1, 2, 3, 4, 4, 6]);
    });

    it('takes many sources and deep trees', () => {
      const n = 300;
      const sources = Array.from({ length: n }, (_, k) => bytesOf(Int32Array.of(k, -k)));
      const target = new Int32Array(2);
      for (const tree of [balancedTree(n), [...sources.keys(), ...Array.from({ length: n - 1 }, () => -1)]]) {
        kernels.reduce('int32', 'sum', [bytesOf(target)], sources, tree);
        expect([...target]).toEqual([44850, -44850]);
      }
    });
  });

  describe('scale', () => {
    it('multiplies floats once, 16-bit floats in float32', () => {
      const x = Float32Array.of(1, -3, 1e-45, Infinity);
      kernels.scale('float32', bytesOf(x), bytesOf(x), 1 / 3);
      expect([...x]).toEqual([1 / 3, -3 * Math.fround(1 / 3), 0, Infinity].map(Math.fround));
      const half = Uint16Array.of(0x4200); // 3
      kernels.scale('float16', bytesOf(half), bytesOf(half), 0.5);
      expect(half[0]).toBe(0x3e00);
    });
  });

  describe('convert', () => {
    const convert = (from: DType, values: TypedArray, to: DType): (number | bigint)[] => {
      const target = new Uint8Array(values.length * dtypeInfo(to).bytes);
      kernels.convert(to, target, from, bytesOf(values));
      return [...viewOf(to, target.buffer, 0, values.length)];
    };

    it('rounds floats to nearest even, once', () => {
      // Just above the middle of two halves, and of two bfloat16: an intermediate float32 would land in the middle.
      expect(convert('float64', Float64Array.of(1 + 2 ** -11, 1 + 2 ** -11 + 2 ** -40, 1 + 3 * 2 ** -11), 'float16')).toEqual([
        0x3c00, 0x3c01, 0x3c02,
      ]);
      expect(convert('float64', Float64Array.of(1 + 2 ** -8, 1 + 2 ** -8 + 2 ** -40), 'bfloat16')).toEqual([0x3f80, 0x3f81]);
      expect(convert('float32', Float32Array.of(65519.996, 65520, 2 ** -25, 2 ** -25 * 1.0001, 2 ** -24, -0), 'float16')).toEqual([
        0x7bff, 0x7c00, 0, 1, 1, 0x8000,
      ]);
      expect(convert('int64', BigInt64Array.of(2n ** 62n + 2n ** 38n, 2n ** 62n + 2n ** 38n + 1n), 'float32')).toEqual([
        2 ** 62,
        2 ** 62 + 2 ** 39,
      ]);
      expect(convert('int64', BigInt64Array.of(2n ** 62n + 2n ** 54n + 1n), 'bfloat16')).toEqual([0x5e81]);
    });

    it('truncates and saturates floats to integers; NaN gives 0', () => {
      const wild = Float64Array.of(NaN, Infinity, -Infinity, 1.9, -1.9, 300, -300, 2 ** 40, 2 ** 63);
      expect(convert('float64', wild, 'int8')).toEqual([0, 127, -128, 1, -1, 127, -128, 127, 127]);
      expect(convert('float64', wild, 'uint8')).toEqual([0, 255, 0, 1, 0, 255, 0, 255, 255]);
      expect(convert('float64', wild, 'int32')).toEqual([0, 2147483647, -2147483648, 1, -1, 300, -300, 2147483647, 2147483647]);
      expect(convert('float64', wild, 'uint32')).toEqual([0, 4294967295, 0, 1, 0, 300, 0, 4294967295, 4294967295]);
      const max = 2n ** 63n - 1n;
      expect(convert('float64', wild, 'int64')).toEqual([0n, max, -(2n ** 63n), 1n, -1n, 300n, -300n, 2n ** 40n, max]);
    });

    it('wraps integers, and reads everything but 0 as true', () => {
      expect(convert('int32', Int32Array.of(-1, 256, 130), 'uint8')).toEqual([255, 0, 130]);
      expect(convert('int8', Int8Array.of(-1), 'int64')).toEqual([-1n]);
      expect(convert('int8', Int8Array.of(-1), 'uint32')).toEqual([4294967295]);
      expect(convert('int64', BigInt64Array.of(2n ** 40n + 5n, -1n), 'int16')).toEqual([5, -1]);
      expect(convert('float32', Float32Array.of(0, -0, NaN, 0.1), 'bool')).toEqual([0, 0, 1, 1]);
      expect(convert('int64', BigInt64Array.of(2n ** 40n, 0n), 'bool')).toEqual([1, 0]);
      expect(convert('bool', Uint8Array.of(0, 9), 'float32')).toEqual([0, 1]);
    });

    it.each(['float16', 'bfloat16'] as const)('gives back every %s after float32, and its value is right', (dtype) => {
      const all = Uint16Array.from({ length: 65536 }, (_, bits) => bits);
      const wide = new Float32Array(65536);
      kernels.convert('float32', bytesOf(wide), dtype, bytesOf(all));
      const [mantissaBits, bias] = dtype === 'float16' ? [10, 15] : [7, 127];
      const exponents = 2 ** (15 - mantissaBits) - 1;
      for (let bits = 0; bits < 65536; bits++) {
        const exponent = (bits >> mantissaBits) & exponents;
        const mantissa = (bits & (2 ** mantissaBits - 1)) / 2 ** mantissaBits;
        const magnitude =
          exponent === 0
            ? mantissa * 2 ** (1 - bias)
            : exponent < exponents
              ? (1 + mantissa) * 2 ** (exponent - bias)
              : mantissa === 0
                ? Infinity
                : NaN;
        const value = bits & 0x8000 ? -magnitude : magnitude;
        if (!Object.is(wide[bits], value)) expect(wide[bits], `bits ${bits}`).toBe(value);
      }
      const back = new Uint8Array(65536 * 2);
      kernels.convert(dtype, back, 'float32', bytesOf(wide));
      expect(canonicalBits(dtype, back)).toEqual(canonicalBits(dtype, bytesOf(all)));
    });
  });

  it('copies', () => {
    const source = Uint8Array.of(1, 2, 3);
    const target = new Uint8Array(3);
    kernels.copy(target, source);
    expect([...target]).toEqual([1, 2, 3]);
  });

  describe('refuses', () => {
    const buffer = new ArrayBuffer(256);
    const at = (offset: number, bytes = 16) => new Uint8Array(buffer, offset, bytes);
    const usage: [string, () => void][] = [
      ['a target that overlaps a source in part', () => kernels.reduce('float32', 'sum', [at(4)], [at(0), at(64)], [0, 1, -1])],
      ['targets that overlap', () => kernels.reduce('float32', 'sum', [at(128), at(132)], [at(0), at(64)], [0, 1, -1])],
      ['the same target twice', () => kernels.reduce('float32', 'sum', [at(128), at(128)], [at(0), at(64)], [0, 1, -1])],
      ['sources that overlap', () => kernels.reduce('float32', 'sum', [at(128)], [at(0), at(8)], [0, 1, -1])],
      ['a wrong alignment', () => kernels.reduce('float32', 'sum', [at(128)], [at(2), at(64)], [0, 1, -1])],
      ['different lengths', () => kernels.reduce('float32', 'sum', [at(128, 20)], [at(0), at(64)], [0, 1, -1])],
      ['parts of elements', () => kernels.reduce('float32', 'sum', [at(128, 6)], [at(0, 6)], [0])],
      ['no target', () => kernels.reduce('float32', 'sum', [], [at(0)], [0])],
      ['no sources', () => kernels.reduce('float32', 'sum', [at(0)], [], [])],
      ['a tree with a source that is not there', () => kernels.reduce('float32', 'sum', [at(128)], [at(0)], [1])],
      ['a tree that combines nothing', () => kernels.reduce('float32', 'sum', [at(128)], [at(0)], [0, -1])],
      ['a tree that leaves two values', () => kernels.reduce('float32', 'sum', [at(128)], [at(0), at(32)], [0, 1])],
      ['a tree of fractions', () => kernels.reduce('float32', 'sum', [at(128)], [at(0)], [0.5])],
      ['a NaN scale', () => kernels.reduce('float32', 'sum', [at(128)], [at(0)], [0], NaN)],
      ['scaling over a part of itself', () => kernels.scale('float64', at(8), at(0), 2)],
      ['converting to another count', () => kernels.convert('float32', at(128), 'float64', at(0))],
      ['converting over a part of itself', () => kernels.convert('float32', at(0, 8), 'float64', at(0))],
      ['copying over a part of itself', () => kernels.copy(at(1), at(0))],
      ['copying another length', () => kernels.copy(at(64, 8), at(0))],
    ];
    it.each(usage)('%s', (_, call) => {
      const before = new Uint8Array(buffer).slice();
      expect(call).toThrow(expect.objectContaining({ name: 'ShoalError', code: 'usage' }));
      expect(new Uint8Array(buffer)).toEqual(before);
    });

    it('operators that are not defined on the dtype, factors on integers, unknown dtypes', () => {
      const calls = [
        () => kernels.reduce('float32', 'bit-or', [at(128)], [at(0)], [0]),
        () => kernels.reduce('int32', 'sum', [at(128)], [at(0)], [0], 2),
        () => kernels.scale('int32', at(128), at(0), 2),
        () => kernels.reduce('float8' as DType, 'sum', [at(128)], [at(0)], [0]),
        () => kernels.reduce('float32', 'median' as CombineOp, [at(128)], [at(0)], [0]),
      ];
      for (const call of calls) expect(call).toThrow(expect.objectContaining({ name: 'ShoalError', code: 'unsupported' }));
    });

    it('views whose buffer is detached', () => {
      const gone = new Uint8Array(16);
      structuredClone(gone.buffer, { transfer: [gone.buffer] });
      expect(() => kernels.copy(gone, at(0))).toThrow(expect.objectContaining({ code: 'usage' }));
    });
  });
});

const seed = fc.integer({ min: 0, max: 2 ** 31 });

describe.skipIf(native === undefined)(
  `addon and twin agree${native === undefined ? ` (skipped: ${nativeUnavailableReason()})` : ''}`,
  () => {
    const pairs = dtypeNames.flatMap((dtype) => combineOps.filter((op) => isDefined(op, dtype)).map((op) => ({ dtype, op })));

    it('covers every pair of dtype and operator', () => {
      expect(pairs.length).toBe(4 * 4 + 8 * 7);
    });

    it.each(pairs)('reduce $dtype $op', ({ dtype, op }) => {
      const { kind } = dtypeInfo(dtype);
      fc.assert(
        fc.property(
          fc.record({
            n: fc.oneof(fc.integer({ min: 1, max: 9 }), fc.constantFrom(16, 17, 33)),
            count: fc.oneof(fc.integer({ min: 0, max: 40 }), fc.integer({ min: 500, max: 1100 })),
            targets: fc.oneof(fc.integer({ min: 1, max: 3 }), fc.constantFrom(8, 9)),
            balanced: fc.boolean(),
            misalignBy: fc.integer({ min: 0, max: 3 }),
            inPlace: fc.boolean(),
            divisor:
              kind === 'float'
                ? fc.option(fc.constantFrom(1, 2, 3, 7, 8, 0.5, -0, 1e-40, 1e300, -7.25), { nil: undefined })
                : fc.constant(undefined),
            seed,
          }),
          ({ n, count, targets, balanced, misalignBy, inPlace, divisor, seed: from }) => {
            const tree = balanced ? balancedTree(n) : randomTree(n, from);
            const results = [js, ...addons].map((kernels) => {
              const sources = Array.from({ length: n }, (_, k) => randomElements(dtype, count, from + k, misalignBy));
              const outputs = Array.from({ length: targets }, (_, k) =>
                inPlace && k < n ? sources[k] : new Uint8Array(sources[0].byteLength),
              );
              kernels.reduce(dtype, op, outputs, sources, tree, divisor);
              return outputs.map((output) => canonicalBits(dtype, output));
            });
            for (const outputs of results) for (const output of outputs) expectSameBytes(output, results[0][0]);
          },
        ),
        { numRuns: 60 },
      );
    });

    it.each(pairs)("reduce $dtype $op of the memory of a host's ranks, into all of it", ({ dtype, op }) => {
      const divisors = dtypeInfo(dtype).kind === 'float' ? [undefined, 4, 3] : [undefined];
      for (const n of [2, 3, 4, 5, 8]) {
        for (const count of [1, 7, 64, 133]) {
          for (const divisor of divisors) {
            const results = [js, ...addons].map((kernels) => {
              const data = Array.from({ length: n }, (_, k) => randomElements(dtype, count, n + k, k % 4));
              kernels.reduce(dtype, op, data, data, balancedTree(n), divisor);
              return data.map((each) => canonicalBits(dtype, each));
            });
            for (const data of results) for (const each of data) expectSameBytes(each, results[0][0]);
          }
        }
      }
    });

    it.each(dtypeNames.flatMap((from) => dtypeNames.map((to) => ({ from, to }))))('convert $from to $to', ({ from, to }) => {
      fc.assert(
        fc.property(fc.integer({ min: 0, max: 1100 }), seed, (count, start) => {
          const source = randomElements(from, count, start);
          const targets = [js, ...addons].map((kernels) => {
            const target = new Uint8Array(count * dtypeInfo(to).bytes);
            kernels.convert(to, target, from, source);
            return canonicalBits(to, target);
          });
          for (const target of targets) expectSameBytes(target, targets[0]);
        }),
        { numRuns: 20 },
      );
    });

    it.each(['float64', 'float32', 'float16', 'bfloat16'] as const)('scale %s', (dtype) => {
      fc.assert(
        fc.property(fc.integer({ min: 0, max: 1100 }), fc.double({ noNaN: true }), seed, (count, factor, start) => {
          const source = randomElements(dtype, count, start);
          const targets = [js, ...addons].map((kernels) => {
            const target = new Uint8Array(source.byteLength);
            kernels.scale(dtype, target, source, factor);
            return canonicalBits(dtype, target);
          });
          for (const target of targets) expectSameBytes(target, targets[0]);
        }),
        { numRuns: 50 },
      );
    });
  },
);
