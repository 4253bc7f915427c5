/** The data of a report, from traces and flight records as ranks write them, from those of runs that broke, and from files that nobody
 *  should trust. */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import fc from 'fast-check';
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { formatChromeTrace, type ChromeEvent, type ChromeTrace, type TraceRates } from '../../trace/chrome.ts';
import { traceInMemory } from '../../trace/trace-file.ts';
import type { TrafficRow } from '../../trace/traffic.ts';
import { buildReport } from './build-report.ts';
import { reportPage } from './page.ts';
import { endsOf } from './ends.ts';
import { readRunFolder, type RunFolder } from './read-folder.ts';

let folder: string;
beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), 'shoal-report-'));
});
afterAll(() => rmSync(folder, { recursive: true }));
beforeEach(() => {
  rmSync(folder, { recursive: true });
  folder = mkdtempSync(join(tmpdir(), 'shoal-report-'));
});

const write = (name: string, text: string): void => writeFileSync(join(folder, name), text);

function span(rank: number, name: string, [ts, dur]: readonly [number, number], args: ChromeEvent['args'] = {}): ChromeEvent {
  const common = { sequence: 0, group: 'world', dtype: 'float32', bytes: 4000, algorithm: 'tree', path: 'comm thread', site: 'a.ts:1' };
  return { ph: 'X', cat: 'collective', name, pid: rank, tid: 1, ts, dur, args: { ...common, ...args } };
}

function trace(rank: number, events: readonly ChromeEvent[], offsetMs = 0): ChromeTrace {
  const thread: ChromeEvent = { ph: 'M', name: 'thread_name', pid: rank, tid: 1, ts: 0, args: { name: 'world' } };
  const traffic: TrafficRow[] = [[rank, rank ^ 1, 8, 1]];
  const origin = { rank, host: 'a', pid: 40 + rank, offsetMs, clockStartMs: 1000 };
  const process = { ...origin, wallStart: '2026-11-20T12:00:00.000Z', dropped: 0, traffic };
  return {
    displayTimeUnit: 'ms',
    traceEvents: [thread, ...events],
    otherData: { format: 'shoal-trace', version: 1, processes: [process] },
  };
}

const writeTrace = (rank: number, events: readonly ChromeEvent[], offsetMs = 0): void =>
  write(`trace-rank-${rank}.json`, [...formatChromeTrace(trace(rank, events, offsetMs))].join(''));

function flight(rank: number, last: number, error: string | null): string {
  const entry = {
    pg_id: 0,
    collective_seq_id: last,
    is_p2p: false,
    profiling_name: 'shoal:all_reduce',
    input_sizes: [[1000]],
    input_dtypes: ['float32'],
    frames: [{ name: 'f', filename: 'train.ts', line: 7 }],
    state: 'scheduled',
    error,
  };
  const status = { last_enqueued_collective: last, last_started_collective: last, last_completed_collective: last - 1 };
  const groups = { 0: { name: 'world', desc: 'world', ranks: '[0, 1, 2]' } };
  return JSON.stringify({ version: '2.10', rank, pg_config: groups, pg_status: { 0: status }, entries: [entry] });
}

const build = (): ReturnType<typeof buildReport> => buildReport('run', readRunFolder(folder));

describe('traces', () => {
  it('become rows, waits by culprit, and operations', () => {
    writeTrace(0, [span(0, 'all-reduce wait', [0, 30], { waitedFor: 1 }), span(0, 'all-reduce tree', [30, 10])]);
    // Its clock is 1 ms behind: its events are later on rank 0's.
    writeTrace(1, [span(1, 'all-reduce wait', [0, 5], { waitedFor: 0 }), span(1, 'all-reduce tree', [5, 20])], 1);
    const { rows, waits, operations, ranks, durationUs, warnings, failure } = build();
    expect(rows.map(({ rank, name, starts, durations }) => ({ rank, name, starts, durations }))).toEqual([
      { rank: 0, name: 'world', starts: [0, 30], durations: [30, 10] },
      { rank: 1, name: 'world', starts: [1000, 1005], durations: [5, 20] },
    ]);
    expect(waits).toEqual([
      [0, 30],
      [5, 0],
    ]);
    expect(ranks.map(({ communicatingUs, waitingUs, waitedForUs }) => [communicatingUs, waitingUs, waitedForUs])).toEqual([
      [40, 30, 5],
      [25, 5, 30],
    ]);
    expect(operations).toEqual([
      {
        kind: 'all-reduce',
        algorithm: 'tree',
        path: 'comm thread',
        dtype: 'float32',
        site: 'a.ts:1',
        bytes: 4000,
        calls: 1,
        transferUs: 20,
        waitUs: 30,
        ranks: 0,
        algorithmBandwidth: 0.2,
        busBandwidth: 0,
        boundBandwidth: null,
      },
    ]);
    expect({ durationUs, warnings, failure }).toEqual({ durationUs: 1025, warnings: [], failure: null });
  });

  it('have times from the first event on, whenever the ranks started', () => {
    const counter: ChromeEvent = { ph: 'C', name: 'resident memory', pid: 0, tid: 1, ts: 1_700_050, args: { bytes: 8 } };
    writeTrace(0, [span(0, 'all-reduce tree', [1_700_000, 10]), counter, span(0, 'all-reduce tree', [1_700_100, 20], { sequence: 1 })]);
    const { rows, counters, durationUs } = build();
    expect(rows[0].starts).toEqual([0, 100]);
    expect(counters[0].times).toEqual([50]);
    expect(durationUs).toBe(120);
    // A density begins where one of its stretches does.
    const many = Array.from({ length: 40 }, (_, at) => span(0, 'all-reduce tree', [1_700_000 + 100 * at, 10], { sequence: at }));
    const cut = buildReport('run', readRunFolderOf(many), { spansMax: 10, valuesMax: 10 });
    expect(cut.rows[0].starts[0]).toBeLessThan(cut.stretchUs);
    expect(Buffer.from(cut.rows[0].density!, 'base64')).toHaveLength(Math.ceil(cut.durationUs / cut.stretchUs));
    expect(Buffer.from(cut.rows[0].density!, 'base64')[0]).toBeGreaterThan(0);
  });

  it('become a link matrix of what each rank has counted, by host, and a summary where there are too many ranks', () => {
    const host = (rank: number): string => `h${rank % 2}`;
    const run = (ranks: number): RunFolder => ({
      ...{ traces: [], flights: [], losses: [], launcher: undefined, warnings: [] },
      traces: Array.from({ length: ranks }, (_, rank) => {
        const one = trace(rank, [span(rank, 'all-reduce wait', [0, 5], { waitedFor: (rank + 1) % ranks })]);
        const traffic: TrafficRow[] = [
          [rank, (rank + 1) % ranks, 10, 1],
          [(rank + 2) % ranks, rank, 1000, 2],
        ];
        const otherData = { ...one.otherData, processes: [{ ...one.otherData.processes[0], host: host(rank), traffic }] };
        return traceInMemory({ ...one, otherData });
      }),
    });
    const few = buildReport('run', run(4));
    expect(few.ends).toEqual([0, 2, 1, 3].map((rank) => ({ name: String(rank), host: host(rank) })));
    expect(few.links).toEqual({
      bytes: [
        [0, 1000, 10, 0],
        [1000, 0, 0, 10],
        [0, 10, 0, 1000],
        [10, 0, 1000, 0],
      ],
      transfers: [
        [0, 2, 1, 0],
        [2, 0, 0, 1],
        [0, 1, 0, 2],
        [1, 0, 2, 0],
      ],
      withinHosts: 4000,
      betweenHosts: 40,
    });
    const many = buildReport('run', run(100));
    expect(many.ends).toEqual(['h0', 'h1'].map((name) => ({ name, host: name })));
    expect(many.links!.bytes).toEqual([
      [50_000, 500],
      [500, 50_000],
    ]);
    expect(many.waits).toEqual([
      [0, 250],
      [250, 0],
    ]);
    const without = trace(0, [span(0, 'all-reduce tree', [0, 1])]);
    const processes = without.otherData.processes.map((process) => ({ ...process, traffic: undefined }));
    expect(
      buildReport('run', { ...run(0), traces: [traceInMemory({ ...without, otherData: { ...without.otherData, processes } })] }).links,
    ).toBeNull();
  });

  it('of many ranks on one host are summarised as runs of ranks, those without a trace apart', () => {
    const traffic = Array.from({ length: 129 }, (_, to): TrafficRow => [0, to + 1, 1, 1]);
    const processes = Array.from({ length: 128 }, (_, rank) => ({ ...trace(rank, []).otherData.processes[0], traffic }));
    const { ends, placeOf } = endsOf(processes);
    expect(ends).toEqual([
      { name: 'a', host: 'a' },
      { name: 'unknown', host: '' },
    ]);
    const oneHost = endsOf(processes.map((process) => ({ ...process, traffic: [] })));
    expect(oneHost.ends).toHaveLength(64);
    expect(oneHost.ends.slice(0, 2)).toEqual([
      { name: '0–1', host: 'a' },
      { name: '2–3', host: 'a' },
    ]);
    expect([0, 1, 2, 127, 129].map((rank) => placeOf.get(rank))).toEqual([0, 0, 0, 0, 1]);
    expect([0, 1, 2, 127].map((rank) => oneHost.placeOf.get(rank))).toEqual([0, 0, 1, 63]);
  });

  it('have the bus bandwidth of calls, beside what was measured of their links, or of memory', () => {
    const bytes = 6e6;
    const peersOf = ['1-3', '0,2-3', '0-1,3', '0-2'];
    const run = (options: { memory: readonly number[]; rates?: TraceRates; kind?: string; peers?: string }): RunFolder => ({
      ...{ flights: [], losses: [], launcher: undefined, warnings: [] },
      traces: options.memory.map((memory, rank) => {
        const args = { bytes, peers: options.peers ?? peersOf[rank] };
        const one = trace(rank, [span(rank, `${options.kind ?? 'all-reduce'} tree`, [0, 2000], args)]);
        const processes = one.otherData.processes.map((process) => ({
          ...process,
          memory,
          ...(options.rates && { rates: options.rates }),
        }));
        return traceInMemory({ ...one, otherData: { ...one.otherData, processes } });
      }),
    });
    const operationOf = (folderOf: RunFolder): object => buildReport('run', folderOf).operations[0];
    // 3 GB/s, of which each rank's link carries 2 (n − 1)/n; a host's link carries as much as the operation has bytes.
    const links: TraceRates = { link: 0.25e-9, linkFrom: 'start' };
    expect(operationOf(run({ memory: [0, 0, 1, 1], rates: links }))).toMatchObject({
      ...{ ranks: 4, algorithmBandwidth: 3 },
      busBandwidth: expect.closeTo(4.5),
      boundBandwidth: expect.closeTo(6),
    });
    expect(buildReport('run', run({ memory: [0, 0, 1, 1], rates: links })).rates).toEqual({
      ...{ linkBandwidth: expect.closeTo(4), linkFrom: 'start', copyBandwidth: null },
    });
    expect(operationOf(run({ memory: [0, 0, 0, 0], rates: { copy: 0.1e-9 } }))).toMatchObject({ boundBandwidth: expect.closeTo(10) });
    // Its bytes are of all ranks; each has a quarter of them in its buffer.
    expect(operationOf(run({ memory: [0, 1, 2, 3], kind: 'all-to-all', rates: links }))).toMatchObject({
      busBandwidth: expect.closeTo(0.5625),
      boundBandwidth: expect.closeTo(4),
    });
    expect(operationOf(run({ memory: [0, 0, 1, 1] }))).toMatchObject({ busBandwidth: expect.closeTo(4.5), boundBandwidth: null });
    expect(operationOf(run({ memory: [0, 0, 1, 1], peers: '0-999999999', rates: links }))).toMatchObject({ ranks: 0, busBandwidth: 0 });
  });

  it('of graphs become steps, requests, and per tensor what was waiting, held for others, and transfer', () => {
    const graph = (rank: number, name: string, [ts, dur]: readonly [number, number], args: ChromeEvent['args']): ChromeEvent => ({
      ...{ ph: 'X', cat: 'graph', name, pid: rank, tid: 1, ts, dur },
      args,
    });
    const x = { tensor: 'x', from: 'ps', to: 'worker' };
    const request = { from: 'ps' };
    writeTrace(0, [
      graph(0, 'step', [0, 100], { step: 1, requests: 3 }),
      graph(0, 'step', [100, 200], { step: 2, requests: 4 }),
      graph(0, 'FuseRecvTensor', [0, 90], { ...request, tensors: 2 }),
      graph(0, 'FuseRecvTensor', [100, 90], { ...request, tensors: 5 }),
      graph(0, 'recv x', [0, 90], { ...x, step: 1, bytes: 8 }),
      graph(0, 'recv x', [100, 90], { ...x, step: 2, bytes: 8 }),
      // Nothing is known of its sender.
      graph(0, 'recv y', [0, 5], { ...x, tensor: 'y', step: 1, bytes: 4 }),
    ]);
    // On their own clock: only durations count.
    writeTrace(1, [
      graph(1, 'wait x', [7, 70], { ...x, step: 1, readyMs: 0.04 }),
      graph(1, 'wait x', [8, 70], { ...x, step: 2, readyMs: 0.04 }),
      // A wait of another step.
      graph(1, 'wait x', [9, 9000], { ...x, step: 3, readyMs: 9 }),
    ]);
    const { steps, requests, receives } = build();
    expect(steps).toEqual([{ rank: 0, steps: 2, stepUs: 150, requestsPerStep: 3.5 }]);
    expect(requests).toEqual([{ rank: 0, from: 'ps', method: 'FuseRecvTensor', requests: 2, tensorsMean: 3.5, tensorsMost: 5 }]);
    expect(receives).toEqual([
      { ...x, receives: 2, bytes: 8, waitUs: 40, heldUs: 30, transferUs: 20 },
      { ...x, tensor: 'y', receives: 1, bytes: 4, waitUs: 0, heldUs: 0, transferUs: 5 },
    ]);
  });

  it('counters keep their peaks, whatever is left out', () => {
    const counter = (ts: number, bytes: number): ChromeEvent => ({ ph: 'C', name: 'resident memory', pid: 0, tid: 1, ts, args: { bytes } });
    const events = Array.from({ length: 1000 }, (_, at) => counter(at, at === 501 ? 9000 : at % 10));
    const [resident] = buildReport('run', readRunFolderOf(events), { spansMax: 10, valuesMax: 10 }).counters;
    expect(resident).toMatchObject({ rank: 0, name: 'resident memory', unit: 'bytes', most: 9000 });
    expect(resident.values).toEqual([9, 9, 9, 9, 9, 9000, 9, 9, 9, 9]);
    expect(resident.times).toEqual([9, 109, 209, 309, 409, 501, 609, 709, 809, 909]);
  });

  it('too many spans: the shortest are left out, tables count all', () => {
    const events = Array.from({ length: 1000 }, (_, sequence) =>
      span(0, 'all-reduce tree', [sequence * 10, (sequence % 10) + 1], { sequence }),
    );
    const whole = readRunFolderOf(events);
    const { rows, operations, warnings } = buildReport('run', whole, { spansMax: 100, valuesMax: 10 });
    expect(rows[0].durations).toEqual(Array(100).fill(10));
    expect(operations[0].calls).toBe(1000);
    expect(warnings).toEqual(['900 of the shortest spans are not drawn; tables count all']);
  });

  function readRunFolderOf(events: readonly ChromeEvent[]): ReturnType<typeof readRunFolder> {
    writeTrace(0, events);
    return readRunFolder(folder);
  }
});

/** A training of ranks that each compute, then wait for the latest one, then communicate; microseconds. */
function training(computeUs: readonly ((step: number) => number)[], transferUs: number, args: ChromeEvent['args'] = {}): RunFolder {
  const ranks = computeUs.map((_, rank): ChromeEvent[] => [span(rank, 'broadcast tree', [0, 5000], { sequence: 0, site: 'a.ts:3' })]);
  let begin = 1e6;
  for (let step = 0; step < 20; step++) {
    const called = computeUs.map((of) => begin + of(step));
    const latest = Math.max(...called);
    for (const [rank, ts] of called.entries()) {
      const call = { sequence: step + 1, ...args };
      if (ts < latest) ranks[rank].push(span(rank, 'all-reduce wait', [ts, latest - ts], { ...call, waitedFor: called.indexOf(latest) }));
      ranks[rank].push(span(rank, 'all-reduce tree', [latest, transferUs], call));
    }
    begin = latest + transferUs;
  }
  for (const [rank, events] of ranks.entries()) writeTrace(rank, events);
  return readRunFolder(folder);
}

describe('a training step', () => {
  it('is the time between calls of the place that takes most of the time, whatever came before', () => {
    const { trainingStep } = buildReport('run', training([() => 600, () => 600], 400));
    expect(trainingStep).toEqual({ calls: 'all-reduce at a.ts:1', steps: 19, stepUs: 1000, communicating: 0.4, waiting: 0 });
    writeTrace(0, [span(0, 'all-reduce tree', [0, 10])]);
    writeTrace(1, []);
    expect(build()).toMatchObject({ trainingStep: null, advice: null });
  });

  it.each<[string, readonly ((step: number) => number)[], number, ChromeEvent['args'], number | null, RegExp]>([
    ['much computation', [() => 960, () => 950], 40, {}, 0, /^Communication takes 5 % of a step: only faster computation/],
    ['a late rank', [() => 500, () => 900, () => 500], 100, {}, 1, /^Rank 1 is late: the others wait 40 % of a step\./],
    [
      'ranks that are late in turn',
      [0, 1].map((rank) => (step: number) => (step % 2 === rank ? 900 : 500)),
      100,
      {},
      null,
      /in turn, 20 % of a step/,
    ],
    ['much communication', [() => 500, () => 500], 500, { bytes: 1 << 20 }, null, /^Communication takes 50 % of a step: overlap it/],
  ])('%s is what makes it long', (_, computeUs, transferUs, args, straggler, advice) => {
    const report = buildReport('run', training(computeUs, transferUs, args));
    expect(report.straggler?.rank ?? null).toBe(straggler);
    expect(report.advice).toMatch(advice);
  });

  it('nothing is advised to a run that failed', () => {
    const run = training([() => 500, () => 900], 100);
    const launcher = { command: ['a.ts'], startedAt: 'x', exitCode: 1, failure: 'rank 0 exited with code 1' };
    expect(buildReport('run', { ...run, launcher })).toMatchObject({ advice: null, trainingStep: { steps: 19 } });
  });

  it('a rank without a trace can be the one that the others wait for', () => {
    training([() => 500, () => 500, () => 500, () => 900], 100);
    rmSync(join(folder, 'trace-rank-3.json'));
    expect(build().straggler).toEqual({ rank: 3, waitedForUs: 3 * 20 * 400 });
  });
});

describe('failures', () => {
  it('the rank that failed first, and was told of no error, is the headline; then what that came to, and who left nothing', () => {
    write('flight-rank-0.json', flight(0, 5, 'rank 1 was lost: its process died\nmore'));
    write('flight-rank-2.json', flight(2, 5, 'rank 1 was lost: its process died\nmore'));
    write('launcher.json', JSON.stringify({ command: ['train.ts'], startedAt: 'x', exitCode: 137, failure: 'rank 1 was killed' }));
    const { failure, title } = build();
    expect(title).toBe('train.ts');
    expect(failure!.headline).toBe('rank 1 was killed');
    expect(failure!.lines).toEqual(['ranks 0, 2: rank 1 was lost: its process died', 'more']);
  });

  it('no rank that left a trace, or is known to have failed, is said to have left no record', () => {
    for (const rank of [0, 2]) write(`flight-rank-${rank}.json`, flight(rank, 5, `rank 1 was lost: rank ${rank} lost rank 1 (shm)`));
    write('launcher.json', JSON.stringify({ command: ['train.ts'], startedAt: 'x', exitCode: 3, failure: 'rank 1 exited with code 3' }));
    const lines = ['ranks 0, 2: rank 1 was lost: lost rank 1 (shm)'];
    expect(build().failure).toEqual({ headline: 'rank 1 exited with code 3', lines });
    writeTrace(1, [span(1, 'all-reduce tree', [0, 10])]);
    expect(build().failure).toEqual({ headline: 'rank 1 exited with code 3', lines });
    rmSync(join(folder, 'launcher.json'));
    expect(build().failure).toEqual({ headline: lines[0], lines: [] });
    rmSync(join(folder, 'trace-rank-1.json'));
    expect(build().failure!.lines).toEqual(['rank 1 left no record: killed, or ended without being asked']);
  });

  it('of a job that went on without a rank is none; its changes are told', () => {
    for (const rank of [0, 2]) write(`flight-rank-${rank}.json`, flight(rank, 5, 'rank 1 was lost'));
    const changes = ['after 1.0 s: world 3 → 2: rank 1 exited with code 1'];
    write('launcher.json', JSON.stringify({ command: ['train.ts'], startedAt: 'x', exitCode: 0, failure: null, changes }));
    expect(build()).toMatchObject({ failure: null, warnings: changes });
  });

  it('ranks that were told of no error say what they called last', () => {
    write('flight-rank-0.json', flight(0, 5, 'rank 1 was lost'));
    write('flight-rank-2.json', flight(2, 5, null));
    write('launcher.json', JSON.stringify({ command: ['train.ts'], startedAt: 'x', exitCode: 137, failure: 'rank 1 was killed' }));
    expect(build().failure!.lines).toEqual([
      'rank 0: rank 1 was lost',
      'rank 2 last called all_reduce float32[1000] at train.ts:7: scheduled',
    ]);
  });

  it('an error of a call is the headline when the rank that failed first was told it, too', () => {
    for (const rank of [0, 1]) write(`flight-rank-${rank}.json`, flight(rank, 5, 'ranks disagree on collective #5'));
    write('launcher.json', JSON.stringify({ command: ['train.ts'], startedAt: 'x', exitCode: 1, failure: 'rank 1 exited with code 1' }));
    expect(build().failure!.headline).toBe('ranks 0, 1: ranks disagree on collective #5');
  });

  it('names who ended well under the others', () => {
    write('flight-rank-0.json', flight(0, 5, 'rank 1 was lost during all-reduce #5'));
    const failure = 'rank 0 exited with code 1, 1.0 s after the start (pid 7), because of rank 1, which ended before it, with code 0';
    write('launcher.json', JSON.stringify({ command: ['train.ts'], startedAt: 'x', exitCode: 1, failure }));
    expect(build().failure).toMatchObject({
      headline: 'rank 1 ended with code 0 while others still called',
      lines: expect.arrayContaining(['rank 0: rank 1 was lost during all-reduce #5', failure]),
    });
  });

  it('a rank that did not make a call is named with the call', () => {
    for (const [rank, last] of [5, 4, 5].entries()) write(`flight-rank-${rank}.json`, flight(rank, last, null));
    expect(build().failure!.headline).toBe(
      "rank 1 did not make call 5, all_reduce float32[1000] at train.ts:7 of group 'world', which the others wait for",
    );
  });
});

describe('files nobody should trust', () => {
  it('a folder with nothing of a run is refused', () => {
    expect(() => readRunFolder(folder)).toThrow(/has nothing of a run to report; start it by shoal run --report/);
    expect(() => readRunFolder(join(folder, 'nowhere'))).toThrow(/cannot be read/);
    write('trace-rank-0.json', '{"traceEvents":[');
    expect(() => readRunFolder(folder)).toThrow(/nothing of a run to report: trace-rank-0\.json is not JSON/);
  });

  it('what is truncated or foreign is a warning beside what is whole', () => {
    writeTrace(0, [span(0, 'all-reduce tree', [0, 1])]);
    write('trace-rank-1.json', '{"traceEvents":[]}');
    write('flight-rank-0.json', '{"rank":0,"entries":[{}]}');
    write('summary.json', '[]');
    write('launcher.json', 'null');
    expect(build().warnings).toEqual(
      [
        'launcher.json is not a record of the launcher',
        'trace-rank-1.json is not a trace written by Shoal (SHOAL_TRACE=<folder>)',
        'flight-rank-0.json is not a flight record written by Shoal',
        'summary.json is not a summary of the demo',
      ].toSorted((a, b) => order(a) - order(b)),
    );
  });

  /** The order in which files are read. */
  const order = (warning: string): number => ['trace', 'flight', 'summary', 'launcher'].findIndex((kind) => warning.startsWith(kind));

  it('of a trace that stops being one, what comes before is shown, with a warning; cut off, it is not read', () => {
    const events = Array.from({ length: 5000 }, (_, sequence) => span(0, 'all-reduce tree', [sequence, 1], { sequence }));
    const text = [...formatChromeTrace(trace(0, events))].join('');
    writeTrace(1, [span(1, 'all-reduce tree', [0, 1])]);
    write('trace-rank-0.json', text.replace('"ts":4900,', '"ts":"4900",'));
    const { warnings, rows } = build();
    expect(warnings).toEqual(['trace-rank-0.json has something that is not an event; what comes after it is not shown']);
    expect(rows.map(({ rank }) => rank)).toEqual([0, 1]);
    write('trace-rank-0.json', text.slice(0, -100));
    expect(build()).toMatchObject({
      warnings: ['trace-rank-0.json is cut off; was the run still writing it?'],
      rows: [{ rank: 1 }],
    });
  });

  it('no text of a trace becomes markup', () => {
    const evil = '</script><script>alert(1)</script><img src=x onerror=alert(1)>';
    writeTrace(0, [span(0, evil, [0, 1], { site: evil, group: evil })]);
    const page = reportPage(buildReport(evil, readRunFolder(folder)));
    expect(page).not.toContain('<img');
    expect(page.match(/<script/g)).toHaveLength(2);
    expect(page).toContain("default-src 'none'");
  });

  it('an object where a trace has text is shown as it is', () => {
    writeTrace(0, [span(0, 'x', [0, 1], { site: { toString: '' } as never })]);
    expect(reportPage(build())).toContain('site {\\"toString\\":\\"\\"}');
  });

  it.each<[name: string, part: object]>([
    ['types', { input_dtypes: [{ toString: '' }] }],
    ['sizes', { input_sizes: [[{ toString: '' }]] }],
    ['lines', { frames: [{ filename: 'a.ts', line: { toString: '' } }] }],
    ['groups', { pg_id: { toString: '' } }],
  ])('a flight record whose %s are something else is a warning', (_, part) => {
    writeTrace(0, [span(0, 'all-reduce tree', [0, 1])]);
    const dump = JSON.parse(flight(0, 1, 'e')) as { entries: object[] };
    write('flight-rank-0.json', JSON.stringify({ ...dump, entries: [{ ...dump.entries[0], ...part }] }));
    expect(build().warnings).toEqual(['flight-rank-0.json is not a flight record written by Shoal']);
  });

  /** The same value with something else in one place of it. */
  const spoilt = (whole: unknown): fc.Arbitrary<unknown> => {
    const paths = pathsOf(whole);
    return fc.tuple(fc.nat(paths.length - 1), fc.jsonValue()).map(([at, other]) => {
      const copy = structuredClone({ whole }) as Record<string, unknown>;
      const path = ['whole', ...paths[at]];
      let holder = copy;
      for (const key of path.slice(0, -1)) holder = holder[key] as Record<string, unknown>;
      holder[path.at(-1)!] = other;
      return copy['whole'];
    });
  };

  const pathsOf = (value: unknown): string[][] =>
    typeof value !== 'object' || value === null
      ? [[]]
      : [[], ...Object.entries(value).flatMap(([key, each]) => pathsOf(each).map((path) => [key, ...path]))];

  it('whatever JSON a file holds, it is read, warned of or refused, and a page can be made of the rest', () => {
    fc.assert(
      fc.property(spoilt(trace(0, [span(0, 'x', [0, 1])])), spoilt(JSON.parse(flight(0, 1, 'e'))), fc.json(), (one, other, third) => {
        write('trace-rank-0.json', JSON.stringify(one));
        write('flight-rank-0.json', JSON.stringify(other));
        write('summary.json', `{"runs":[${third}]}`);
        writeTrace(7, [span(7, 'all-reduce tree', [0, 1])]);
        expect(reportPage(build())).toContain('all-reduce');
      }),
      { numRuns: 1000 },
    );
  });
});
