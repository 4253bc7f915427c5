/** The agreement of ranks on a network path: messages in another order than they were sent, as of different links, and sockets that are given back. */
import { expect, it } from 'vitest';
import type { SocketSource } from '../../../fabric/fabric.ts';
import type { NativeWire } from '../../../memory/native-wire.ts';
import type { GivenSocket } from '../../../fabric/fabric.ts';
import type { GroupContext } from '../engine/group-context.ts';
import type { ControlMessage } from '../links/control-message.ts';
import { NetworkPathOpening, type AgreedNetworkPath } from './network-path-opening.ts';

/** One of three ranks on three hosts; nobody answers what it dials. */
function openingOf(rank: number) {
  const told: ControlMessage[] = [];
  const closed: number[] = [];
  const sockets: SocketSource = { candidates: ['tcp://here'], open: () => new Promise(() => undefined), onSocket: undefined };
  const native = {
    takeSocket: (fd: number) => 100 + fd,
    closeSocket: (fd: number) => closed.push(fd),
    socketRoundTrip: () => undefined,
    wireMemoryBytes: () => 0,
  } as unknown as NativeWire;
  const region = { close: () => undefined };
  const settings = { syncBytesMax: 1, contract: 'standard', commThread: 'worker', calibration: 'assume', connectTimeoutMs: 1000 };
  const group = {
    spec: { id: 4, name: 'three', globalRanks: [0, 1, 2], rank, topology: { hosts: [[0], [1], [2]] } },
    rank,
    size: 3,
    members: { networkPeers: [{}, {}], tellOthers: (message: ControlMessage) => told.push(message) },
    world: {
      env: { size: 3, name: 'test', wires: native, fabrics: [{ sockets }], allocator: { kind: 'shared', create: () => region }, settings },
      networkPathRates: undefined,
    },
  };
  const opening = new NetworkPathOpening(group as unknown as GroupContext);
  return { opening, told, closed };
}

const given = (descriptor: number): GivenSocket => ({ descriptor, review: () => undefined });

it('a rank that has none may say so before this one has heard of all', () => {
  const { opening, told, closed } = openingOf(2);
  opening.note(0, ['tcp://zero']);
  opening.onSocket(0, (take) => given(take(7)));
  opening.onReady(0, { ok: false });
  opening.note(1, ['tcp://one']);
  const agreed: (AgreedNetworkPath | undefined)[] = [];
  opening.agree((each) => agreed.push(each));
  expect(agreed).toEqual([undefined]);
  expect(told).toEqual([{ type: 'network-path-ready', group: 4, ok: false }]);
  expect(closed).toEqual([107]);
});

it('sockets that came before all were heard of are closed when the group goes', () => {
  const { opening, closed } = openingOf(1);
  opening.note(0, ['tcp://zero']);
  opening.onSocket(0, (take) => given(take(7)));
  opening.abandon();
  opening.abandon();
  expect(closed).toEqual([107]);
});

it('sockets that all have agreed on stay when the group goes: they are the wire’s', async () => {
  const { opening, closed } = openingOf(2);
  for (const rank of [0, 1]) {
    opening.note(rank, ['tcp://there']);
    opening.onSocket(rank, (take) => given(take(7 + rank)));
    opening.onReady(rank, { ok: true });
  }
  const agreed = await new Promise<AgreedNetworkPath | undefined>((resolve) => opening.agree(resolve));
  expect(agreed?.sockets.map(({ descriptor }) => descriptor)).toEqual([107, 108]);
  opening.abandon();
  expect(closed).toEqual([]);
});
