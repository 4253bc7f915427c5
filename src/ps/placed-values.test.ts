/** Values between hosts that share no memory: what is copied, what a message still needs, and what must not arrive any more. */
import { describe, expect, it } from 'vitest';
import { downpour, sandblaster, Bench, small, type Parameter } from './testing/server-bench.ts';

const count = 20_000;
const bytes = 4 * count;
const large: Parameter = { key: 'large', dtype: 'float32', shape: [count] };
const alone = { ...sandblaster, workersPerGroup: 1, serversPerGroup: 1 } as const;
/** A large parameter lies alone in its slab, in one slice. */
const whole = { sliceBytes: bytes, frameBytes: bytes };

function floats(value: number): Float32Array {
  return new Float32Array(count).fill(value);
}

function copiedBy(bench: Bench): number[] {
  const { clients, servers } = bench.cluster;
  return [...clients, ...servers].map(({ core }) => core.counters.bytesCopied);
}

async function settled(bench: Bench, outcome: { done: boolean; error: unknown }): Promise<void> {
  await bench.cluster.settle();
  expect(outcome).toEqual({ done: true, error: undefined });
}

describe('values between hosts', () => {
  it.each([
    ['the sum is the value', false],
    ['an optimiser', true],
  ])('are copied nowhere: %s', async (_, optimizes) => {
    const bench = await Bench.of({ topology: { ...sandblaster, serversPerGroup: 1 }, mappable: false, client: whole });
    await bench.init([large]);
    if (optimizes) await bench.setOptimizer();
    const before = copiedBy(bench);
    const blocks = [0, 1].map((worker) => bench.block(worker, floats(worker + 1)));
    for (let round = 1; round <= 3; round++) {
      const pushes = blocks.map(({ ref }, worker) => bench.begin(worker, [{ key: 'large', push: ref }]));
      await settled(bench, pushes[0]);
      expect(pushes[1].done).toBe(true);
      const outs = blocks.map((_block, worker) => bench.pull(worker, 'large', bytes));
      await settled(bench, outs[0].outcome);
      for (const { floats: got } of outs) expect(new Set(got)).toEqual(new Set([optimizes ? 3 * round : 3]));
    }
    expect(bench.cluster.bytesPlaced).toBe(6 * bytes);
    const both = blocks.map(({ ref }, worker) => bench.begin(worker, [{ key: 'large', push: ref, out: ref }]));
    await settled(bench, both[0]);
    for (const { view } of blocks) expect(new Set(new Float32Array(view.buffer))).toEqual(new Set([optimizes ? 12 : 3]));
    expect(bench.cluster.bytesPlaced).toBe(8 * bytes);
    expect(copiedBy(bench)).toEqual(before);
    // Whatever a backend had lent it has back.
    expect(bench.cluster.lent).toBe(0);
  });

  it('that are small share messages, into which they are copied, and out of which', async () => {
    const bench = await Bench.of({ topology: alone, mappable: false });
    await bench.init([small]);
    const before = copiedBy(bench);
    await settled(bench, bench.push(0, 'w', Float32Array.of(1, 2, 3, 4)));
    await settled(bench, bench.pull(0, 'w', 16).outcome);
    const [client, server] = copiedBy(bench).map((copied, k) => copied - before[k]);
    expect([client, server]).toEqual([32, 16]);
  });

  it('stay as they were when the answer was made, whatever is pushed before it has arrived', async () => {
    for (const optimizes of [false, true]) {
      // Two workers that do not wait for each other.
      const bench = await Bench.of({ topology: { ...downpour, serversPerGroup: 1 }, mappable: false, client: whole, seed: 3 });
      await bench.init([large]);
      await bench.setOptimizer();
      await settled(bench, bench.push(0, 'large', floats(1)));
      const { cluster } = bench;
      const [server] = cluster.servers;
      let atOnce = 0;
      for (let round = 0; round < 20; round++) {
        const pull = bench.pull(0, 'large', bytes);
        const before = server.core.counters.bytesCopied;
        const push = bench.push(1, 'large', floats(1));
        const pushed = optimizes ? bench.push(1, 'large', floats(1)) : push;
        await settled(bench, pull.outcome);
        expect([push.done, pushed.done]).toEqual([true, true]);
        // One version, not parts of two.
        expect(new Set(pull.floats).size).toBe(1);
        if (server.core.counters.bytesCopied > before) atOnce++;
      }
      // It did happen that a message needed what was about to change; that, and only that, was copied.
      expect(atOnce).toBeGreaterThan(0);
      expect(cluster.lent).toBe(0);
    }
  });

  it('that nobody waits for any more do not arrive', async () => {
    const bench = await Bench.of({ topology: alone, mappable: false, client: whole });
    await bench.init([large]);
    await settled(bench, bench.push(0, 'large', floats(7)));
    const { cluster } = bench;
    const out = cluster.clientOf(0).values.allocate(bytes);
    const outcome = bench.begin(0, [{ key: 'large', out: out.ref }], { timeoutMs: 1000 });
    // The server answers; the answer is under way for too long.
    await cluster.breathe();
    expect(cluster.deliverOne()).toBe(true);
    cluster.clock.advance(1000);
    await cluster.breathe();
    expect(outcome).toMatchObject({ done: true, error: { code: 'timeout' } });
    out.view.fill(0x55);
    await cluster.settle();
    expect(new Set(out.view)).toEqual(new Set([0x55]));
    expect(cluster.places.size).toBe(0);
    // The same memory may be asked for again, under another key.
    const again = bench.begin(0, [{ key: 'large', out: out.ref }]);
    await settled(bench, again);
    expect(new Set(new Float32Array(out.view.buffer))).toEqual(new Set([7]));
  });
});
