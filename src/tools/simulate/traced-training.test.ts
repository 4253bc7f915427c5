/** Layers of trainings whose timelines are made up. */
import { describe, expect, it } from 'vitest';
import type { ChromeEvent, ChromeTrace } from '../../trace/chrome.ts';
import { tracedTraining } from './traced-training.ts';

const bytes = [4000, 8000];

class Timeline {
  readonly events: ChromeEvent[] = [];
  now = 0;

  span(name: string, us: number, args: Readonly<Record<string, string | number>>, cat = 'user'): void {
    this.events.push({ ph: 'X', name, cat, pid: 0, tid: 0, ts: this.now, dur: us, args });
    this.now += us;
  }

  /** Records a step whose spans take `ms` times 1, 2, 3, … milliseconds: before the first layer, its forward pass, … */
  step(ms: number): void {
    const from = this.now;
    this.now += 1000 * ms;
    for (const layer of [0, 1]) {
      this.span(`wait for l${layer}`, 500, { phase: 'wait', layer, bytes: bytes[layer] });
      this.now += 1000 * ms * (2 + layer);
    }
    this.events.push({
      ph: 'X',
      name: 'forward pass',
      cat: 'user',
      pid: 0,
      tid: 0,
      ts: from,
      dur: this.now - from,
      args: { phase: 'forward' },
    });
    for (const layer of [1, 0]) {
      this.now += 1000 * ms * (5 - layer);
      this.span(`gradient of l${layer}`, 100, { phase: 'gradient', layer, bytes: bytes[layer] });
    }
    this.span('gradients averaged', 700, { phase: 'finish' });
    this.now += 1000 * ms * 6;
  }
}

function traceOf({ events }: Timeline): ChromeTrace {
  return { traceEvents: events, displayTimeUnit: 'ms', otherData: { format: 'shoal-trace', version: 1, processes: [] } };
}

describe('tracedTraining', () => {
  it("finds the times of each layer's passes, without waits; the first steps do not count", () => {
    const timeline = new Timeline();
    for (const ms of [50, 40, 1, 1, 2, 1, 1]) timeline.step(ms);
    // A ring of two passes 12,000 bytes in 0.1 ms; the second span is within the first.
    timeline.events.push({
      ph: 'X',
      name: 'all-reduce COMMUNICATION',
      cat: 'schedule',
      pid: 0,
      tid: 1,
      ts: 0,
      dur: 100,
      args: { bytes: 8000 },
    });
    timeline.events.push({
      ph: 'X',
      name: 'all-reduce COMMUNICATION',
      cat: 'schedule',
      pid: 0,
      tid: 1,
      ts: 10,
      dur: 50,
      args: { bytes: 4000 },
    });
    const found = tracedTraining([traceOf(timeline), traceOf(timeline)]);
    expect(found).toMatchObject({ workers: 2, steps: 8 });
    expect(found.layers).toEqual([
      { name: '(between passes)', bytes: 0, forwardMs: 7, backwardMs: 0 },
      { name: 'l0', bytes: 4000, forwardMs: 2, backwardMs: 5 },
      { name: 'l1', bytes: 8000, forwardMs: 3, backwardMs: 4 },
    ]);
    expect(found.stepMs).toBeCloseTo(21 + 1.9, 9);
    expect(found.gbitPerSecond).toBeCloseTo(0.96, 9);
  });

  it('refuses traces without a training: one step, or spans of other programs', () => {
    const single = new Timeline();
    single.step(1);
    const foreign = new Timeline();
    foreign.span('forward pass', 5, { phase: 1 });
    foreign.span('wait', 5, { phase: 'wait', layer: -1, bytes: 'many' });
    for (const trace of [traceOf(single), traceOf(foreign)]) {
      expect(() => tracedTraining([trace, trace])).toThrow(expect.objectContaining({ code: 'usage' }));
    }
    expect(() => tracedTraining([])).toThrow(/no two steps of a training by layers/);
  });
});
