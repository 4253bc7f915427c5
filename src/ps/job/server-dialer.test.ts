import { EventEmitter, once } from 'node:events';
import { expect, test } from 'vitest';
import { systemClock, VirtualClock } from '../../base/clock.ts';
import type { ShoalError } from '../../base/errors.ts';
import { systemRandom } from '../../base/random.ts';
import { defaultSettings, readSettings, type Settings } from '../../base/settings/settings.ts';
import { TcpFabric } from '../../fabric/providers/tcp.ts';
import { MessagingContext } from '../../messaging/context.ts';
import { Msg } from '../../messaging/msg.ts';
import { Router } from '../../messaging/router.ts';
import { HashStore } from '../../store/hash-store.ts';
import { serverAddress } from '../protocol/topology.ts';
import { lookMs } from './silence.ts';
import type { Pulse } from './pulse.ts';
import { ServerDialer } from './server-dialer.ts';
import { systemProcesses } from './server-process.ts';
import { ServerRecords, type ServerSeat } from './server-records.ts';

const processes = systemProcesses({ hostId: '', pulse: '', ask: async () => 'runs' });
const [own, to] = [serverAddress(1, 0), serverAddress(0, 0)];

function message(text: string): Msg {
  const msg = new Msg(own, to);
  msg.type = 1024;
  msg.addFrame(Buffer.from(text));
  return msg;
}

/** The messages that the other end receives: of a message sent when it has been reached and the dialer does not know yet, and of one sent when the dialer is up. */
async function received(seat: ServerSeat): Promise<string[]> {
  await using messaging = new MessagingContext({ world: 'dialers', secret: new Uint8Array(32), encryption: 'none' });
  const store = new HashStore({ clock: systemClock });
  const records = new ServerRecords(store);
  const heard: string[] = [];
  const last = new EventEmitter();
  const over = once(last, 'heard');
  // The router says that a dealer is there before the dealer hears its answer.
  const router = new Router(messaging, { onPeer: ({ state }) => state === 'connected' && dialer.send(message('early')) });
  router.watch(() => {
    if (heard.at(-1) === 'up') return;
    for (let msg = router.tryReceive(); msg !== undefined; msg = router.tryReceive()) heard.push(Buffer.from(msg.frames[0]).toString());
    if (heard.at(-1) === 'up') last.emit('heard');
  });
  const url = await router.bind('inproc://server');
  const record = { incarnation: 1, url, ...processes.own() };
  if (seat === 'standby') await records.changeCandidate(0, 0, { expected: undefined, next: record });
  else await records.changeView(0, 0, { expected: undefined, next: { term: 1, primary: record, standby: null } });
  const node = { clock: systemClock, settings: readSettings({}), records, messaging, processes };
  const dialer = new ServerDialer({
    node,
    group: 0,
    server: 0,
    seat,
    own,
    onMessage: () => undefined,
    onUp: () => dialer.send(message('up')),
    onDown: () => undefined,
  });
  await over;
  await dialer.close();
  await router.close();
  await store.close();
  return heard;
}

test('what is sent when the server has been reached, and the dialer is not up yet, arrives', async () => {
  expect(await received('server')).toEqual(['early', 'up']);
});

test('a standby is sent nothing before its dialer is up', async () => {
  expect(await received('standby')).toEqual(['up']);
});

test.each([
  { pulse: 'runs', said: [] },
  { pulse: 'silent', said: [[expect.stringContaining('server 0 of group 0 has been silent for 5 s'), 'lost']] },
] as const)('a server that says nothing but by its pulse: $pulse', async ({ pulse, said }) => {
  await using messaging = new MessagingContext({ world: 'busy', secret: new Uint8Array(32), encryption: 'none' });
  const [clock, store] = [new VirtualClock(), new HashStore({ clock: systemClock })];
  const records = new ServerRecords(store);
  const router = new Router(messaging);
  const elsewhere = { ...processes, isGone: () => false, ask: () => Promise.resolve<Pulse>(pulse) };
  const record = { incarnation: 1, url: await router.bind('inproc://busy'), ...processes.own() };
  await records.changeView(0, 0, { expected: undefined, next: { term: 1, primary: record, standby: null } });
  const node = { clock, settings: readSettings({}), records, messaging, processes: elsewhere };
  const downs: [string, string][] = [];
  const isUp = new EventEmitter();
  const up = once(isUp, 'up');
  const dialer = new ServerDialer({
    node,
    group: 0,
    server: 0,
    own,
    onMessage: () => undefined,
    onUp: () => isUp.emit('up'),
    onDown: ({ message }, how) => downs.push([message, how]),
  });
  await up;
  for (let ms = 0; ms < 2 * node.settings.serverSilenceMs && downs.length === 0; ms += lookMs) {
    clock.advance(lookMs);
    for (let turn = 0; turn < 3; turn++) await new Promise(setImmediate);
  }
  expect(downs).toEqual(said);
  await dialer.close();
  await router.close();
  await store.close();
});

test.each(['another carrier', 'without encryption'])('a server whose settings disagree is dialled once: %s', async (how) => {
  const [clock, random] = [systemClock, systemRandom];
  const [world, secret] = ['dialers', new Uint8Array(32)];
  const fabrics: TcpFabric[] = [];
  const contextOf = (rank: number, changes: Partial<Settings>): MessagingContext => {
    const identity = { world, rank };
    const fabric = new TcpFabric({ identity, secret, clock, random, settings: { ...defaultSettings, hostId: String(rank), ...changes } });
    fabrics.push(fabric);
    return new MessagingContext({ world, secret, fabric: { fabric, identity, landingBytes: 2 ** 20 } });
  };
  await using theirs = contextOf(0, { encryption: 'on' });
  await using ours = how === 'another carrier' ? new MessagingContext({ world, secret }) : contextOf(1, { encryption: 'off' });
  const store = new HashStore({ clock });
  const records = new ServerRecords(store);
  const router = new Router(theirs);
  const record = { incarnation: 1, url: await router.bind('fabric://tcp'), ...processes.own() };
  await records.changeView(0, 0, { expected: undefined, next: { term: 1, primary: record, standby: null } });
  const said = new EventEmitter();
  const down = once(said, 'down');
  const dialer = new ServerDialer({
    node: { clock, settings: readSettings({}), records, messaging: ours, processes },
    ...{ group: 0, server: 0, own },
    onMessage: () => undefined,
    onUp: () => undefined,
    onDown: (error, state) => said.emit('down', error, state),
  });
  const [error, state] = (await down) as [ShoalError, string];
  expect([state, error.code]).toEqual(['refused', 'config']);
  const why = how === 'another carrier' ? 'needs a fabric' : 'SHOAL_ENCRYPTION=off';
  expect(error.message).toMatch(
    new RegExp(`^server 0 of group 0 cannot be reached from here: .*${why}.*; give all processes the same SHOAL_KV_CARRIER`),
  );
  await dialer.close();
  await router.close();
  await store.close();
  await Promise.all(fabrics.map((fabric) => fabric.close()));
});
