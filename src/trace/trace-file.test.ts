/** Traces read event by event: the same as read whole, and checked with the same care. */
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import fc from 'fast-check';
import { afterAll, describe, expect, it } from 'vitest';
import { temporaryFolder } from '../base/testing/temporary-folder.ts';
import { formatChromeTrace, type ChromeEvent, type ChromeTrace, type TraceMetadata } from './chrome.ts';
import { openTraceFile, wholeTrace } from './trace-file.ts';

const folder = temporaryFolder('trace-file', afterAll);

function traceOf(count: number, process: Partial<TraceMetadata['processes'][number]> = {}): ChromeTrace {
  const origin = { rank: 0, host: 'a', pid: 4, offsetMs: 0, clockStartMs: 0, wallStart: '2026-11-20T12:00:00.000Z', dropped: 0 };
  const eventOf = (at: number): ChromeEvent => ({
    ...{ ph: 'X', name: `span ${at % 7} "ä\n…`, pid: 0, tid: at % 3, ts: at, dur: 1, cat: 'user' },
    args: { text: 'x'.repeat(at % 100), at },
  });
  return {
    traceEvents: Array.from({ length: count }, (_, at) => eventOf(at)),
    displayTimeUnit: 'ms',
    otherData: { format: 'shoal-trace', version: 1, processes: [{ ...origin, ...process }] },
  };
}

const textOf = (trace: ChromeTrace): string => [...formatChromeTrace(trace)].join('');

function open(text: string): ReturnType<typeof openTraceFile> {
  const path = join(folder, 'trace-rank-0.json');
  writeFileSync(path, text);
  return openTraceFile(path, 'trace-rank-0.json');
}

// Traces of less than a block, and of several, whose borders are inside of lines and of letters.
it.each([0, 1, 2, 30_000])('%i events are read as they were written, each time', (count) => {
  const trace = traceOf(count);
  const file = open(textOf(trace));
  expect(file.metadata).toEqual(trace.otherData);
  for (let time = 0; time < 2; time++) expect(wholeTrace(file)).toEqual(trace);
});

it('reads the process of a file without its events, however long its description', () => {
  const traffic = Array.from({ length: 60_000 }, (_, to) => [0, to + 1, 1000, 10] as const);
  const trace = traceOf(3, { traffic });
  expect(open(textOf(trace)).metadata.processes[0].traffic).toEqual(traffic);
});

it('reads a file that is laid out otherwise', () => {
  const trace = traceOf(100);
  expect(wholeTrace(open(JSON.stringify(trace)))).toEqual(trace);
  expect(wholeTrace(open(JSON.stringify(trace, null, 2)))).toEqual(trace);
});

describe('a file that is not a trace', () => {
  const text = textOf(traceOf(5000));

  it('is refused when it is opened: cut off, of another program, of no process', () => {
    expect(() => open(text.slice(0, -1))).toThrow(/^trace-rank-0\.json is cut off; was the run still writing it\?/);
    expect(() => open(text.slice(0, text.length / 2))).toThrow(/is cut off/);
    expect(() => open(text.slice(0, 60))).toThrow(/is not JSON/);
    expect(() => open('')).toThrow(/is not JSON/);
    expect(() => open(text.replace('shoal-trace', 'other-trace'))).toThrow(/is not a trace written by Shoal/);
    expect(() => open(text.replace('"rank":0', '"rank":"0"'))).toThrow(/is not a trace written by Shoal/);
    expect(() => openTraceFile(join(folder, 'none.json'), 'none.json')).toThrow(/none\.json cannot be read/);
  });

  it.each<[string, (text: string) => string, RegExp]>([
    ['a line that is no JSON', (whole) => whole.replace('"ts":4000,', '"ts":4000'), /is not JSON/],
    ['a line that is no event', (whole) => whole.replace('"ts":4000,', '"ts":"4000",'), /something that is not an event/],
    ['a number beyond all times', (whole) => whole.replace('"ts":4000,', '"ts":1e300,'), /something that is not an event/],
    ['a line without an end', (whole) => whole.replace('"ts":4000,', `"ts":4000,"x":"${'x'.repeat(5e6)}",`), /line of more than/],
  ])('is said where it comes: %s', (_, spoil, message) => {
    const read: ChromeEvent[] = [];
    const file = open(spoil(text));
    expect(() => {
      for (const event of file.events()) read.push(event);
    }).toThrow(message);
    expect(read.length).toBeGreaterThan(0);
    expect(read.length).toBeLessThanOrEqual(4000);
    expect(read).toEqual(traceOf(5000).traceEvents.slice(0, read.length));
  });

  it('is never read as something else, whatever bytes are changed', () => {
    const small = textOf(traceOf(4));
    const changes = fc.array(fc.tuple(fc.nat(small.length - 1), fc.constantFrom('{', '}', '"', ',', '\n', '0', '[', ']', ':')), {
      minLength: 1,
      maxLength: 4,
    });
    fc.assert(
      fc.property(changes, (each) => {
        const letters = small.split('');
        for (const [at, letter] of each) letters[at] = letter;
        const spoilt = letters.join('');
        try {
          const { traceEvents } = wholeTrace(open(spoilt));
          // When it is still a trace, it is the same one that a parser of the whole text sees.
          expect(traceEvents).toEqual((JSON.parse(spoilt) as ChromeTrace).traceEvents);
        } catch (thrown) {
          expect(thrown).toMatchObject({ code: 'usage' });
        }
      }),
      { numRuns: 500 },
    );
  });
});
