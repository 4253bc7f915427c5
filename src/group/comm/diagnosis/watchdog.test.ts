import { describe, expect, it } from 'vitest';
import { VirtualClock } from '../../../base/clock.ts';
import { silentLogger } from '../../../base/log.ts';
import { startRanks, type InProcessOptions } from '../../testing/in-process-world.ts';
import { Watchdog, type Watched } from '../../../metrics/watchdog.ts';

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
    const made = { name, timeoutMs, submittedMs: clock.now() };
    pending.push(made);
    dog.watch(made);
    return made;
  };
  return { clock, pending, told, dog, call };
}

describe('Watchdog', () => {
  it('tells of a slow call ever less often, then that it is late', () => {
    const { clock, told, call } = createDog();
    call('a', 1000);
    clock.advance(99);
    expect(told).toEqual([]);
    clock.advance(2000);
    expect(told).toEqual(['100 slow a', '200 slow a', '400 slow a', '800 slow a', '1000 late a']);
  });

  it('says nothing of calls that finish in time, and sets no timer for nothing', () => {
    const { clock, pending, told, call } = createDog();
    const a = call('a', 300);
    clock.advance(50);
    call('b', 300);
    pending.splice(pending.indexOf(a), 1);
    clock.advance(60);
    expect(told).toEqual([]);
    clock.advance(40);
    expect(told).toEqual(['150 slow b']);
    pending.length = 0;
    clock.advance(1000);
    expect(told).toEqual(['150 slow b']);
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

  it('tells of the oldest call alone, and of those that waited behind it as if they were that one', () => {
    const { clock, pending, told, call } = createDog();
    call('a', 10_000);
    clock.advance(30);
    call('b', 10_000);
    clock.advance(300);
    expect(told).toEqual(['100 slow a', '200 slow a']);
    pending.shift();
    clock.advance(100);
    expect(told.slice(2)).toEqual(['400 slow b']);
  });

  it('begins anew with a call that came after the last warning', () => {
    const { clock, pending, told, call } = createDog();
    call('a', 10_000);
    clock.advance(250);
    pending.shift();
    call('b', 10_000);
    clock.advance(300);
    expect(told).toEqual(['100 slow a', '200 slow a', '350 slow b', '450 slow b']);
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

/** Long enough for everything to arrive that has been sent. */
async function delivered(): Promise<void> {
  for (let turn = 0; turn < 40; turn++) await new Promise(setImmediate);
}

describe.each<[string, InProcessOptions]>([
  ['the comm threads', { kind: 'host' }],
  ['the host fast path', { kind: 'host', fastPath: true }],
  ['the comm threads over a network', { kind: 'network' }],
  ['the network fast path', { kind: 'network', fastPath: true, hostIds: ['a', 'b', 'c'] }],
])('calls that a rank does not make, on %s', (_, options) => {
  it.each([
    ['plain', false],
    ['scheduled', true],
  ])('are warned of by the oldest, ever less often, naming that rank alone: %s', async (__, isScheduled) => {
    const clock = new VirtualClock();
    const said: string[] = [];
    const log = { ...silentLogger, warn: (text: string) => void said.push(text) };
    const world = await startRanks(3, { ...options, clock, log });
    const groups = isScheduled ? await world.each((group) => group.scheduled()) : world.groups;
    const works = [0, 1].flatMap((rank) => Array.from({ length: 65 }, () => groups[rank].allReduce(new Float32Array(2))));
    for (let elapsed = 0; elapsed < 20_000; elapsed += 500) {
      await delivered();
      clock.advance(500);
    }
    const lines = isScheduled ? /'all-reduce 0' \(.* has waited (\d+) s for rank 2 to/ : /#0 .* has waited (\d+) s for rank 2$/;
    expect(said.map((line) => lines.exec(line)?.[1])).toEqual(['2', '4', '8', '16']);
    works.push(...Array.from({ length: 65 }, () => groups[2].allReduce(new Float32Array(2))));
    await delivered();
    await Promise.all(works);
    expect(said).toHaveLength(4);
  });
});
