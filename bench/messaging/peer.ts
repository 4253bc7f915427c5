/** The other process of the messaging benchmark: routers of every kind and raw ZeroMQ sockets that swallow messages and answer those that
 *  ask for it. It has those that its arguments name; prints their endpoints as one line of JSON; ends with its standard input. */
import * as zmq from 'zeromq';
import { systemClock } from '../../src/base/clock.ts';
import { systemRandom } from '../../src/base/random.ts';
import { fabricProviders } from '../../src/fabric/providers.ts';
import { deriveCurveKeys } from '../../src/messaging/backends/zeromq/curve-keys.ts';
import { MessagingContext, Router, type MessagingOptions } from '../../src/messaging/index.ts';

const secret = Buffer.from('bench');
const world = 'bench';

async function answer(router: Router): Promise<void> {
  for await (const msg of router) {
    if (msg.type === 0) {
      msg.release();
      continue;
    }
    msg.swapAddress();
    router.send(msg);
  }
}

async function listen(url: string, changes: Partial<MessagingOptions>): Promise<string> {
  const router = new Router(new MessagingContext({ world, secret, ...changes }));
  const bound = await router.bind(url);
  answer(router).catch((error: unknown) => {
    console.error(error);
    process.exit(1);
  });
  return bound;
}

async function listenRaw(options: zmq.SocketOptions<zmq.Router>): Promise<string> {
  const socket = new zmq.Router({ sendHighWaterMark: 0, receiveHighWaterMark: 0, ...options });
  await socket.bind('tcp://127.0.0.1:*');
  const loop = async (): Promise<void> => {
    for await (const [id, body] of socket) if (body[0] === 1) await socket.send([id, body]);
  };
  loop().catch((error: unknown) => {
    console.error(error);
    process.exit(1);
  });
  return socket.lastEndpoint!;
}

const { publicKey: curvePublicKey, secretKey: curveSecretKey } = deriveCurveKeys(secret, world, 'router');
const wanted = process.argv.slice(2);
const endpoints: Record<string, string> = {};
const add = async (name: string, open: () => Promise<string>): Promise<void> => {
  if (wanted.includes(name)) endpoints[name] = await open();
};
await add('zeromq curve', () => listenRaw({ curveServer: true, curvePublicKey, curveSecretKey }));
await add('zeromq plain', () => listenRaw({}));
await add('tcp curve', () => listen('tcp://127.0.0.1:*', {}));
await add('tcp plain', () => listen('tcp://127.0.0.1:*', { encryption: 'none' }));
for (const provider of fabricProviders.filter(({ unavailable }) => unavailable() === undefined)) {
  for (const landing of ['copy', 'borrow'] as const) {
    await add(`fabric ${provider.name} ${landing}`, () => {
      const identity = { world, rank: 1 };
      const fabric = provider.create({ identity, secret, clock: systemClock, random: systemRandom });
      return listen(`fabric://${provider.name}`, { fabric: { fabric, identity, landing } });
    });
  }
}
process.stdout.write(`${JSON.stringify(endpoints)}\n`);
process.stdin.on('end', () => process.exit(0)).resume();
