import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { VirtualClock } from '../base/clock.ts';
import { counterKind, createRecorder, nullRecorder, spanKind, type RecorderOptions, type TraceRecorder } from './recorder.ts';

function start(options: Partial<RecorderOptions> = {}): { clock: VirtualClock; recorder: TraceRecorder } {
  const clock = new VirtualClock();
  return { clock, recorder: createRecorder({ clock, thread: 'main', ...options }) };
}

describe('createRecorder', () => {
  it('records spans and counters with their times and arguments', () => {
    const { clock, recorder } = start();
    const reduce = recorder.name('all-reduce', { category: 'group', argument: 'bytes' });
    const channel = recorder.lane('channel 0');
    const beganMs = recorder.now();
    clock.advance(2);
    recorder.complete(recorder.name('late'), recorder.now());
    const startMs = recorder.now();
    clock.advance(1);
    recorder.complete(reduce, beganMs, channel, 4096);
    recorder.complete(recorder.name('write'), startMs, channel, 8);
    recorder.counter(recorder.name('queued'), 3);

    const snapshot = recorder.snapshot();
    expect([...snapshot.kinds]).toEqual([spanKind, spanKind, spanKind, counterKind]);
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
    for (let i = 0; i < 10; i++) recorder.complete(name, recorder.now(), 0, i);
    const snapshot = recorder.snapshot();
    expect([...snapshot.arguments]).toEqual([6, 7, 8, 9]);
    expect(snapshot.dropped).toBe(6);
  });

  it('gives a name one handle and stays within its bounds', () => {
    const { recorder } = start({ namesMax: 3, lanesMax: 2 });
    const first = recorder.name('a');
    expect(recorder.name('a')).toBe(first);
    expect(recorder.name('a', { argument: 'bytes' })).not.toBe(first);
    expect(recorder.name('one too many')).toBe(0);
    expect(recorder.lane('x')).toBe(1);
    expect(recorder.lane('x')).toBe(1);
    expect(recorder.lane('one too many')).toBe(0);
  });

  it('gives plain data that survives a structured clone', () => {
    const { recorder } = start();
    recorder.complete(recorder.name('x'), recorder.now());
    expect(structuredClone(recorder.snapshot())).toEqual(recorder.snapshot());
  });

  it('holds the latest events whole and in their order, whatever is recorded', () => {
    const event = fc.record({ isSpan: fc.boolean(), afterMs: fc.integer({ min: 0, max: 9 }), lastsMs: fc.integer({ min: 0, max: 9 }) });
    fc.assert(
      fc.property(fc.array(event, { maxLength: 200 }), fc.integer({ min: 1, max: 8 }), (events, eventsMax) => {
        const { clock, recorder } = start({ eventsMax });
        const [span, counter] = [recorder.name('span'), recorder.name('counter')];
        const expected = events.map(({ isSpan, afterMs, lastsMs }, k) => {
          clock.advance(afterMs);
          const startMs = recorder.now() - lastsMs;
          if (isSpan) recorder.complete(span, startMs, 0, k, -k);
          else recorder.counter(counter, k);
          return isSpan ? [spanKind, span, startMs, lastsMs, k, -k] : [counterKind, counter, recorder.now(), k, 0, NaN];
        });
        const { kinds, nameIds, timesMs, values, arguments: first, seconds } = recorder.snapshot();
        expect([...kinds.keys()].map((i) => [kinds[i], nameIds[i], timesMs[i], values[i], first[i], seconds[i]])).toEqual(
          expected.slice(-eventsMax),
        );
      }),
    );
  });
});

describe('nullRecorder', () => {
  it('records nothing', () => {
    nullRecorder.complete(nullRecorder.name('x'), nullRecorder.now());
    nullRecorder.counter(0, 1);
    expect(nullRecorder.enabled).toBe(false);
    expect(nullRecorder.snapshot().kinds).toHaveLength(0);
  });
});
