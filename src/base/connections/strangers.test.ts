import { expect, it } from 'vitest';
import { VirtualClock } from '../clock.ts';
import { Strangers, strangersMost } from './strangers.ts';

function gate(most: number): { clock: VirtualClock; strangers: Strangers<string>; ended: string[] } {
  const clock = new VirtualClock();
  const ended: string[] = [];
  const strangers = new Strangers<string>({
    clock,
    most,
    end: (stranger, { code, message }) => ended.push(`${stranger} ${code} ${message}`),
  });
  return { clock, strangers, ended };
}

it('the oldest of too many strangers goes; one that has left does not count', () => {
  const { strangers, ended } = gate(2);
  for (const name of ['a', 'b']) strangers.enter(name);
  strangers.leave('a');
  for (const name of ['c', 'd']) strangers.enter(name);
  expect(ended).toEqual(['b aborted more than 2 connections wait for their handshake; this one was the oldest']);
  expect(strangers.size).toBe(2);
  expect([strangersMost(), strangersMost(10), strangersMost(1000)]).toEqual([64, 64, 1000]);
});

it('a stranger has five seconds in which this process ran; a trusted one has no limit, and still counts', () => {
  const { clock, strangers, ended } = gate(9);
  for (const name of ['slow', 'trusted', 'member']) strangers.enter(name);
  clock.stall(60_000);
  strangers.trust('trusted');
  strangers.leave('member');
  clock.advance(4749);
  expect(ended).toEqual([]);
  clock.advance(60_000);
  expect(ended).toEqual(['slow timeout it did not finish its handshake in 5000 ms']);
  expect(strangers.size).toBe(1);
  strangers.close();
  expect(ended).toHaveLength(2);
  expect(strangers.size).toBe(0);
  clock.advance(60_000);
  expect(ended).toHaveLength(2);
});
