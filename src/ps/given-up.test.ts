/** Calls and rounds that are given up: what comes later changes nothing, and nobody waits for it. */
import { describe, expect, it } from 'vitest';
import { ShoalError } from '../base/errors.ts';
import { Bench, sandblaster, small, type Parameter } from './testing/server-bench.ts';

describe('a call that timed out', () => {
  /** Worker 0 waits for worker 1, and its time is nearly over. */
  async function late(mappable: boolean) {
    const bench = await Bench.of({ topology: { ...sandblaster, serversPerGroup: 1 }, mappable });
    const { cluster } = bench;
    const large: Parameter = { key: 'large', dtype: 'float32', shape: [4096] };
    await bench.init([large]);
    const ones = new Float32Array(4096).fill(1);
    bench.push(0, 'large', ones);
    const out = bench.block(0, new Float32Array(4096).fill(5));
    const outcome = bench.begin(0, [{ key: 'large', out: out.ref }], { timeoutMs: 1000 });
    cluster.clock.advance(750);
    await cluster.settle();
    expect(outcome.done).toBe(false);
    const values = new Float32Array(out.view.buffer, out.view.byteOffset, 4096);
    return { bench, outcome, values, finish: () => bench.push(1, 'large', ones) };
  }

  it.each([{ mappable: true }, { mappable: false }])('writes nothing afterwards; mapped: $mappable', async ({ mappable }) => {
    const { bench, outcome, values, finish } = await late(mappable);
    bench.cluster.clock.advance(250);
    // A server that maps the memory has not said yet that it will not write.
    expect(outcome.done).toBe(!mappable);
    await bench.cluster.settle();
    expect(outcome.error).toMatchObject({ code: 'timeout' });
    values.fill(7);
    const pushed = finish();
    await bench.cluster.settle();
    expect(pushed).toEqual({ done: true, error: undefined });
    expect(new Set(values)).toEqual(new Set([7]));
    expect(new Set(await bench.pulled(0, 'large', 4096))).toEqual(new Set([2]));
  });

  it('ends also when its server does not answer', async () => {
    const { bench, outcome } = await late(true);
    bench.cluster.servers[0].node.frozen = true;
    bench.cluster.clock.advance(250);
    await bench.cluster.settle();
    expect(outcome.done).toBe(false);
    bench.cluster.clock.advance(2000);
    expect(outcome.error).toMatchObject({ code: 'timeout' });
  });

  it('and whose values come at that moment has timed out', async () => {
    const { bench, outcome, values, finish } = await late(true);
    const pushed = finish();
    bench.cluster.clock.advance(250);
    await bench.cluster.settle();
    expect([pushed.error, outcome.error?.code]).toEqual([undefined, 'timeout']);
    expect([[5], [2]]).toContainEqual([...new Set(values)]);
    expect(bench.cluster.faults).toEqual([]);
  });
});

it('a round that failed because a worker was lost fails for all, also when it comes back', async () => {
  const bench = await Bench.of({ topology: sandblaster, mappable: false });
  await bench.init([small]);
  await bench.setOptimizer();
  const { cluster } = bench;
  const push = async (...workers: readonly number[]): Promise<(string | undefined)[]> => {
    const outcomes = workers.map((worker) => bench.push(worker, 'w', new Float32Array(4).fill(-1)));
    await cluster.settle();
    return outcomes.map(({ done, error }) => (done ? error?.message : 'it waits'));
  };
  expect(await push(0, 1)).toEqual([undefined, undefined]);
  expect(await push(0)).toEqual(['it waits']);
  const [, lost] = cluster.clients;
  for (const { core } of cluster.servers) core.peerLost(lost.address, new ShoalError('peer-lost', 'has been silent for 9 s'));
  await cluster.settle();
  // Messages that servers were lent are back.
  expect(cluster.lent).toBe(0);
  expect(await push(0)).toEqual([expect.stringContaining("round 3 of 'w' cannot be completed: worker 1: has been silent")]);
  expect(cluster.lent).toBe(0);
  for (const server of cluster.servers) cluster.reconnect(lost, server);
  await cluster.settle();
  expect(await push(1)).toEqual(["round 2 of 'w' was given up without worker 1"]);
  expect(await push(1)).toEqual([expect.stringContaining("round 3 of 'w' cannot be completed: worker 1: has been silent")]);
  expect(await push(0, 1)).toEqual([undefined, undefined]);
  expect(await bench.pulled(0, 'w', 4)).toEqual([-4, -4, -4, -4]);
  expect(cluster.faults).toEqual([]);
});
