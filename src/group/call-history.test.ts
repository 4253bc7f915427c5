import { describe, expect, it } from 'vitest';
import { ControlBlock, controlBlockBytes } from '../collectives/control-block.ts';
import { CallHistory } from './call-history.ts';
import { encodeContract, type CollectiveCall } from './contract.ts';

const shape = { slotCount: 4, signalMax: 2 };
const call: CollectiveCall = { kind: 'all-reduce', dtype: 'float32', count: 8, op: 'sum' };

function createHistory(callsMax = 3): { own: ControlBlock; history: CallHistory; announce: (slot: number, sequence: number) => void } {
  const own = new ControlBlock(new SharedArrayBuffer(controlBlockBytes(shape)), 0, shape);
  return {
    own,
    history: new CallHistory(own, { callsMax }),
    // As the main thread does, which tells nobody else.
    announce: (slot, sequence) => {
      encodeContract({ kind: 'broadcast', dtype: 'int32', count: 5, root: 1 }, sequence, own.contract(slot), { strict: false });
      own.publish(slot, sequence + 1);
      own.called = Math.max(own.called, sequence + 1);
    },
  };
}

describe('CallHistory', () => {
  it('reports its own calls in full, with where they were made', () => {
    const { history } = createHistory();
    history.remember(0, { ...call, site: 'train.ts:7' });
    expect(history.report(0)).toEqual({ text: 'all-reduce #0 float32[8] sum at train.ts:7', arrived: true });
    expect(history.called).toBe(1);
  });

  it('says what it did last, of a call it has not made', () => {
    const { history } = createHistory();
    expect(history.report(0)).toEqual({ text: 'has not called it; it has called nothing yet', arrived: false });
    history.remember(0, call);
    expect(history.report(3)).toEqual({ text: 'has not called it; its last call was all-reduce #0 float32[8] sum', arrived: false });
  });

  it('knows calls that the main thread made alone while their slots last', () => {
    const { history, announce } = createHistory();
    announce(2, 0);
    expect(history.find(0)).toBeUndefined();
    expect(history.report(0)).toEqual({ text: expect.stringMatching(/^broadcast #0 int32\[5\] root 1/), arrived: true });
    expect(history.report(1).text).toMatch(/^has not called it; its last call was broadcast #0 int32\[5\] root 1/);
    announce(2, 4);
    expect(history.report(0)).toEqual({ text: 'made this call long ago and has made 5 since', arrived: true });
  });

  it('counts calls of both threads, in whatever order they are heard of', () => {
    const { history, announce } = createHistory();
    announce(0, 5);
    history.remember(3, call);
    expect(history.called).toBe(6);
  });

  it('finds the latest calls that the main thread made alone, for the flight recorder', () => {
    const { history, announce } = createHistory();
    expect(history.calledAlone(2)).toEqual([]);
    history.remember(0, call);
    announce(0, 1);
    announce(3, 3);
    announce(2, 2);
    const broadcast = { kind: 'broadcast', dtype: 'int32', count: 5, root: 1 };
    // Slots below the lane's are those of the comm thread, whose operations are known anyway.
    expect(history.calledAlone(2)).toEqual([
      { sequence: 2, call: broadcast, done: true },
      { sequence: 3, call: broadcast, done: false },
    ]);
    history.remember(3, call);
    expect(history.calledAlone(2).map(({ sequence }) => sequence)).toEqual([2]);
  });

  it('keeps so many calls and no more', () => {
    const { history } = createHistory(3);
    for (let sequence = 0; sequence < 100; sequence++) history.remember(sequence, call);
    expect([96, 97, 98, 99].map((sequence) => history.find(sequence) !== undefined)).toEqual([false, true, true, true]);
    expect(history.report(50)).toEqual({ text: 'made this call long ago and has made 100 since', arrived: true });
  });
});
