import { describe, expect, it } from 'vitest';
import { systemClock, VirtualClock } from '../base/clock.ts';
import { describeStore } from './conformance.ts';
import { HashStore } from './hash-store.ts';
import { PrefixStore } from './store.ts';
import { defaultStoreLimits } from './store-limits.ts';
import { StoreTable } from './store-table.ts';

function hashSite(): { client(): Promise<HashStore>; close(): Promise<void> } {
  const table = new StoreTable(defaultStoreLimits);
  return { client: async () => new HashStore({ clock: systemClock, table }), close: async () => undefined };
}

describeStore('hash', async () => hashSite());

describeStore('prefix over hash', async () => {
  const site = hashSite();
  return { ...site, client: async () => new PrefixStore(await site.client(), 'p') };
});

describe('hash store', () => {
  it('uses the default deadline of the store', async () => {
    const clock = new VirtualClock();
    const store = new HashStore({ clock, timeoutMs: 1000 });
    const pending = store.get('k');
    const outcome = expect(pending).rejects.toMatchObject({ code: 'timeout', timeoutMs: 1000 });
    clock.advance(1000);
    await outcome;
  });

  it('refuses to grow beyond its bytes, and delete makes room again', async () => {
    const store = new HashStore({ clock: new VirtualClock(), limits: { maxTotalBytes: 10 } });
    await store.set('a', new Uint8Array(4));
    await store.set('b', new Uint8Array(4));
    await expect(store.set('c', new Uint8Array(0))).rejects.toMatchObject({ code: 'out-of-memory' });
    await store.set('b', new Uint8Array(3));
    await store.deleteKey('a');
    expect(store.table.totalBytes).toBe(4);
    await store.set('c', new Uint8Array(5));
    expect(store.table.totalBytes).toBe(10);
  });

  it('bounds the waits at once', async () => {
    const store = new HashStore({ clock: new VirtualClock(), limits: { maxPending: 2 } });
    const pending = [store.get('a'), store.get('b')];
    await expect(store.get('c')).rejects.toMatchObject({ code: 'usage' });
    await store.set('a', new Uint8Array());
    await store.set('b', new Uint8Array());
    await Promise.all(pending);
  });
});

describe('prefix store', () => {
  it('keeps prefixes apart and nests', async () => {
    const store = new HashStore({ clock: new VirtualClock() });
    const inner = new PrefixStore(new PrefixStore(store, 'a'), 'b');
    await inner.set('k', Uint8Array.of(1));
    expect(await store.check(['a/b/k'])).toBe(true);
    expect(await new PrefixStore(store, 'b').check(['k'])).toBe(false);
    await inner.close();
    expect(await store.check(['a/b/k'])).toBe(true);
  });
});
