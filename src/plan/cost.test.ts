import { describe, expect, it } from 'vitest';
import { PlanBuilder, span } from './builder.ts';
import { costOf, type CostModel } from './cost.ts';
import type { Plan, PlanRequest } from './ir.ts';
import { printPlan } from './print.ts';
import { grid, separateHosts } from './topology.ts';

/** Rates that are easy to add up, in seconds. */
const model: CostModel = {
  networkLatency: 100,
  networkOverhead: 1,
  networkByte: 10,
  hostLatency: 2,
  hostByte: 0.5,
  selfByte: 0.25,
  reduceByte: 0.125,
};
const data = span('data', { offset: 0, count: 4 });

function plan(topology: PlanRequest['topology'], build: (b: PlanBuilder) => void): Plan {
  const b = new PlanBuilder({ collective: 'all-reduce', topology, count: 4 });
  build(b);
  return b.finish('test', 'relaxed');
}

describe('costOf', () => {
  it('a message: overhead, latency, bytes', () => {
    const cost = costOf(
      plan(separateHosts(2), (b) => b.transfer(0, 1, data, data)),
      2,
      model,
    );
    expect(cost).toMatchObject({ networkBytes: 8, networkHops: 1, seconds: 1 + 100 + 80 });
    // The sender's flush ends when its bytes have left.
    expect(cost.ranks[0]).toMatchObject({ networkMessages: 1, networkBytesOut: 8, networkBytesIn: 0, seconds: 1 + 80, steps: 2 });
    expect(cost.ranks[1]).toMatchObject({ networkMessages: 0, networkBytesOut: 0, networkBytesIn: 8 });
  });

  it('hops add up along a chain and not beside it', () => {
    const chain = plan(separateHosts(4), (b) => {
      b.wait(b.notify(0, 1));
      b.wait(b.notify(1, 2));
      b.wait(b.notify(0, 3));
    });
    expect(costOf(chain, 4, model)).toMatchObject({ networkHops: 2, seconds: 2 * (1 + 100) });
  });

  it('senders queue at their receiver, and ranks at their host', () => {
    const incast = plan(separateHosts(4), (b) => {
      const arrivals = [1, 2, 3].map((from) => b.send(from, 0, data, b.scratch(0, 4)));
      arrivals.forEach((arrival) => b.wait(arrival));
    });
    expect(costOf(incast, 1, model).seconds).toBe(1 + 100 + 3 * 40);
    const sharedPort = plan(grid(2, 2), (b) => {
      const arrivals = [b.send(0, 2, data, data), b.send(1, 3, data, data)];
      arrivals.forEach((arrival) => b.wait(arrival));
    });
    expect(costOf(sharedPort, 1, model).seconds).toBe(1 + 100 + 2 * 40);
  });

  it('inside a host: copies and signals', () => {
    const inside = plan(grid(1, 2), (b) => {
      const slot = b.scratch(1, 4);
      b.transfer(0, 1, data, slot);
      b.combine(1, data, { left: data, right: slot, final: true });
      b.copy(1, slot, data);
    });
    const cost = costOf(inside, 1, model);
    expect(cost).toMatchObject({ networkBytes: 0, networkHops: 0, seconds: 4 * 0.5 + 2 + 8 * 0.125 + 4 * 0.25 });
    expect(cost.ranks[0].hostBytes).toBe(4);
    expect(cost.ranks[1]).toMatchObject({ hostBytes: 0, reduceBytes: 8, scratchBytes: 16 });
  });

  it('entry steps come before every channel', () => {
    const boxed = plan(grid(1, 2), (b) => {
      const box = b.enter(0, data);
      b.copy(1, data, { ...box, rank: 0 });
    });
    const cost = costOf(boxed, 1, model);
    expect(cost.seconds).toBe(4 * 0.25 + 4 * 0.5);
    expect(cost.ranks.map(({ steps, hostBytes }) => [steps, hostBytes])).toEqual([
      [1, 0],
      [1, 4],
    ]);
  });

  it('mailboxes take their bytes to every other host, and are read there as own memory', () => {
    const boxed = plan({ hosts: [[0, 1], [2]] }, (b) => {
      const box = b.enter(0, data);
      for (const rank of [1, 2]) b.copy(rank, data, { ...box, rank: 0 });
    });
    const cost = costOf(boxed, 1, model);
    expect(cost).toMatchObject({ networkBytes: 4, networkHops: 0 });
    const entered = 4 * 0.25 + 4 * 10;
    expect(cost.ranks.map(({ seconds }) => seconds - entered)).toEqual([0, 4 * 0.5, 4 * 0.25]);
    expect(cost.ranks.map(({ hostBytes }) => hostBytes)).toEqual([0, 4, 0]);
  });

  it('refuses a plan that never ends', () => {
    const stuck = plan(separateHosts(2), (b) => b.wait({ rank: 0, signal: b.notify(1, 0).signal, value: 2 }));
    expect(() => costOf(stuck, 4, model)).toThrow('test all-reduce: rank 0 never ends');
  });
});

describe('printPlan', () => {
  it('prints one line per step', () => {
    const text = printPlan(
      plan({ hosts: [[0, 1]] }, (b) => {
        const slot = b.scratch(1, 4);
        b.transfer(0, 1, data, slot);
        b.combine(1, data, { left: slot, right: data, final: true });
        b.onChannel(1, () => b.notify(1, 0));
        b.enter(0, data);
      }),
    );
    expect(text).toBe(
      [
        'test all-reduce · 4 elements · hosts [0 1] · relaxed order',
        '',
        'rank 0 · scratch 0 · signals 1',
        ' entry',
        '  0  copy    mailbox[0, 4) := data[0, 4)',
        ' channel 0',
        '  0  put     data[0, 4) → rank 1 scratch[0, 4), raises 0',
        '  1  flush',
        '',
        'rank 1 · scratch 16 · signals 1',
        ' channel 0',
        '  0  wait    0 ≥ 1',
        '  1  reduce  data[0, 4) := (scratch[0, 4) ⊕ data[0, 4)), final',
        ' channel 1',
        '  0  signal  rank 0, raises 0',
      ].join('\n'),
    );
    expect(
      printPlan(
        plan({ hosts: [[0, 1]] }, () => {}),
        { rank: 1 },
      ),
    ).toBe('test all-reduce · 4 elements · hosts [0 1] · relaxed order\n\nrank 1 · scratch 0 · signals 0');
  });
});
