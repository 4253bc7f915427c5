import { describe, expect, it } from 'vitest';
import { setServedTimer, VirtualClock, within } from './clock.ts';

describe('setServedTimer', () => {
  it('calls back once, after exactly its time', () => {
    const clock = new VirtualClock();
    const calledMs: number[] = [];
    setServedTimer(clock, 1100, () => calledMs.push(clock.now()));
    clock.advance(1099);
    expect(calledMs).toEqual([]);
    clock.advance(10_000);
    expect(calledMs).toEqual([1100]);
  });

  it('counts a pause of the process as a quarter of a second at most', () => {
    const clock = new VirtualClock();
    let called = false;
    setServedTimer(clock, 1000, () => (called = true));
    clock.stall(60_000);
    clock.advance(749);
    expect(called).toBe(false);
    clock.advance(1);
    expect(called).toBe(true);
  });

  it('can be cancelled at any time', () => {
    const clock = new VirtualClock();
    let called = false;
    const timer = setServedTimer(clock, 1000, () => (called = true));
    clock.advance(600);
    timer.cancel();
    timer.cancel();
    clock.advance(10_000);
    expect(called).toBe(false);
  });
});

describe('within', () => {
  it('takes nobody for late while the process gets no CPU', async () => {
    const clock = new VirtualClock();
    let answer!: (text: string) => void;
    const answered = within(clock, 1000, new Promise<string>((resolve) => (answer = resolve)), () => 'late');
    clock.stall(60_000);
    // The answer that had come meanwhile is read now.
    answer('there');
    expect(await answered).toBe('there');
  });

  it('says late after its time', async () => {
    const clock = new VirtualClock();
    const never = within(clock, 1000, new Promise<string>(() => undefined), () => 'late');
    clock.advance(1000);
    expect(await never).toBe('late');
  });
});

describe('a stalled virtual clock', () => {
  it('fires overdue timers afterwards, in order, and timers that they start not before their time', () => {
    const clock = new VirtualClock();
    const fired: string[] = [];
    const cancelled = clock.setTimer(3, () => fired.push('cancelled'));
    clock.setTimer(2, () => {
      fired.push(`second at ${clock.now()}`);
      cancelled.cancel();
      clock.setTimer(1, () => fired.push(`later at ${clock.now()}`));
    });
    clock.setTimer(1, () => fired.push(`first at ${clock.now()}`));
    clock.stall(10);
    expect(fired).toEqual(['first at 10', 'second at 10']);
    clock.advance(1);
    expect(fired.at(-1)).toBe('later at 11');
  });
});
