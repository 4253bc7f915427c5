import net from 'node:net';
import { describe, expect, it, onTestFinished } from 'vitest';
import { Handshake } from '../../base/auth.ts';
import { claimOf } from '../../base/secure/link.ts';
import type { ShoalError } from '../../base/errors.ts';
import { seededRandom } from '../../base/random.ts';
import { defaultSettings } from '../../base/settings/settings.ts';
import { reservePort } from '../../base/testing/reserved-port.ts';
import { UnhurriedClock } from '../../base/testing/unhurried-clock.ts';
import { loadNative } from '../../memory/native.ts';
import { recordCiphers } from '../../memory/native-records.ts';
import { scriptCiphers } from '../../base/secure/records.ts';
import { describeFabric, Inbox } from '../conformance.ts';
import type { FabricAddress, FabricOptions } from '../fabric.ts';
import { encodeHeader, FrameType } from '../stream/frame.ts';
import { FramedSocket } from '../stream/framed-socket.ts';
import { connect } from '../stream/stream-network.ts';
import { StreamCounters } from '../stream/stream-counters.ts';
import { connected } from '../testing/connected.ts';
import { desertedTcpAddress } from '../testing/deserted.ts';
import { describeHostileWrites, streamOf } from '../testing/hostile-writes.ts';
import { threadRegion } from '../testing/regions.ts';
import { TcpFabric, type TcpOptions } from './tcp.ts';

describeFabric('tcp', () => ({
  create: (options) => new TcpFabric(options),
  region: threadRegion,
  raw: {
    purpose: 'fabric-tcp',
    connect(address) {
      const [, host, port] = /tcp:\/\/([^:]+):(\d+)/.exec(address.candidates[0])!;
      return net.connect(Number(port), host);
    },
  },
  deserted: desertedTcpAddress,
  pendingConnections: (fabric) => (fabric as TcpFabric).pendingConnections,
}));

/** Ranks on hosts of their own. */
function apart(options: FabricOptions): FabricOptions {
  return { ...options, settings: { ...defaultSettings, hostId: `host ${options.identity.rank}` } };
}

describe.each([
  ['the addon', recordCiphers(loadNative({ enabled: true }))],
  ['node:crypto', scriptCiphers],
])('between hosts, encrypted by %s', (_name, ciphers) => {
  describeFabric(
    'tcp',
    () => ({
      create: (options) => new TcpFabric({ ...apart(options), ciphers }),
      region: threadRegion,
      deserted: desertedTcpAddress,
      pendingConnections: (fabric) => (fabric as TcpFabric).pendingConnections,
    }),
    {
      skips: [
        'strangers with random bytes, endless headers or silence are turned away in bounded memory',
        'a member that sends broken frames is refused with protocol and crashes nothing',
      ].map((test) => ({ test, reason: 'it writes frames to the socket itself, which are no records' })),
    },
  );
});

describeHostileWrites('tcp', () => ({
  create: (options) => new TcpFabric(options),
  region: threadRegion,
  forge: (dialled, { bytes, ...where }) => streamOf(dialled).postControl(FrameType.Write, where, Buffer.alloc(bytes, 7)),
  isTold: true,
}));

const clock = new UnhurriedClock();

/** A dialer that introduces itself as rank 0. */
function dialerOf(seed: number): Handshake {
  return new Handshake({
    role: 'dialer',
    secret: Buffer.from('s'),
    purpose: 'fabric-tcp',
    world: 'w',
    rank: 0,
    random: seededRandom(seed),
    link: claimOf('local'),
  });
}

describe('tcp', () => {
  const fabricOf = (rank: number, changes: Partial<TcpOptions> = {}): TcpFabric => {
    const options = { identity: { world: 'w', rank }, secret: Buffer.from('s'), clock, random: seededRandom(rank + 1) };
    const fabric = new TcpFabric({ ...options, ...changes });
    onTestFinished(() => fabric.close());
    return fabric;
  };
  const peer = { world: 'w', rank: 1 };

  it('receives writes without a copy in user space: every byte goes from the kernel into the region', async () => {
    const [a, b] = [fabricOf(0), fabricOf(1)];
    const source = threadRegion(8 * 1024 * 1024);
    new Uint8Array(source.buffer).forEach((_, k, all) => (all[k] = k * 31));
    const target = threadRegion(8 * 1024 * 1024);
    const registered = b.register(target);
    const { atA, atB } = await connected(a, b);
    for (let k = 0; k < 16; k++) {
      const bytes = 4 * 1024 * 1024 + k;
      await atA.connection.write({ region: source, offset: k, bytes }, { region: registered, offset: 3 * k }, k);
    }
    await atB.until(16);
    const total = 16 * 4 * 1024 * 1024 + 120;
    expect(b.counters).toMatchObject({ bytesCopied: 0, bytesReceivedInPlace: total });
    expect(a.counters).toMatchObject({ bytesCopied: 0, bytesReceivedInPlace: 0, framesSent: 17 });
    const last = Buffer.from(target.buffer, 45, 4 * 1024 * 1024 + 15);
    expect(last.equals(Buffer.from(source.buffer, 15, 4 * 1024 * 1024 + 15))).toBe(true);
  });

  it('reads small messages with their headers, and counts what it reads of a write that comes among them', async () => {
    const [a, b] = [fabricOf(0), fabricOf(1)];
    const source = threadRegion(4096);
    new Uint8Array(source.buffer).forEach((_, k, all) => (all[k] = k * 31));
    const target = threadRegion(4096);
    const registered = b.register(target);
    const { atA, atB } = await connected(a, b);
    const sizes = Array.from({ length: 200 }, (_, k) => (k * 37) % 700);
    const messages = sizes.map((bytes, k) => new Uint8Array(bytes).fill(k));
    const sent = messages.map((message) => atA.connection.send(message));
    for (let k = 0; k < 3; k++)
      sent.push(atA.connection.write({ region: source, offset: k, bytes: 1000 }, { region: registered, offset: 1000 * k }, k));
    await Promise.all(sent);
    await atB.until(203);
    const written = 3 * 1000;
    expect(b.counters.bytesCopied + b.counters.bytesReceivedInPlace).toBe(written);
    // Bytes read ahead of the first write, and perhaps the header of the second.
    expect(b.counters.bytesCopied).toBeLessThanOrEqual(288);
    for (let k = 0; k < 3; k++)
      expect(Buffer.from(target.buffer, 1000 * k, 1000).equals(Buffer.from(source.buffer, k, 1000)), `write ${k}`).toBe(true);
    expect(atB.events.slice(0, 200)).toEqual(messages.map((message) => ({ message: Buffer.from(message).toString('latin1') })));
  });

  it('counts the one copy a message costs', async () => {
    const [a, b] = [fabricOf(0), fabricOf(1)];
    const address = await b.listen((connection) => void new Inbox(connection));
    const inbox = new Inbox(await a.connect(address, { peer, timeoutMs: 10_000 }));
    await inbox.connection.send(new Uint8Array(100));
    expect(a.counters.bytesCopied).toBe(100);
  });

  it('probes all candidates, keeps one, and the peer hears of one connection only', async () => {
    const [a, b] = [fabricOf(0), fabricOf(1, { listenHosts: ['127.0.0.1', '127.0.0.2', '127.0.0.3'] })];
    const inboxes: Inbox[] = [];
    const address = await b.listen((connection) => inboxes.push(new Inbox(connection)));
    expect(address.candidates).toHaveLength(3);
    const withDead = { provider: 'tcp', candidates: ['tcp://127.0.0.1:1', ...address.candidates] };
    const inbox = new Inbox(await a.connect(withDead, { peer, timeoutMs: 10_000 }));
    await inbox.connection.send(Buffer.from('hello'));
    await inbox.connection.close();
    // The other sockets end on turns of their own.
    await expect.poll(() => b.pendingConnections).toBe(0);
    expect(inboxes).toHaveLength(1);
    await inboxes[0].end();
    expect(inboxes[0].events).toEqual([{ message: 'hello' }, { closed: undefined }]);
  });

  it('keeps dialling a peer that does not listen yet', async () => {
    const port = await reservePort();
    const a = fabricOf(0);
    const attempts: net.Socket[] = [];
    const connecting = a.connect({ provider: 'tcp', candidates: [`tcp://127.0.0.1:${port}`] }, { peer, timeoutMs: 20_000 });
    // This listener ends every connection unheard, then the real one takes the same port.
    const early = net.createServer((socket) => {
      attempts.push(socket.on('error', () => undefined));
      socket.destroy();
      if (attempts.length === 3) early.close();
    });
    await new Promise<void>((resolve) => early.listen(port, '127.0.0.1', resolve));
    await new Promise((resolve) => early.once('close', resolve));
    const b = fabricOf(1);
    const { candidates } = await b.listen((connection) => void new Inbox(connection));
    const relay = net.createServer((socket) => {
      const onward = net.connect(Number(candidates[0].split(':').at(-1)), '127.0.0.1');
      socket.pipe(onward).pipe(socket);
      socket.on('error', () => onward.destroy());
      onward.on('error', () => socket.destroy());
    });
    await new Promise<void>((resolve) => relay.listen(port, '127.0.0.1', resolve));
    onTestFinished(() => void relay.close());
    const inbox = new Inbox(await connecting);
    await inbox.connection.close();
    expect(attempts.length).toBeGreaterThanOrEqual(3);
  });

  it('a connection that led back to itself reached nobody', async () => {
    const port = await reservePort();
    const stream = new FramedSocket(
      { rank: 0, description: 'tcp itself', clock, maxQueuedBytes: 1024, counters: new StreamCounters() },
      (onread) => connect({ host: '127.0.0.1', port, localAddress: '127.0.0.1', localPort: port, onread }),
    );
    const dialer = dialerOf(1);
    await expect(stream.authenticate(() => dialer, 'w')).rejects.toMatchObject({
      code: 'peer-lost',
      message: expect.stringMatching(/nobody listens there/),
    });
  });

  it('an error lists every candidate with its own reason', async () => {
    const a = fabricOf(0);
    const candidates = [`tcp://127.0.0.1:${await reservePort()}`, `tcp://127.0.0.2:${await reservePort()}`];
    const error = await a.connect({ provider: 'tcp', candidates }, { peer, timeoutMs: 100 }).catch((thrown: ShoalError) => thrown);
    expect(error).toMatchObject({ code: 'timeout', rank: 0, peer: 1, timeoutMs: 100 });
    for (const candidate of candidates) expect((error as ShoalError).message).toMatch(new RegExp(`${candidate}: .*ECONNREFUSED.*attempts`));
    const malformed = a.connect({ provider: 'tcp', candidates: ['tcp://nowhere'] }, { peer, timeoutMs: 100 });
    await expect(malformed).rejects.toMatchObject({ code: 'config' });
  });

  it('a wrong secret is told at once, even where other candidates never answer', async () => {
    const b = fabricOf(1);
    const { candidates } = await b.listen(() => undefined);
    const a = fabricOf(0, { secret: Buffer.from('guess') });
    const address = { provider: 'tcp', candidates: [`tcp://127.0.0.1:${await reservePort()}`, ...candidates] };
    await expect(a.connect(address, { peer, timeoutMs: 600_000 })).rejects.toMatchObject({ code: 'auth', peer: 1 });
  });

  it('listens on loopback only unless told, and says which address it cannot have', async () => {
    const { candidates } = await fabricOf(0).listen(() => undefined);
    expect(candidates).toEqual([expect.stringMatching(/^tcp:\/\/127\.0\.0\.1:\d+$/)]);
    const elsewhere = fabricOf(1, { listenHosts: ['203.0.113.1'] }).listen(() => undefined);
    await expect(elsewhere).rejects.toMatchObject({ code: 'system', message: expect.stringMatching(/203\.0\.113\.1/) });
  });

  it('a wildcard offers the interfaces the filter leaves, on one port per family', async () => {
    const { candidates } = await fabricOf(0, { listenHosts: ['0.0.0.0', '::'], interfaces: ['127.0.0.0/8'] }).listen(() => undefined);
    expect(candidates).toEqual([expect.stringMatching(/^tcp:\/\/127\.0\.0\.1:\d+$/)]);
    const everywhere = await fabricOf(1, { listenHosts: ['0.0.0.0', '::'] }).listen(() => undefined);
    expect(everywhere.candidates.length).toBeGreaterThan(0);
    const nowhere = fabricOf(2, { listenHosts: ['0.0.0.0'], interfaces: ['203.0.113.0/24'] }).listen(() => undefined);
    await expect(nowhere).rejects.toMatchObject({ code: 'config', message: expect.stringMatching(/203\.0\.113\.0/) });
  });

  it('a region deregistered while a write is arriving is not touched any more, and the connection ends', async () => {
    const b = fabricOf(1);
    const target = threadRegion(1024 * 1024);
    const registered = b.register(target);
    const header = Buffer.alloc(64);
    let socket!: net.Socket;
    /** Dials as a member that stops in the middle of a payload. */
    const dialRaw = ({ candidates }: FabricAddress): void => {
      socket = net.connect(Number(candidates[0].split(':').at(-1)), '127.0.0.1');
      onTestFinished(() => void socket.destroy());
      const dialer = dialerOf(9);
      socket.write(dialer.start()!);
      socket.on('data', (bytes) => {
        const { send, done } = dialer.bytesWanted > 0 ? dialer.push(bytes) : {};
        if (send !== undefined) socket.write(send);
        if (done === undefined) return;
        const fields = { flags: 0, immediate: 0, rkey: registered.rkey, offset: 0 };
        encodeHeader(new DataView(header.buffer, header.byteOffset), 0, { ...fields, type: FrameType.Open, bytes: 0 });
        encodeHeader(new DataView(header.buffer, header.byteOffset), 32, { ...fields, type: FrameType.Write, bytes: 1024 * 1024 });
        socket.write(Buffer.concat([header, Buffer.alloc(1000, 1)]));
      });
    };
    const arrived = new Promise<Inbox>((resolve) => void b.listen((connection) => resolve(new Inbox(connection))).then(dialRaw));
    const inbox = await arrived;
    const bytes = new Uint8Array(target.buffer);
    while (bytes[999] !== 1) await new Promise((resolve) => setImmediate(resolve));
    registered.deregister();
    expect(await inbox.end()).toMatchObject({ code: 'protocol', message: expect.stringMatching(/deregistered while rank 0 was writing/) });
    socket.write(Buffer.alloc(1000, 1));
    await new Promise((resolve) => socket.once('close', resolve));
    expect(bytes[1000]).toBe(0);
  });
});
