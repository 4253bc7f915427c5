import { describe, expect, it } from 'vitest';
import { at, PlanBuilder, span, within } from './builder.ts';
import type { PlanRequest } from './ir.ts';
import { oneHost } from './topology.ts';

const request: PlanRequest = { collective: 'all-reduce', topology: oneHost(3), count: 40 };
const data = span('data', { offset: 0, count: 40 });

describe('PlanBuilder', () => {
  it('numbers a signal per raising rank and channel, and counts its raises', () => {
    const b = new PlanBuilder(request);
    const first = b.notify(1, 0);
    const second = b.send(1, 0, data, b.scratch(0, 40));
    const other = b.notify(2, 0);
    let onOtherChannel: ReturnType<typeof b.notify> | undefined;
    b.onChannel(1, () => (onOtherChannel = b.notify(1, 0)));
    expect([first, second, other, onOtherChannel]).toEqual([
      { rank: 0, signal: 0, value: 1 },
      { rank: 0, signal: 0, value: 2 },
      { rank: 0, signal: 1, value: 1 },
      { rank: 0, signal: 2, value: 1 },
    ]);
    expect(b.finish('test', 'none').programs.map(({ signalCount }) => signalCount)).toEqual([3, 0, 0]);
  });

  it('emits a wait once, and none that an earlier one implies', () => {
    const b = new PlanBuilder(request);
    const [first, second] = [b.notify(1, 0), b.notify(1, 0)];
    for (const arrival of [second, first, second, undefined]) b.wait(arrival);
    expect(b.finish('test', 'none').programs[0].channels).toEqual([[{ kind: 'wait', signal: 0, value: 2 }]]);
  });

  it('drops steps that move nothing', () => {
    const b = new PlanBuilder(request);
    const nothing = within(data, 3, 0);
    b.transfer(0, 1, nothing, nothing);
    b.copy(0, nothing, nothing);
    b.copy(0, data, at(0, data));
    b.combine(0, nothing, { left: nothing, right: nothing, final: false });
    b.reduceAll(0, [nothing], () => nothing);
    b.flush(0);
    const plan = b.finish('test', 'none');
    expect(plan.programs.map(({ channels }) => channels)).toEqual([[[]], [[]], [[]]]);
    expect(plan.partials).toBe(false);
  });

  it('flushes every channel that sent, at the end, unless it has', () => {
    const b = new PlanBuilder(request);
    b.transfer(0, 1, data, data);
    b.flush(0);
    b.onChannel(1, () => b.transfer(0, 1, data, data));
    const { channels } = b.finish('test', 'none').programs[0];
    expect(channels.map((steps) => steps.map(({ kind }) => kind))).toEqual([
      ['put', 'flush'],
      ['put', 'flush'],
    ]);
  });

  it('lays scratch out on lines', () => {
    const b = new PlanBuilder(request);
    expect([b.scratch(0, 3), b.scratch(0, 0), b.scratch(0, 17), b.scratch(1, 1)].map(({ offset }) => offset)).toEqual([0, 16, 16, 0]);
    expect(b.finish('test', 'none').programs.map(({ scratchCount }) => scratchCount)).toEqual([48, 16, 0]);
  });

  it('keeps the program of one rank as it is in the whole plan', () => {
    const build = (options: { onlyRank?: number }): ReturnType<PlanBuilder['finish']> => {
      const b = new PlanBuilder(request, options);
      for (const from of [2, 0, 1]) {
        b.enter(from, within(data, 0, 8));
        for (const to of b.peersOf(from)) b.transfer(from, to, data, b.scratch(to, 40));
        b.combine(from, data, { left: data, right: data, final: from === 1 });
      }
      return b.finish('test', 'relaxed');
    };
    const whole = build({});
    for (const rank of [0, 1, 2]) {
      const own = build({ onlyRank: rank });
      expect(own.programs[rank]).toEqual(whole.programs[rank]);
      expect(own).toMatchObject({ onlyRank: rank, partials: true });
      const others = own.programs.filter((program) => program.rank !== rank);
      expect(others.flatMap(({ entry, channels }) => [...entry, ...channels.flat()])).toEqual([]);
    }
  });

  it('emits a loop once where a rank hears as much of all others each time, else every time', () => {
    const build = (from: readonly number[]): readonly { kind: string }[] => {
      const b = new PlanBuilder(request, { onlyRank: 0, loops: true });
      b.barrier();
      b.loop(3, 8, (time) => {
        for (const rank of from) b.wait(b.notify(rank, 0));
        b.copy(0, within(data, 8 * time, 8), b.scratchOf(0, 8));
      });
      b.wait(b.notify(1, 0));
      return b.finish('test', 'none').programs[0].channels[0].slice(4);
    };
    const copy = { kind: 'copy', target: within(data, 0, 8), source: { buffer: 'scratch', offset: 0, count: 8 } };
    const wait = (signal: number, value: number): object => ({ kind: 'wait', signal, value });
    const steps = [wait(0, 2), wait(1, 2), copy];
    expect(build([1, 2])).toEqual([{ kind: 'loop', times: 3, by: 8, raises: 1, steps }, wait(0, 5)]);
    expect(build([1]).map(({ kind }) => kind)).toEqual(['wait', 'copy', 'wait', 'copy', 'wait', 'copy', 'wait']);
  });

  it('a barrier notifies and awaits all ranks', () => {
    const b = new PlanBuilder(request);
    b.barrier();
    expect(b.finish('test', 'none').programs[1].channels[0]).toEqual([
      { kind: 'signal', peer: 2, signal: 1 },
      { kind: 'signal', peer: 0, signal: 0 },
      { kind: 'wait', signal: 0, value: 1 },
      { kind: 'wait', signal: 1, value: 1 },
    ]);
  });

  it('refuses impossible arguments', () => {
    const b = new PlanBuilder(request);
    expect(() => b.notify(1, 1)).toThrow('rank 1 sends to itself');
    expect(() => b.copy(0, within(data, 0, 2), within(data, 0, 3))).toThrow('copy of 3 elements into 2');
    expect(() => within(data, 30, 11)).toThrow('[30, 41) is outside a span of 40');
  });
});
