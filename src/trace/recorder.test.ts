import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { VirtualClock } from '../base/clock.ts';
import { counterKind, createRecorder, instantKind, nullRecorder, spanKind, type RecorderOptions, type TraceRecorder } from './recorder.ts';

function start(options: Partial<RecorderOptions> = {}): { clock: VirtualClock; recorder: TraceRecorder } {
  const clock = new VirtualClock();
  return { clock, recorder: createRecorder({ clock, thread: 'main', ...options }) };
}

describe('createRecorder', () => {
  it('records spans, instants and counters with their times and arguments', () => {
    const { clock, recorder } = start();
    const reduce = recorder.name('all-reduce', { category: 'group', argument: 'bytes' });
    const channel = recorder.lane('channel 0');
    recorder.begin(reduce, channel, 4096);
    clock.advance(2);
    recorder.instant(recorder.name('late'));
    const startMs = recorder.now();
    clock.advance(1);
    recorder.end(channel);
    recorder.complete(recorder.name('write'), startMs, channel, 8);
    recorder.counter(recorder.name('queued'), 3);

    const snapshot = recorder.snapshot();
    expect([...snapshot.kinds]).toEqual([instantKind, spanKind, spanKind, counterKind]);
    expect([...snapshot.timesMs]).toEqual([2, 0, 2, 3]);
    expect([...snapshot.values]).toEqual([0, 3, 1, 3]);
    expect([...snapshot.arguments]).toEqual([0, 4096, 8, 0]);
    expect([...snapshot.laneIds]).toEqual([0, channel, channel, 0]);
    expect([...snapshot.nameIds].map((id) => snapshot.names[id].text)).toEqual(['late', 'all-reduce', 'write', 'queued']);
    expect(snapshot.lanes).toEqual(['main', 'channel 0']);
  });

  it('keeps the latest events and counts those that fell out', () => {
    const { recorder } = start({ eventsMax: 4 });
    const name = recorder.name('n');
    for (let i = 0; i < 10; i++) recorder.instant(name, 0, i);
    const snapshot = recorder.snapshot();
    expect([...snapshot.arguments]).toEqual([6, 7, 8, 9]);
    expect(snapshot.dropped).toBe(6);
  });

  it('shows open spans as ending now and still ends them later', () => {
    const { clock, recorder } = start();
    recorder.begin(recorder.name('step'));
    clock.advance(5);
    expect([...recorder.snapshot().values]).toEqual([5]);
    clock.advance(5);
    recorder.end();
    expect([...recorder.snapshot().values]).toEqual([10]);
  });

  it('gives a name one handle and stays within its bounds', () => {
    const { recorder } = start({ namesMax: 3, lanesMax: 2, depthMax: 2 });
    const first = recorder.name('a');
    expect(recorder.name('a')).toBe(first);
    expect(recorder.name('a', { argument: 'bytes' })).not.toBe(first);
    expect(recorder.name('one too many')).toBe(0);
    expect(recorder.lane('x')).toBe(1);
    expect(recorder.lane('one too many')).toBe(0);
    for (let i = 0; i < 5; i++) recorder.begin(first);
    for (let i = 0; i < 5; i++) recorder.end();
    recorder.end();
    expect(recorder.snapshot().kinds).toHaveLength(2);
  });

  it('gives plain data that survives a structured clone', () => {
    const { recorder } = start();
    recorder.instant(recorder.name('x'));
    expect(structuredClone(recorder.snapshot())).toEqual(recorder.snapshot());
  });

  it('never holds half a span, whatever is recorded', () => {
    const action = fc.constantFrom('begin', 'end', 'instant');
    fc.assert(
      fc.property(fc.array(action, { maxLength: 200 }), fc.integer({ min: 1, max: 8 }), (actions, eventsMax) => {
        const { clock, recorder } = start({ eventsMax, depthMax: 4 });
        const name = recorder.name('n');
        for (const one of actions) {
          clock.advance(1);
          if (one === 'begin') recorder.begin(name);
          else if (one === 'end') recorder.end();
          else recorder.instant(name);
        }
        const { kinds, timesMs, values } = recorder.snapshot();
        expect(kinds.length).toBeLessThanOrEqual(eventsMax + 4);
        for (const [i, kind] of kinds.entries()) {
          if (kind === spanKind) expect(timesMs[i] + values[i]).toBeLessThanOrEqual(clock.now());
        }
      }),
    );
  });
});

describe('nullRecorder', () => {
  it('records nothing', () => {
    nullRecorder.begin(nullRecorder.name('x'));
    nullRecorder.end();
    nullRecorder.counter(0, 1);
    expect(nullRecorder.enabled).toBe(false);
    expect(nullRecorder.snapshot().kinds).toHaveLength(0);
  });
});
