/** The store as programs have it. What stores do is checked in conformance.ts. */
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { expect, it } from 'vitest';
import { temporaryFolder } from '../base/testing/temporary-folder.ts';
import { openStore } from './open-job-store.ts';

const text = (bytes: Uint8Array): string => new TextDecoder().decode(bytes);

it('has the semantics of c10d, over a table of its own', async () => {
  await using store = await openStore('hash://');
  await store.set('a', 'x');
  await store.set('b', Uint8Array.of(1, 2));
  expect(text(await store.get('a'))).toBe('x');
  expect(await store.multiGet(['b', 'a'])).toEqual([Uint8Array.of(1, 2), Uint8Array.of(120)]);
  expect([await store.add('n', 5), await store.add('n', -2)]).toEqual([5, 3]);
  expect(text(await store.get('n'))).toBe('3');
  expect(text(await store.compareSet('a', 'wrong', 'y'))).toBe('x');
  expect(text(await store.compareSet('a', 'x', 'y'))).toBe('y');
  expect(text(await store.compareSet('new', 'expected', 'y'))).toBe('expected');
  expect(text(await store.compareSet('new', '', 'z'))).toBe('z');
  expect(await store.numKeys()).toBe(4);
  expect([await store.deleteKey('a'), await store.deleteKey('a'), await store.check(['a'])]).toEqual([true, false, false]);
  const part = store.prefix('part');
  await part.set('b', 'other');
  expect(text(await store.get('part/b'))).toBe('other');
  await expect(store.wait(['never'], { timeoutMs: 5 })).rejects.toMatchObject({
    code: 'timeout',
    message: expect.stringContaining("'never'") as string,
  });
  await part.close();
  await expect(part.get('b')).rejects.toMatchObject({ code: 'closed' });
  expect(text(await store.get('n'))).toBe('3');
});

it('opens a folder that processes share', async () => {
  const folder = temporaryFolder('store');
  const url = pathToFileURL(join(folder, 'store')).href;
  const [first, second] = await Promise.all([0, 1].map((rank) => openStore(url, { rank, worldSize: 2 })));
  const waiting = second.get('from 0', { timeoutMs: 120_000 });
  await first.set('from 0', 'hello');
  expect(text(await waiting)).toBe('hello');
  await Promise.all([first.close(), second.close()]);
});

it('refuses what it does not take', async () => {
  await expect(openStore('http://x')).rejects.toMatchObject({ code: 'usage' });
  await expect(openStore('tcp://127.0.0.1:1', { rank: 2, worldSize: 2 })).rejects.toMatchObject({ code: 'usage' });
  await expect(openStore('hash://', { timeoutMs: 0 })).rejects.toMatchObject({ code: 'usage' });
  await using store = await openStore('hash://');
  await expect(store.set('a', 5 as never)).rejects.toThrow(/a value is text or a Uint8Array, not 5/);
  await expect(store.set('/a', 'b')).rejects.toMatchObject({ code: 'usage' });
  await expect(store.add('a', 0.5)).rejects.toMatchObject({ code: 'usage' });
  await expect(store.get('a', { timeoutMs: -1 })).rejects.toMatchObject({ code: 'usage' });
  expect(() => store.prefix('/x')).toThrow(/a name is needed/);
});
