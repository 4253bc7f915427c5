import { MessageChannel } from 'node:worker_threads';
import { describe, expect, it } from 'vitest';
import { sleep, systemClock } from '../../base/clock.ts';
import { ShoalError } from '../../base/errors.ts';
import { loadNative } from '../../memory/native.ts';
import { CommChannel } from '../caller/comm-channel.ts';
import { PortHost } from '../caller/comm-host.ts';
import { eventMemory } from './thread-protocol.ts';
import { GuestPort } from '../thread/guest.ts';
import { Postponed, takePostponed } from './postponed.ts';
import { PendingWork } from '../caller/work.ts';

type Command = { readonly type: 'ask'; readonly work: number; readonly text: string } | { readonly type: 'tell'; readonly text: string };

const native = loadNative({ enabled: true });
const gone = new ShoalError('closed', 'over');

/** Timers that never end by themselves. */
function stillTimers(): { native: ConstructorParameters<typeof Postponed>[0]; set: number[] } {
  const set: number[] = [];
  return { native: { createTimer: () => 7, setTimer: (_, ns) => set.push(ns), closeTimer: () => undefined }, set };
}

function connected() {
  const { port1, port2 } = new MessageChannel();
  const events = eventMemory();
  const postponed = new Postponed(native!);
  const channel = new CommChannel<Command, never>((handlers) => new PortHost({ port: port1, events }, handlers, { postponed }));
  const guest = new GuestPort<Command, never>({ port: port2, events, postponed: postponed.share });
  const heard: string[] = [];
  guest.onCommand((command) => {
    heard.push(command.text);
    if (command.type === 'ask') guest.settle(command.work, undefined);
  });
  const leave = async (): Promise<void> => {
    guest.close();
    await channel.leave(gone);
  };
  return { channel, heard, leave };
}

describe('a postponed command', () => {
  it('is taken by one end, once', () => {
    const postponed = new Postponed(stillTimers().native);
    expect(takePostponed(postponed.share)).toBeUndefined();
    expect(postponed.takeBack()).toBe(false);
    for (const [back, command] of [
      [true, undefined],
      [false, { factor: Number.NaN, none: undefined, text: 'µ' }],
    ] as const) {
      expect(postponed.put({ factor: Number.NaN, none: undefined, text: 'µ' }, 50, -3)).toBe(true);
      expect(postponed.put('another', 50, 4)).toBe(false);
      if (back) expect(postponed.takeBack()).toBe(true);
      expect(takePostponed(postponed.share)).toEqual(command && { command, posted: -3 });
      expect(postponed.takeBack()).toBe(false);
    }
  });

  it('sets its timer, and stops it when it is taken back', () => {
    const { native, set } = stillTimers();
    const postponed = new Postponed(native);
    postponed.put(1, 50_000, 0);
    postponed.takeBack();
    expect(set).toEqual([50_000, 0]);
  });

  it('closes its timer once', () => {
    const closed: number[] = [];
    const postponed = new Postponed({ ...stillTimers().native, closeTimer: (timer) => closed.push(timer) });
    postponed.close();
    postponed.close();
    expect(closed).toEqual([7]);
  });

  it('is not postponed when it is too large', () => {
    expect(new Postponed(stillTimers().native).put('x'.repeat(20_000), 50, 0)).toBe(false);
  });
});

// Without the addon there are no timers that another thread can set.
describe.skipIf(!native)('a channel that postpones', () => {
  it('delivers what nobody takes back', async () => {
    const { channel, heard, leave } = connected();
    const work = channel.start({ type: 'ask', text: 'first' }, 'a question');
    await work;
    const later = new PendingWork(channel, 'a question');
    const takeBack = channel.submitLater(later, { type: 'ask', text: 'later' }, 50_000);
    await later;
    expect(takeBack()).toBe(false);
    expect(heard).toEqual(['first', 'later']);
    await leave();
  });

  it('delivers it in its place: after what was posted before, before what is posted next', async () => {
    const { channel, heard, leave } = connected();
    for (let k = 0; k < 50; k++) {
      channel.post({ type: 'tell', text: `${3 * k}` });
      channel.submitLater(new PendingWork(channel, 'a question'), { type: 'ask', text: `${3 * k + 1}` }, 50_000);
      // Now and then its time comes first.
      if (k % 3 === 0) Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 1);
      await channel.start({ type: 'ask', text: `${3 * k + 2}` }, 'a question');
    }
    expect(heard.map(Number)).toEqual(Array.from({ length: 150 }, (_, k) => k));
    await leave();
  });

  it('does not wait for what could not be posted', async () => {
    const { channel, heard, leave } = connected();
    expect(() => channel.post({ type: 'tell', text: (() => 'no data') as unknown as string })).toThrow('could not be cloned');
    const work = new PendingWork(channel, 'a question');
    channel.submitLater(work, { type: 'ask', text: 'later' }, 50_000);
    await work;
    expect(heard).toEqual(['later']);
    await leave();
  });

  it('delivers nothing of what was taken back, whose work is the caller’s again', async () => {
    const { channel, heard, leave } = connected();
    const work = new PendingWork(channel, 'a question');
    const takeBack = channel.submitLater(work, { type: 'ask', text: 'back' }, 1_000_000);
    expect(takeBack()).toBe(true);
    expect(takeBack()).toBe(false);
    await sleep(systemClock, 5);
    expect(heard).toEqual([]);
    channel.submit(work, { type: 'ask', text: 'again' });
    await work;
    expect(heard).toEqual(['again']);
    await leave();
  });
});
