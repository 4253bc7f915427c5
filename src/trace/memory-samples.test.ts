import { expect, it } from 'vitest';
import { VirtualClock } from '../base/clock.ts';
import { chromeTrace } from './chrome.ts';
import { createRecorder, nullRecorder } from './recorder.ts';
import { startMemorySamples } from './memory-samples.ts';

it('are taken at the start, four times a second, when asked for, and not after the end', () => {
  const clock = new VirtualClock();
  const trace = createRecorder({ clock, thread: 'comm' });
  let reads = 0;
  const samples = startMemorySamples({ trace, clock, residentBytes: () => 1000 * ++reads, registeredBytes: () => 7 });
  clock.advance(600);
  samples?.sample();
  samples?.close();
  clock.advance(10_000);
  const { traceEvents } = chromeTrace({ rank: 0, host: 'a', pid: 1, offsetMs: 0 }, [trace.snapshot()]);
  const of = (wanted: string): [number, number][] =>
    traceEvents.filter(({ ph, name }) => ph === 'C' && name === wanted).map(({ ts, args }) => [ts / 1000, Number(args?.['bytes'])]);
  expect(of('resident memory')).toEqual([
    [0, 1000],
    [250, 2000],
    [500, 3000],
    [600, 4000],
  ]);
  expect(of('registered memory').map(([, bytes]) => bytes)).toEqual([7, 7, 7, 7]);
});

it('are not taken without a trace', () => {
  const clock = new VirtualClock();
  const never = (): number => expect.unreachable();
  expect(startMemorySamples({ trace: nullRecorder, clock, residentBytes: never, registeredBytes: never })).toBeUndefined();
  clock.advance(10_000);
});
