/** The comm thread of a process and its guests: which guests share it, when it ends, and the outcome for each when one of them or
 *  the thread fails. */
import { once } from 'node:events';
import { MessageChannel, Worker } from 'node:worker_threads';
import { expect, it } from 'vitest';
import { ShoalError } from '../../src/base/errors.ts';
import { CommChannel } from '../../src/comm/caller/comm-channel.ts';
import { joinGuest } from '../../src/comm/caller/comm-host.ts';
import { eventMemory } from '../../src/comm/shared/thread-protocol.ts';
import { hostGuest, processArbiter, type GuestOptions } from '../../src/comm/caller/comm-thread.ts';
import { PendingWork } from '../../src/comm/caller/work.ts';
import type { Asked, Attach, GuestPlan, Question } from '../fixtures/comm-guest.ts';

const closed = new ShoalError('closed', 'the test is over');

/** A guest that answers `ask`, by question. */
class Guest extends CommChannel<Asked | Attach, string> {
  static start(plan: GuestPlan, options: Partial<GuestOptions> = {}): Guest {
    const entry = '../.built/comm-guest.mjs';
    return new Guest((handlers) => hostGuest({ entry, plan, who: plan.name, ...options }, handlers));
  }

  async ask(what: Question): Promise<unknown> {
    let answer: unknown;
    await this.start({ type: 'ask', what }, what, { onSuccess: (given) => void (answer = given) });
    return answer;
  }
}

const start = async (name: string): Promise<Guest> => {
  const guest = Guest.start({ name });
  expect(await guest.ready()).toBe(name);
  return guest;
};

const workers = (): number => (process.report.getReport() as unknown as { workers: unknown[] }).workers.length;

it('guests share one thread, which ends with the last of them; the next has another', async () => {
  const before = workers();
  const guests = await Promise.all(['a', 'b', 'c'].map(start));
  expect(workers()).toBe(before + 1);
  const [thread, ...others] = await Promise.all(guests.map((guest) => guest.ask('thread')));
  expect(others).toEqual([thread, thread]);
  expect(await guests[0].ask('guests')).toEqual(['a', 'b', 'c']);
  const [first, second, third] = guests;
  await first.leave(closed);
  expect(await second.ask('ended')).toEqual(['a']);
  await second.leave(closed);
  expect(await third.ask('thread')).toBe(thread);
  await third.leave(closed);
  expect(workers()).toBe(before);
  const next = await start('d');
  expect(await next.ask('thread')).not.toBe(thread);
  expect(await next.ask('guests')).toEqual(['d']);
  await next.leave(closed);
  await next.leave(closed);
  expect(workers()).toBe(before);
});

// Only the addon's timer postpones; without it commands are posted at once, and the order holds as well.
it('commands arrive in their order, also while the thread reads a postponed one', async () => {
  const guest = Guest.start({ name: 'a' }, { postpones: true });
  await guest.ready();
  const note = { type: 'ask', what: 'note' } as const;
  const rounds = 3000;
  for (let round = 0; round < rounds; round++) {
    const works = [guest.start(note, 'before'), new PendingWork(guest, 'later')];
    guest.submitLater(works[1], note, 30_000);
    // Delays range from well before the timer's time to well after.
    const until = process.hrtime.bigint() + BigInt((round % 30) * 3000);
    while (process.hrtime.bigint() < until);
    for (let k = 0; k < 3; k++) works.push(guest.start(note, 'since'));
    if (round % 10 === 9) await Promise.all(works);
  }
  const noted = (await guest.ask('noted')) as number[];
  expect(noted).toHaveLength(5 * rounds);
  expect(noted.filter((work, k) => k > 0 && work < noted[k - 1])).toEqual([]);
  await guest.leave(closed);
});

it('bytes that guests have in flight count for each other, and for the main thread', async () => {
  const [a, b] = await Promise.all(['a', 'b'].map(start));
  const arbiter = processArbiter();
  expect(await a.ask('send')).toBe(true);
  expect(await b.ask('send')).toBe(true);
  expect(arbiter.elsewhere('network')).toBe(10);
  const account = arbiter.open({ creditBytes: () => 100, resource: 'network', onRoom: () => undefined });
  account.started(1);
  expect([account.admits(89, 0), account.admits(90, 0)]).toEqual([true, false]);
  expect(await b.ask('in flight')).toEqual([false, 1]);
  await a.leave(closed);
  expect(await b.ask('in flight')).toEqual([true, 1]);
  account[Symbol.dispose]();
  expect(await b.ask('in flight')).toEqual([true, 0]);
  await b.leave(closed);
});

it('a guest that comes while the last one leaves has a thread of its own', async () => {
  const first = await start('a');
  const leaving = first.leave(closed);
  const second = await start('b');
  await leaving;
  expect(await second.ask('guests')).toEqual(['b']);
  await second.leave(closed);
});

it('a guest that cannot start is told why, and disturbs no other', async () => {
  const guest = await start('a');
  const failing = Guest.start({ name: 'b', fails: 'no room' });
  await expect(failing.ready()).rejects.toMatchObject({ message: 'no room' });
  expect(failing.hasBegun).toBe(false);
  await failing.leave(closed);
  const missing = Guest.start({ name: 'c' }, { entry: 'comm/caller/comm-host.d.ts' });
  await expect(missing.ready()).rejects.toMatchObject({ code: 'system' });
  await missing.leave(closed);
  expect(() => Guest.start({ name: 'd' }, { entry: 'nowhere.js' })).toThrow(expect.objectContaining({ code: 'config' }));
  expect(await guest.ask('guests')).toEqual(['a']);
  await guest.leave(closed);
  expect(workers()).toBe(0);
});

it('a guest alone that cannot start leaves no thread behind', async () => {
  const failing = Guest.start({ name: 'a', fails: 'no room' });
  await expect(failing.ready()).rejects.toMatchObject({ message: 'no room' });
  await failing.leave(closed);
  expect(workers()).toBe(0);
});

it('a guest that others use, too, ends by itself', async () => {
  const guest = Guest.start({ name: 'a' }, { ends: 'itself' });
  const other = await start('b');
  const answered = guest.ask('nothing');
  await guest.leave(closed);
  await expect(answered).rejects.toMatchObject({ code: 'closed' });
  expect(await other.ask('ended')).toEqual([]);
  // No message can reach it any more, so the thread has to go.
  await expect(other.ask('exit')).rejects.toMatchObject({ code: 'system' });
  await other.leave(closed);
});

it('a guest that has left by itself is not waited for', async () => {
  const guest = await start('a');
  await guest.ask('leave');
  await guest.leave(closed);
  expect(workers()).toBe(0);
});

it.each([
  { end: 'throw', message: /^the comm thread failed: a mistake$/ },
  { end: 'exit', message: /^the comm thread ended with code 7$/ },
] as const)('a thread that is lost ($end) is the failure of all its guests, with one reason', async ({ end, message }) => {
  const guests = await Promise.all(['a', 'b'].map(start));
  const pending = guests.map((guest) => guest.ask('nothing'));
  void guests[0].ask(end).catch(() => undefined);
  for (const work of pending) await expect(work).rejects.toMatchObject({ code: 'system', message: expect.stringMatching(message) });
  for (const guest of guests) await expect(guest.ask('thread')).rejects.toMatchObject({ code: 'system' });
  await Promise.all(guests.map((guest) => guest.leave(closed)));
  const next = await start('c');
  expect(await next.ask('guests')).toEqual(['c']);
  await next.leave(closed);
});

it('what the thread has said right before its end is heard, by every thread that has joined', async () => {
  for (let round = 0; round < 5; round++) {
    const guest = await start('a');
    const { port1, port2 } = new MessageChannel();
    const events = eventMemory();
    guest.post({ type: 'attach', end: { port: port2, events } }, [port2]);
    const joined = new Guest((handlers) => joinGuest({ port: port1, events }, handlers));
    await joined.ready();
    const heard = joined.ask('nothing');
    expect(await guest.ask('last word')).toBe('last word');
    expect(await heard).toBe('last word');
    await expect(guest.ask('nothing')).rejects.toMatchObject({ code: 'system' });
    await Promise.all([joined.leave(closed), guest.leave(closed)]);
  }
});

it('what another thread has posted right before its end arrives', async () => {
  const guest = await start('a');
  const posted = [1001, 1002, 1003];
  const code = `
    const { workerData: { port, posted } } = require('node:worker_threads');
    for (const work of posted) port.postMessage({ type: 'ask', work, what: 'nothing' });
    process.exit();`;
  for (let round = 0; round < 5; round++) {
    const { port1, port2 } = new MessageChannel();
    guest.post({ type: 'attach', end: { port: port2, events: eventMemory() } }, [port2]);
    const thread = new Worker(code, { eval: true, workerData: { port: port1, posted }, transferList: [port1] });
    await once(thread, 'exit');
  }
  const expected = Array.from({ length: 5 }, () => posted).flat();
  let noted: unknown;
  do noted = await guest.ask('noted');
  while ((noted as number[]).length < expected.length);
  expect(noted).toEqual(expected);
  await guest.leave(closed);
});

it('a thread that is lost while this one waits without its event loop', async () => {
  const guest = await start('a');
  const other = await start('b');
  const work = guest.start({ type: 'ask', what: 'nothing' }, 'an answer that never comes');
  const fatal = other.start({ type: 'ask', what: 'exit' }, 'its end');
  expect(() => work.waitSync()).toThrow(expect.objectContaining({ code: 'system', message: 'the comm thread has ended' }));
  expect(() => fatal.waitSync()).toThrow(expect.objectContaining({ code: 'system' }));
  await Promise.all([guest.leave(closed), other.leave(closed)]);
});

it('a thread that is lost while another one, which has joined, waits without its event loop', async () => {
  const guest = await start('a');
  const { port1, port2 } = new MessageChannel();
  const events = eventMemory();
  guest.post({ type: 'attach', end: { port: port2, events } }, [port2]);
  const joined = new Guest((handlers) => joinGuest({ port: port1, events }, handlers));
  expect(await joined.ready()).toBe('a');
  const work = joined.start({ type: 'ask', what: 'nothing' }, 'an answer that never comes');
  guest.start({ type: 'ask', what: 'exit' }, 'its end').then(undefined, () => undefined);
  expect(() => work.waitSync(60_000)).toThrow(expect.objectContaining({ code: 'system', message: 'the comm thread has ended' }));
  await Promise.all([joined.leave(closed), guest.leave(closed)]);
});
