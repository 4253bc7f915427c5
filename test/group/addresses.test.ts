/** Addresses that are listened on: an early dialler does not take them, and a listener that closes gives them back. Routers of
 *  messaging have their own check of the latter (src/messaging/conformance.ts). */
import { execFile } from 'node:child_process';
import { once } from 'node:events';
import net from 'node:net';
import { promisify } from 'node:util';
import { describe, expect, it } from 'vitest';
import { networkUnavailable } from '../../bench/network/network.ts';
import { Handshake } from '../../src/base/auth.ts';
import { claimOf } from '../../src/base/secure/link.ts';
import { systemClock } from '../../src/base/clock.ts';
import { systemRandom } from '../../src/base/random.ts';
import { reservePort } from '../../src/base/testing/reserved-port.ts';
import { temporaryFolder } from '../../src/base/testing/temporary-folder.ts';
import { Acceptor } from '../../src/fabric/stream/acceptor.ts';
import { StreamCounters } from '../../src/fabric/stream/stream-counters.ts';
import { NodeAgreement } from '../../src/launch/node-agreement.ts';
import type { ReportData } from '../../src/tools/report/data/report-data.ts';
import { WatchServer } from '../../src/tools/report/watch-server.ts';
import { StoreClient } from '../../src/store/store-client.ts';
import { StoreServer } from '../../src/store/store-server.ts';
import { fixtureCommand } from '../support/fixtures.ts';

const reason = networkUnavailable();
const secret = Buffer.from('s');
const common = { world: 'w', secret, clock: systemClock, random: systemRandom };

describe('an address that is dialled before anybody listens there', () => {
  // One of two ports that the system has to give: each dialler is given it, and TCP connects it to itself.
  const port = 40_002;

  it.skipIf(reason !== undefined).for([
    ['messaging', 'ok'],
    ['store', 'ok'],
    ['fabric', expect.stringMatching(/^config: /)],
  ] as const)(`is free for who listens late: %s${reason === undefined ? '' : ` (skipped: ${reason})`}`, async ([kind, dialled]) => {
    const setUp = `ip link set lo up && echo "${port} ${port + 1}" > /proc/sys/net/ipv4/ip_local_port_range && exec "$@"`;
    const command = ['--net', 'sh', '-c', setUp, 'sh', ...fixtureCommand('early-dialer'), kind, String(port)];
    const { stdout } = await promisify(execFile)('unshare', command);
    expect(JSON.parse(stdout)).toEqual({ listened: 'ok', dialled });
  });
});

interface Listening {
  /** Connects a peer that belongs there. */
  readonly connect?: () => Promise<unknown>;
  close(): Promise<unknown> | void;
}

const acceptor = async (where: net.ListenOptions): Promise<Listening> => {
  const fabric = { ...common, identity: { world: 'w', rank: 0 } };
  const made = new Acceptor({
    ...{ fabric, purpose: 'p', counters: new StreamCounters(), describe: () => 'somebody' },
    onStream: () => Promise.resolve(),
  });
  await made.listen(where);
  return made;
};

const listeners: Record<string, (where: { port: number; path: string }) => Promise<Listening>> = {
  'a store': async ({ port }) => {
    const server = await StoreServer.listen({ ...common, port });
    return { close: () => server.close(), connect: () => StoreClient.connect({ ...common, host: '127.0.0.1', port, rank: 1 }) };
  },
  "the launchers' agreement": async ({ port }) => {
    const node = { node: 0, nodes: 1, localSize: 1, masterAddress: '127.0.0.1', masterPort: port, joinTimeoutMs: 60_000 };
    const agreement = await NodeAgreement.join({ ...common, ...node, job: 'w', secret: 's', signal: new AbortController().signal });
    return { close: () => agreement.leave(0), connect: () => StoreClient.connect({ ...common, host: '127.0.0.1', port, rank: 1 }) };
  },
  'a fabric, of a port': ({ port }) => acceptor({ host: '127.0.0.1', port }),
  'a fabric, of a name': ({ path }) => acceptor({ path }),
};

/** A stranger that sends what a listener answers, and never ends its own side. */
async function stayingStranger(port: number, purpose: string): Promise<net.Socket> {
  const socket = net.connect({ port, host: '127.0.0.1', allowHalfOpen: true });
  await once(socket, 'connect');
  socket.on('error', () => undefined).resume();
  socket.write(
    new Handshake({ role: 'dialer', secret, purpose, world: 'another', rank: 3, random: systemRandom, link: claimOf('local') }).start()!,
  );
  return socket;
}

describe('an address whose listener has closed', () => {
  it.each(Object.entries(listeners))('is free at once: %s', async (name, listen) => {
    const where = { port: await reservePort(), path: `\0shoal-test-${process.pid}` };
    for (let round = 0; round < 30; round++) {
      const listening = await listen(where);
      await listening.connect?.();
      const stranger = name.endsWith('a name') ? undefined : await stayingStranger(where.port, round % 2 === 0 ? 'store' : 'p');
      if (round % 3 === 0 && stranger !== undefined) await once(stranger, 'end');
      await listening.close();
      stranger?.destroy();
    }
  });

  it('is free at once: a report that is watched', async () => {
    const folder = temporaryFolder('watched');
    for (let round = 0; round < 30; round++) {
      const watch = await WatchServer.open({ folder, clock: systemClock, random: systemRandom, read: () => ({}) as ReportData });
      const { port } = new URL(watch.url);
      const idle = net.connect(Number(port), '127.0.0.1').on('error', () => undefined);
      await once(idle, 'connect');
      await watch.close();
      const again = net.createServer();
      await once(again.listen(Number(port), '127.0.0.1'), 'listening');
      await new Promise((resolve) => again.close(resolve));
      idle.destroy();
    }
  });
});
