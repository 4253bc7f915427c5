import { describe, expect, it } from 'vitest';
import { VirtualClock } from '../../../base/clock.ts';
import type { ShoalError } from '../../../base/errors.ts';
import { ControlBlock, controlBlockBytes } from '../../../collectives/control-block.ts';
import { CallHistory } from './call-history.ts';
import type { CollectiveCall } from '../../../call/contract.ts';
import { answerMs, Inquiry, lateMs } from './inquiry.ts';
import type { ControlMessage } from '../links/control-message.ts';

const shape = { slotCount: 4, signalMax: 2 };
const call: CollectiveCall = { kind: 'all-reduce', dtype: 'float32', count: 8, op: 'sum' };

interface Member {
  readonly own: ControlBlock;
  readonly history: CallHistory;
  readonly inquiry: Inquiry;
  readonly errors: ShoalError[];
  open: boolean;
}

/** Ranks whose messages arrive at once, but for those in `silent`, which neither hear nor speak. */
function createGroup(
  size: number,
  options: {
    silent?: readonly number[];
    seen?: readonly number[];
    waiting?: readonly number[];
    left?: Readonly<Record<number, number>>;
  } = {},
): { clock: VirtualClock; members: Member[]; sent: ControlMessage[] } {
  const { silent = [], seen = [], waiting = [], left = {} } = options;
  const clock = new VirtualClock();
  const members: Member[] = [];
  const sent: ControlMessage[] = [];
  for (let rank = 0; rank < size; rank++) {
    const own = new ControlBlock(new SharedArrayBuffer(controlBlockBytes(shape)), 0, shape);
    const history = new CallHistory(own, { callsMax: 8 });
    const member: Member = {
      own,
      history,
      errors: [],
      open: true,
      inquiry: new Inquiry({
        group: {
          id: 1,
          name: 'g',
          globalRanks: Array.from({ length: size }, (_, each) => each + 10),
          rank,
          topology: { hosts: [Array.from({ length: size }, (_, each) => each)] },
        },
        clock,
        history,
        callsAtLeave: Array.from({ length: size }, (_, each) => left[each]),
        hasAnnounced: (other) => seen.includes(other),
        wait: () => (waiting.includes(rank) ? { text: 'another call' } : undefined),
        isOpen: () => member.open,
        tellOthers: (message) => {
          if (silent.includes(rank)) return;
          sent.push(message);
          members.forEach((other, to) => {
            if (to !== rank && !silent.includes(to) && left[to] === undefined && message.type === 'report')
              other.inquiry.onReport(rank, message);
          });
        },
        onConcluded: (error) => {
          member.open = false;
          member.errors.push(error);
        },
      }),
    };
    members.push(member);
  }
  return { clock, members, sent };
}

describe('Inquiry', () => {
  it('hears what came while this rank got no CPU before it concludes without it', () => {
    const { clock, members } = createGroup(2, { silent: [1] });
    const { history, inquiry, errors } = members[0];
    history.remember(0, call);
    inquiry.begin('mismatch', 0, 1000);
    clock.stall(2 * answerMs);
    expect(errors).toEqual([]);
    inquiry.onReport(1, { type: 'report', group: 1, code: 'mismatch', sequence: 0, timeoutMs: 1000, text: 'barrier #0', arrived: true });
    expect(errors.map(({ message }) => message)).toEqual([expect.stringContaining('rank 1 (world rank 11): barrier #0')]);
  });

  it('all ranks make one error of what all have called, without waiting', () => {
    const { clock, members, sent } = createGroup(3);
    members.forEach(({ history }, rank) => history.remember(0, { ...call, count: rank === 2 ? 9 : 8 }));
    members[1].inquiry.begin('mismatch', 0, 1000);
    expect(clock.now()).toBe(0);
    const messages = members.map(({ errors }) => errors.map((error) => error.message));
    expect(new Set(messages.flat()).size).toBe(1);
    expect(messages.map((each) => each.length)).toEqual([1, 1, 1]);
    expect(messages[0][0]).toContain('rank 0 (world rank 10): all-reduce #0 float32[8] sum\n');
    expect(messages[0][0]).toContain('rank 2 (world rank 12): all-reduce #0 float32[9] sum\n');
    expect(members[0].errors[0]).toMatchObject({ code: 'mismatch', sequence: 0, operation: 'all-reduce' });
    // Everybody says its part once.
    expect(sent).toHaveLength(3);
  });

  it('ranks that notice at different calls come to ask about the first of them', () => {
    const report = (sequence: number): Extract<ControlMessage, { type: 'report' }> => {
      return { type: 'report', group: 1, code: 'mismatch', sequence, timeoutMs: 1000, text: `barrier #${sequence}`, arrived: true };
    };
    for (const [own, theirs] of [
      [6, 5],
      [5, 6],
    ]) {
      const { members } = createGroup(2, { silent: [1] });
      const { history, inquiry, errors } = members[0];
      for (const sequence of [5, 6]) history.remember(sequence, call);
      inquiry.begin('mismatch', own, 1000);
      inquiry.onReport(1, report(theirs));
      // Having heard of the earlier call, the other rank asks about that, too.
      if (theirs === 6) inquiry.onReport(1, report(5));
      expect(errors).toMatchObject([{ sequence: 5, message: expect.stringMatching(/all-reduce #5 [^]*barrier #5/) }]);
    }
  });

  it('names a rank that does not answer, after a while', () => {
    const { clock, members } = createGroup(3, { silent: [1] });
    for (const { history } of members) history.remember(0, call);
    members[0].inquiry.begin('timeout', 0, 1000);
    clock.advance(answerMs - 1);
    expect(members[0].errors).toEqual([]);
    clock.advance(1);
    for (const rank of [0, 2]) {
      expect(members[rank].errors).toMatchObject([{ code: 'timeout', peer: 11, timeoutMs: 1000 }]);
      expect(members[rank].errors[0].message).toMatch(
        /waiting perhaps for rank 1 \(world rank 11\), which did not answer:[^]*rank 1 \(world rank 11\): did not answer/,
      );
    }
    expect(members[1].errors).toEqual([]);
  });

  it('a rank that has not called says what it did last, and is the one that is waited for', () => {
    const { clock, members } = createGroup(2);
    members[0].history.remember(0, call);
    members[0].inquiry.begin('timeout', 0, 1000);
    clock.advance(lateMs);
    for (const { errors } of members) {
      expect(errors).toMatchObject([{ code: 'timeout', peer: 11 }]);
      expect(errors[0].message).toMatch(/waiting for rank 1 \(world rank 11\):\n/);
      expect(errors[0].message).toContain('rank 1 (world rank 11): had not called it by then; it had called nothing');
    }
  });

  it('names who says that it had not called before who does not answer, and says which is uncertain', () => {
    const { clock, members } = createGroup(4, { silent: [1] });
    for (const rank of [0, 3]) members[rank].history.remember(0, call);
    members[0].inquiry.begin('timeout', 0, 1000);
    clock.advance(answerMs);
    for (const rank of [0, 2, 3]) {
      expect(members[rank].errors).toMatchObject([{ code: 'timeout', peer: 12 }]);
      expect(members[rank].errors[0].message).toMatch(
        /waiting for rank 2 \(world rank 12\); perhaps for rank 1 \(world rank 11\), which did not answer:\n/,
      );
    }
  });

  it('names who does not answer before who had not called because an earlier call of it has not ended', () => {
    const { clock, members } = createGroup(4, { silent: [1], waiting: [2] });
    for (const rank of [0, 3]) members[rank].history.remember(0, call);
    members[0].inquiry.begin('timeout', 0, 1000);
    clock.advance(answerMs);
    for (const rank of [0, 2, 3]) expect(members[rank].errors).toMatchObject([{ code: 'timeout', peer: 11 }]);
    expect(members[0].errors[0].message).toContain(
      'rank 2 (world rank 12): had not called it by then; it had called nothing; it waits in another call',
    );
  });

  it('names those first who had left, then those who had called least', () => {
    const { clock, members } = createGroup(4, { left: { 3: 2 } });
    for (let sequence = 0; sequence < 6; sequence++) {
      members[0].history.remember(sequence, call);
      if (sequence < 5) members[1].history.remember(sequence, call);
      if (sequence < 3) members[2].history.remember(sequence, call);
    }
    members[0].inquiry.begin('timeout', 5, 1000);
    clock.advance(lateMs);
    expect(members[0].errors).toMatchObject([{ code: 'timeout', peer: 13 }]);
    expect(members[0].errors[0].message).toMatch(/waiting for rank 3 \(world rank 13\), 2 \(world rank 12\), 1 \(world rank 11\):\n/);
  });

  it('does not wait for a rank whose call was seen here, though it does not answer', () => {
    const { clock, members } = createGroup(3, { silent: [1], seen: [1] });
    members[0].history.remember(0, call);
    members[2].history.remember(0, call);
    members[0].inquiry.begin('timeout', 0, 1000);
    clock.advance(answerMs);
    expect(members[0].errors).toMatchObject([{ code: 'timeout', peer: 11 }]);
    expect(members[0].errors[0].message).toMatch(
      /all had called it, but rank 1 \(world rank 11\) did not answer any more:\n[^]*: did not answer, after it had called/,
    );
  });

  it('a rank that is merely slow is not named before one that does not call at all', () => {
    const { clock, members } = createGroup(3);
    members[0].history.remember(0, call);
    members[0].inquiry.begin('timeout', 0, 1000);
    clock.advance(lateMs / 2);
    members[1].history.remember(0, call);
    members[1].inquiry.onCalled(0);
    expect(members[0].errors).toEqual([]);
    clock.advance(lateMs / 2);
    for (const { errors } of members) {
      expect(errors).toMatchObject([{ code: 'timeout', peer: 12 }]);
      expect(errors[0].message).toMatch(/waiting for rank 2 \(world rank 12\); rank 1 \(world rank 11\) called it too late:\n/);
      expect(errors[0].message).toContain('rank 1 (world rank 11): all-reduce #0 float32[8] sum\n');
    }
  });

  it('says so when all had called, if too late', () => {
    const { clock, members } = createGroup(2);
    members[0].history.remember(0, call);
    members[0].inquiry.begin('timeout', 0, 10);
    clock.advance(1);
    members[1].history.remember(0, call);
    members[1].inquiry.onCalled(0);
    for (const { errors } of members) {
      expect(errors).toMatchObject([{ code: 'timeout', peer: 11 }]);
      expect(errors[0].message).toMatch(/timed out after 10 ms, rank 1 \(world rank 11\) called it too late:\n/);
      expect(errors[0].message).not.toContain('not called');
    }
  });

  it('a call that the main thread is still making counts as made', () => {
    const { clock, members } = createGroup(2);
    members[0].history.remember(0, call);
    // The main thread has announced it, and copies its arguments.
    members[1].own.called = 1;
    members[0].inquiry.begin('timeout', 0, 10);
    clock.advance(lateMs);
    for (const { errors } of members) {
      expect(errors[0].message).toContain('rank 1 (world rank 11): was making this call');
      expect(errors[0].message).not.toContain('not called');
    }
  });

  it('waits for a call that is on its way from the main thread, but not for ever', () => {
    const { clock, members } = createGroup(2);
    members[0].history.remember(0, call);
    // Rank 1's main thread has called and said so in its block; its comm thread does not know what.
    members[1].history.remember(5, call);
    members[0].inquiry.begin('mismatch', 0, 1000);
    clock.advance(100);
    expect(members[0].errors).toEqual([]);
    members[1].history.remember(0, { ...call, name: 'late' });
    members[1].inquiry.onCalled(0);
    expect(members[0].errors[0].message).toMatch(/rank 1 \(world rank 11\): all-reduce #0 float32\[8\] sum.*late/);

    const slow = createGroup(2);
    slow.members[0].history.remember(0, call);
    slow.members[1].history.remember(5, call);
    slow.members[0].inquiry.begin('mismatch', 0, 1000);
    slow.clock.advance(lateMs - 1);
    expect(slow.members[0].errors).toEqual([]);
    slow.clock.advance(1);
    expect(slow.members[0].errors[0].message).toContain('made this call long ago and has made 6 since');
  });

  it('counts ranks that have left as having spoken', () => {
    const { members } = createGroup(2, { left: { 1: 4 } });
    members[0].history.remember(4, call);
    members[0].inquiry.begin('mismatch', 4, 1000);
    expect(members[0].errors[0].message).toContain('rank 1 (world rank 11): left the group after 4 calls');
  });

  it('does not wait for a rank that made the call before it left', () => {
    const { clock, members } = createGroup(3, { silent: [2], left: { 1: 5 }, seen: [2] });
    members[0].history.remember(4, call);
    members[0].inquiry.begin('timeout', 4, 1000);
    clock.advance(answerMs);
    expect(members[0].errors[0]).toMatchObject({
      peer: 12,
      message: expect.stringContaining('all had called it, but rank 2 (world rank 12) did not answer any more'),
    });
  });

  it('holds one inquiry at most, and none once the group has ended', () => {
    const { clock, members, sent } = createGroup(2, { silent: [1] });
    members[0].history.remember(0, call);
    members[0].inquiry.begin('timeout', 0, 1000);
    members[0].inquiry.begin('mismatch', 1, 1000);
    expect(members[0].inquiry.underway).toBe(true);
    expect(sent).toMatchObject([{ code: 'timeout', sequence: 0 }]);
    members[0].open = false;
    clock.advance(10_000);
    expect(members[0].errors).toEqual([]);
    const ended = createGroup(2);
    ended.members[0].open = false;
    ended.members[0].inquiry.begin('timeout', 0, 1000);
    expect(ended.members[0].inquiry.underway).toBe(false);
  });
});
