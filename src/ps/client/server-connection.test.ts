import { expect, it } from 'vitest';
import { ShoalError } from '../../base/errors.ts';
import type { Msg } from '../../messaging/msg.ts';
import { Arbiter } from '../../scheduler/arbiter.ts';
import { clientAddress, serverAddress } from '../protocol/topology.ts';
import type { OwnValues } from '../protocol/value-space.ts';
import { encodeControl, Fields, packNotice, readControl } from '../protocol/wire-control.ts';
import { KVMessage, makeMessage } from '../protocol/wire.ts';
import { ServerConnection } from './server-connection.ts';
import { fixedRequest } from './client-request.ts';

it('greets again whatever it keeps for a server that restarts: 200,000 requests', () => {
  const [address, server] = [clientAddress(0, 0), serverAddress(0, 0)];
  const sent: Msg[] = [];
  const connection = new ServerConnection({
    address,
    server,
    name: 'server 0',
    values: undefined as unknown as OwnValues,
    creditBytes: 1,
    arbiter: new Arbiter(),
    replayBytes: 2 ** 30,
    send: (msg) => sent.push(msg),
    greeting: () => ({ group: 0, first: 0, workers: 1, barrier: 0, left: 0 }),
    onBroken: (error) => expect.unreachable(error.message),
    onCommitted: () => undefined,
    knowledge: { version: 0, refuses: false },
    leads: true,
    hasStandby: false,
  });
  connection.up();
  const fields = { term: 1, lineage: 1, durable: 0, log: true, committed: 0, ...packNotice({ version: 0, refuses: false }) };
  const welcome = { source: server, destination: address, type: KVMessage.welcome, request: 0, epoch: 1 };
  connection.receive(makeMessage(welcome, [encodeControl(fields)]));
  expect(connection.isUp).toBe(true);
  for (let k = 0; k < 200_000; k++) {
    connection.enqueue(fixedRequest({ type: KVMessage.update, repeats: true, frames: [], finish: () => undefined }));
    connection.pump();
  }
  expect(sent).toHaveLength(200_001);
  connection.down(new ShoalError('peer-lost', 'the connection broke'), 'lost');
  connection.up();
  const hello = sent.at(-1)!;
  expect(hello.type).toBe(KVMessage.hello);
  expect(readControl(hello.frames[0], Fields.hello).last).toBe(200_000);
});
