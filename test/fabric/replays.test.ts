/** Whoever has heard a member of the job on its way to a listener, and sends what it sent again, to this or any other listener of the job, is
 *  refused, and nothing of what followed the handshake is looked at. */
import { once } from 'node:events';
import net from 'node:net';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { sleep, systemClock } from '../../src/base/clock.ts';
import { systemRandom } from '../../src/base/random.ts';
import { freePort } from '../../src/base/testing/free-port.ts';
import { Inbox } from '../../src/fabric/conformance.ts';
import type { Fabric, FabricOptions } from '../../src/fabric/fabric.ts';
import { libfabricUnavailable } from '../../src/fabric/providers/libfabric/libfabric-devices.ts';
import { LibfabricFabric } from '../../src/fabric/providers/libfabric/libfabric.ts';
import { ShmFabric, shmUnavailable } from '../../src/fabric/providers/shm.ts';
import { TcpFabric } from '../../src/fabric/providers/tcp.ts';
import { NodeAgreement } from '../../src/launch/node-agreement.ts';
import { MessagingContext } from '../../src/messaging/context.ts';
import { Dealer } from '../../src/messaging/dealer.ts';
import { Msg } from '../../src/messaging/msg.ts';
import { Router } from '../../src/messaging/router.ts';
import { StoreClient } from '../../src/store/store-client.ts';
import { StoreServer } from '../../src/store/store-server.ts';

const common = { world: 'w', secret: Buffer.from('the secret of the job'), clock: systemClock, random: systemRandom };
const peer = { world: 'w', rank: 1 };

async function until(holds: () => boolean): Promise<void> {
  while (!holds()) await sleep(systemClock, 5);
}

/** Hears what goes to `target`. */
async function relay(target: net.NetConnectOpts, where: { port: number } | { path: string } = { port: 0 }) {
  const heard: Buffer[] = [];
  const server = net.createServer((near) => {
    const far = net.connect(target);
    near.on('data', (chunk) => heard.push(chunk) && far.write(chunk));
    far.on('data', (chunk) => near.write(chunk));
    for (const [from, to] of [
      [near, far],
      [far, near],
    ]) {
      from.on('error', () => to.destroy()).on('end', () => to.end());
      from.on('close', () => to.destroy());
    }
  });
  await once(server.listen('path' in where ? where : { ...where, host: '127.0.0.1' }), 'listening');
  const address = server.address();
  return { heard, port: typeof address === 'string' ? 0 : address!.port, close: () => void server.close() };
}

interface Listening {
  /** The listener's own address. */
  readonly target: net.NetConnectOpts;
  /** The bytes that a member has sent to it, in the chunks in which they came. */
  readonly heard: readonly Buffer[];
  /** Counts what the listener has taken from members. */
  taken(): number | Promise<number>;
  close(): Promise<unknown>;
}

async function fabric(create: (options: FabricOptions) => Fabric, asSocket = false): Promise<Listening> {
  let taken = 0;
  const [a, b] = [0, 1].map((rank) => create({ ...common, identity: { world: 'w', rank } }));
  const ends: Inbox[] = [];
  const address = await b.listen((connection) => {
    taken++;
    ends.push(new Inbox(connection));
  });
  if (b.sockets) b.sockets.onSocket = () => void taken++;
  const [candidate] = address.candidates;
  const name = /^shm:\/\/([^?]+)/.exec(candidate)?.[1];
  const port = Number(/:(\d+)(?:\?|$)/.exec(candidate)?.[1]);
  const target = name === undefined ? { port, host: '127.0.0.1' } : { path: `\0${name}` };
  const between = await relay(target, name === undefined ? { port: 0 } : { path: `\0${name}-relay` });
  const near = name === undefined ? candidate.replace(`:${port}`, `:${between.port}`) : candidate.replace(name, `${name}-relay`);
  const [to, options] = [
    { provider: address.provider, candidates: [near] },
    { peer, timeoutMs: 60_000 },
  ];
  if (asSocket) {
    await a.sockets!.open(to, { ...options, tag: 5 }, () => 0);
    await until(() => taken === 1);
  } else {
    const atA = new Inbox(await a.connect(to, options));
    await atA.connection.send(Buffer.from('hello'));
    await until(() => ends[0]?.events.length === 1);
    await atA.connection.close();
  }
  between.close();
  const close = async (): Promise<void> => void (await Promise.all([a.close(), b.close()]));
  return { target, heard: between.heard, taken: () => taken, close };
}

const listeners: Record<string, { start(): Promise<Listening>; missing?: string | undefined }> = {
  'a store': {
    async start() {
      const server = await StoreServer.listen(common);
      const target = { port: server.port, host: '127.0.0.1' };
      const between = await relay(target);
      const client = await StoreClient.connect({ ...common, host: '127.0.0.1', port: between.port, rank: 1 });
      await client.add('count', 1);
      await client.close();
      between.close();
      return { target, heard: between.heard, taken: () => server.requests, close: () => server.close() };
    },
  },
  "the launchers' agreement": {
    async start() {
      const masterPort = await freePort();
      const target = { port: masterPort, host: '127.0.0.1' };
      const between = await relay(target);
      const node = { ...common, job: 'w', secret: String(common.secret), nodes: 2, localSize: 1, masterAddress: '127.0.0.1' };
      const ended = new AbortController();
      const nodes = [masterPort, between.port].map((port, k) => {
        return NodeAgreement.join({ ...node, node: k, masterPort: port, joinTimeoutMs: 60_000, signal: ended.signal });
      });
      const [first, second] = await Promise.all(nodes);
      let failures = 0;
      void first.failure(0, ended.signal).then(() => failures++);
      return {
        target,
        heard: between.heard,
        taken: () => failures,
        async close() {
          await Promise.all([second.leave(0), first.leave(0)]);
          ended.abort();
          between.close();
        },
      };
    },
  },
  'a router': {
    async start() {
      let events = 0;
      const [here, there] = [0, 1].map(() => new MessagingContext(common));
      const router = new Router(here, { onPeer: () => void events++ });
      const port = Number(new URL(await router.bind('tcp://127.0.0.1:*')).port);
      const target = { port, host: '127.0.0.1' };
      const between = await relay(target);
      const dealer = new Dealer(there, { address: 1n });
      await dealer.connect(`tcp://127.0.0.1:${between.port}`);
      dealer.send(new Msg(1n, 0n));
      await router.receive();
      await dealer.close();
      await until(() => events > 1);
      between.close();
      return {
        target,
        heard: between.heard,
        taken: () => events + Number(router.ready),
        close: async () => void (await Promise.all([router.close(), here.close(), there.close()])),
      };
    },
  },
  'the fabric tcp': { start: () => fabric((options) => new TcpFabric(options)) },
  'the network fast path': { start: () => fabric((options) => new TcpFabric(options), true) },
  'the fabric shm': { start: () => fabric((options) => new ShmFabric(options)), missing: shmUnavailable() },
  'the fabric libfabric': {
    start: () => fabric((options) => new LibfabricFabric({ ...options, hostId: 'here', libfabric: { provider: 'tcp;ofi_rxm' } })),
    missing: libfabricUnavailable({ provider: 'tcp;ofi_rxm' }),
  },
};

const listening = new Map<string, Listening>();
beforeAll(async () => {
  for (const [name, { start, missing }] of Object.entries(listeners)) if (missing === undefined) listening.set(name, await start());
});
afterAll(async () => {
  for (const each of listening.values()) await each.close();
});

/** @returns whether the listener has ended the connection. */
async function replay(chunks: readonly Buffer[], target: net.NetConnectOpts, way: 'at once' | 'in turn'): Promise<boolean> {
  const socket = net.connect(target);
  let isEnded = false;
  const ended = new Promise<void>((resolve) => {
    socket.on('error', () => undefined).on('close', resolve);
    socket.on('end', resolve);
  }).then(() => (isEnded = true));
  socket.resume();
  await once(socket, 'connect');
  for (const chunk of way === 'at once' ? [Buffer.concat(chunks)] : chunks) {
    socket.write(chunk);
    if (way === 'in turn') await Promise.race([new Promise((resolve) => socket.once('data', resolve)), ended, sleep(systemClock, 20)]);
    if (isEnded) break;
  }
  await Promise.race([ended, sleep(systemClock, 10_000)]);
  socket.destroy();
  return isEnded;
}

it.for(Object.entries(listeners).map(([name, { missing }]) => ({ name, missing })))(
  'what a member has sent to $name is refused by all when it comes again',
  async ({ name, missing }, context) => {
    if (missing !== undefined) context.skip(missing);
    const { heard } = listening.get(name)!;
    expect(Buffer.concat(heard).length).toBeGreaterThan(100);
    for (const [to, { target, taken }] of listening) {
      const before = await taken();
      for (const way of ['at once', 'in turn'] as const) expect([to, way, await replay(heard, target, way)]).toEqual([to, way, true]);
      expect([to, await taken()]).toEqual([to, before]);
    }
  },
);
