import { describe, expect, it } from 'vitest';
import { VirtualClock } from '../../../base/clock.ts';
import { ShoalError } from '../../../base/errors.ts';
import { FlightRecorder } from '../../../trace/flight-recorder.ts';
import { chromeTrace, type ChromeEvent } from '../../../trace/chrome.ts';
import { createRecorder, nullRecorder } from '../../../trace/recorder.ts';
import type { CallAlone } from './call-history.ts';
import type { CollectiveCall } from '../../../call/contract.ts';
import type { GroupSpec } from '../../../call/group-spec.ts';
import { OperationLog, type RecordedOperation } from './operation-log.ts';

const group: GroupSpec = { id: 0, name: 'world', globalRanks: [0, 1], rank: 0, topology: { hosts: [[0, 1]] } };
const call: CollectiveCall = { kind: 'all-reduce', dtype: 'float32', count: 8, op: 'sum' };

const operation: RecordedOperation = {
  call,
  sequence: 1,
  timeoutMs: 1,
  submittedMs: 0,
  path: 'comm thread',
  algorithm: 'ring',
  waitedFor: undefined,
  movements: [],
};

function createLog(size: number, clock = new VirtualClock(), trace = nullRecorder): OperationLog {
  const flight = new FlightRecorder({ rank: 0, clock, size, thread: 'comm', libraryVersion: '0' });
  const log = new OperationLog(flight, trace);
  log.addGroup(group);
  return log;
}

const alone = (count: number): CallAlone[] => Array.from({ length: count }, (_, sequence) => ({ sequence, call, done: true }));

const sequencesOf = ({ flight }: OperationLog): number[] => flight.dump().entries.map((entry) => entry.collective_seq_id);

describe('calls that the main thread made by itself', () => {
  it('are found as completed, but for one that is underway', () => {
    const log = createLog(8);
    log.found(group, () => [...alone(2), { sequence: 2, call, done: false }]);
    expect(log.flight.dump().entries.map(({ state }) => state)).toEqual(['completed', 'completed', 'started']);
  });

  it('do not push out what is underway', () => {
    const log = createLog(4);
    log.created(group, { ...operation, sequence: 10 });
    log.found(group, () => alone(10));
    expect(sequencesOf(log)).toEqual([10, 7, 8, 9]);
  });

  it('are not recorded twice, having been taken over long ago', () => {
    const log = createLog(8);
    const takenOver = { ...operation };
    log.created(group, takenOver);
    log.finished(group, takenOver, undefined);
    log.found(group, () => alone(3));
    expect(sequencesOf(log)).toEqual([1, 0, 2]);
  });

  it('are the latest ones where there is room for some, and none where nothing is kept', () => {
    const log = createLog(2);
    log.found(group, () => alone(10));
    expect(sequencesOf(log)).toEqual([8, 9]);
    const off = createLog(0);
    off.found(group, () => alone(10));
    expect(sequencesOf(off)).toEqual([]);
  });
});

describe('on the timeline', () => {
  const drawn = (log: OperationLog): (ChromeEvent & { row: unknown })[] => {
    const { traceEvents } = chromeTrace({ rank: 0, host: 'h', pid: 1, offsetMs: 0 }, [log.trace.snapshot()]);
    const rowOf = (tid: number): unknown => traceEvents.find((each) => each.name === 'thread_name' && each.tid === tid)?.args?.name;
    return traceEvents.filter(({ ph }) => ph === 'X').map((event) => ({ ...event, row: rowOf(event.tid) }));
  };

  it('the wait for a late rank is apart from the work, and names it; both say what the call was', () => {
    const clock = new VirtualClock();
    const log = createLog(8, clock, createRecorder({ clock, thread: 'comm' }));
    const late: RecordedOperation = {
      ...operation,
      sequence: 7,
      call: { ...call, name: 'bucket-0', site: 'train.ts:12' },
      waitedFor: 1,
    };
    log.created(group, late);
    clock.advance(100);
    log.started(group, late);
    clock.advance(2);
    log.finished(group, late, undefined);
    const same = {
      sequence: 7,
      name: 'bucket-0',
      group: 'world',
      dtype: 'float32',
      count: 8,
      bytes: 32,
      op: 'sum',
      algorithm: 'ring',
      path: 'comm thread',
      peers: '1',
      site: 'train.ts:12',
    };
    expect(drawn(log).map(({ name, row, ts, dur, args }) => ({ name, row, ts, dur, args }))).toEqual([
      { name: 'all-reduce wait', row: 'world waits', ts: 0, dur: 100_000, args: { ...same, waitedFor: 1 } },
      { name: 'all-reduce ring', row: 'world', ts: 100_000, dur: 2000, args: same },
    ]);
  });

  it('a call that ends before all ranks have called was a wait to its end; one that the main thread took back is not drawn here', () => {
    const clock = new VirtualClock();
    const log = createLog(8, clock, createRecorder({ clock, thread: 'comm' }));
    for (const error of [new ShoalError('timeout', 'late'), undefined]) {
      const each = { ...operation, submittedMs: clock.now() };
      log.created(group, each);
      clock.advance(3);
      log.finished(group, each, error);
    }
    expect(drawn(log).map(({ name, dur }) => [name, dur])).toEqual([['all-reduce wait', 3000]]);
  });
});
