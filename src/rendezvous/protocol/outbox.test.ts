import { describe, expect, it } from 'vitest';
import { seededRandom } from '../../base/random.ts';
import type { RemoteRegion, Span } from '../../fabric/fabric.ts';
import { Arbiter, type CreditAccount } from '../../scheduler/arbiter.ts';
import { spanOf } from '../value/tensor-value.ts';
import { tensorCounters } from './counters.ts';
import { Outbox } from './outbox.ts';

const MiB = 2 ** 20;
const region: RemoteRegion = { rkey: 1, bytes: 2 ** 40, handle: '' };
const memory = spanOf(new Uint8Array(8));

interface Written {
  readonly source: Span;
  readonly offset: number;
  readonly immediate: number | undefined;
  readonly done: () => void;
}

/** A connection whose writes end when the test says so. */
class Held {
  readonly written: Written[] = [];
  readonly ended: number[] = [];
  readonly account: CreditAccount;
  readonly outbox: Outbox;
  #turns: (() => void)[] = [];

  /** Announcements, and immediates of writes. */
  readonly told: (number | 'message')[] = [];

  constructor(creditBytes: number, { arbiter = new Arbiter(), announcesApart = false } = {}) {
    this.account = arbiter.open({
      creditBytes: () => creditBytes,
      resource: 'network',
      isDestination: true,
      onRoom: () => this.outbox.pump(),
    });
    this.outbox = new Outbox({
      counters: tensorCounters(),
      account: this.account,
      atEndOfTurn: (callback) => void this.#turns.push(callback),
      wire: {
        announcesApart,
        send: () => void this.told.push('message'),
        write: (source, { offset }, immediate, done) => {
          this.written.push({ source, offset, immediate, done });
          if (immediate !== undefined) this.told.push(immediate);
        },
      },
    });
  }

  /** The writes of one tensor. */
  write(owner: number, bytes: number): void {
    const source = { ...memory, bytes };
    this.outbox.write({
      owner,
      source,
      region,
      offset: owner * 64 * MiB,
      room: bytes,
      immediate: owner,
      onDone: () => this.ended.push(owner),
    });
  }

  turn(): void {
    for (const callback of this.#turns.splice(0)) callback();
  }

  /** The oldest write ends. @returns the request it was of. */
  end(): void {
    this.written.shift()?.done();
    this.turn();
  }

  get owners(): number[] {
    return this.written.map(({ offset }) => Math.floor(offset / (64 * MiB)));
  }
}

describe('the credit of an outbox', () => {
  it('bounds what is on its way; the rest goes as it was asked for, and what becomes ready late overtakes', () => {
    const held = new Held(8 * MiB);
    for (const owner of [2, 4, 3]) held.write(owner, 4 * MiB);
    held.turn();
    expect(held.owners).toEqual([2, 3]);
    held.write(1, 4 * MiB);
    held.turn();
    expect(held.owners).toEqual([2, 3]);
    held.end();
    expect(held.owners).toEqual([3, 1]);
    held.end();
    expect(held.owners).toEqual([1, 4]);
    held.end();
    held.end();
    expect([held.ended, held.account.inFlight]).toEqual([[2, 3, 1, 4], 0]);
  });

  it('keeps the order around the end of the numbers', () => {
    const held = new Held(1);
    for (const owner of [1, 2 ** 32 - 1, 0, 2 ** 32 - 2]) held.write(owner, 4);
    const order: number[] = [];
    for (held.turn(); held.written.length > 0; held.end()) order.push(...held.owners);
    expect(order).toEqual([2 ** 32 - 2, 2 ** 32 - 1, 0, 1]);
  });

  it('cuts what is large, and says with the last part that it is there', () => {
    const held = new Held(8 * MiB);
    held.write(7, 9 * MiB);
    held.turn();
    expect(held.written.map(({ source, immediate }) => [source.bytes / MiB, immediate])).toEqual([
      [3, undefined],
      [3, undefined],
    ]);
    held.end();
    const parts = held.written.map(({ source, offset, immediate }) => [source.offset / MiB, offset / MiB - 7 * 64, immediate]);
    expect(parts).toEqual([
      [3, 3, undefined],
      [6, 6, 7],
    ]);
    held.end();
    expect(held.ended).toEqual([]);
    held.end();
    expect(held.ended).toEqual([7]);
  });

  it('takes back what waits, and waits for what is on its way', () => {
    const held = new Held(4 * MiB);
    held.write(1, 8 * MiB);
    held.write(2, MiB);
    held.turn();
    held.outbox.withdraw(1);
    expect(held.ended).toEqual([]);
    held.end();
    expect(held.ended).toEqual([1]);
    expect(held.owners).toEqual([2]);
  });

  it('announces no last piece before those that come with immediates', () => {
    const held = new Held(MiB, { announcesApart: true });
    const piece = { owner: 1, source: memory, region, offset: 0, room: 8, isPiece: true, onDone: () => undefined };
    held.outbox.write({ ...piece, immediate: 100 });
    held.outbox.write({ ...piece, offset: 8, immediate: 1 });
    for (const owner of [2, 3]) held.write(owner, 8);
    held.turn();
    // The message announces 2 and 3, which have left by then.
    expect(held.told).toEqual(['message', 100, 1]);
  });

  it('is shared with what else the process sends', () => {
    const arbiter = new Arbiter();
    const group = arbiter.open({ creditBytes: () => 8, resource: 'network', onRoom: () => undefined });
    const held = new Held(8, { arbiter });
    group.started(6);
    for (const owner of [1, 2]) held.write(owner, 2);
    held.turn();
    expect(held.owners).toEqual([1]);
    group.finished(6);
    group.offerRoom();
    held.turn();
    expect(held.owners).toEqual([1, 2]);
  });

  it('loses nothing and bounds everything, whatever comes and goes', () => {
    const random = seededRandom(5);
    for (let program = 0; program < 200; program++) {
      const held = new Held(1 + random.integer(20));
      const posted = new Set<number>();
      const open = (): boolean => held.written.length > 0;
      for (let step = 0; step < 60; step++) {
        const move = random.integer(5);
        if (move === 0) held.end();
        else if (move === 1) held.turn();
        else if (move === 2 && posted.size > 0) held.outbox.withdraw([...posted][random.integer(posted.size)]);
        else {
          posted.add(step);
          held.write(step, random.integer(12));
        }
        const { inFlight, inFlightBytes, creditBytes } = held.account;
        expect(inFlightBytes <= creditBytes || inFlight === 1).toBe(true);
      }
      for (held.turn(); open(); held.end());
      expect(held.ended.toSorted((a, b) => a - b)).toEqual([...posted]);
      expect(held.account.inFlight).toBe(0);
    }
  });
});
