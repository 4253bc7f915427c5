import { expect, it } from 'vitest';
import { VirtualClock } from '../base/clock.ts';
import { Board, boardMemory, countersIn, readBoard } from './board.ts';
import { bounds, CallCounters } from './call-counters.ts';
import type { Sample } from './definitions.ts';
import { pageOf } from './prometheus.ts';

const names = new Map([
  [0, 'world'],
  [3, 'rows'],
]);

const valueOf = (samples: readonly Sample[], metric: string, labels: object, part?: string): number | undefined =>
  samples.find(
    (each) => each.metric === metric && each.part === part && Object.entries(labels).every(([key, value]) => each.labels[key] === value),
  )?.value;

it('sums the counts of both threads, by group, collective and path', () => {
  const [caller, comm] = [new CallCounters(), new CallCounters()];
  caller.count(caller.row(0, 'all-reduce', 'host path'), 8);
  comm.count(comm.row(0, 'all-reduce', 'host path'), 16);
  comm.count(comm.row(3, 'send', 'comm thread'), 5);
  const samples = caller.samples(names, comm);
  expect(valueOf(samples, 'calls', { group: 'world', collective: 'all-reduce', path: 'host path' })).toBe(2);
  expect(valueOf(samples, 'bytes', { group: 'world', collective: 'all-reduce', path: 'host path' })).toBe(24);
  expect(valueOf(samples, 'calls', { group: 'rows', collective: 'send', path: 'comm thread' })).toBe(1);
  expect(samples.filter(({ metric }) => metric === 'calls')).toHaveLength(2);
});

it('has a cumulative histogram whose last bucket is the count', () => {
  const counters = new CallCounters();
  const row = counters.row(0, 'barrier', 'comm thread');
  counters.count(row, 0);
  for (const seconds of [0.5e-6, 1e-6, 2e-6, 0.1, 1000]) counters.time(row, seconds);
  const samples = counters.samples(names, new CallCounters());
  const bucket = (le: number | string): number | undefined => valueOf(samples, 'seconds', { le }, '_bucket');
  expect([bucket(1e-6), bucket(4e-6), bucket(0.256), bucket(64), bucket('+Inf')]).toEqual([2, 3, 4, 4, 5]);
  expect(valueOf(samples, 'seconds', {}, '_count')).toBe(5);
  expect(valueOf(samples, 'seconds', {}, '_sum')).toBeCloseTo(1000.1000035, 6);
  expect(samples.filter(({ part }) => part === '_bucket')).toHaveLength(bounds.length + 1);
});

it('bounds the groups that have values of their own', () => {
  const counters = new CallCounters();
  for (let group = 0; group < 1000; group++) counters.count(counters.row(group, 'barrier', 'host path'), 0);
  const all = new Map(Array.from({ length: 1000 }, (_, group) => [group, `group ${group}`]));
  const samples = counters.samples(all, new CallCounters()).filter(({ metric }) => metric === 'calls');
  expect(samples).toHaveLength(16);
  expect(valueOf(samples, 'calls', { group: 'other' })).toBe(1000 - 15);
});

it('a group does not inherit the counts of one that had its number', () => {
  const counters = new CallCounters();
  for (const group of [0, 3]) counters.count(counters.row(group, 'barrier', 'host path'), 0);
  counters.clear(3);
  expect(counters.samples(names, new CallCounters()).filter(({ metric }) => metric === 'calls')).toMatchObject([
    { labels: { group: 'world' } },
  ]);
});

it('a tally counts all its calls, and times ever fewer, which stand for the others', () => {
  const memory = boardMemory({ counts: true });
  const board = new Board(memory, new VirtualClock());
  const tally = board.tally(0, 'all-reduce', 'host path', 8)!;
  for (let call = 0; call < 1000; call++) {
    const began = tally.begin();
    if (began > 0) tally.end(began);
  }
  board.close();
  const samples = countersIn(memory)!.samples(names, new CallCounters());
  expect(valueOf(samples, 'calls', {})).toBe(1000);
  expect(valueOf(samples, 'bytes', {})).toBe(8 * 1000);
  expect(valueOf(samples, 'seconds', {}, '_count')).toBe(511 + 256);
});

it('without metrics there is memory for steps alone, and no tally', () => {
  const clock = new VirtualClock();
  const memory = boardMemory({ counts: false });
  const board = new Board(memory, clock);
  expect(board.tally(0, 'all-reduce', 'host path', 8)).toBeUndefined();
  expect(countersIn(memory)).toBeUndefined();
  expect(readBoard(memory, clock.now())).toMatchObject({ steps: 0, samples: [{ metric: 'steps', value: 0 }] });
  clock.advance(1000);
  expect(board.stepMs).toBe(0);
  board.step();
  clock.advance(500);
  expect(readBoard(memory, clock.now())).toMatchObject({ steps: 1, stepSeconds: 0.5 });
  expect(board.stepMs).toBe(1000);
});

it('the page escapes what a script has named', async () => {
  const page = await pageOf([{ metric: 'pending', labels: { group: 'a "b"\n\\c' }, value: 3 }]);
  expect(page).toContain('# TYPE shoal_pending_calls gauge\nshoal_pending_calls{group="a \\"b\\"\\n\\\\c"} 3\n');
});
