import { connect as connectSocket, createServer, type AddressInfo, type Socket } from 'node:net';
import fc from 'fast-check';
import { afterEach, describe, expect, it } from 'vitest';
import { handshakeBytesMax, Handshake } from '../base/auth.ts';
import { claimOf } from '../base/secure/link.ts';
import { systemRandom } from '../base/random.ts';
import { reservePort } from '../base/testing/reserved-port.ts';
import { UnhurriedClock } from '../base/testing/unhurried-clock.ts';
import { describeStore } from './conformance.ts';
import { PrefixStore, type StoreResult } from './store.ts';
import { StoreClient, type StoreClientOptions } from './store-client.ts';
import { defaultStoreLimits } from './store-limits.ts';
import { StoreServer, type StoreServerOptions } from './store-server.ts';
import { decodeRequest, decodeResult, encodeRequest, encodeResult, FrameReader, maxFrameBytes, type StoreRequest } from './store-wire.ts';

const clock = new UnhurriedClock();
const random = systemRandom;
const secret = new TextEncoder().encode('secret');
const world = 'test';
const text = (value: string): Uint8Array => new TextEncoder().encode(value);

const cleanup: (() => Promise<void>)[] = [];
afterEach(async () => {
  for (const step of cleanup.splice(0).reverse()) await step();
});

async function serve(options: Partial<StoreServerOptions> = {}): Promise<StoreServer> {
  const server = await StoreServer.listen({ clock, random, secret, world, ...options });
  cleanup.push(() => server.close());
  return server;
}

async function dial(server: { port: number }, options: Partial<StoreClientOptions> = {}): Promise<StoreClient> {
  const client = await StoreClient.connect({ clock, random, secret, world, host: '127.0.0.1', port: server.port, rank: 1, ...options });
  cleanup.push(() => client.close());
  return client;
}

/** A socket that is nobody's client. */
async function stranger(server: StoreServer): Promise<{ socket: Socket; closed: Promise<void>; received: Buffer[] }> {
  const socket = connectSocket(server.port, '127.0.0.1');
  const received: Buffer[] = [];
  socket.on('error', () => undefined).on('data', (chunk) => received.push(chunk));
  const closed = new Promise<void>((resolve) => socket.on('close', () => resolve()));
  await new Promise<void>((resolve) => socket.on('connect', resolve));
  cleanup.push(async () => void socket.destroy());
  return { socket, closed, received };
}

/** A socket that has authenticated, and may now send what it likes. */
async function insider(server: StoreServer): Promise<{ socket: Socket; closed: Promise<void> }> {
  const { socket, closed } = await stranger(server);
  const handshake = new Handshake({ role: 'dialer', secret, purpose: 'store', world, rank: 9, random, link: claimOf('local') });
  socket.write(handshake.start()!);
  await new Promise<void>((resolve) => {
    socket.on('data', (chunk) => {
      const { send, done } = handshake.push(chunk);
      if (send !== undefined) socket.write(send);
      if (done !== undefined) {
        socket.removeAllListeners('data').resume();
        resolve();
      }
    });
  });
  return { socket, closed };
}

describeStore('tcp', async () => {
  const server = await StoreServer.listen({ clock, random, secret, world });
  return {
    client: () => StoreClient.connect({ clock, random, secret, world, host: '127.0.0.1', port: server.port, rank: 1 }),
    close: () => server.close(),
  };
});

describeStore('prefix over tcp', async () => {
  const server = await StoreServer.listen({ clock, random, secret, world });
  const clients: StoreClient[] = [];
  return {
    client: async () => {
      const client = await StoreClient.connect({ clock, random, secret, world, host: '127.0.0.1', port: server.port, rank: 1 });
      clients.push(client);
      return new PrefixStore(client, 'p');
    },
    close: async () => {
      for (const client of clients) await client.close();
      await server.close();
    },
  };
});

describe('tcp store: faults', () => {
  it('the death of the server rejects pending and later calls with peer-lost', async () => {
    const server = await serve();
    const client = await dial(server);
    const pending = [client.get('never'), client.wait(['nor this'])].map((call) =>
      expect(call).rejects.toMatchObject({
        code: 'peer-lost',
        rank: 1,
        message: expect.stringMatching(/tcp:\/\/127\.0\.0\.1:\d+ was lost.* 2 calls were in flight/),
      }),
    );
    await client.set('x', text(''));
    await server.close();
    await Promise.all(pending);
    await expect(client.set('y', text(''))).rejects.toMatchObject({ code: 'peer-lost' });
  });

  it('a wrong secret is refused at once on the client, and the others go on', async () => {
    const server = await serve();
    const client = await dial(server);
    await expect(dial(server, { secret: text('wrong') })).rejects.toMatchObject({ code: 'auth' });
    await expect(dial(server, { world: 'other' })).rejects.toMatchObject({ code: 'config', message: expect.stringContaining('world') });
    await client.set('x', text('1'));
    expect(server.clients).toBe(1);
  });

  it('another world size is refused, with both sizes', async () => {
    const server = await serve({ worldSize: 4 });
    await dial(server, { worldSize: 4 });
    await expect(dial(server, { worldSize: 3 })).rejects.toMatchObject({
      code: 'config',
      message: expect.stringMatching(/\b4\b.*\b3\b|\b3\b.*\b4\b/),
    });
  });

  it('an address where nobody listens is reported with address, time and reason', async () => {
    const port = await reservePort();
    await expect(dial({ port }, { connectTimeoutMs: 100 })).rejects.toMatchObject({
      code: 'timeout',
      message: expect.stringMatching(new RegExp(`127\\.0\\.0\\.1:${port} in \\d+ ms \\(attempts: \\d+\\); last: .*ECONNREFUSED`)),
    });
  });

  it('a listener that never answers, or is not a store, ends in an error too', async () => {
    const silent = createServer((socket) => socket.on('error', () => undefined).resume());
    const echo = createServer((socket) => socket.on('error', () => undefined).write('HTTP/1.1 400 Bad Request\r\n\r\n'));
    for (const server of [silent, echo]) {
      await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
      const { port } = server.address() as AddressInfo;
      await expect(dial({ port }, { connectTimeoutMs: 100 })).rejects.toMatchObject({ code: 'timeout' });
      server.close();
    }
  });

  it('a client that comes before the server gets through', async () => {
    const port = await reservePort();
    const early = dial({ port });
    await serve({ port });
    await (await early).set('x', text(''));
  });

  it('a port in use is named', async () => {
    const server = await serve();
    await expect(serve({ port: server.port })).rejects.toMatchObject({
      code: 'config',
      message: expect.stringContaining(`127.0.0.1:${server.port}`),
    });
  });

  it('strangers: garbage, an endless header and silence do not disturb clients and hold no memory', async () => {
    const server = await serve({ handshakeMs: 50 });
    const client = await dial(server);
    const garbage = await stranger(server);
    garbage.socket.write(Buffer.alloc(1 << 20, 0x61));
    await garbage.closed;
    const silent = await stranger(server);
    await silent.closed;
    const slow = await stranger(server);
    const hello = new Handshake({ role: 'dialer', secret, purpose: 'store', world, rank: 9, random, link: claimOf('local') }).start()!;
    slow.socket.write(hello.subarray(0, 30));
    await slow.closed;
    // A proper beginning and then no end of it: closed as soon as it exceeds what a handshake may have.
    const endless = await stranger(server);
    endless.socket.write(Buffer.concat([hello, Buffer.alloc(handshakeBytesMax * 1000, 0x53)]));
    await endless.closed;
    expect(server.strangers).toBe(0);
    await client.set('x', text('1'));
    expect(server.clients).toBe(1);
  });

  it('more strangers than are tolerated push the oldest out; a client still gets in', async () => {
    const server = await serve({ maxStrangers: 4 });
    const strangers = [];
    for (let i = 0; i < 6; i++) strangers.push(await stranger(server));
    await Promise.all(strangers.slice(0, 2).map((one) => one.closed));
    const client = await dial(server);
    await client.set('x', text(''));
    expect(server.strangers).toBeLessThanOrEqual(4);
  });

  it('refuses clients beyond its bound with a reason', async () => {
    const server = await serve({ maxClients: 1 });
    await dial(server);
    await expect(dial(server, { connectTimeoutMs: 2000 })).rejects.toMatchObject({
      message: expect.stringContaining('already has 1 clients'),
    });
  });

  it('an authenticated peer that sends nonsense is cut off alone', async () => {
    const server = await serve();
    const client = await dial(server);
    const bad = [
      Buffer.from('ffffffff', 'hex'),
      Buffer.from('00000000', 'hex'),
      Buffer.from('06000000ff0101000000', 'hex'),
      Buffer.concat([Buffer.from('08000000', 'hex'), Buffer.from([1, 2, 1, 0, 0, 0, 0xff, 0xff])]),
    ];
    for (const bytes of bad) {
      const { socket, closed } = await insider(server);
      socket.write(bytes);
      await closed;
    }
    await client.set('x', text(''));
    expect(server.clients).toBe(1);
  });

  it('a vanished client leaves no watches behind', async () => {
    const server = await serve();
    const gone = await dial(server);
    const pending = expect(gone.get('k')).rejects.toMatchObject({ code: 'closed' });
    const client = await dial(server);
    await client.set('x', text(''));
    await gone.close();
    await pending;
    await client.set('k', text('1'));
    expect(new TextDecoder().decode(await client.get('k'))).toBe('1');
  });

  it('bounds the calls in flight', async () => {
    const server = await serve();
    const client = await dial(server, { limits: { maxPending: 3 } });
    const pending = [client.get('a'), client.get('a'), client.get('a')];
    await expect(client.get('a')).rejects.toMatchObject({ code: 'usage' });
    await (await dial(server)).set('a', text(''));
    await Promise.all(pending);
  });

  it('tells who comes and who goes, and when all are gone', async () => {
    const events: string[] = [];
    const server = await serve({ onConnect: (peer) => events.push(`+${peer}`), onDisconnect: (peer) => events.push(`-${peer}`) });
    const one = await dial(server, { rank: 1 });
    const two = await dial(server, { rank: 2 });
    await two.close();
    await one.set('x', text(''));
    await one.close();
    await server.drained(10_000);
    expect(events.sort()).toEqual(['+1', '+2', '-1', '-2']);
  });
});

describe('store wire', () => {
  it('reads any split of a stream of frames', () => {
    fc.assert(
      fc.property(
        fc.array(fc.uint8Array({ maxLength: 40 }), { minLength: 1, maxLength: 8 }),
        fc.integer({ min: 1, max: 30 }),
        (values, step) => {
          const stream = Buffer.concat(values.flatMap((value, i) => encodeRequest(i, { op: 'set', key: `k${i}`, value })));
          const reader = new FrameReader(defaultStoreLimits);
          const seen: unknown[] = [];
          for (let at = 0; at < stream.length; at += step) {
            reader.push(stream.subarray(at, at + step), (frame) => {
              const { id, message } = decodeRequest(frame, defaultStoreLimits);
              seen.push([id, message.op === 'set' && [...message.value]]);
            });
          }
          expect(seen).toEqual(values.map((value, i) => [i, [...value]]));
        },
      ),
    );
  });

  it('keeps the bytes of every message', () => {
    const requests: [StoreRequest, string][] = [
      [{ op: 'set', key: 'ké', value: text('v') }, '1000000001010700000003006bc3a90100000076'],
      [{ op: 'get', key: 'k' }, '0900000001020700000001006b'],
      [{ op: 'add', key: 'k', amount: -2 }, '1100000001030700000001006bfeffffffffffffff'],
      [{ op: 'wait', keys: ['a', 'bc'] }, '110000000104070000000200000001006102006263'],
      [{ op: 'compareSet', key: 'k', expected: text(''), desired: text('xy') }, '1300000001050700000001006b00000000020000007879'],
      [{ op: 'delete', key: 'k' }, '0900000001060700000001006b'],
      [{ op: 'check', keys: [] }, '0a00000001070700000000000000'],
      [{ op: 'count' }, '06000000010807000000'],
      [{ op: 'cancel', target: 0x01020304 }, '0a00000001090700000004030201'],
      [{ op: 'multiGet', keys: ['k'] }, '0d000000010a070000000100000001006b'],
    ];
    const results: [StoreResult, string][] = [
      [{ kind: 'done' }, '060000000180feffffff'],
      [{ kind: 'bytes', bytes: text('abc') }, '0d0000000181feffffff03000000616263'],
      [{ kind: 'integer', integer: 2 ** 53 - 1 }, '0e0000000182feffffffffffffffffff1f00'],
      [{ kind: 'flag', flag: true }, '070000000183feffffff01'],
      [{ kind: 'missing', keys: ['k'] }, '0d0000000184feffffff0100000001006b'],
      [{ kind: 'error', code: 'closed', message: 'no' }, '120000000185feffffff0600636c6f73656402006e6f'],
      [{ kind: 'list', values: [text('1'), text('')] }, '130000000186feffffff02000000010000003100000000'],
    ];
    for (const [message, hex] of requests) {
      const frame = Buffer.concat(encodeRequest(7, message));
      expect(frame.toString('hex')).toBe(hex);
      expect(decodeRequest(Uint8Array.from(frame.subarray(4)), defaultStoreLimits)).toMatchObject({ id: 7, message: { op: message.op } });
    }
    for (const [message, hex] of results) {
      const frame = Buffer.concat(encodeResult(0xfffffffe, message));
      expect(frame.toString('hex')).toBe(hex);
      expect(decodeResult(Uint8Array.from(frame.subarray(4)), defaultStoreLimits)).toMatchObject({
        id: 0xfffffffe,
        message: { kind: message.kind },
      });
    }
  });

  it('never fails on random bytes in another way than protocol', () => {
    fc.assert(
      fc.property(fc.uint8Array({ maxLength: 200 }), fc.boolean(), (bytes, plausible) => {
        const frame = plausible ? Uint8Array.from([1, 1 + ((bytes[0] ?? 0) % 9), ...bytes]) : bytes;
        for (const decode of [decodeRequest, decodeResult]) {
          try {
            decode(frame, defaultStoreLimits);
          } catch (error) {
            expect(error).toMatchObject({ name: 'ShoalError', code: 'protocol' });
          }
        }
      }),
      { numRuns: 2000 },
    );
  });

  it('refuses a frame by its length, before it holds any of it', () => {
    const reader = new FrameReader(defaultStoreLimits);
    const header = Buffer.alloc(4);
    header.writeUInt32LE(maxFrameBytes(defaultStoreLimits) - 3);
    expect(() => reader.push(header, () => undefined)).toThrow(/a store message is malformed .* its length is/);
  });
});
