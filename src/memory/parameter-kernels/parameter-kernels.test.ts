/** The contract of ParameterKernels on all implementations, and their agreement bit for bit. */
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { seededRandom, type Random } from '../../base/random.ts';
import { loadNative, nativeUnavailableReason } from '../native.ts';
import { twoBitBytes, updateRules, type ParameterKernels, type Reals, type UpdateRuleInfo } from '../parameter-kernels.ts';
import { createParameterKernels } from './create-parameter-kernels.ts';

const native = loadNative({ enabled: true });
const js = createParameterKernels();
const addons: ParameterKernels[] =
  native === undefined
    ? []
    : [createParameterKernels({ native }), createParameterKernels({ native: { parameters: native.parameters.generic } })];
const implementations = [js, ...addons].map((kernels, k) => ({ kernels, label: ['js', 'native', 'native generic'][k] }));

const specials = [0, -0, 1, -1, NaN, Infinity, -Infinity, 1e-45, -1.1e-38, 3.4e38, 65504, 65520, -70000, 6e-8, 0.5, -0.5];

function element(random: Random): number {
  if (random.integer(12) === 0) return specials[random.integer(specials.length)];
  return (random.next() * 2 - 1) * 10 ** (random.integer(9) - 6);
}

function reals(type: 'float32' | 'float64', count: number, random: Random, at: (random: Random) => number = element): Reals {
  const array = type === 'float32' ? new Float32Array(count) : new Float64Array(count);
  for (let i = 0; i < count; i++) array[i] = at(random);
  return array;
}

/** Bits of the values, with every NaN made the same. */
function bits(array: Reals): Uint8Array {
  const copy = array.map((value) => (Number.isNaN(value) ? NaN : value));
  return new Uint8Array(copy.buffer);
}

/** Bits of half floats, with every NaN made the same. */
function halfBits(bytes: Uint8Array): Uint8Array {
  const halves = new Uint16Array(bytes.slice().buffer);
  for (let i = 0; i < halves.length; i++) if ((halves[i] & 0x7fff) > 0x7c00) halves[i] = 0x7fff;
  return new Uint8Array(halves.buffer);
}

function expectSameBytes(actual: Uint8Array, expected: Uint8Array): void {
  // The whole difference is shown only when there is one: comparing long arrays element by element is slow.
  if (Buffer.compare(actual, expected) !== 0) expect(actual).toEqual(expected);
}

function parametersOf(rule: UpdateRuleInfo, random: Random): Float64Array {
  const [rescale, clip, decay, rate] = [
    random.next() * 2,
    random.integer(2) === 0 ? Infinity : random.next(),
    random.next() / 10,
    random.next(),
  ];
  const rest = Array.from({ length: rule.own.length }, () => random.next());
  return Float64Array.from([rescale, clip, decay, rate, ...rest]);
}

describe.skipIf(addons.length === 0)(`native and js agree${addons.length === 0 ? ` (skipped: ${nativeUnavailableReason()})` : ''}`, () => {
  it.each(updateRules)('$name', (rule) => {
    const check = (type: 'float32' | 'float64', count: number, seed: number, steps: number): void => {
      const random = seededRandom(seed);
      const parameters = parametersOf(rule, random);
      const value = reals(type, count, random);
      const positive = (from: Random): number => Math.abs(element(from));
      const states = Array.from({ length: rule.states.length }, () => reals(type, count, random, positive));
      const copies = implementations.map(() => ({ value: value.slice(), states: states.map((state) => state.slice()) }));
      for (let step = 0; step < steps; step++) {
        const gradient = reals(type, count, random);
        implementations.forEach(({ kernels }, k) => kernels.update(rule.name, copies[k].value, gradient, copies[k].states, parameters));
      }
      for (const copy of copies.slice(1)) {
        expectSameBytes(bits(copy.value), bits(copies[0].value));
        copy.states.forEach((state, k) => expectSameBytes(bits(state), bits(copies[0].states[k])));
      }
    };
    fc.assert(
      fc.property(fc.constantFrom('float32', 'float64'), fc.integer({ min: 0, max: 70 }), fc.nat(), (type, count, seed) => {
        check(type, count, seed, 3);
      }),
      { numRuns: 150 },
    );
    check('float32', 20_001, 7, 2);
    check('float64', 20_001, 8, 2);
  });

  it('two-bit and half encodings', () => {
    fc.assert(
      fc.property(fc.integer({ min: 0, max: 1100 }), fc.nat(), fc.constantFrom(0.5, 0.01, 3), (count, seed, threshold) => {
        const outputs = implementations.map(({ kernels }) => {
          const random = seededRandom(seed);
          const [gradient, residual] = [reals('float32', count, random) as Float32Array, reals('float32', count, random) as Float32Array];
          const [words, halves] = [new Uint8Array(twoBitBytes(count)), new Uint8Array(count * 2)];
          kernels.encodeTwoBit(words, gradient, residual, threshold);
          const left = bits(residual);
          kernels.encodeHalf(halves, gradient, residual);
          const [fromWords, fromHalves] = [new Float32Array(count), new Float32Array(count)];
          kernels.decodeTwoBit(fromWords, words, threshold);
          kernels.decodeHalf(fromHalves, halves);
          return [words, left, halfBits(halves), bits(residual), bits(fromWords), bits(fromHalves)];
        });
        for (const output of outputs) output.forEach((bytes, k) => expectSameBytes(bytes, outputs[0][k]));
      }),
      { numRuns: 200 },
    );
  });
});

describe.each(implementations)('ParameterKernels $label', ({ kernels }) => {
  it('finds the first value that is not finite', () => {
    for (const make of [(n: number) => new Float32Array(n), (n: number) => new Float64Array(n)]) {
      expect(kernels.firstNonFinite(make(0))).toBe(-1);
      const values = make(5000).fill(3e38);
      expect(kernels.firstNonFinite(values)).toBe(-1);
      for (const [at, what] of [
        [4999, NaN],
        [1024, -Infinity],
        [1023, NaN],
        [0, Infinity],
      ]) {
        values[at] = what;
        expect(kernels.firstNonFinite(values)).toBe(at);
      }
    }
  });

  it('cuts nowhere: parts give the bits of the whole', () => {
    for (const rule of updateRules) {
      const random = seededRandom(5);
      const parameters = parametersOf(rule, random);
      const [value, gradient] = [reals('float32', 101, random), reals('float32', 101, random)];
      const states = Array.from({ length: rule.states.length }, () => new Float32Array(101));
      const [inParts, partStates] = [value.slice(), states.map((state) => state.slice())];
      kernels.update(rule.name, value, gradient, states, parameters);
      for (const [from, to] of [
        [0, 1],
        [1, 18],
        [18, 18],
        [18, 101],
      ]) {
        const parts = partStates.map((state) => state.subarray(from, to));
        kernels.update(rule.name, inParts.subarray(from, to), gradient.subarray(from, to), parts, parameters);
      }
      expect(bits(inParts)).toEqual(bits(value));
    }
  });

  it('refuses operands that do not fit', () => {
    const [value, gradient] = [new Float32Array(4), new Float32Array(4)];
    const parameters = Float64Array.of(1, Infinity, 0, 0.1);
    const refused = (message: RegExp, ...rest: Parameters<ParameterKernels['update']>): void => {
      expect(() => kernels.update(...rest)).toThrow(expect.objectContaining({ code: 'usage', message: expect.stringMatching(message) }));
    };
    refused(/4 × float32 beside a value of 3/, 'sgd', new Float32Array(3), gradient, [], parameters);
    refused(/4 × float64/, 'sgd', value, new Float64Array(4), [], parameters);
    refused(/overlap/, 'sgd', value, value, [], parameters);
    refused(/needs 1 states/, 'momentum', value, gradient, [], parameters);
    refused(/needs 0 states and 4 parameters, not 0 and 5/, 'sgd', value, gradient, [], Float64Array.of(1, 1, 1, 1, 1));
    refused(
      /Int32Array/,
      'sgd',
      new Int32Array(4) as unknown as Float32Array,
      new Int32Array(4) as unknown as Float32Array,
      [],
      parameters,
    );
    refused(/no rule 'adamw'/, 'adamw' as 'adam', value, gradient, [], parameters);
    expect(() => kernels.encodeHalf(new Uint8Array(7), gradient, value)).toThrow(/8 bytes, not 7/);
    expect(() => kernels.encodeTwoBit(new Uint8Array(4), gradient, gradient, 1)).toThrow(/overlaps/);
    expect(() => kernels.decodeTwoBit(gradient, new Uint8Array(8), 1)).toThrow(/4 bytes, not 8/);
  });

  it('works on shared memory', () => {
    const shared = new Float32Array(new SharedArrayBuffer(16)).fill(1);
    kernels.update('sgd', shared, Float32Array.of(1, 2, 3, 4), [], Float64Array.of(1, Infinity, 0, 0.5));
    expect([...shared]).toEqual([0.5, 0, -0.5, -1]);
  });
});
