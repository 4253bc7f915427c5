/** Parameters of 16 bits with an optimiser: updates below their precision add up, whatever becomes of servers meanwhile. */
import { describe, expect, it } from 'vitest';
import { createKernels } from '../memory/kernels/create-kernels.ts';
import { createParameterKernels } from '../memory/parameter-kernels/create-parameter-kernels.ts';
import { createOptimizer } from './optimizers/registry.ts';
import type { KVTopology } from './protocol/topology.ts';
import { adding, Bench, hogwild, sandblaster, type Parameter } from './testing/server-bench.ts';
import type { ClusterOptions } from './testing/simulated-cluster.ts';
import { firstNonFinite, updateValue } from './values/mixed-precision.ts';

const kernels = createKernels();
const parameterKernels = createParameterKernels();

type Half = 'float16' | 'bfloat16';
const halves = ['float16', 'bfloat16'] as const;

function toBits(dtype: Half, numbers: readonly number[]): Uint16Array {
  const bits = new Uint16Array(numbers.length);
  kernels.convert(dtype, new Uint8Array(bits.buffer), 'float32', new Uint8Array(Float32Array.from(numbers).buffer));
  return bits;
}

function toNumbers(dtype: Half, bits: Uint16Array): number[] {
  const numbers = new Float32Array(bits.length);
  kernels.convert(
    'float32',
    new Uint8Array(numbers.buffer),
    dtype,
    Uint8Array.from(new Uint8Array(bits.buffer, bits.byteOffset, bits.byteLength)),
  );
  return [...numbers];
}

/** One value with its master; an update takes the gradient away. */
function single(dtype: Half, first: number): { set(number: number): void; update(gradient: number): void; value: () => number } {
  const optimizer = createOptimizer(adding, parameterKernels);
  const [value, master] = [toBits(dtype, [first]), new Float32Array(1)];
  let step = 0;
  return {
    set: (number) => value.set(toBits(dtype, [number])),
    value: () => toNumbers(dtype, value)[0],
    update: (gradient) => {
      const bytes = (array: Uint16Array | Float32Array): Uint8Array => new Uint8Array(array.buffer);
      const states = [bytes(master)];
      updateValue(kernels, optimizer, { dtype, value: bytes(value), gradient: bytes(Float32Array.of(gradient)), states, step: ++step });
    },
  };
}

describe.each(halves)('a value of %s', (dtype) => {
  it('changes when updates below its precision have added up', () => {
    const one = single(dtype, 4096);
    for (let k = 0; k < 100; k++) one.update(-1);
    expect(one.value()).toBe(toNumbers(dtype, toBits(dtype, [4196]))[0]);
  });

  it('keeps what has not shown yet when somebody else changes it', () => {
    const one = single(dtype, 4096);
    // Neither half shows by itself.
    one.update(-1);
    const before = one.value();
    one.set(before + 64);
    for (let k = 0; k < 63; k++) one.update(-1);
    expect(one.value()).toBe(4096 + 64 + 64);
  });

  it('becomes what it is set to after it was infinite', () => {
    const one = single(dtype, 1);
    one.update(-Infinity);
    expect(one.value()).toBe(Infinity);
    one.set(2);
    one.update(-1);
    expect(one.value()).toBe(3);
  });

  it.each([NaN, Infinity, -Infinity])('is known not to be finite: %d', (bad) => {
    const bytes = (numbers: readonly number[]): Uint8Array => new Uint8Array(toBits(dtype, numbers).buffer);
    expect(firstNonFinite(parameterKernels, dtype, bytes([1, -60_000, 0, 2 ** -14]))).toBe(-1);
    expect(firstNonFinite(parameterKernels, dtype, bytes([1, -60_000, bad, 0]))).toBe(2);
  });
});

/** Rounds of two workers: both of a bench with one worker group, or each of its own. */
const parameters = halves.flatMap((dtype): Parameter[] => [
  { key: `small ${dtype}`, dtype, shape: [3] },
  { key: `large ${dtype}`, dtype, shape: [5000] },
]);
const cluster = {
  client: { sliceBytes: 4096 },
  createOptimizer: (spec: Parameters<typeof createOptimizer>[0]) => createOptimizer(spec, parameterKernels),
};

async function benchOf(topology: KVTopology, options: Partial<ClusterOptions> = {}): Promise<Bench> {
  const bench = await Bench.of({ topology, ...cluster, ...options });
  await bench.init(parameters);
  await bench.setOptimizer();
  return bench;
}

async function push(bench: Bench, gradient: number): Promise<void> {
  const outcomes = [0, 1].flatMap((worker) =>
    parameters.map(({ key, dtype, shape }) =>
      bench.push(
        worker,
        key,
        toBits(
          dtype as Half,
          Array.from({ length: shape[0] }, () => gradient),
        ),
      ),
    ),
  );
  await bench.cluster.settle();
  expect(outcomes.filter(({ done, error }) => !done || error !== undefined)).toEqual([]);
}

async function expectAll(bench: Bench, number: number): Promise<void> {
  for (const { key, dtype, shape } of parameters) {
    const out = bench.cluster.clientOf(1).values.allocate(2 * shape[0]);
    const outcome = bench.begin(1, [{ key, out: out.ref }]);
    await bench.cluster.settle();
    expect(outcome).toEqual({ done: true, error: undefined });
    expect([...new Set(toNumbers(dtype as Half, new Uint16Array(out.view.buffer, 0, shape[0])))], key).toEqual([number]);
  }
}

/** 2048, and 64 more in steps of two workers of which none shows by itself. */
const [first, step, steps] = [-1024, -0.5, 64];

async function someSteps(bench: Bench): Promise<void> {
  for (let k = 0; k < steps / 2; k++) await push(bench, step);
}

describe('on servers', () => {
  it('a standby has the masters', async () => {
    const bench = await benchOf({ ...sandblaster, replicas: 2 });
    await push(bench, first);
    await someSteps(bench);
    for (const server of bench.cluster.servers) {
      bench.cluster.kill(server);
      bench.cluster.promote(server);
    }
    await bench.cluster.settle();
    await someSteps(bench);
    await expectAll(bench, 2048 + 64);
  });

  it('a checkpoint has the masters', async () => {
    const bench = await benchOf(sandblaster, { disks: true, server: { checkpointEveryMs: 10 } });
    await push(bench, first);
    await someSteps(bench);
    for (const server of bench.cluster.servers) {
      bench.cluster.clock.advance(10);
      await bench.cluster.settle();
      bench.cluster.kill(server);
      await bench.cluster.restart(server);
    }
    await bench.cluster.settle();
    await someSteps(bench);
    await expectAll(bench, 2048 + 64);
  });

  it('state that two servers saved is loaded, with the masters, by three', async () => {
    const saved = await benchOf(sandblaster);
    await push(saved, first);
    await someSteps(saved);
    await saved.cluster.run<void>((done) => saved.cluster.clients[0].core.state(0, 'save', 'f', done));
    const bench = await benchOf({ ...sandblaster, serversPerGroup: 3 }, { folders: saved.cluster.folders, client: { sliceBytes: 3000 } });
    await push(bench, 1);
    await bench.cluster.run<void>((done) => bench.cluster.clients[0].core.state(0, 'load', 'f', done));
    await someSteps(bench);
    await expectAll(bench, 2048 + 64);
  });

  it('server groups add what others have changed to their masters', async () => {
    const bench = await benchOf(hogwild);
    await push(bench, first);
    await bench.exchanged();
    // Each group alone makes half of it.
    for (let k = 0; k < steps; k++) await push(bench, step / 2);
    await bench.exchanged();
    await push(bench, 0);
    await bench.exchanged();
    for (const { key, dtype } of parameters.filter(({ shape }) => shape[0] === 3)) {
      const out = bench.cluster.clientOf(1).values.allocate(6);
      bench.begin(1, [{ key, out: out.ref }]);
      await bench.cluster.settle();
      const [value] = toNumbers(dtype as Half, new Uint16Array(out.view.buffer, 0, 3));
      // A failure that has not shown in either group is not known to the other.
      expect(Math.abs(value - (2048 + 32)), `${key}: ${value}`).toBeLessThanOrEqual(dtype === 'float16' ? 2 : 16);
    }
  });

  it('sums of gradients are not limited by the range of 16 bits', async () => {
    const bench = await benchOf(sandblaster);
    await bench.setOptimizer({ ...adding, rescale: 2 ** -10, nonFinite: 'refuse' });
    await push(bench, -61_440);
    await expectAll(bench, 120);
  });

  it('a gradient that is not finite is refused, whole', async () => {
    const bench = await benchOf(sandblaster);
    await bench.setOptimizer({ ...adding, nonFinite: 'refuse' });
    await push(bench, -1);
    const bad = toBits(
      'float16',
      Array.from({ length: 5000 }, (_, k) => (k === 4999 ? NaN : 1)),
    );
    const fine = toBits(
      'float16',
      Array.from({ length: 5000 }, () => 1),
    );
    const outcomes = [bench.push(0, 'large float16', fine), bench.push(1, 'large float16', bad)];
    await bench.cluster.settle();
    for (const { error } of outcomes)
      expect(error?.message).toContain("the gradient of worker 1 for 'large float16' holds NaN or infinity");
    await expectAll(bench, 2);
  });
});
