/** Calls between tasks over tcp: errors, cancelling; once only, whatever happens to connections; who is gone. */
import { once } from 'node:events';
import net from 'node:net';
import { describe, expect, it } from 'vitest';
import { sleep, systemClock, VirtualClock, type Clock } from '../../base/clock.ts';
import { ShoalError } from '../../base/errors.ts';
import { seededRandom, systemRandom } from '../../base/random.ts';
import { abortConnection } from '../../fabric/abortable.ts';
import type { Connection } from '../../fabric/fabric.ts';
import { LoopbackNetwork } from '../../fabric/testing/loopback.ts';
import type { TcpFabric } from '../../fabric/providers/tcp.ts';
import { FabricCarrier } from './fabric-carrier.ts';
import { recordedTcp } from '../testing/recorded-fabric.ts';
import type { RpcCall, RpcLink, RpcService } from './rpc.ts';

const secret = new Uint8Array(32).fill(7);
const connections: Connection[] = [];

const tcpFabric = (rank: number, own: Uint8Array = secret): TcpFabric => recordedTcp(connections, rank, own);

function tcp(rank: number, own: Uint8Array = secret): FabricCarrier {
  return new FabricCarrier({ fabric: tcpFabric(rank, own), clock: systemClock, random: systemRandom, world: 'w', rank, reconnectMs: 5000 });
}

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
    await sleep(systemClock, 90);
    return [];
  };

  callerGone = (caller: string): void => void this.gone.push(caller);
}

async function pair<S extends Service>(
  service: S = new Service() as S,
): Promise<{ service: S; link: RpcLink; address: string } & AsyncDisposable> {
  const [server, client] = [tcp(0), tcp(1)];
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

async function until(holds: () => boolean): Promise<void> {
  while (!holds()) await sleep(systemClock, 5);
}

describe('calls', () => {
  it('give answers and errors, many at a time', async () => {
    await using both = await pair();
    const { link } = both;
    const answers = await Promise.all(Array.from({ length: 50 }, (_, k) => link.call(1, [Buffer.from(`a${k}`)])));
    expect(answers.map(text)).toEqual(Array.from({ length: 50 }, (_, k) => `a${k}!`));
    await expect(link.call(2, [Buffer.from('x')])).rejects.toMatchObject({ code: 'mismatch', message: 'no x', bytes: 3 });
    const large = Buffer.alloc(9_000_001, 'z');
    expect((await link.call(1, [large])).byteLength).toBe(large.length + 1);
  });

  it('take more than a connection takes at a time: one call of 100 MB, and thirty of 4 MB', async () => {
    await using both = await pair();
    const { link } = both;
    const large = Buffer.alloc(100_000_000, 'z');
    expect((await link.call(1, [large])).byteLength).toBe(large.length + 1);
    const some = large.subarray(0, 4_000_000);
    const answers = await Promise.all(Array.from({ length: 30 }, () => link.call(1, [some])));
    expect(new Set(answers.map(({ byteLength }) => byteLength))).toEqual(new Set([some.length + 1]));
  });

  it('are cancelled alone, and ended when their caller goes', async () => {
    await using both = await pair();
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
    const [server, client] = [tcp(0), tcp(1)];
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
    const client = tcp(1);
    const address = `fabric://tcp/0?world=w&at=tcp://127.0.0.1:${port}`;
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
    const [server, client] = [tcp(0), tcp(1)];
    const stranger = tcp(1, new Uint8Array(32));
    const service = new Service();
    await expect(stranger.connect(await server.listen(service), '/job:ps/task:0')).rejects.toMatchObject({
      code: 'auth',
      message: expect.stringContaining('/job:ps/task:0') as string,
    });
    expect(service.calls).toEqual([]);
    await Promise.all([server.close(), client.close(), stranger.close()]);
  });
});

it('what is no packet ends its connection, and no other', async () => {
  await using both = await pair();
  const { link, address } = both;
  const fabric = tcpFabric(2);
  const at = { provider: 'tcp', candidates: new URLSearchParams(address.split('?')[1]).getAll('at') };
  const connection = await fabric.connect(at, { peer: { world: 'w', rank: 0 }, timeoutMs: 60_000 });
  const closed = new Promise((resolve) => connection.setHandlers({ onMessage() {}, onImmediate() {}, onClose: resolve }));
  await connection.send(Uint8Array.of(99));
  await closed;
  expect(text(await link.call(1, [Buffer.from('still')]))).toBe('still!');
  await fabric.close();
});

describe('calls over a connection that breaks', () => {
  it('are executed once, and answered', async () => {
    await using both = await pair();
    const { link, service } = both;
    const random = seededRandom(5);
    let isOver = false;
    const breaking = (async () => {
      while (!isOver) {
        await sleep(systemClock, 10 + random.integer(40));
        abortConnection(connections.at(-1)!);
      }
    })();
    const results = await Promise.all(
      Array.from({ length: 40 }, async (_, k) => {
        await sleep(systemClock, k * 10);
        return text(await link.call(k % 2 === 0 ? 1 : 3, [Buffer.from(`${k}`)]));
      }),
    );
    isOver = true;
    await breaking;
    expect(results).toEqual(Array.from({ length: 40 }, (_, k) => (k % 2 === 0 ? `${k}!` : '')));
    expect(service.calls).toHaveLength(40);
    expect(service.gone).toEqual([]);
  });

  it('fail when the time for connecting anew is up, however long a first connection may take', async () => {
    const timeouts: number[] = [];
    const fabric = tcpFabric(1);
    const connect = fabric.connect;
    fabric.connect = async (address, options) => {
      timeouts.push(options.timeoutMs ?? Infinity);
      if (timeouts.length > 1) throw new ShoalError('timeout', 'nobody listens');
      return connect(address, options);
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
    abortConnection(connections.at(-1)!);
    await link.lost;
    expect(timeouts.length).toBeGreaterThan(1);
    expect(timeouts[0]).toBe(hour);
    expect(Math.max(...timeouts.slice(1))).toBeLessThanOrEqual(200);
    await Promise.all([client.close(), server.close()]);
  });

  /** A task, and a caller with a call of 4 under way whose connection breaks, and is made again when `open` is called. */
  async function brokenCall(task: { readonly clock: Clock; readonly reconnectMs: number }) {
    const network = new LoopbackNetwork();
    let [isOpen, broken] = [true, (): void => {}];
    const carrierOf = (rank: number, { clock, reconnectMs }: typeof task): FabricCarrier => {
      const fabric = network.createFabric({ identity: { world: 'w', rank }, secret, clock: systemClock, random: systemRandom });
      const connect = fabric.connect.bind(fabric);
      fabric.connect = async (...args) => {
        await until(() => isOpen);
        const connection = await connect(...args);
        broken = () => abortConnection(connection);
        return connection;
      };
      return new FabricCarrier({ fabric, clock, random: systemRandom, world: 'w', rank, reconnectMs });
    };
    const [server, client] = [carrierOf(0, task), carrierOf(1, { clock: systemClock, reconnectMs: 60_000 })];
    const service = new Service();
    const link = await client.connect(await server.listen(service), '/job:ps/task:0');
    const call = link.call(4, [Buffer.from('long')]);
    call.catch(() => undefined);
    await until(() => service.calls.length === 1);
    isOpen = false;
    broken();
    const close = async (): Promise<void> => void (await Promise.all([server.close(), client.close()]));
    return { service, link, call, open: () => (isOpen = true), close };
  }

  it('fail when the task has counted the caller as gone meanwhile: it does not know its calls any more', async () => {
    const { service, call, open, close } = await brokenCall({ clock: systemClock, reconnectMs: 1 });
    await until(() => service.gone.length === 1);
    expect(service.cancelled).toEqual(['long']);
    open();
    await expect(call).rejects.toMatchObject({
      code: 'peer-lost',
      message: expect.stringMatching(/^\/job:ps\/task:0 is lost: .* has forgotten it/) as string,
    });
    expect(service.calls).toHaveLength(1);
    await close();
  });

  it('go on when the task was stopped while the caller had no connection', async () => {
    const clock = new VirtualClock();
    const { service, link, open, close } = await brokenCall({ clock, reconnectMs: 1000 });
    // It hears that the connection has broken.
    for (let turn = 0; turn < 10; turn++) await new Promise(setImmediate);
    clock.stall(3_600_000);
    open();
    expect(text(await link.call(1, [Buffer.from('x')]))).toBe('x!');
    expect([service.gone, service.cancelled]).toEqual([[], []]);
    await close();
  });

  it('refuse a body that is too large, and say so for an answer', async () => {
    const network = new LoopbackNetwork();
    const [server, client] = [0, 1].map((rank) => {
      const fabric = network.createFabric({ identity: { world: 'w', rank }, secret, clock: systemClock, random: systemRandom });
      return new FabricCarrier({ fabric, clock: systemClock, random: systemRandom, world: 'w', rank, messageBytesMax: 1000 });
    });
    const link = await client.connect(await server.listen(new Service()), '/job:ps/task:0');
    for (const bytes of [1001, 1000]) {
      // The second is answered with a byte more.
      await expect(link.call(1, [new Uint8Array(bytes)])).rejects.toThrow(/1001 bytes; .* messageBytesMax/);
    }
    expect(text(await link.call(1, [Buffer.from('x')]))).toBe('x!');
    await Promise.all([server.close(), client.close()]);
  });
});
