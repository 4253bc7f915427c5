/** torch's tests of stores, told from their descriptions. */
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { afterEach, describe, expect } from 'vitest';
import { reservePort } from '../../src/base/testing/reserved-port.ts';
import { temporaryFolder } from '../../src/base/testing/temporary-folder.ts';
import { openStore, type JobStore } from '../../src/index.ts';
import { torchStore } from './foreign-suites.ts';
import { SuiteCases } from './support/suite-cases.ts';

/** A store of a test: its first client, and more of them. */
interface Site {
  readonly store: JobStore;
  another(): Promise<JobStore>;
}

const text = (bytes: Uint8Array): string => new TextDecoder().decode(bytes);
const opened: JobStore[] = [];
afterEach(async () => {
  // Clients first: the one that serves waits for the others.
  for (const store of opened.splice(0).reverse()) await store.close();
});

async function open(...args: Parameters<typeof openStore>): Promise<JobStore> {
  const store = await openStore(...args);
  opened.push(store);
  return store;
}

const loopback = async (): Promise<string> => `tcp://127.0.0.1:${await reservePort()}`;

async function hashSite(): Promise<Site> {
  const store = await open('hash://');
  return { store, another: async () => store };
}

async function fileSite(): Promise<Site> {
  const url = pathToFileURL(join(temporaryFolder('suites'), 'store')).href;
  let rank = 0;
  const another = (): Promise<JobStore> => open(url, { rank: rank++, worldSize: 8 });
  return { store: await another(), another };
}

async function tcpSite(): Promise<Site> {
  const url = await loopback();
  let rank = 0;
  const another = (): Promise<JobStore> => open(url, { rank: rank++, worldSize: 8 });
  return { store: await another(), another };
}

const prefixed = (site: () => Promise<Site>) => async (): Promise<Site> => {
  const { store, another } = await site();
  return { store: store.prefix('test_prefix'), another: async () => (await another()).prefix('test_prefix') };
};

const classes: Readonly<Record<string, () => Promise<Site>>> = {
  HashStoreTest: hashSite,
  FileStoreTest: fileSite,
  PrefixFileStoreTest: prefixed(fileSite),
  TCPStoreTest: tcpSite,
  PrefixTCPStoreTest: prefixed(tcpSite),
};

/** The tests that torch runs on every store. */
const shared: readonly (readonly [test: string, what: string, run: (site: Site) => Promise<void>])[] = [
  [
    'set_get_check',
    'values that are set and sums that are added, and the number of keys',
    async ({ store }) => {
      const before = await store.numKeys();
      for (const amount of [1, 2, 3]) await store.add('key', amount);
      for (const amount of [1, 2, 3, 4, 5, 6]) await store.add('key3', amount);
      for (const place of [0, 1, 2]) await store.set(`key${place}`, `value${place}`);
      expect((await store.numKeys()) - before).toBe(5);
      const values = await store.multiGet(['key', 'key0', 'key1', 'key2', 'key3']);
      expect(values.map(text)).toEqual(['6', 'value0', 'value1', 'value2', '21']);
      expect([await store.check(['key3']), await store.check(['Randomkey3'])]).toEqual([true, false]);
      await store.set('-key3', '7');
      expect(text(await store.get('-key3'))).toBe('7');
      await store.deleteKey('-key3');
      expect((await store.numKeys()) - before).toBe(5);
    },
  ],
  [
    'compare_set',
    'a value is replaced where it is the expected one',
    async ({ store }) => {
      expect(text(await store.compareSet('cs_key0', 'wrong', 'new'))).toBe('wrong');
      expect(await store.check(['cs_key0'])).toBe(false);
      await store.set('cs_key0', 'value0');
      expect(text(await store.compareSet('cs_key0', 'wrong', 'new'))).toBe('value0');
      expect(text(await store.compareSet('cs_key0', 'value0', 'new'))).toBe('new');
      expect(text(await store.get('cs_key0'))).toBe('new');
      expect(text(await store.compareSet('cs_key1', '', 'first'))).toBe('first');
      expect(text(await store.get('cs_key1'))).toBe('first');
    },
  ],
  [
    'simple_wait',
    'a wait for a key that does not come ends, one for a key that is there does not wait',
    async ({ store }) => {
      await expect(store.wait(['bad_key'], { timeoutMs: 30 })).rejects.toMatchObject({
        code: 'timeout',
        message: expect.stringContaining('bad_key'),
      });
      await store.add('good_key', 1);
      await store.wait(['good_key']);
    },
  ],
  [
    'append',
    'bytes are added to a value, also to none',
    async ({ store }) => {
      await store.set('foo', 'po');
      for (const [key, part] of [
        ['foo', 'tato'],
        ['bar', 'po'],
        ['bar', 'tato'],
      ])
        await store.append(key, part);
      expect((await store.multiGet(['foo', 'bar'])).map(text)).toEqual(['potato', 'potato']);
    },
  ],
  [
    'queues',
    'values leave in the order in which they came',
    async ({ store }) => {
      expect([await store.check(['foo']), await store.queueLen('foo')]).toEqual([false, 0]);
      await store.queuePush('foo', '1');
      await store.queuePush('foo', '2');
      expect([await store.check(['foo']), await store.queueLen('foo')]).toEqual([true, 2]);
      await store.wait(['foo']);
      expect([text(await store.queuePop('foo')), text(await store.queuePop('foo'))]).toEqual(['1', '2']);
      expect([await store.check(['foo']), await store.queueLen('foo')]).toEqual([false, 0]);
    },
  ],
  [
    'queues_nonblocking',
    'a look at an empty queue does not wait',
    async ({ store }) => {
      await expect(store.queuePop('foo', { timeoutMs: 0 })).rejects.toMatchObject({ code: 'timeout' });
      await store.queuePush('foo', 'a');
      expect(text(await store.queuePop('foo', { timeoutMs: 0 }))).toBe('a');
    },
  ],
  [
    'queues_bidirectional',
    'two clients answer each other',
    async ({ another }) => {
      const [a, b] = [await another(), await another()];
      const first = async (): Promise<string> => {
        await a.queuePush('a', 'a1');
        return text(await a.queuePop('b'));
      };
      const second = async (): Promise<string> => {
        const got = text(await b.queuePop('a'));
        await b.queuePush('b', 'b1');
        return got;
      };
      expect(await Promise.all([first(), second()])).toEqual(['b1', 'a1']);
    },
  ],
  [
    'queues_timeout',
    'a queue that stays empty ends the wait',
    async ({ store }) => {
      await expect(store.queuePop('non_existent', { timeoutMs: 10 })).rejects.toMatchObject({ code: 'timeout' });
    },
  ],
  [
    'multi_set',
    'several values at once',
    async ({ store }) => {
      await store.multiSet(['foo', 'bar'], ['po', 'tato']);
      expect([text(await store.get('foo')), text(await store.get('bar'))]).toEqual(['po', 'tato']);
    },
  ],
  [
    'multi_get',
    'several values at once, in the order of the keys',
    async ({ store }) => {
      await store.set('foo', 'po');
      await store.set('bar', 'tato');
      expect((await store.multiGet(['bar', 'foo'])).map(text)).toEqual(['tato', 'po']);
    },
  ],
  [
    'clone',
    'another client sees what one has set',
    async ({ store, another }) => {
      await store.set('foo', 'bar');
      expect(text(await (await another()).get('foo'))).toBe('bar');
    },
  ],
];

describe(torchStore.name, () => {
  const cases = new SuiteCases(torchStore);

  for (const [name, site] of Object.entries(classes)) {
    for (const [test, what, run] of shared) {
      // A hash store has one client.
      if (name === 'HashStoreTest' && test === 'clone') continue;
      cases.add(`${name}.${test}`, what, async () => run(await site()));
    }
  }

  cases.add('TCPStoreTest.address_already_in_use', 'a second server on the same port is refused, and names it', async () => {
    const url = await loopback();
    await open(url, { rank: 0, worldSize: 1 });
    await expect(openStore(url, { rank: 0, worldSize: 1 })).rejects.toMatchObject({
      name: 'ShoalError',
      message: expect.stringContaining(url.slice(url.lastIndexOf(':') + 1)),
    });
  });
  cases.add('TCPStoreTest.numkeys_delkeys', 'keys that are deleted count no more', async () => {
    const { store } = await tcpSite();
    const before = await store.numKeys();
    const keys = async (): Promise<number> => (await store.numKeys()) - before;
    for (const amount of [1, 2, 3]) await store.add('key', amount);
    await store.multiSet(['key0', 'key1'], ['value0', 'value1']);
    await store.add('key3', 1);
    expect(await keys()).toBe(4);
    await store.deleteKey('key');
    expect(await keys()).toBe(3);
    await expect(store.get('key', { timeoutMs: 5 })).rejects.toMatchObject({ code: 'timeout' });
    await store.deleteKey('key0');
    await store.deleteKey('key3');
    expect(await keys()).toBe(1);
    await store.set('key4', 'value2');
    expect((await store.multiGet(['key1', 'key4'])).map(text)).toEqual(['value1', 'value2']);
  });
  for (const [test, workers] of [
    ['multi_worker_with_fixed_world_size', 5],
    ['multi_worker_with_nonfixed_world_size', 1],
  ] as const) {
    cases.add(`TCPStoreTest.${test}`, `${workers} clients read what the server has set, and replace what they have`, async () => {
      const { store, another } = await tcpSite();
      await store.set('key', 'value');
      for (let index = 0; index < workers; index++) {
        const client = await another();
        expect(text(await client.get('key'))).toBe('value');
        await client.set(`new_key${index}`, `new_value${index}`);
        expect(text(await client.compareSet(`new_key${index}`, `new_value${index}`, `next_value${index}`))).toBe(`next_value${index}`);
        expect(text(await store.get(`new_key${index}`))).toBe(`next_value${index}`);
      }
    });
  }
  cases.add('TCPStoreTest.store_timeout_on_missing_clients', 'who waits for clients that do not come is told which', async () => {
    const store = await open(await loopback(), { rank: 0, worldSize: 2, timeoutMs: 50 });
    await store.set('joined/0', '');
    await expect(store.wait(['joined/0', 'joined/1'])).rejects.toMatchObject({
      code: 'timeout',
      message: expect.stringMatching(/'joined\/1'/),
    });
  });
  cases.add('TCPStoreTest.world_size_0_raises', 'a world of nobody is refused', async () => {
    await expect(openStore(await loopback(), { rank: 0, worldSize: 0 })).rejects.toMatchObject({ code: 'usage' });
  });
  cases.add('TCPStoreTest.agent_store', 'a store that torchrun serves in its own protocol is refused', async () => {
    const port = await reservePort();
    const place = { MASTER_ADDR: '127.0.0.1', MASTER_PORT: String(port), RANK: '0', WORLD_SIZE: '2' };
    const agent = { ...place, TORCHELASTIC_RUN_ID: 'run', TORCHELASTIC_USE_AGENT_STORE: 'True' };
    await expect(openStore('env://', { environment: agent })).rejects.toMatchObject({
      code: 'config',
      message: expect.stringMatching(/torchrun serves its own store/),
    });
  });

  cases.add('RendezvousTest.unknown_handler', 'a URL of no store is refused, with those that there are', async () => {
    await expect(openStore('invalid://')).rejects.toMatchObject({ code: 'usage', message: expect.stringMatching(/tcp:\/\/host:port/) });
  });
  cases.add('RendezvousEnvTest.nominal', 'a world of one by the environment', async () => {
    const environment = { WORLD_SIZE: '1', RANK: '0', MASTER_ADDR: '127.0.0.1', MASTER_PORT: String(await reservePort()) };
    const store = await open('env://', { environment });
    await store.set('key0', 'value0');
    expect(text(await store.get('key0'))).toBe('value0');
  });
  cases.each(
    'RendezvousFileTest.common_errors',
    ['file://', 'file:///'],
    (url) => `${url} has no path`,
    async (url) => {
      await expect(openStore(url, { rank: 0, worldSize: 1 })).rejects.toMatchObject({ code: 'usage' });
    },
  );
  cases.add('RendezvousFileTest.nominal', 'two ranks read what the other one has set', async () => {
    const { store, another } = await fileSite();
    const other = await another();
    await store.set('key0', 'value0');
    await other.set('key1', 'value1');
    expect([text(await other.get('key0')), text(await store.get('key1'))]).toEqual(['value0', 'value1']);
  });
  const incomplete = [
    ['no port', 'tcp://127.0.0.1', { rank: 0, worldSize: 1 }],
    ['no rank', 'tcp://127.0.0.1:23456', { worldSize: 1 }],
    ['no size', 'tcp://127.0.0.1:23456', { rank: 0 }],
    ['neither', 'tcp://127.0.0.1:23456', {}],
  ] as const;
  cases.each(
    'RendezvousTCPTest.common_errors',
    incomplete,
    ([what]) => what,
    async ([, url, place]) => {
      await expect(openStore(url, place)).rejects.toMatchObject({ code: 'usage' });
    },
  );
  cases.add('RendezvousTCPTest.dns_timeout', 'a host that nobody knows is named when the time is over', async () => {
    const opening = openStore('tcp://dnsnotexist.invalid:23456', { rank: 1, worldSize: 2, secret: 's', connectTimeoutMs: 100 });
    await expect(opening).rejects.toMatchObject({ name: 'ShoalError', message: expect.stringContaining('dnsnotexist') });
  });
  cases.add('RendezvousTCPTest.nominal', 'a world of one by an address', async () => {
    const store = await open(await loopback(), { rank: 0, worldSize: 1 });
    await store.set('key0', 'value0');
    expect(text(await store.get('key0'))).toBe('value0');
  });
  cases.add('RendezvousTCPTest.tcp_store_timeout_set', 'the limit of the store counts, and is named', async () => {
    const store = await open(await loopback(), { rank: 0, worldSize: 1, timeoutMs: 100 });
    await expect(store.get('nonexistent key')).rejects.toMatchObject({
      code: 'timeout',
      message: expect.stringMatching(/nonexistent key.* 100 ms/),
    });
  });
  cases.add('RendezvousTCPTest.tcp_store_timeout_doest_break_client', 'a client goes on after a wait that was too long', async () => {
    const { another } = await tcpSite();
    const client = await another();
    await expect(client.get('the_key', { timeoutMs: 20 })).rejects.toMatchObject({ code: 'timeout' });
    await client.set('the_key', 'x');
    expect(text(await client.get('the_key'))).toBe('x');
  });

  const passed = [
    ['append_roundtrip', async (part: JobStore) => part.append('foo', 'bar'), { 'p/foo': 'bar' }],
    ['multi_set_roundtrip', async (part: JobStore) => part.multiSet(['foo', 'bar'], ['x', 'y']), { 'p/foo': 'x', 'p/bar': 'y' }],
  ] as const;
  for (const [test, call, expected] of passed) {
    cases.add(`TestPythonStore.${test}`, 'a part of a store has its keys under its name', async () => {
      const { store } = await hashSite();
      await call(store.prefix('p'));
      for (const [key, value] of Object.entries(expected)) expect(text(await store.get(key))).toBe(value);
      expect((await store.listKeys()).sort()).toEqual(Object.keys(expected).sort());
    });
  }
  cases.add('TestPythonStore.multi_get_roundtrip', 'a part of a store reads the keys under its name', async () => {
    const { store } = await hashSite();
    await store.multiSet(['p/foo', 'p/bar', 'foo'], ['x', 'y', 'another']);
    expect((await store.prefix('p').multiGet(['foo', 'bar'])).map(text)).toEqual(['x', 'y']);
  });

  const waits = [
    ['wait_hash_store', hashSite],
    ['wait_file_store', fileSite],
    ['wait_prefix_file_store', prefixed(fileSite)],
    ['wait_tcp_store', tcpSite],
    ['wait_tcp_store', prefixed(tcpSite)],
  ] as const;
  for (const [test, site] of waits) {
    cases.add(`TestMultiThreadedWait.${test}`, 'one client waits for what another one sets later', async () => {
      const { store, another } = await site();
      const other = await another();
      const waiting = store.wait(['key1']).then(() => store.get('key1'));
      await other.numKeys();
      await other.set('key1', 'value1');
      expect(text(await waiting)).toBe('value1');
    });
  }
  cases.add('TimeoutTest.interrupt_doesnt_break_wait', 'a signal of the system leaves a wait alone', async () => {
    const { store, another } = await tcpSite();
    const waiting = (await another()).wait(['foo']);
    const signalled = new Promise((resolve) => process.once('SIGUSR2', resolve));
    process.kill(process.pid, 'SIGUSR2');
    await signalled;
    await store.set('foo', 'bar');
    await waiting;
    expect(await store.check(['foo'])).toBe(true);
  });

  cases.complete();
});
