import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { temporaryFolder } from '../base/testing/temporary-folder.ts';
import { VirtualClock } from '../base/clock.ts';
import { FlightRecorder, parseFrames, writeFlightDump, type FlightOperation } from './flight-recorder.ts';

function start(size: number): { clock: VirtualClock; recorder: FlightRecorder } {
  const clock = new VirtualClock();
  const recorder = new FlightRecorder({ rank: 1, clock, size, thread: 'comm', libraryVersion: '0.1.0' });
  recorder.addGroup({ name: 'world', description: 'default', ranks: [0, 1] });
  return { clock, recorder };
}

function allReduce(sequence: number, changes: Partial<FlightOperation> = {}): FlightOperation {
  return {
    group: 'world',
    sequence,
    isP2P: false,
    profilingName: 'shoal:all_reduce',
    inputSizes: [[4]],
    inputDtypes: ['float32'],
    outputSizes: [[4]],
    outputDtypes: ['float32'],
    timeoutMs: 1000,
    ...changes,
  };
}

describe('FlightRecorder', () => {
  it('follows an operation through its states', () => {
    const { clock, recorder } = start(8);
    clock.advance(1);
    const id = recorder.schedule(allReduce(0));
    expect(recorder.dump().entries[0]).toMatchObject({
      state: 'scheduled',
      retired: false,
      time_discovered_started_ns: null,
      duration_ms: null,
    });
    clock.advance(1);
    recorder.start(id);
    expect(recorder.dump().entries[0]).toMatchObject({ state: 'started', time_discovered_started_ns: 2e6, retired: false });
    clock.advance(3);
    recorder.complete(id);
    expect(recorder.dump().entries[0]).toMatchObject({
      record_id: id,
      process_group: ['world', 'default'],
      collective_seq_id: 0,
      profiling_name: 'shoal:all_reduce',
      input_sizes: [[4]],
      output_dtypes: ['float32'],
      state: 'completed',
      time_created_ns: 1e6,
      time_discovered_completed_ns: 5e6,
      duration_ms: 3,
      retired: true,
      timeout_ms: 1000,
      is_p2p: false,
      thread_name: 'comm',
      error: null,
    });
  });

  it('tells the progress of each group', () => {
    const { recorder } = start(8);
    const ids = [0, 1, 2].map((sequence) => recorder.schedule(allReduce(sequence)));
    recorder.start(ids[0]);
    recorder.start(ids[1]);
    recorder.complete(ids[0]);
    recorder.fail(ids[1], 'peer 0 was lost');
    const dump = recorder.dump();
    expect(dump.pg_status).toEqual({ 0: { last_enqueued_collective: 2, last_started_collective: 1, last_completed_collective: 0 } });
    expect(dump.pg_config).toEqual({ 0: { name: 'world', desc: 'default', ranks: '[0, 1]' } });
    expect(dump.entries[1]).toMatchObject({ state: 'started', retired: true, error: 'peer 0 was lost' });
  });

  it('counts messages apart from collectives', () => {
    const { recorder } = start(8);
    recorder.start(recorder.schedule(allReduce(41, { isP2P: true, profilingName: 'shoal:send' })));
    const dump = recorder.dump();
    expect(dump.entries[0]).toMatchObject({ is_p2p: true, p2p_seq_id: 41, collective_seq_id: 0 });
    expect(dump.pg_status[0].last_enqueued_collective).toBe(-1);
  });

  it('ends an operation once: later news about it change nothing', () => {
    const { recorder } = start(2);
    const failed = recorder.schedule(allReduce(0));
    recorder.fail(failed, 'aborted');
    recorder.start(failed);
    recorder.complete(failed);
    expect(recorder.dump().entries[0]).toMatchObject({ state: 'scheduled', error: 'aborted' });
  });

  it('keeps the last operations; handles of older ones have no effect', () => {
    fc.assert(
      fc.property(fc.integer({ min: 0, max: 5 }), fc.array(fc.nat(30), { maxLength: 60 }), (size, finished) => {
        const { recorder } = start(size);
        const ids = Array.from({ length: 20 }, (_, sequence) => recorder.schedule(allReduce(sequence)));
        for (const one of finished) recorder.complete(one);
        const { entries } = recorder.dump();
        expect(entries.map((entry) => entry.record_id)).toEqual(ids.slice(20 - size));
        for (const entry of entries) expect(entry.state).toBe(finished.includes(entry.record_id) ? 'completed' : 'scheduled');
      }),
    );
  });

  it('knows how many operations fit until an entry is overwritten', () => {
    const { recorder } = start(3);
    expect(recorder.roomAfter(Infinity)).toBe(3);
    const id = recorder.schedule(allReduce(0));
    expect(recorder.roomAfter(id)).toBe(2);
    for (let room = 1; room >= 0; room--) {
      recorder.schedule(allReduce(0));
      expect(recorder.roomAfter(id)).toBe(room);
    }
    expect(recorder.dump().entries[0].record_id).toBe(id);
    recorder.schedule(allReduce(0));
    expect(recorder.roomAfter(id)).toBe(0);
  });

  it('knows which collectives of a group it has', () => {
    const { recorder } = start(3);
    recorder.schedule(allReduce(0));
    recorder.schedule(allReduce(1));
    recorder.schedule(allReduce(7, { isP2P: true }));
    recorder.schedule(allReduce(8, { group: 'other' }));
    expect([...recorder.sequencesOf('world')]).toEqual([1]);
  });

  it('forgets a destroyed group but not its operations', () => {
    const { recorder } = start(2);
    recorder.schedule(allReduce(0));
    recorder.removeGroup('world');
    expect(recorder.dump()).toMatchObject({ pg_config: {}, entries: [{ process_group: ['world', ''], pg_id: -1 }] });
  });

  it('shows where the call was made', () => {
    const { recorder } = start(2);
    recorder.schedule(allReduce(0, { stack: new Error('here').stack }));
    const [frame] = recorder.dump().entries[0].frames;
    expect(frame.filename).toMatch(/flight-recorder\.test\.ts$/);
    expect(frame.line).toBeGreaterThan(0);
    expect(parseFrames('Error: x\n    at async train (file:///a b/t.ts:3:5)\n    at /x/y.js:7:1\n    at native')).toEqual([
      { name: 'async train', filename: 'file:///a b/t.ts', line: 3 },
      { name: '<anonymous>', filename: '/x/y.js', line: 7 },
    ]);
  });

  it('writes its dump to a file', () => {
    const folder = temporaryFolder('flight');
    const { clock, recorder } = start(2);
    clock.advance(1_700_000_000_000);
    recorder.schedule(allReduce(0));
    const path = writeFlightDump(folder, recorder.dump());
    expect(path).toBe(join(folder, 'flight-rank-1.json'));
    expect(JSON.parse(readFileSync(path, 'utf8'))).toEqual(recorder.dump());
    expect(readFileSync(path, 'utf8')).toContain('"time_created_ns": 1700000000000000000,');
  });
});
