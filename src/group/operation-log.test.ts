import { describe, expect, it } from 'vitest';
import { VirtualClock } from '../base/clock.ts';
import { FlightRecorder } from '../trace/flight-recorder.ts';
import { nullRecorder } from '../trace/recorder.ts';
import type { CallAlone } from './call-history.ts';
import type { CollectiveCall } from './contract.ts';
import type { GroupSpec } from './group-spec.ts';
import { OperationLog } from './operation-log.ts';

const group: GroupSpec = { id: 0, name: 'world', globalRanks: [0, 1], rank: 0, topology: { hosts: [[0, 1]] } };
const call: CollectiveCall = { kind: 'all-reduce', dtype: 'float32', count: 8, op: 'sum' };

function createLog(size: number): OperationLog {
  const flight = new FlightRecorder({ rank: 0, clock: new VirtualClock(), size, thread: 'comm', libraryVersion: '0' });
  const log = new OperationLog(flight, nullRecorder);
  log.addGroup(group);
  return log;
}

const alone = (count: number): CallAlone[] => Array.from({ length: count }, (_, sequence) => ({ sequence, call, done: true }));

const sequencesOf = ({ flight }: OperationLog): number[] => flight.dump().entries.map((entry) => entry.collective_seq_id);

describe('calls that the main thread made by itself', () => {
  it('are found as completed, but for one that is underway', () => {
    const log = createLog(8);
    log.found(group, [...alone(2), { sequence: 2, call, done: false }]);
    expect(log.flight.dump().entries.map(({ state }) => state)).toEqual(['completed', 'completed', 'started']);
  });

  it('do not push out what is underway', () => {
    const log = createLog(4);
    log.created(group, { call, sequence: 10, timeoutMs: 1, submittedMs: 0 });
    log.found(group, alone(10));
    expect(sequencesOf(log)).toEqual([10, 7, 8, 9]);
  });

  it('are not recorded twice, having been taken over long ago', () => {
    const log = createLog(8);
    const takenOver = { call, sequence: 1, timeoutMs: 1, submittedMs: 0 };
    log.created(group, takenOver);
    log.finished(group, takenOver, undefined);
    log.found(group, alone(3));
    expect(sequencesOf(log)).toEqual([1, 0, 2]);
  });

  it('are the latest ones where there is room for some, and none where nothing is kept', () => {
    const log = createLog(2);
    log.found(group, alone(10));
    expect(sequencesOf(log)).toEqual([8, 9]);
    const off = createLog(0);
    off.found(group, alone(10));
    expect(sequencesOf(off)).toEqual([]);
  });
});
