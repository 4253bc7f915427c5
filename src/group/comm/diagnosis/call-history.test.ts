import { describe, expect, it } from 'vitest';
import { contractBytes, ControlBlock, controlBlockBytes } from '../../../collectives/control-block.ts';
import { CallHistory } from './call-history.ts';
import { encodeContract, type CollectiveCall } from '../../../call/contract.ts';

const shape = { slotCount: 4, signalMax: 2 };
const call: CollectiveCall = { kind: 'all-reduce', dtype: 'float32', count: 8, op: 'sum' };
const broadcast: CollectiveCall = { kind: 'broadcast', dtype: 'int32', count: 5, root: 1 };

function createHistory(callsMax = 3): { own: ControlBlock; history: CallHistory; alone: (sequence: number) => void } {
  const own = new ControlBlock(new SharedArrayBuffer(controlBlockBytes(shape)), 0, shape);
  return {
    own,
    history: new CallHistory(own, { callsMax }),
    // Notes a call as the calling thread does, which tells nobody else.
    alone: (sequence) => {
      const contract = new Uint32Array(contractBytes / 4);
      encodeContract(broadcast, sequence, new Uint8Array(contract.buffer), { strict: false });
      own.logCall(sequence, contract);
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
    expect(history.report(0)).toEqual({ text: 'had not called it by then; it had called nothing', arrived: false, calls: 0 });
    history.remember(0, call);
    expect(history.report(3)).toEqual({
      text: 'had not called it by then; its last call was all-reduce #0 float32[8] sum',
      arrived: false,
      calls: 1,
    });
  });

  it('knows calls that the main thread made alone while the log lasts', () => {
    const { history, alone } = createHistory();
    alone(0);
    expect(history.find(0)).toBeUndefined();
    expect(history.report(0)).toEqual({ text: expect.stringMatching(/^broadcast #0 int32\[5\] root 1/), arrived: true });
    expect(history.report(1).text).toMatch(/^had not called it by then; its last call was broadcast #0 int32\[5\] root 1/);
    for (let sequence = 1; sequence <= 64; sequence++) alone(sequence);
    expect(history.report(0)).toEqual({ text: 'made this call long ago and has made 65 since', arrived: true });
    expect(history.report(1).text).toMatch(/^broadcast #1 /);
  });

  it('counts calls of both threads, in whatever order they are heard of', () => {
    const { history, alone } = createHistory();
    alone(5);
    history.remember(3, call);
    expect(history.called).toBe(6);
  });

  it('takes back no call that the main thread makes while it hears of another', () => {
    /** Its owner's main thread makes a call right after it has been read. */
    class BusyBlock extends ControlBlock {
      override get called(): number {
        const called = super.called;
        super.called = called + 1;
        return called;
      }

      override set called(count: number) {
        super.called = count;
      }
    }
    const memory = new SharedArrayBuffer(controlBlockBytes(shape));
    const quiet = new ControlBlock(memory, 0, shape);
    quiet.called = 6;
    new CallHistory(new BusyBlock(memory, 0, shape), { callsMax: 3 }).remember(5, call);
    expect(quiet.called).toBe(7);
  });

  it('finds the latest calls that the main thread made alone, for the flight recorder', () => {
    const { history, alone } = createHistory();
    expect(history.calledAlone()).toEqual([]);
    history.remember(0, call);
    for (const sequence of [1, 63, 64, 65]) alone(sequence);
    // Call 65 has taken the place of call 1.
    expect(history.calledAlone()).toEqual([
      { sequence: 63, call: broadcast, done: true },
      { sequence: 64, call: broadcast, done: true },
      { sequence: 65, call: broadcast, done: false },
    ]);
    // One that the comm thread took over is known there.
    history.remember(64, call);
    expect(history.calledAlone().map(({ sequence }) => sequence)).toEqual([63, 65]);
  });

  it('does not take a call for one that it is being overwritten by', () => {
    const { history, own, alone } = createHistory();
    alone(1);
    const interrupted = new Proxy(new Uint32Array(contractBytes / 4), {
      get: (contract, word) => {
        if (word === '2') throw new Error('the writer is here');
        return Reflect.get(contract, word) as unknown;
      },
    });
    expect(() => own.logCall(65, interrupted)).toThrow('the writer is here');
    expect(history.calledAlone()).toEqual([]);
  });

  it('keeps so many calls and no more', () => {
    const { history } = createHistory(3);
    for (let sequence = 0; sequence < 100; sequence++) history.remember(sequence, call);
    expect([96, 97, 98, 99].map((sequence) => history.find(sequence) !== undefined)).toEqual([false, true, true, true]);
    expect(history.report(50)).toEqual({ text: 'made this call long ago and has made 100 since', arrived: true });
  });
});
