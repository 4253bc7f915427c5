import { describe, expect, it } from 'vitest';
import { algorithmNamed, buildPlan, whyUnsupported } from '../../collectives/build.ts';
import { algorithms } from '../../collectives/registry.ts';
import { buildTile, tiledRequest } from '../../collectives/tiles.ts';
import { PlanBuilder, span } from '../../plan/builder.ts';
import { costOf } from '../../plan/cost.ts';
import type { Plan, PlanRequest } from '../../plan/ir.ts';
import { grid, separateHosts } from '../../plan/topology.ts';
import { EventQueue } from './event-queue.ts';
import { presets, shardFloorBytes, type SimulationModel } from './model.ts';
import { simulate } from './simulation.ts';
import { StepLog } from './step-log.ts';

/** Rates that are easy to add up, in seconds. */
const model: SimulationModel = {
  networkLatency: 100,
  networkOverhead: 1,
  networkByte: 10,
  hostLatency: 2,
  hostByte: 0.5,
  selfByte: 0.25,
  reduceByte: 0.125,
  portsPerHost: 1,
  quantumBytes: 1,
  flows: 'pair',
  engine: 'own',
};
const data = span('data', { offset: 0, count: 4 });

function plan(topology: PlanRequest['topology'], build: (b: PlanBuilder) => void): Plan {
  const b = new PlanBuilder({ collective: 'all-reduce', topology, count: 4 });
  build(b);
  return b.finish('test', 'relaxed');
}

function seconds(each: Plan, change: Partial<SimulationModel> = {}): number {
  return simulate({ plan: each, elementBytes: 1, operations: 1, inFlight: 1 }, { ...model, ...change }).seconds;
}

describe('EventQueue', () => {
  it('acts in order of time, then of scheduling', () => {
    const queue = new EventQueue();
    const seen: string[] = [];
    for (const [event, time] of [5, 3, 9, 3, 1, 5, 7, 3].entries()) queue.at(time, event);
    queue.run((event, now) => seen.push(`e${event}@${now}`));
    expect(seen).toEqual(['e4@1', 'e1@3', 'e3@3', 'e7@3', 'e0@5', 'e5@5', 'e6@7', 'e2@9']);
  });
});

describe('simulate', () => {
  it('a message: overhead, latency, bytes, overhead', () => {
    const one = plan(separateHosts(2), (b) => b.transfer(0, 1, data, data));
    const result = simulate({ plan: one, elementBytes: 1, operations: 1, inFlight: 1 }, model);
    expect(result).toMatchObject({ seconds: 1 + 100 + 40 + 1, messages: 1, networkBytes: 4, busiestThread: 1, busiestPort: 40 });
  });

  it('flows share a port evenly, and the first message does not wait for the second', () => {
    const fan = plan(separateHosts(3), (b) => {
      const arrivals = [1, 2].map((to) => b.send(0, to, data, data));
      arrivals.forEach((arrival) => b.wait(arrival));
    });
    // Both end within a quantum of each other: 80 bytes' time on the port, beginning at 1.
    expect(seconds(fan)).toBe(1 + 80 + 100 + 1);
    const short = span('data', { offset: 0, count: 1 });
    const late = plan(separateHosts(3), (b) => {
      const long = b.send(0, 1, data, data);
      b.wait(b.send(0, 2, short, short));
      b.wait(b.notify(2, 0));
      b.wait(long);
    });
    // The short one goes second, after one quantum; first come first served it would leave at 50.
    expect(seconds(late)).toBe(1 + 10 + 10 + 100 + 1 + 1 + 100 + 1);
  });

  it('senders queue at their receiver; ports of a host are separate', () => {
    const incast = plan(separateHosts(4), (b) => {
      const arrivals = [1, 2, 3].map((from) => b.send(from, 0, data, b.scratch(0, 4)));
      arrivals.forEach((arrival) => b.wait(arrival));
    });
    expect(seconds(incast)).toBe(1 + 100 + 3 * 40 + 1);
    const pairs = plan(grid(2, 2), (b) => {
      const arrivals = [b.send(0, 2, data, data), b.send(1, 3, data, data)];
      arrivals.forEach((arrival) => b.wait(arrival));
    });
    expect(seconds(pairs)).toBe(1 + 80 + 100 + 1);
    expect(seconds(pairs, { portsPerHost: 2 })).toBe(1 + 40 + 100 + 1);
  });

  it('messages of one flow stay in order', () => {
    const two = plan(separateHosts(2), (b) => {
      b.send(0, 1, data, data);
      b.wait(b.notify(0, 1));
    });
    // The second message, without bytes, is taken in after the first one.
    expect(seconds(two)).toBe(1 + 40 + 100 + 1 + 1);
  });

  it('a rank does one thing at a time, and copies beside it when it has an engine', () => {
    const both = plan(separateHosts(2), (b) => {
      const slot = b.scratch(0, 4);
      b.onChannel(1, () => b.copy(0, slot, data));
      b.onChannel(2, () => b.copy(0, b.scratch(0, 4), data));
      b.wait(b.notify(0, 1));
    });
    expect(seconds(both, { engine: 'own', networkLatency: 0 })).toBe(2);
    expect(seconds(both, { engine: 'thread', networkLatency: 0, networkOverhead: 10 })).toBe(20);
  });

  it('operations overlap as far as they may, and each keeps its own signals', () => {
    const one = plan(separateHosts(2), (b) => {
      b.transfer(0, 1, data, data);
      b.transfer(1, 0, data, data);
    });
    const of = (inFlight: number): number => simulate({ plan: one, elementBytes: 1, operations: 4, inFlight }, model).seconds;
    expect(of(1)).toBe(4 * 2 * 142);
    expect(of(2)).toBeLessThan(of(1));
    expect(of(4)).toBeLessThan(of(2));
    expect(of(4)).toBe(of(8));
    // Four messages one after the other through the port, then the way back.
    expect(of(4)).toBeGreaterThanOrEqual(4 * 40 + 2 * 100);
  });

  it('is near the cost model, whose channels do not compete', () => {
    for (const name of ['fairring', 'halving-doubling', 'ring', 'tree']) {
      const each = buildPlan(name, {
        collective: 'all-reduce',
        topology: grid(4, 2),
        count: 2 ** 21,
        elementBytes: 4,
        pieceCount: 2 ** 16,
      });
      const simulated = simulate({ plan: each, elementBytes: 4, operations: 1, inFlight: 1 }, presets.tcp).seconds;
      expect(simulated / costOf(each, 4).seconds).toBeGreaterThan(0.8);
      expect(simulated / costOf(each, 4).seconds).toBeLessThan(1.2);
    }
  });

  it.each(algorithms.map(({ name }) => name))('steps that are logged as they are emitted take as long as those of the plan: %s', (name) => {
    const between = { collective: 'all-reduce', topology: grid(4, 2), count: 1000, elementBytes: 4, pieceCount: 100 } as const;
    const isForHosts = whyUnsupported(algorithmNamed(name), between) === undefined;
    const request: PlanRequest = isForHosts ? between : { ...between, topology: grid(1, 4) };
    const steps = new StepLog(request.topology, request.topology.hosts.flat().length, presets.tcp, 4);
    const bare = buildPlan(name, request, { onStep: (...step) => steps.add(...step) });
    expect(bare.programs.every(({ channels }) => channels.flat().length === 0)).toBe(true);
    const workload = { elementBytes: 4, operations: 3, inFlight: 2 };
    const whole = simulate({ plan: buildPlan(name, request), ...workload }, presets.tcp);
    expect(simulate({ plan: bare, steps, ...workload }, presets.tcp)).toEqual(whole);
  });

  it('a port sends the messages of a flow in order, those of other flows between them, also where they share a hash', () => {
    const each = plan(separateHosts(601), (b) => {
      for (let to = 1; to <= 600; to++) for (const offset of [0, 4]) b.wait(b.send(0, to, data, span('scratch', { offset, count: 4 })));
    });
    expect(seconds(each, { networkLatency: 0, networkOverhead: 0 })).toBe(600 * 2 * 40);
  });

  it.each([grid(1, 6), grid(5, 3), separateHosts(9)])('one host of a ring stands for all: %o', (topology) => {
    const n = topology.hosts.flat().length;
    const tiled = tiledRequest('ring', { collective: 'all-reduce', topology, count: n * 1000, elementBytes: 4, pieceCount: 256 });
    if (tiled === undefined) throw new Error('a ring on equal hosts has a tile');
    for (const preset of Object.values(presets))
      for (const [operations, inFlight] of [
        [1, 1],
        [4, 3],
      ]) {
        const [one, all] = [buildTile('ring', tiled), buildPlan('ring', tiled.request)].map((each) =>
          simulate({ plan: each, elementBytes: 4, operations, inFlight }, preset),
        );
        expect(one.seconds / all.seconds).toBeCloseTo(1, 9);
        expect({ ...one, seconds: 0, events: 0 }).toEqual({
          ...all,
          seconds: 0,
          events: 0,
          busiestThread: expect.closeTo(one.busiestThread, 12),
          busiestPort: expect.closeTo(one.busiestPort, 12),
        });
      }
  });

  it('never beats the wire, and counts its bytes', () => {
    const [hosts, ranks, bytes] = [4, 2, 2 ** 22];
    const each = buildPlan('fairring', { collective: 'all-reduce', topology: grid(hosts, ranks), count: bytes / 4, elementBytes: 4 });
    const result = simulate({ plan: each, elementBytes: 4, operations: 3, inFlight: 3 }, presets.tcp);
    expect(result.networkBytes).toBe(3 * 2 * (hosts - 1) * bytes);
    expect(result.seconds).toBeGreaterThan((result.networkBytes / hosts) * presets.tcp.networkByte);
  });

  it('many ranks cost some events per message and no more', () => {
    const each = buildPlan('fairring', { collective: 'all-reduce', topology: grid(48, 8), count: (25 * 2 ** 20) / 4, elementBytes: 4 });
    const result = simulate({ plan: each, elementBytes: 4, operations: 1, inFlight: 1 }, presets.tcp);
    expect(result.messages).toBe(48 * 47 * 8 * 2);
    expect(result.events).toBeLessThan(8 * result.messages);
    // The time is near the wire's: 2(M − 1)/M of the tensor through one port.
    const wire = ((2 * 47) / 48) * 25 * 2 ** 20 * presets.tcp.networkByte;
    expect(result.seconds / wire).toBeGreaterThan(1);
    expect(result.seconds / wire).toBeLessThan(1.2);
  });

  it.each([
    [{ networkLatency: -1 }, /networkLatency must be a finite number of at least 0, not -1/],
    [{ networkByte: Number.NaN }, /networkByte/],
    [{ portsPerHost: 0 }, /portsPerHost must be a whole number of at least 1/],
    [{ quantumBytes: 0 }, /quantumBytes must be at least 1/],
  ])('refuses %o', (change, message) => {
    expect(() =>
      seconds(
        plan(separateHosts(2), () => {}),
        change,
      ),
    ).toThrow(message);
  });
});

describe('shardFloorBytes', () => {
  it('is where a message costs its ranks as much as the wire', () => {
    expect(shardFloorBytes(presets.tcp, 1)).toBe(16 * 1024);
    expect(shardFloorBytes(presets['gpu-cluster'], 8)).toBe(128 * 1024);
  });
});
