/** The timeline that a core's tasks draw. */
import { expect, it } from 'vitest';
import { VirtualClock } from '../base/clock.ts';
import { ShoalError } from '../base/errors.ts';
import { chromeTrace, type ChromeEvent } from '../trace/chrome.ts';
import { createRecorder, type TraceRecorder } from '../trace/recorder.ts';
import { Core } from './core.ts';
import { observeAll, TaskProfiler } from './profiler.ts';
import { HeldTask } from './testing/held-task.ts';

function eventsOf(trace: TraceRecorder): readonly ChromeEvent[] {
  return chromeTrace({ rank: 0, host: 'here', pid: 1, offsetMs: 0 }, [trace.snapshot()]).traceEvents;
}

function traced(): {
  clock: VirtualClock;
  trace: TraceRecorder;
  core: Core;
  post: (name: string, bytes: number, priority: number) => void;
} {
  const clock = new VirtualClock();
  const trace = createRecorder({ clock, thread: 'comm' });
  const core = new Core({ clock, creditBytes: 8, partitionBytes: 4, timeoutMs: 1000, observer: new TaskProfiler(trace) });
  // A byte takes one millisecond.
  const run = (task: HeldTask): void => void clock.setTimer(task.bytes, () => task.notifyFinish());
  return { clock, trace, core, post: (name, bytes, priority) => core.post(new HeldTask({ name, bytes, priority, link: 'server 0', run })) };
}

it('draws a span in the queue and one in flight for each part, and curves of credit and queue', () => {
  const { clock, trace, core, post } = traced();
  post('late', 12, 2);
  clock.advance(5);
  core.start();
  post('soon', 4, 1);
  clock.advance(100);

  const events = eventsOf(trace);
  const spans = events.filter(({ ph }) => ph === 'X');
  const times = (phase: string): unknown[] =>
    spans.filter(({ name }) => name === `push ${phase}`).map(({ args, ts, dur = 0 }) => [args?.tensor, args?.part, ts / 1000, dur / 1000]);
  expect(times('QUEUE')).toEqual([
    ['late', 2, 0, 9],
    ['late', 0, 0, 5],
    ['late', 1, 0, 5],
    ['soon', 0, 5, 4],
  ]);
  expect(times('COMMUNICATION')).toEqual([
    ['late', 0, 5, 4],
    ['late', 1, 5, 4],
    ['soon', 0, 9, 4],
    ['late', 2, 9, 4],
  ]);
  expect(spans[0]).toMatchObject({ cat: 'schedule', args: { priority: 2, link: 'server 0', parts: 3, bytes: 4 } });
  const curve = (name: string, unit: string): unknown[] =>
    events.filter(({ ph, name: each }) => ph === 'C' && each === `${name} (server 0)`).map(({ args }) => args?.[unit]);
  expect(curve('queue depth', 'tasks')).toEqual([1, 2, 3, 2, 1, 2, 1, 0]);
  expect(curve('credit in flight', 'bytes')).toEqual([4, 8, 4, 8, 4, 8, 4, 0]);
});

it('says how a task failed, and that it left the queue without a start', () => {
  const { clock, trace, core, post } = traced();
  core.start();
  const failing = new HeldTask({
    name: 'w',
    bytes: 12,
    run: (task) => void (task.index === 0 && task.notifyFinish(new ShoalError('peer-lost', 'gone'))),
  });
  core.post(failing);
  core.post(new HeldTask({ name: 'now', bytes: 4, immediate: true, run: (task) => task.notifyFinish() }));
  clock.advance(2000);
  post('next', 4, 0);
  clock.advance(10);
  const spans = eventsOf(trace).filter(({ ph }) => ph === 'X');
  expect(spans.map(({ name, args }) => `${name} ${args?.tensor}/${args?.part}`).toSorted()).toEqual([
    'push COMMUNICATION next/0',
    'push COMMUNICATION now/0',
    'push COMMUNICATION peer-lost w/0',
    'push QUEUE next/0',
    'push QUEUE w/0',
  ]);
  const curves = eventsOf(trace).filter(({ ph, name }) => ph === 'C' && name.startsWith('credit'));
  expect(curves.at(-1)?.args).toEqual({ bytes: 0 });
});

it('several observers are told', () => {
  const told: string[] = [];
  const observer = (name: string) => ({ onStarted: () => void told.push(name) });
  expect(observeAll([undefined])).toBeUndefined();
  const core = new Core({
    clock: new VirtualClock(),
    creditBytes: 8,
    partitionBytes: 8,
    observer: observeAll([observer('a'), undefined, observer('b')]),
  });
  core.start();
  core.post(new HeldTask({ name: 'x', bytes: 1 }));
  expect(told).toEqual(['a', 'b']);
});
