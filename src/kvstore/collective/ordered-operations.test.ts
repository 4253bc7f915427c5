import { describe, expect, it } from 'vitest';
import { VirtualClock } from '../../base/clock.ts';
import { ShoalError } from '../../base/errors.ts';
import { PendingWork } from '../../comm/caller/work.ts';
import { OrderedOperations } from './ordered-operations.ts';

const clock = new VirtualClock();
const waiter = { now: () => clock.now(), drain: () => undefined, pump: () => false };
const pending = (): PendingWork => new PendingWork(waiter, 'communication');

describe('OrderedOperations', () => {
  const start = (operations: OrderedOperations, name: string, log: string[], works = [pending()]) => {
    const work = operations.start({
      what: name,
      works,
      *effect() {
        log.push(name);
        yield* [];
      },
    });
    return { work, works };
  };
  const make = (operationsMax = 1000) => new OrderedOperations({ clock, operationsMax });

  it('effects come in the order of calls, whatever ends first', async () => {
    const operations = make();
    const log: string[] = [];
    const [a, b, c] = ['a', 'b', 'c'].map((name) => start(operations, name, log));
    c.works[0].settle(undefined);
    b.works[0].settle(undefined);
    await new Promise(setImmediate);
    expect(log).toEqual([]);
    expect(b.work.done).toBe(false);
    a.works[0].settle(undefined);
    await c.work;
    expect(log).toEqual(['a', 'b', 'c']);
    expect([a, b, c].map(({ work }) => work.done)).toEqual([true, true, true]);
  });

  it('is done at once when nothing is before it and there is nothing to wait for', () => {
    const log: string[] = [];
    expect(start(make(), 'a', log, []).work.done).toBe(true);
    expect(log).toEqual(['a']);
  });

  it('an effect of several steps goes on when its communication has ended', async () => {
    const operations = make();
    const log: string[] = [];
    const steps = [pending(), pending()];
    const work = operations.start({
      what: 'steps',
      works: [],
      *effect() {
        for (const step of steps) {
          log.push('begun');
          yield [step];
          log.push('ended');
        }
      },
    });
    const after = start(operations, 'after', log, []);
    expect(log).toEqual(['begun']);
    steps[0].settle(undefined);
    await new Promise(setImmediate);
    expect(log).toEqual(['begun', 'ended', 'begun']);
    steps[1].settle(undefined);
    await after.work;
    await work;
    expect(log).toEqual(['begun', 'ended', 'begun', 'ended', 'after']);
  });

  it('a failure is that of its operation alone', async () => {
    const operations = make();
    const log: string[] = [];
    const [a, b] = ['a', 'b'].map((name) => start(operations, name, log));
    const thrown = operations.start({
      what: 'thrown',
      works: [],
      // oxlint-disable-next-line require-yield
      *effect() {
        throw new Error('broken updater');
      },
    });
    const c = start(operations, 'c', log, []);
    b.works[0].settle(undefined);
    a.works[0].settle(new ShoalError('peer-lost', 'rank 1 is gone'));
    await expect(Promise.resolve(a.work)).rejects.toMatchObject({ code: 'peer-lost' });
    await expect(Promise.resolve(thrown)).rejects.toMatchObject({ code: 'usage', message: 'broken updater' });
    await c.work;
    expect(log).toEqual(['b', 'c']);
    expect(() => a.work.waitSync()).toThrow('rank 1 is gone');
  });

  it('an effect whose communication fails can give back what it holds', async () => {
    const operations = make();
    const step = pending();
    let held = true;
    const work = operations.start({
      what: 'steps',
      works: [],
      *effect() {
        try {
          yield [step];
        } finally {
          held = false;
        }
      },
    });
    step.settle(new ShoalError('timeout', 'rank 2 is late'));
    await expect(Promise.resolve(work)).rejects.toMatchObject({ code: 'timeout' });
    expect(held).toBe(false);
  });

  it('a failure that nobody awaits is not an unhandled rejection', async () => {
    const operations = make();
    start(operations, 'a', [], []);
    operations.start({
      what: 'thrown',
      works: [],
      // oxlint-disable-next-line require-yield
      *effect() {
        throw new Error('nobody looks');
      },
    });
    await operations.idle();
    await new Promise(setImmediate);
  });

  it('refuses when too many are unfinished, and goes on when they have ended', async () => {
    const operations = make(2);
    const log: string[] = [];
    const [a, b] = ['a', 'b'].map((name) => start(operations, name, log));
    expect(() => operations.checkRoom()).toThrow(expect.objectContaining({ code: 'usage' }));
    for (const { works } of [a, b]) works[0].settle(undefined);
    await operations.idle();
    expect(() => operations.checkRoom()).not.toThrow();
  });

  it('takes thousands without growing', async () => {
    const operations = make(20_000);
    const log: string[] = [];
    const all = Array.from({ length: 10_000 }, (_, k) => start(operations, String(k), log));
    for (const { works } of all.toReversed()) works[0].settle(undefined);
    await operations.idle();
    expect(log).toEqual(all.map((_, k) => String(k)));
    for (let k = 0; k < 1000; k++) start(operations, 'more', log, []);
    expect(log).toHaveLength(11_000);
  });

  it('waitSync says that the work goes on', () => {
    const operations = make();
    const { work } = start(operations, 'push of w', []);
    expect(() => work.waitSync(0)).toThrow(
      expect.objectContaining({ code: 'timeout', message: expect.stringContaining('push of w') as string }),
    );
    expect(work.done).toBe(false);
  });
});
