/** The contract of `Store`, run on every implementation. */
import fc from 'fast-check';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import type { ErrorCode } from '../base/errors.ts';
import type { Store } from './store.ts';

/** One store and a way to get clients of it. */
export interface StoreSite {
  client(): Promise<Store>;
  close(): Promise<void>;
}

const text = (value: string): Uint8Array => new TextEncoder().encode(value);
const read = (value: Uint8Array): string => new TextDecoder().decode(value);
const refused = (code: ErrorCode, message?: RegExp): unknown =>
  expect.objectContaining({ name: 'ShoalError', code, ...(message === undefined ? {} : { message: expect.stringMatching(message) }) });

export function describeStore(name: string, open: () => Promise<StoreSite>): void {
  describe(`store contract: ${name}`, () => {
    let site: StoreSite;
    let a: Store;
    let b: Store;

    beforeEach(async () => {
      site = await open();
      a = await site.client();
      b = await site.client();
    });

    afterEach(async () => {
      await a.close();
      await b.close();
      await site.close();
    });

    it('gives every client what one has set', async () => {
      await a.set('key', text('one'));
      expect(read(await b.get('key'))).toBe('one');
      await b.set('key', text('two'));
      expect(read(await a.get('key'))).toBe('two');
      await a.set('empty', new Uint8Array());
      expect((await b.get('empty')).byteLength).toBe(0);
    });

    it('keeps a copy: later changes of the caller do not reach it, nor those of a reader', async () => {
      const value = text('before');
      const pending = a.set('key', value);
      value.fill(0);
      await pending;
      const got = await a.get('key');
      expect(read(got)).toBe('before');
      got.fill(0);
      expect(read(await a.get('key'))).toBe('before');
    });

    it('get waits for the key', async () => {
      const pending = b.get('late');
      expect(await a.check(['late'])).toBe(false);
      await a.set('late', text('here'));
      expect(read(await pending)).toBe('here');
    });

    it('wait waits for all keys, whoever sets them', async () => {
      const keys = ['w/0', 'w/1', 'w/2'];
      const pending = b.wait(keys);
      await a.set('w/1', text(''));
      await b.set('w/0', text(''));
      expect(await a.check(keys)).toBe(false);
      await a.add('w/2', 1);
      await pending;
      expect(await b.check(keys)).toBe(true);
      await a.wait([]);
    });

    it('multiGet waits for all keys, and gives their values in the order of the keys', async () => {
      const pending = b.multiGet(['g/1', 'g/0', 'g/2', 'g/0']);
      await a.set('g/0', text('zero'));
      await a.set('g/1', text('one'));
      await a.set('g/2', new Uint8Array());
      expect((await pending).map(read)).toEqual(['one', 'zero', '', 'zero']);
      expect(await a.multiGet([])).toEqual([]);
      await expect(a.multiGet(['g/0', 'not/there'], { timeoutMs: 0 })).rejects.toEqual(refused('timeout', /not\/there'/));
    });

    it('multiGet gives nothing for a key that has been deleted before the last one came', async () => {
      await a.set('gone', text('here'));
      const pending = b.multiGet(['gone', 'last']);
      await b.numKeys();
      await a.deleteKey('gone');
      await a.set('last', text('there'));
      expect((await pending).map(read)).toEqual(['', 'there']);
    });

    it('a wait that ends too late names what is missing', async () => {
      await a.set('there', text(''));
      await expect(b.wait(['there', 'not/there', 'nor/this'], { timeoutMs: 30 })).rejects.toEqual(
        refused('timeout', /missing '.*not\/there', '.*nor\/this' after 30 ms/),
      );
      await expect(b.get('not/there', { timeoutMs: 0 })).rejects.toEqual(refused('timeout', /not\/there'/));
    });

    it('a wait can be aborted, before and while it runs', async () => {
      const stop = new AbortController();
      const pending = b.get('never', { signal: stop.signal });
      await a.set('other', text(''));
      stop.abort();
      await expect(pending).rejects.toEqual(refused('aborted', /never'/));
      await expect(b.get('never', { signal: stop.signal })).rejects.toEqual(refused('aborted'));
      await a.set('never', text('still works'));
      expect(read(await b.get('never'))).toBe('still works');
    });

    it('add is atomic over clients', async () => {
      const sums = await Promise.all(Array.from({ length: 40 }, (_, i) => (i % 2 === 0 ? a : b).add('count', i % 4 < 2 ? 1 : 2)));
      expect(new Set(sums).size).toBe(40);
      expect(await a.add('count', 0)).toBe(60);
      expect(read(await b.get('count'))).toBe('60');
      expect(await b.add('count', -100)).toBe(-40);
    });

    it('add refuses what is no integer', async () => {
      await a.set('text', text('x1'));
      await expect(a.add('text', 1)).rejects.toEqual(refused('usage', /text'/));
      await expect(a.add('n', 0.5)).rejects.toEqual(refused('usage'));
      await a.add('n', Number.MAX_SAFE_INTEGER);
      await expect(a.add('n', 1)).rejects.toEqual(refused('usage'));
      expect(await b.add('n', -1)).toBe(Number.MAX_SAFE_INTEGER - 1);
    });

    it('compareSet has the semantics of c10d', async () => {
      expect(read(await a.compareSet('k', text('x'), text('y')))).toBe('x');
      expect(await a.check(['k'])).toBe(false);
      expect(read(await a.compareSet('k', text(''), text('first')))).toBe('first');
      expect(read(await b.compareSet('k', text(''), text('second')))).toBe('first');
      expect(read(await b.compareSet('k', text('first'), text('second')))).toBe('second');
      expect(read(await a.get('k'))).toBe('second');
    });

    it('compareSet lets exactly one of many win', async () => {
      const results = await Promise.all(
        Array.from({ length: 20 }, (_, i) => (i % 2 === 0 ? a : b).compareSet('winner', text(''), text(`client ${i}`))),
      );
      expect(new Set(results.map(read)).size).toBe(1);
    });

    it('compareSet wakes who waits for the key', async () => {
      const pending = b.get('cas');
      await a.compareSet('cas', text(''), text('set'));
      expect(read(await pending)).toBe('set');
    });

    it('delete tells whether the key was there; count follows', async () => {
      const before = await a.numKeys();
      await a.set('gone', text('x'));
      expect(await b.numKeys()).toBe(before + 1);
      expect(await b.deleteKey('gone')).toBe(true);
      expect(await a.deleteKey('gone')).toBe(false);
      expect(await a.check(['gone'])).toBe(false);
      expect(await a.numKeys()).toBe(before);
    });

    it('append adds bytes to the end of a value, and makes one where there is none', async () => {
      const pending = b.get('log');
      await a.append('log', 'one,');
      expect(read(await pending)).toBe('one,');
      await Promise.all([b.append('log', 'two,'), b.append('log', text('three'))]);
      expect(read(await a.get('log'))).toBe('one,two,three');
      await a.set('full', new Uint8Array(16 * 1024 * 1024));
      await expect(a.append('full', 'x')).rejects.toEqual(refused('usage', /16777217 bytes/));
    });

    it('multiSet writes all values, and wakes who waits for them', async () => {
      const pending = b.multiGet(['s/0', 's/1']);
      await a.multiSet(['s/0', 's/1'], ['zero', text('one')]);
      expect((await pending).map(read)).toEqual(['zero', 'one']);
      await a.multiSet([], []);
      await expect(a.multiSet(['s/0'], [])).rejects.toEqual(refused('usage', /not 0 for 1/));
    });

    it('listKeys gives the names of keys and queues', async () => {
      expect(await a.listKeys()).toEqual([]);
      await a.multiSet(['l/b', 'l/a', 'é'], ['', '', '']);
      await a.queuePush('jobs', 'x');
      await b.deleteKey('é');
      expect((await b.listKeys()).sort()).toEqual(['jobs', 'l/a', 'l/b']);
      expect((await b.prefix('l').listKeys()).sort()).toEqual(['a', 'b']);
    });

    it('a queue gives each value once, the first pushed first', async () => {
      const before = await a.numKeys();
      for (const value of ['one', '', 'three']) await a.queuePush('q', value);
      expect([await b.queueLen('q'), await b.queueLen('other'), await a.check(['q'])]).toEqual([3, 0, true]);
      await b.wait(['q']);
      expect([read(await b.queuePop('q')), read(await a.queuePop('q')), read(await b.queuePop('q'))]).toEqual(['one', '', 'three']);
      expect([await a.queueLen('q'), await a.check(['q']), await a.numKeys()]).toEqual([0, false, before]);
      await a.queuePush('q', 'again');
      expect(await b.deleteKey('q')).toBe(true);
      expect(await a.queueLen('q')).toBe(0);
    });

    it('queuePop waits for a value, within its time, and every value reaches exactly one', async () => {
      await expect(a.queuePop('q', { timeoutMs: 0 })).rejects.toEqual(refused('timeout', /q'/));
      await expect(a.queuePop('q', { timeoutMs: 20 })).rejects.toEqual(refused('timeout', /after \d+ ms/));
      const pending = Array.from({ length: 20 }, (_, place) => (place % 2 === 0 ? a : b).queuePop('q'));
      await Promise.all(Array.from({ length: 20 }, (_, place) => (place % 3 === 0 ? a : b).queuePush('q', `${place}`)));
      const got = (await Promise.all(pending)).map((value) => Number(read(value)));
      expect(got.sort((one, other) => one - other)).toEqual(Array.from({ length: 20 }, (_, place) => place));
      expect(await a.queueLen('q')).toBe(0);
    });

    it('a queuePop that is aborted takes nothing', async () => {
      const stop = new AbortController();
      const pending = b.queuePop('q', { signal: stop.signal });
      await b.numKeys();
      stop.abort();
      await expect(pending).rejects.toEqual(refused('aborted', /q'/));
      await a.queuePush('q', 'kept');
      expect(read(await a.queuePop('q'))).toBe('kept');
    });

    it('a key is a value or a queue', async () => {
      await a.queuePush('q', 'x');
      await a.set('v', 'x');
      for (const call of [() => a.get('q'), () => a.multiGet(['q']), () => a.set('q', ''), () => a.append('q', ''), () => a.add('q', 1)])
        await expect(call()).rejects.toEqual(refused('usage', /q' is a queue/));
      for (const call of [() => a.queuePush('v', ''), () => a.queuePop('v'), () => a.queueLen('v')])
        await expect(call()).rejects.toEqual(refused('usage', /v' is a value/));
    });

    it('operations of one client apply in the order called', async () => {
      const calls = Array.from({ length: 50 }, (_, i) => a.set('order', text(String(i))));
      const last = a.get('order');
      await Promise.all(calls);
      expect(read(await last)).toBe('49');
      expect(read(await b.get('order'))).toBe('49');
    });

    it('many waits at once are all answered', async () => {
      const pending = Array.from({ length: 200 }, (_, i) => b.get(`m/${i % 50}`));
      for (let i = 49; i >= 0; i--) await a.set(`m/${i}`, text(String(i)));
      expect((await Promise.all(pending)).map(read)).toEqual(Array.from({ length: 200 }, (_, i) => String(i % 50)));
    });

    it('carries any bytes and any text', async () => {
      await fc.assert(
        fc.asyncProperty(
          fc.uint8Array({ maxLength: 300 }),
          fc.string({ unit: 'grapheme', minLength: 1, maxLength: 50 }),
          async (value, key) => {
            fc.pre(!key.startsWith('/'));
            await a.set(key, value);
            expect([...(await b.get(key))]).toEqual([...value]);
          },
        ),
        { numRuns: 30 },
      );
    });

    it('takes a value of 16 MiB and refuses more, and keys out of bounds', async () => {
      const big = new Uint8Array(16 * 1024 * 1024).fill(7);
      big[big.length - 1] = 8;
      await a.set('big', big);
      const got = await b.get('big');
      expect(Buffer.compare(got, big)).toBe(0);
      await expect(a.set('bigger', new Uint8Array(big.length + 1))).rejects.toEqual(refused('usage', /16777217 bytes/));
      await expect(a.set('', text(''))).rejects.toEqual(refused('usage', /empty/));
      await expect(a.get('/slash')).rejects.toEqual(refused('usage', /'\/slash'/));
      await expect(a.set('k'.repeat(1025), text(''))).rejects.toEqual(refused('usage', /1024/));
      await expect(a.check(Array.from({ length: 4097 }, (_, i) => `${i}`))).rejects.toEqual(refused('usage', /4097 keys/));
    });

    it('close rejects a wait that was called just before', async () => {
      const outcomes = [a.wait(['never']), a.get('never')].map((pending) => expect(pending).rejects.toEqual(refused('closed')));
      await a.close();
      await Promise.all(outcomes);
    });

    it('close rejects what is pending and what comes later, and no other client', async () => {
      const pending = a.get('never');
      const outcome = expect(pending).rejects.toEqual(refused('closed'));
      await b.set('x', text(''));
      await a.close();
      await a.close();
      await outcome;
      await expect(a.set('k', text(''))).rejects.toEqual(refused('closed'));
      await expect(a.get('x')).rejects.toEqual(refused('closed'));
      await b.set('k', text('alive'));
      expect(read(await b.get('k'))).toBe('alive');
    });
  });
}
