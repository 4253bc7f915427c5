import { readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import fc from 'fast-check';
import { beforeEach, describe, expect, it } from 'vitest';
import { temporaryFolder } from '../base/testing/temporary-folder.ts';
import { VirtualClock } from '../base/clock.ts';
import { chromeTrace, formatChromeTrace, writeChromeTrace, type ChromeEvent, type ChromeTrace, type TraceProcess } from './chrome.ts';
import { mergeTraceFiles, mergeTraces } from './merge.ts';
import { createRecorder, type TraceSnapshot } from './recorder.ts';
import { parseChromeTrace } from './trace-file.ts';

function rankProcess(rank: number, offsetMs = 0): TraceProcess {
  return { rank, host: 'host-a', pid: 100 + rank, offsetMs };
}

/** A snapshot of a thread that did `name` from `fromMs` to `toMs` on a clock that showed `originMs` when recording began. */
function oneSpan(name: string, span: { fromMs: number; toMs: number; originMs?: number; thread?: string }): TraceSnapshot {
  const clock = new VirtualClock();
  clock.advance(span.originMs ?? 0);
  const recorder = createRecorder({ clock, thread: span.thread ?? 'main' });
  clock.advance(span.fromMs);
  const startMs = recorder.now();
  clock.advance(span.toMs - span.fromMs);
  recorder.complete(recorder.name(name, { argument: 'bytes' }), startMs, 0, 64);
  return recorder.snapshot();
}

function spansOf(trace: ChromeTrace): ChromeEvent[] {
  return trace.traceEvents.filter((event) => event.ph === 'X');
}

/** Checks that spans of each row nest, as viewers require. */
function expectNested(events: readonly ChromeEvent[]): void {
  const rows = new Map<string, ChromeEvent[]>();
  for (const event of events) {
    if (event.ph !== 'X') continue;
    const key = `${event.pid}/${event.tid}`;
    rows.set(key, [...(rows.get(key) ?? []), event]);
  }
  for (const row of rows.values()) {
    const ends: number[] = [];
    for (const { ts, dur = 0 } of row.toSorted((a, b) => a.ts - b.ts || (b.dur ?? 0) - (a.dur ?? 0))) {
      while (ends.length > 0 && ends[ends.length - 1] <= ts) ends.pop();
      if (ends.length > 0) expect(ts + dur).toBeLessThanOrEqual(ends[ends.length - 1]);
      ends.push(ts + dur);
    }
  }
}

describe('chromeTrace', () => {
  it('writes process, threads, spans and counters in the trace event format', () => {
    const clock = new VirtualClock();
    const recorder = createRecorder({ clock, thread: 'comm' });
    clock.advance(1.5);
    const startMs = recorder.now();
    clock.advance(0.25);
    recorder.complete(recorder.name('all-reduce', { category: 'group', argument: 'bytes' }), startMs, 0, 1024);
    recorder.counter(recorder.name('queued', { argument: 'operations' }), Number.NaN);
    const trace = chromeTrace(rankProcess(3), [recorder.snapshot()]);
    const document = JSON.parse([...formatChromeTrace(trace)].join('')) as ChromeTrace;
    expect(document).toEqual(trace);
    expect(document.traceEvents).toContainEqual({
      ph: 'M',
      name: 'process_name',
      pid: 3,
      tid: 0,
      ts: 0,
      args: { name: 'rank 3 (host-a, pid 103)' },
    });
    expect(document.traceEvents).toContainEqual({ ph: 'M', name: 'thread_name', pid: 3, tid: 0, ts: 0, args: { name: 'comm' } });
    expect(document.traceEvents.filter((event) => event.ph !== 'M')).toEqual([
      { ph: 'X', name: 'all-reduce', pid: 3, tid: 0, ts: 1500, dur: 250, cat: 'group', args: { bytes: 1024 } },
      { ph: 'C', name: 'queued', pid: 3, tid: 0, ts: 1750, cat: 'shoal', args: { operations: 'NaN' } },
    ]);
    expect(document.otherData.processes[0]).toMatchObject({ rank: 3, clockStartMs: 0, wallStart: '1970-01-01T00:00:00.000Z', dropped: 0 });
    expect(document.otherData.processes[0]).not.toHaveProperty('traffic');
  });

  it("has the traffic of a rank's threads, whatever fell out of their rings", () => {
    const snapshots = ['main', 'comm'].map((thread) => {
      const recorder = createRecorder({ clock: new VirtualClock(), thread, eventsMax: 1 });
      for (let call = 0; call < 3; call++) {
        recorder.moved([3, 7], [{ from: 0, to: 1, bytes: 100, transfers: 2 }]);
        if (thread === 'comm') recorder.moved([7, 3], [{ from: 0, to: 1, bytes: 1, transfers: 1 }]);
        recorder.complete(recorder.name('called'), recorder.now());
      }
      return recorder.snapshot();
    });
    const { processes } = chromeTrace(rankProcess(3), snapshots).otherData;
    expect(processes).toMatchObject([
      {
        dropped: 4,
        traffic: [
          [3, 7, 600, 12],
          [7, 3, 3, 3],
        ],
      },
    ]);
  });

  it('puts the threads of a process on one time axis and on rows of their own', () => {
    const trace = chromeTrace(rankProcess(0), [
      oneSpan('compute', { originMs: 10, fromMs: 0, toMs: 5 }),
      oneSpan('reduce', { originMs: 14, fromMs: 0, toMs: 1, thread: 'comm' }),
    ]);
    expect(spansOf(trace).map(({ name, tid, ts }) => [name, tid, ts])).toEqual([
      ['compute', 0, 0],
      ['reduce', 1, 4000],
    ]);
  });

  it('spreads overlapping spans of a lane over rows, so that every row nests', () => {
    const recording = fc.array(fc.tuple(fc.integer({ min: 0, max: 50 }), fc.integer({ min: 0, max: 20 })), { maxLength: 60 });
    fc.assert(
      fc.property(recording, fc.integer({ min: 1, max: 40 }), (spans, eventsMax) => {
        const clock = new VirtualClock();
        const recorder = createRecorder({ clock, thread: 'main', eventsMax });
        const name = recorder.name('operation');
        const lane = recorder.lane('operations');
        for (const [startMs, durationMs] of spans.toSorted((a, b) => a[0] + a[1] - b[0] - b[1])) {
          clock.advance(Math.max(0, startMs + durationMs - clock.now()));
          recorder.complete(name, startMs, lane);
        }
        const trace = parseChromeTrace([...formatChromeTrace(chromeTrace(rankProcess(0), [recorder.snapshot()]))].join(''), 'test');
        expect(spansOf(trace)).toHaveLength(Math.min(spans.length, eventsMax));
        expectNested(trace.traceEvents);
      }),
    );
  });

  it('is valid and nested after the ring has overflowed with nested spans', () => {
    const clock = new VirtualClock();
    const recorder = createRecorder({ clock, thread: 'main', eventsMax: 16 });
    const outer = recorder.name('outer "quoted"\n');
    const inner = recorder.name('inner');
    for (let step = 0; step < 100; step++) {
      const startMs = recorder.now();
      for (let i = 0; i < 3; i++) {
        clock.advance(2);
        recorder.complete(inner, recorder.now() - 1);
      }
      recorder.complete(outer, startMs);
    }
    const text = [...formatChromeTrace(chromeTrace(rankProcess(1), [recorder.snapshot()]))].join('');
    const trace = parseChromeTrace(text, 'test');
    expect(spansOf(trace)).toHaveLength(16);
    expect(trace.traceEvents.every(({ ph }) => 'XCM'.includes(ph))).toBe(true);
    expect(trace.otherData.processes[0].dropped).toBe(400 - 16);
    expectNested(trace.traceEvents);
  });
});

describe('mergeTraces', () => {
  it("aligns every rank to rank 0's clock", () => {
    // Rank 1's clock is 1000 ms behind: its 40 ms is rank 0's 1040 ms.
    const merged = mergeTraces([
      chromeTrace(rankProcess(1, 1000), [oneSpan('b', { originMs: 40, fromMs: 0, toMs: 1 })]),
      chromeTrace(rankProcess(0), [oneSpan('a', { originMs: 1030, fromMs: 5, toMs: 6 })]),
    ]);
    expect(spansOf(merged).map(({ name, pid, ts }) => [name, pid, ts])).toEqual([
      ['a', 0, 5000],
      ['b', 1, 10_000],
    ]);
    expect(merged.otherData.processes.find(({ rank }) => rank === 1)).toMatchObject({ clockStartMs: 30, offsetMs: 1000 });
    // The result is a trace like any other.
    expect(mergeTraces([merged])).toEqual(merged);
  });

  it('takes the parts of a process for one rank, on the clock of its group', () => {
    const graph = { ...rankProcess(1), part: 'graph' as const };
    const traces = [
      chromeTrace(rankProcess(0), [oneSpan('a', { originMs: 1030, fromMs: 5, toMs: 6 })]),
      chromeTrace(graph, [oneSpan('step', { originMs: 50, fromMs: 2, toMs: 3 })]),
      chromeTrace(rankProcess(1, 1000), [oneSpan('b', { originMs: 40, fromMs: 0, toMs: 1 })]),
    ];
    const merged = mergeTraces(traces);
    expect(spansOf(merged).map(({ name, pid, ts }) => [name, pid, ts])).toEqual([
      ['a', 0, 5000],
      ['b', 1, 10_000],
      ['step', 1, 22_000],
    ]);
    expect(new Set(spansOf(merged).map(({ pid, tid }) => `${pid} ${tid}`)).size).toBe(3);
    expect(merged.otherData.processes.map(({ rank, part }) => [rank, part])).toEqual([
      [0, undefined],
      [1, undefined],
    ]);
    expect(mergeTraces([merged])).toEqual(merged);
    expect(() => mergeTraces([...traces, chromeTrace(graph, [])])).toThrow(/rank 1/);
    expect(() => mergeTraces([traces[1], chromeTrace({ ...rankProcess(1), pid: 7 }, [])])).toThrow(/rank 1/);
  });

  it('refuses an empty list and two traces of one rank', () => {
    expect(() => mergeTraces([])).toThrow(/no traces/);
    const trace = chromeTrace(rankProcess(2), []);
    expect(() => mergeTraces([trace, trace])).toThrow(/rank 2/);
  });
});

describe('trace files', () => {
  let folder: string;
  beforeEach(() => {
    folder = temporaryFolder('trace');
  });

  it('appear whole, one per rank, and merge into one', () => {
    const target = join(folder, 'deep', 'er');
    const paths = [0, 1].map((rank) => writeChromeTrace(target, rankProcess(rank), [oneSpan('a', { fromMs: 0, toMs: 1 })]));
    mergeTraceFiles(paths, join(folder, 'merged.json'));
    expect(readdirSync(target).sort()).toEqual(['trace-rank-0.json', 'trace-rank-1.json']);
    expect(spansOf(parseChromeTrace(readFileSync(join(folder, 'merged.json'), 'utf8'), 'merged'))).toHaveLength(2);
  });

  it('leave nothing behind when they cannot be written', () => {
    writeFileSync(join(folder, 'file'), '');
    expect(() => writeChromeTrace(join(folder, 'file'), rankProcess(0), [])).toThrow(/trace-rank-0\.json.*writable/);
    expect(readdirSync(folder)).toEqual(['file']);
  });

  it('are refused by name when they are something else', () => {
    const whole = [...formatChromeTrace(chromeTrace(rankProcess(0), []))].join('');
    for (const text of ['', '[]', 'null', '{"traceEvents":[]}', whole.slice(0, -3), whole.replace('"rank":0', '"rank":null')]) {
      expect(() => parseChromeTrace(text, 'x.json')).toThrow(/^x\.json is not/);
    }
  });
});
