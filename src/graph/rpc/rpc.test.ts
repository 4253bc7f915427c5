/** Calls between tasks over tcp and gRPC: parts, errors, cancelling; once only, whatever happens to connections; who is gone. */
import { once } from 'node:events';
import net from 'node:net';
import { describe, expect, it } from 'vitest';
import { sleep, systemClock } from '../../base/clock.ts';
import { ShoalError } from '../../base/errors.ts';
import { seededRandom, systemRandom } from '../../base/random.ts';
import type { Connection, FabricAddress } from '../../fabric/fabric.ts';
import { TcpFabric } from '../../fabric/providers/tcp.ts';
import { protocolVersion } from '../../rendezvous/protocol/records.ts';
import { nothingToWrite } from '../../rendezvous/value/tensor-value.ts';
import { encodeFrame, FrameKind, FrameReader } from './frames.ts';
import { FabricCarrier } from './fabric-carrier.ts';
import { GrpcCarrier } from './grpc-carrier.ts';
import type { RpcCall, RpcCarrier, RpcLink, RpcService } from './rpc.ts';

const secret = new Uint8Array(32).fill(7);
const connections: Connection[] = [];

function tcp(rank: number, own: Uint8Array = secret): RpcCarrier {
  const fabric = new TcpFabric({ identity: { world: 'w', rank }, secret: own, clock: systemClock, random: systemRandom });
  const connect = fabric.connect.bind(fabric);
  fabric.connect = async (...args) => {
    const connection = await connect(...args);
    connections.push(connection);
    return connection;
  };
  return new FabricCarrier({ fabric, clock: systemClock, random: systemRandom, world: 'w', rank, reconnectMs: 5000 });
}

const carriers: readonly [string, (rank: number, own?: Uint8Array) => RpcCarrier][] = [
  ['tcp', tcp],
  ['grpc', (_, own = secret) => new GrpcCarrier({ random: systemRandom, secret: own })],
];

const text = (bytes: Uint8Array): string => Buffer.from(bytes).toString();

class Service implements RpcService {
  readonly calls: RpcCall[] = [];
  readonly gone: string[] = [];
  readonly cancelled: string[] = [];

  handle = async (call: RpcCall): Promise<Uint8Array[]> => {
    this.calls.push(call);
    const body = text(call.body);
    call.signal.addEventListener('abort', () => this.cancelled.push(body));
    if (call.method === 1) return [Buffer.from(body), Buffer.from('!')];
    if (call.method === 2) throw new ShoalError('mismatch', `no ${body}`, { bytes: 3 });
    if (call.method === 4) return new Promise(() => {});
    for (let part = 0; part < 3; part++) {
      call.part([Buffer.from(`${body}${part}`)]);
      await sleep(systemClock, 30);
    }
    return [];
  };

  callerGone = (caller: string): void => void this.gone.push(caller);
}

async function pair(make: (rank: number) => RpcCarrier): Promise<{ service: Service; link: RpcLink; address: string } & AsyncDisposable> {
  const [server, client] = [make(0), make(1)];
  const service = new Service();
  const address = await server.listen(service);
  const link = await client.connect(address, '/job:ps/task:0');
  return {
    service,
    link,
    address,
    async [Symbol.asyncDispose]() {
      await client.close();
      await server.close();
    },
  };
}

it('gRPC listens where it is told to, and nowhere else', async () => {
  const ends = [0, 1].map(() => new GrpcCarrier({ random: systemRandom, secret, host: '127.0.0.2' }));
  const address = await ends[0].listen(new Service());
  expect(address).toMatch(/^127\.0\.0\.2:\d+$/);
  const link = await ends[1].connect(address, '/job:ps/task:0');
  expect(text(await link.call(1, [Buffer.from('x')]))).toBe('x!');
  const elsewhere = ends[1].connect(address.replace('127.0.0.2', '127.0.0.1'), '/job:ps/task:0');
  await expect(elsewhere).rejects.toThrow('/job:ps/task:0');
  await Promise.all(ends.map((carrier) => carrier.close()));
});

async function until(holds: () => boolean): Promise<void> {
  while (!holds()) await sleep(systemClock, 5);
}

describe.each(carriers)('calls over %s', (_, make) => {
  it('give answers, parts and errors, many at a time', async () => {
    await using both = await pair(make);
    const { link } = both;
    const answers = await Promise.all(Array.from({ length: 50 }, (_, k) => link.call(1, [Buffer.from(`a${k}`)])));
    expect(answers.map(text)).toEqual(Array.from({ length: 50 }, (_, k) => `a${k}!`));
    const parts: string[] = [];
    await link.call(3, [Buffer.from('p')], { onPart: (part) => parts.push(text(part)) });
    expect(parts).toEqual(['p0', 'p1', 'p2']);
    await expect(link.call(2, [Buffer.from('x')])).rejects.toMatchObject({ code: 'mismatch', message: 'no x', bytes: 3 });
    const large = Buffer.alloc(9_000_001, 'z');
    expect((await link.call(1, [large])).byteLength).toBe(large.length + 1);
  });

  it('take more than a connection takes at a time: one call of 100 MB, and thirty of 4 MB', async () => {
    await using both = await pair(make);
    const { link } = both;
    const large = Buffer.alloc(100_000_000, 'z');
    expect((await link.call(1, [large])).byteLength).toBe(large.length + 1);
    const some = large.subarray(0, 4_000_000);
    const answers = await Promise.all(Array.from({ length: 30 }, () => link.call(1, [some])));
    expect(new Set(answers.map(({ byteLength }) => byteLength))).toEqual(new Set([some.length + 1]));
  });

  it('are cancelled alone, and ended when their caller goes', async () => {
    await using both = await pair(make);
    const { link, service } = both;
    const abort = new AbortController();
    const [first, second] = [link.call(4, [Buffer.from('first')], { signal: abort.signal }), link.call(4, [Buffer.from('second')])];
    await until(() => service.calls.length === 2);
    abort.abort();
    await expect(first).rejects.toMatchObject({ code: 'aborted' });
    await until(() => service.cancelled.length === 1);
    expect(service.cancelled).toEqual(['first']);
    const ended = expect(second).rejects.toMatchObject({ code: 'closed' });
    await link.close();
    await ended;
    await until(() => service.gone.length === 1 && service.cancelled.length === 2);
  });

  it('fail with the name of a task that has gone', async () => {
    const [server, client] = [make(0), make(1)];
    const link = await client.connect(await server.listen(new Service()), '/job:ps/task:0');
    const waiting = expect(link.call(4, [])).rejects.toMatchObject({
      code: 'peer-lost',
      message: expect.stringMatching(/^\/job:ps\/task:0 (is lost: [A-Za-z]|has ended)/) as string,
    });
    await sleep(systemClock, 50);
    await server.close();
    await waiting;
    await link.lost;
    await client.close();
  });

  it('are given up by who closes while a task that says nothing is dialled', async () => {
    const sockets = new Set<net.Socket>();
    const silent = net.createServer((socket) => void sockets.add(socket));
    silent.listen(0, '127.0.0.1');
    await once(silent, 'listening');
    const { port } = silent.address() as net.AddressInfo;
    const client = make(1);
    const address = client.name === 'grpc' ? `127.0.0.1:${port}` : JSON.stringify({ candidates: [`tcp://127.0.0.1:${port}`], rank: 0 });
    const dialled = expect(client.connect(address, '/job:ps/task:0')).rejects.toMatchObject({
      code: 'closed',
      message: expect.stringContaining('/job:ps/task:0') as string,
    });
    await until(() => sockets.size > 0);
    await client.close();
    await dialled;
    await expect(client.connect(address, '/job:ps/task:0')).rejects.toMatchObject({ code: 'closed' });
    for (const socket of sockets) socket.destroy();
    silent.close();
  });

  it('are refused to who does not know the secret', async () => {
    const [server, client] = [make(0), make(1)];
    const stranger = carriers.find(([, each]) => each === make)?.[1](1, new Uint8Array(32));
    const service = new Service();
    await expect(stranger?.connect(await server.listen(service), '/job:ps/task:0')).rejects.toMatchObject({
      code: 'auth',
      message: expect.stringContaining('/job:ps/task:0') as string,
    });
    expect(service.calls).toEqual([]);
    await Promise.all([server.close(), client.close(), stranger?.close()]);
  });
});

describe('what is neither a call nor a tensor', () => {
  const hello = [...encodeFrame({ kind: FrameKind.hello, method: 0, call: 0, part: 0, acked: 0 }, [Buffer.from('ab'.repeat(12))], 1000)];
  const rendezvous = Uint8Array.of(protocolVersion, 0, 0, 0, 200);

  it.each<[string, (connection: Connection) => unknown]>([
    ['a tensor of nobody', (connection) => connection.send(rendezvous)],
    ['a record that there is not', async (connection) => Promise.all([...hello, rendezvous].map((each) => connection.send(each)))],
    ['a frame that there is not', async (connection) => Promise.all([...hello, Uint8Array.of(99)].map((each) => connection.send(each)))],
    ['another hello', async (connection) => Promise.all([...hello, ...hello].map((each) => connection.send(each)))],
    [
      'an announcement of nothing',
      async (connection) => {
        const [message] = hello;
        await connection.send(message);
        await connection.write(nothingToWrite, { region: { rkey: 0, bytes: 0, handle: '' }, offset: 0 }, 7);
      },
    ],
  ])('ends its connection, and no other: %s', async (_, say) => {
    await using both = await pair(tcp);
    const { link, address } = both;
    const stranger = new TcpFabric({ identity: { world: 'w', rank: 2 }, secret, clock: systemClock, random: systemRandom });
    const connection = await stranger.connect(JSON.parse(address) as FabricAddress, { peer: { world: 'w', rank: 0 }, timeoutMs: 60_000 });
    const closed = new Promise((resolve) => connection.setHandlers({ onMessage() {}, onImmediate() {}, onClose: resolve }));
    await say(connection);
    await closed;
    expect(text(await link.call(1, [Buffer.from('still')]))).toBe('still!');
    await stranger.close();
  });
});

describe('calls over a connection that breaks', () => {
  it('are executed once, and their parts come once and in order', async () => {
    await using both = await pair(tcp);
    const { link, service } = both;
    const random = seededRandom(5);
    let isOver = false;
    const breaking = (async () => {
      while (!isOver) {
        await sleep(systemClock, 10 + random.integer(40));
        (connections.at(-1) as Connection & { abort(): void }).abort();
      }
    })();
    const results = await Promise.all(
      Array.from({ length: 40 }, async (_, k) => {
        await sleep(systemClock, k * 10);
        const parts: string[] = [];
        if (k % 2 === 0) return text(await link.call(1, [Buffer.from(`${k}`)]));
        await link.call(3, [Buffer.from(`${k}-`)], { onPart: (part) => parts.push(text(part)) });
        return parts.join(' ');
      }),
    );
    isOver = true;
    await breaking;
    expect(results).toEqual(Array.from({ length: 40 }, (_, k) => (k % 2 === 0 ? `${k}!` : `${k}-0 ${k}-1 ${k}-2`)));
    expect(service.calls).toHaveLength(40);
    expect(service.gone).toEqual([]);
  });

  it('fail when the time for connecting anew is up, however long a first connection may take', async () => {
    const timeouts: number[] = [];
    const fabric = new TcpFabric({ identity: { world: 'w', rank: 1 }, secret, clock: systemClock, random: systemRandom });
    const connect = fabric.connect.bind(fabric);
    fabric.connect = async (address, options) => {
      timeouts.push(options.timeoutMs ?? Infinity);
      if (timeouts.length > 1) throw new ShoalError('timeout', 'nobody listens');
      const connection = await connect(address, options);
      connections.push(connection);
      return connection;
    };
    const hour = 3_600_000;
    const client = new FabricCarrier({
      fabric,
      clock: systemClock,
      random: systemRandom,
      world: 'w',
      rank: 1,
      reconnectMs: 200,
      connectMs: hour,
    });
    const server = tcp(0);
    const link = await client.connect(await server.listen(new Service()), '/job:ps/task:0');
    (connections.at(-1) as Connection & { abort(): void }).abort();
    await link.lost;
    expect(timeouts.length).toBeGreaterThan(1);
    expect(timeouts[0]).toBe(hour);
    expect(Math.max(...timeouts.slice(1))).toBeLessThanOrEqual(200);
    await Promise.all([client.close(), server.close()]);
  });
});

describe('frames', () => {
  it('come whole from fragments of any size, and nothing else is one', () => {
    const body = Uint8Array.from({ length: 1000 }, (_, k) => k & 255);
    for (const fragmentBytes of [17, 100, 1015, 1016, 5000]) {
      const reader = new FrameReader(2000);
      const frames = [...encodeFrame({ kind: FrameKind.part, method: 3, call: 7, part: 2, acked: 5 }, [body], fragmentBytes)].map(
        (message) => reader.read(message),
      );
      expect(frames.slice(0, -1).every((frame) => frame === undefined)).toBe(true);
      expect(frames.at(-1)).toMatchObject({ kind: FrameKind.part, method: 3, call: 7, part: 2, acked: 5, body });
    }
    expect(() => new FrameReader(10).read(new Uint8Array(15))).toThrow(/not well formed/);
    expect(() => new FrameReader(10).read(new Uint8Array(16))).toThrow(/not well formed/);
    expect(() => new FrameReader(10).read(new Uint8Array(100).fill(FrameKind.request))).toThrow(/more than 10 bytes/);
  });
});
