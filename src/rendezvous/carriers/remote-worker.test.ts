/** Another worker over connections that break: standing requests, two connections at a time, and the end of patience. */
import { afterEach, expect, it } from 'vitest';
import { ByteWriter } from '../../base/bytes.ts';
import { systemClock } from '../../base/clock.ts';
import { seededRandom } from '../../base/random.ts';
import { abortConnection } from '../../fabric/abortable.ts';
import type { Connection, Fabric, FabricOptions } from '../../fabric/fabric.ts';
import { TcpFabric } from '../../fabric/providers/tcp.ts';
import { LoopbackNetwork } from '../../fabric/testing/loopback.ts';
import { threadRegion } from '../../fabric/testing/regions.ts';
import { protocolVersion, RecordType } from '../protocol/records.ts';
import { networkPair, type NetworkPair, type NetworkPairOptions } from '../testing/network-pair.ts';
import { nothingToWrite } from '../value/tensor-value.ts';
import { dense, plain } from './conformance.ts';

const pairs: NetworkPair[] = [];
afterEach(async () => {
  for (const pair of pairs.splice(0)) await pair.close();
});

async function start(options: Partial<NetworkPairOptions> = {}): Promise<NetworkPair> {
  const network = new LoopbackNetwork();
  const pair = await networkPair({ create: (given) => network.createFabric(given), region: threadRegion, ...options });
  pairs.push(pair);
  return pair;
}

it('a standing request goes on over the next connection, with what had come before', async () => {
  const pair = await start();
  const { a, b } = pair;
  const key = a.key('x', a.self, b.self);
  const standing = pair.networks.b.find(a.self.device)!.stand(key, 1, 4);
  const steps = Array.from({ length: 20 }, (_, k) => k + 1);
  const begun = steps.map((stepId) => ({ a: a.beginStep(stepId), b: b.beginStep(stepId) }));
  // The first two come before anybody reads them; then one receive waits.
  begun[0].a.send(key, dense([1]));
  begun[1].a.send(key, dense([2]));
  const third = begun[2].b.recvAsync(key);
  await expect.poll(() => pair.networks.b.counters.messagesReceived).toBeGreaterThan(1);
  await new Promise((resolve) => setImmediate(resolve));
  await pair.break();
  begun[2].a.send(key, dense([3]));
  expect(plain(await third)).toEqual(plain(dense([3])));
  (await third)!.release!();
  for (const k of [0, 1]) expect(plain(await begun[k].b.recvAsync(key))).toEqual(plain(dense([k + 1])));
  const requests = pair.networks.b.counters.requests;
  for (const stepId of steps.slice(3)) {
    const step = begun[stepId - 1];
    step.a.send(key, dense([stepId]));
    const value = await step.b.recvAsync(key);
    expect(plain(value)).toEqual(plain(dense([stepId])));
    value!.release!();
    a.endStep(stepId);
    b.endStep(stepId);
  }
  expect(pair.networks.b.counters.requests).toBe(requests);
  standing.stop();
});

it('a worker that connects anew takes its requests along', async () => {
  const pair = await start();
  const { a, b } = pair;
  const steps = { a: a.beginStep(1), b: b.beginStep(1) };
  const [there, back] = [a.key('x', a.self, b.self), b.key('x', b.self, a.self)];
  const waiting = [steps.b.recvAsync(there), steps.a.recvAsync(back)];
  await new Promise((resolve) => setImmediate(resolve));
  await pair.connectAgain();
  steps.a.send(there, dense([1]));
  steps.b.send(back, dense([2]));
  expect((await Promise.all(waiting)).map(plain)).toEqual([dense([1]), dense([2])].map(plain));
});

it('is found again when both have connected and both connections break', async () => {
  const dialled: Connection[] = [];
  const create = (given: FabricOptions): Fabric => {
    const fabric = new TcpFabric(given);
    const connect = fabric.connect.bind(fabric);
    fabric.connect = async (...args) => {
      dialled.push(await connect(...args));
      return dialled.at(-1)!;
    };
    return fabric;
  };
  const pair = await start({ create });
  const { a, b, networks } = pair;
  await networks.b.connect(0, await networks.a.listen());
  await new Promise((resolve) => setImmediate(resolve));
  const steps = { a: a.beginStep(1), b: b.beginStep(1) };
  const [there, back] = [a.key('x', a.self, b.self), b.key('x', b.self, a.self)];
  const waiting = [steps.b.recvAsync(there), steps.a.recvAsync(back)];
  // Each end hears first of the one that it has made itself.
  expect(dialled).toHaveLength(2);
  for (const connection of dialled.splice(0)) abortConnection(connection);
  steps.a.send(there, dense([1]));
  steps.b.send(back, dense([2]));
  expect((await Promise.all(waiting)).map(plain)).toEqual([dense([1]), dense([2])].map(plain));
});

it('is lost, with a message that says why, when no connection can be made again', async () => {
  const pair = await start({ reconnectMs: 50 });
  const { a, b } = pair;
  const waiting = [a.beginStep(1).recvAsync(b.key('x', b.self, a.self)), b.beginStep(1).recvAsync(a.key('x', a.self, b.self))].map((each) =>
    each.catch((thrown: unknown) => thrown),
  );
  await new Promise((resolve) => setImmediate(resolve));
  pair.crash();
  expect(await waiting[0]).toMatchObject({
    code: 'peer-lost',
    message: expect.stringMatching(
      /^'x' from \S+task:1\S+ did not come in step 1: .*; it was not connected again within 50 ms: the process is dead$/,
    ) as string,
  });
  expect(await waiting[1]).toMatchObject({
    code: 'peer-lost',
    message: expect.stringMatching(/^'x' from \S+task:0\S+ did not come in step 1: .*; it was not connected again within 50 ms$/) as string,
  });
});

const records = (...ofMessage: ((writer: ByteWriter) => void)[]): Uint8Array => {
  const writer = new ByteWriter(100);
  writer.u8(protocolVersion);
  writer.u8(0);
  writer.u16(0);
  for (const each of ofMessage) each(writer);
  return writer.bytes;
};
const hello = (writer: ByteWriter): void => {
  writer.u8(RecordType.Hello);
  writer.u64(5n);
  writer.text('stranger');
  writer.u32(0);
  writer.text('');
  writer.varint(0);
};
const unknown = (writer: ByteWriter): void => writer.u8(200);

it.each<[string, (connection: Connection) => unknown]>([
  ['a record before hello', (connection) => connection.send(records(unknown))],
  ['a record that there is not', (connection) => connection.send(records(hello, unknown))],
  ['another hello', (connection) => connection.send(records(hello, hello))],
  [
    'an announcement of nothing',
    async (connection) => {
      await connection.send(records(hello));
      await connection.write(nothingToWrite, { region: { rkey: 0, bytes: 0, handle: '' }, offset: 0 }, 7);
    },
  ],
])('what is not of the protocol ends its connection, and no other: %s', async (_, say) => {
  const network = new LoopbackNetwork();
  const create = (given: FabricOptions): Fabric => network.createFabric(given);
  const pair = await start({ create });
  const { a, b } = pair;
  const steps = { a: a.beginStep(1), b: b.beginStep(1) };
  const key = a.key('x', a.self, b.self);
  const waiting = steps.b.recvAsync(key);
  const stranger = create({ identity: { world: 'w', rank: 7 }, secret: Buffer.from('s'), clock: systemClock, random: seededRandom(9) });
  const connection = await stranger.connect(pair.address, { peer: { world: 'w', rank: 1 }, timeoutMs: 60_000 });
  const closed = new Promise((resolve) => connection.setHandlers({ onMessage() {}, onImmediate() {}, onClose: resolve }));
  await Promise.resolve(say(connection)).catch(() => undefined);
  expect(await closed).toMatchObject({ code: 'protocol' });
  steps.a.send(key, dense([5]));
  expect(plain(await waiting)).toEqual(plain(dense([5])));
  await stranger.close();
});
