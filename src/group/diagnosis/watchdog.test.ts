import { describe, expect, it } from 'vitest';
import { VirtualClock } from '../../base/clock.ts';
import { Watchdog, type Watched } from './watchdog.ts';

interface Call extends Watched {
  readonly name: string;
}

function createDog(slowMs = 100): {
  clock: VirtualClock;
  pending: Call[];
  told: string[];
  dog: Watchdog<Call>;
  call: (name: string, timeoutMs: number) => Call;
} {
  const clock = new VirtualClock();
  const pending: Call[] = [];
  const told: string[] = [];
  const dog = new Watchdog<Call>({
    clock,
    slowMs,
    pending: () => pending,
    onSlow: ({ name }) => told.push(`${clock.now()} slow ${name}`),
    onTimeout: ({ name }) => told.push(`${clock.now()} late ${name}`),
  });
  const call = (name: string, timeoutMs: number): Call => {
    const made = { name, timeoutMs, submittedMs: clock.now(), warned: false };
    pending.push(made);
    dog.watch(made);
    return made;
  };
  return { clock, pending, told, dog, call };
}

describe('Watchdog', () => {
  it('tells of a slow call once, then that it is late', () => {
    const { clock, told, call } = createDog();
    call('a', 300);
    clock.advance(99);
    expect(told).toEqual([]);
    clock.advance(1000);
    expect(told).toEqual(['100 slow a', '300 late a']);
  });

  it('says nothing of calls that finish in time, and sets no timer for nothing', () => {
    const { clock, pending, told, call } = createDog();
    const a = call('a', 300);
    call('b', 300);
    clock.advance(50);
    pending.splice(pending.indexOf(a), 1);
    clock.advance(60);
    expect(told).toEqual(['100 slow b']);
    pending.length = 0;
    clock.advance(1000);
    expect(told).toEqual(['100 slow b']);
  });

  it('a later call with a shorter limit is not overlooked', () => {
    const { clock, told, call } = createDog();
    call('patient', 10_000);
    clock.advance(10);
    call('hasty', 20);
    clock.advance(25);
    expect(told).toEqual(['30 late hasty']);
  });

  it('a limit below the time for a warning ends the call without one', () => {
    const { clock, told, call } = createDog();
    call('a', 40);
    clock.advance(500);
    expect(told[0]).toBe('40 late a');
    expect(told.filter((line) => line.includes('slow'))).toEqual([]);
  });

  it('each of several calls is told of at its own time', () => {
    const { clock, told, call } = createDog();
    call('a', 1000);
    clock.advance(30);
    call('b', 1000);
    clock.advance(200);
    expect(told).toEqual(['100 slow a', '130 slow b']);
  });

  it('watches no more after a timeout until asked to, nor when stopped', () => {
    const { clock, pending, told, dog, call } = createDog();
    call('a', 200);
    call('b', 250);
    clock.advance(400);
    expect(told.filter((line) => line.includes('late'))).toEqual(['200 late a']);
    pending.length = 0;
    call('c', 150);
    dog.stop();
    clock.advance(1000);
    expect(told.filter((line) => line.includes(' c'))).toEqual([]);
  });
});
