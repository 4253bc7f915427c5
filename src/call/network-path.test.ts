/** The network path on sockets of this process: what travels, what is refused, and how two threads' wires take turns. */
import { once } from 'node:events';
import net from 'node:net';
import { beforeEach, describe, expect, it, onTestFinished } from 'vitest';
import { must } from '../base/assert.ts';
import { systemClock } from '../base/clock.ts';
import { ControlBlock, controlBlockBytes } from '../collectives/control-block.ts';
import { assumedRates } from '../collectives/network-path.ts';
import { parseSelection } from '../collectives/select.ts';
import { recordCiphers } from '../memory/native-records.ts';
import { loadNative, nativeUnavailableReason, type Native } from '../memory/native.ts';
import { createStepMachine } from '../memory/step-machine/create-step-machine.ts';
import { separateHosts } from '../plan/topology.ts';
import type { CollectiveCall } from './contract.ts';
import { NetworkPath, networkPathSpec, type NetworkPathOperation } from './network-path.ts';
import { networkPathMemoryBytes, networkPathPutBytes, networkPathScratchBytes, NetworkPathWire } from './network-path-wire.ts';
import { privateKey } from './local-buffers.ts';
import type { Planner } from './planner.ts';
import { plannerOf } from './testing/planner-of.ts';
import { signalMaxOf } from './group-spec.ts';

const reason = nativeUnavailableReason();
const patient = 5e9;
const hasty = 0;

interface Side {
  readonly rank: number;
  readonly networkPath: NetworkPath;
  readonly wire: NetworkPathWire;
  readonly planner: Planner;
  /** Another wire on the same sockets and memory, as the other thread has. */
  again(): NetworkPath;
}

/** The sockets of the tests are encrypted, or not. */
const links = { encrypted: false };

/** Both ends of a connection, as descriptors of our own. */
async function connectedPair(native: Native): Promise<[number, number]> {
  const server = net.createServer({ pauseOnConnect: true }).listen(0, '127.0.0.1');
  await once(server, 'listening');
  const accepted = once(server, 'connection');
  const dialled = net.connect((server.address() as net.AddressInfo).port, '127.0.0.1');
  await once(dialled, 'connect');
  const [other] = (await accepted) as [net.Socket];
  const pair = [dialled, other].map((socket) => {
    const { fd } = must((socket as unknown as { _handle?: { fd: number } })._handle, () => 'an open socket has a handle');
    const taken = native.takeSocket(fd);
    socket.destroy();
    return taken;
  });
  server.close();
  if (links.encrypted) {
    const [there, back] = [1, 2].map((filled) => new Uint8Array(32).fill(filled));
    bindKeys(native, pair[0], there, back);
    bindKeys(native, pair[1], back, there);
  }
  return [pair[0], pair[1]];
}

function bindKeys(native: Native, descriptor: number, send: Uint8Array, receive: Uint8Array): void {
  const ciphers = recordCiphers(native);
  ciphers.bind!(descriptor, ciphers.sealer('aes-256-gcm', send), ciphers.opener('aes-256-gcm', receive));
}

/** The rank whose sockets are `descriptors`. `algorithm`: of all-reduces; default: what is usual. */
function side(native: Native, rank: number, descriptors: readonly number[], algorithm?: string): Side {
  const size = descriptors.length + 1;
  const signalMax = signalMaxOf(size);
  const shape = { slotCount: 2, signalMax };
  const own = new ControlBlock(new SharedArrayBuffer(controlBlockBytes(shape)), 0, shape);
  const memory = new Uint8Array(native.createRegion(networkPathMemoryBytes(native, size)).buffer);
  const machine = createStepMachine({ native, clock: systemClock });
  const wireOn = (fds: readonly number[]): NetworkPathWire =>
    new NetworkPathWire({ native, rank, own, firstSlot: 0, signalCount: signalMax, memory, descriptors: fds });
  const networkPathOn = (wire: NetworkPathWire): NetworkPath => new NetworkPath({ rank, size, own, firstSlot: 0, wire, machine });
  const wire = wireOn(descriptors);
  onTestFinished(() => wire.close());
  const planner = plannerOf({
    machine,
    selection: algorithm === undefined ? [] : parseSelection(`all-reduce:${algorithm}`),
    rank,
    topology: separateHosts(size),
    loadStore: descriptors.map(() => false).concat(false),
  });
  planner.openNetworkPath(networkPathSpec(size, networkPathScratchBytes, assumedRates(size)));
  return {
    rank,
    networkPath: networkPathOn(wire),
    wire,
    planner,
    again: () => {
      const other = wireOn(descriptors.map((fd) => native.takeSocket(fd)));
      onTestFinished(() => other.close());
      return networkPathOn(other);
    },
  };
}

async function twoSides(): Promise<{ native: Native; sides: [Side, Side]; descriptors: [number, number] }> {
  const native = must(loadNative({ enabled: true }), () => 'the addon is built');
  const descriptors = await connectedPair(native);
  return { native, sides: [side(native, 0, [descriptors[0]]), side(native, 1, [descriptors[1]])], descriptors };
}

async function sidesOf(size: number, algorithm: string): Promise<Side[]> {
  const native = must(loadNative({ enabled: true }), () => 'the addon is built');
  const descriptors = Array.from({ length: size }, (): number[] => []);
  for (let low = 0; low < size; low++) {
    for (let high = low + 1; high < size; high++) [descriptors[low][high - 1], descriptors[high][low]] = await connectedPair(native);
  }
  return descriptors.map((each, rank) => side(native, rank, each, algorithm));
}

/** One thread plays all: nobody may wait for another. */
function runAll(sides: readonly Side[], operations: readonly NetworkPathOperation[], sequence: number, ordinal: number): void {
  const left = new Set(sides);
  for (let turn = 0; left.size > 0 && turn < 1e6; turn++) {
    for (const each of left) {
      if (each.networkPath.advance(operations[each.rank], sequence, ordinal, hasty) === 'done') left.delete(each);
    }
  }
  expect(left.size).toBe(0);
}

const sumOf = (count: number): CollectiveCall => ({ kind: 'all-reduce', dtype: 'float32', count, op: 'sum' });

function bind({ networkPath, planner }: Side, call: CollectiveCall, data: Float32Array): NetworkPathOperation {
  const prepared = planner.prepare(call, 'network');
  expect(prepared.isForNetworkPath).toBe(true);
  return networkPath.bind(call, prepared, { data: { key: privateKey, offset: 0, view: new Uint8Array(data.buffer) } });
}

it.skipIf(reason !== undefined)('bytes that the peer has not sealed end a wire as forged', async () => {
  const native = must(loadNative({ enabled: true }), () => 'the addon is built');
  const [here, there] = await connectedPair(native);
  bindKeys(native, here, new Uint8Array(32).fill(1), new Uint8Array(32).fill(2));
  bindKeys(native, there, new Uint8Array(32).fill(3), new Uint8Array(32).fill(1));
  const [a, b] = [side(native, 0, [here]), side(native, 1, [there])];
  b.wire.line(1, 0)[0] = 1;
  b.wire.announce(0, 0, 1);
  expect(a.wire.poll(0, 1, patient)).toBe('ended');
  expect(a.wire.isForged).toBe(true);
  expect(a.wire.line(1, 0)[0]).toBe(0);
});

describe.skipIf(reason !== undefined).each([
  ['plain', false],
  ['encrypted', true],
])(`networkPath, %s${reason === undefined ? '' : ` (skipped: ${reason})`}`, (_name, encrypted) => {
  beforeEach(() => {
    links.encrypted = encrypted;
  });

  it('reads what a rank sent before it went, also when that takes no more', async () => {
    const { sides } = await twoSides();
    const [gone, left] = sides;
    const announce = ({ rank, wire }: Side, turn: number, value: number): void => {
      wire.line(rank, turn)[0] = value;
      wire.announce(turn, 0, 1 << (1 - rank));
    };
    // Left unread, it makes the end of the socket a reset.
    announce(left, 0, 1);
    announce(gone, 0, 1);
    gone.wire.close();
    announce(left, 1, 2);
    announce(left, 1, 2);
    expect(left.wire.poll(0, 1, patient)).toBe('there');
    expect(left.wire.poll(1, 2, patient)).toBe('ended');
  });

  it('knows the round trip of its sockets, and of nothing else', async () => {
    const { native, descriptors } = await twoSides();
    for (const descriptor of descriptors) expect(native.socketRoundTrip(descriptor)).toBeGreaterThan(0);
    expect(native.socketRoundTrip(-1)).toBeUndefined();
  });

  // A mailbox; one hop with scratch; the most there can be, more than the kernel takes at once.
  it.each([2, 2048, 10_000, 32_768])('%i elements, again and again', async (count) => {
    const { sides } = await twoSides();
    const arrays = sides.map(() => new Float32Array(count));
    const operations = sides.map((each, rank) => bind(each, sumOf(count), arrays[rank]));
    for (let sequence = 0; sequence < 20; sequence++) {
      arrays.forEach((array, rank) => array.fill(sequence + rank));
      sides.forEach(({ networkPath }, rank) => networkPath.begin(operations[rank], sequence, sequence));
      runAll(sides, operations, sequence, sequence);
      for (const array of arrays) expect([array[0], array[count - 1]]).toEqual([2 * sequence + 1, 2 * sequence + 1]);
    }
  });

  it('a rank that is ahead is heard later, on either thread', async () => {
    const { sides } = await twoSides();
    const arrays = sides.map(() => new Float32Array(2));
    const operations = sides.map((each, rank) => bind(each, sumOf(2), arrays[rank]));
    arrays[0].fill(1);
    sides[0].networkPath.begin(operations[0], 0, 0);
    expect(sides[0].networkPath.advance(operations[0], 0, 0, hasty)).toBe('waiting');
    expect(sides[0].networkPath.late(0)).toEqual([1]);
    arrays[1].fill(2);
    sides[1].networkPath.begin(operations[1], 0, 0);
    expect(sides[1].networkPath.advance(operations[1], 0, 0, patient)).toBe('done');
    // The other thread of rank 0 goes on.
    expect(sides[0].again().advance(operations[0], 0, 0, patient)).toBe('done');
    expect([...arrays[0]]).toEqual([3, 3]);
  });

  it('other calls are told apart before any result', async () => {
    const { sides } = await twoSides();
    const arrays = [new Float32Array([1, 1]), new Float32Array([7, 7, 7])];
    const operations = sides.map((each, rank) => bind(each, sumOf(arrays[rank].length), arrays[rank]));
    sides.forEach(({ networkPath }, rank) => networkPath.begin(operations[rank], 0, 0));
    for (const [rank, { networkPath }] of sides.entries()) expect(networkPath.advance(operations[rank], 0, 0, patient)).toBe('mismatch');
    expect([...arrays[0], ...arrays[1]]).toEqual([1, 1, 7, 7, 7]);
  });

  describe.each(['tree', 'direct', 'halving-doubling', 'ring'])('%s, announced along its messages', (algorithm) => {
    it.each([3, 4, 5])('%i ranks, again and again', async (size) => {
      const sides = await sidesOf(size, algorithm);
      const count = 100;
      const arrays = sides.map(() => new Float32Array(count));
      const operations = sides.map((each, rank) => bind(each, sumOf(count), arrays[rank]));
      // Counters pass what 32 bits hold.
      const before = size === 4 ? 2 ** 32 - 3 : 0;
      for (const { wire } of sides) for (const turn of [0, 1]) for (const peer of sides) wire.line(peer.rank, turn)[0] = before;
      for (let step = 0; step < 6; step++) {
        const sequence = before + step;
        arrays.forEach((array, rank) => array.fill(step + rank));
        // Whoever begins late is awaited.
        const last = sides[step % size];
        for (const { networkPath, rank } of sides) if (rank !== last.rank) networkPath.begin(operations[rank], sequence, sequence);
        for (const { networkPath, rank } of sides) {
          if (rank !== last.rank) expect(networkPath.advance(operations[rank], sequence, sequence, hasty)).toBe('waiting');
        }
        last.networkPath.begin(operations[last.rank], sequence, sequence);
        runAll(sides, operations, sequence, sequence);
        const sum = size * step + (size * (size - 1)) / 2;
        for (const array of arrays) expect([...array]).toEqual(Array.from({ length: count }, () => sum));
      }
    });

    it.each([0, 1, 3])('rank %i calls something else: nobody ends, and all can tell when all have been told', async (odd) => {
      const sides = await sidesOf(4, algorithm);
      const operations = sides.map((each) => {
        const count = each.rank === odd ? 101 : 100;
        return bind(each, sumOf(count), new Float32Array(count));
      });
      for (const { networkPath, rank } of sides) networkPath.begin(operations[rank], 0, 0);
      for (let turn = 0; turn < 100; turn++) {
        for (const { networkPath, rank } of sides) expect(networkPath.advance(operations[rank], 0, 0, hasty)).not.toBe('done');
      }
      for (const { networkPath, rank } of sides) networkPath.announceToAll(operations[rank], 0);
      for (const { networkPath, rank } of sides) {
        let status = networkPath.advance(operations[rank], 0, 0, hasty);
        for (let turn = 0; status === 'waiting' && turn < 1e6; turn++) status = networkPath.advance(operations[rank], 0, 0, hasty);
        expect(status).toBe('mismatch');
      }
    });

    it('a rank whose call has another number: nobody ends', async () => {
      const sides = await sidesOf(4, algorithm);
      const operations = sides.map((each) => bind(each, sumOf(100), new Float32Array(100)));
      const numberOf = (rank: number): number => (rank === 2 ? 6 : 7);
      for (const { networkPath, rank } of sides) networkPath.begin(operations[rank], numberOf(rank), 0);
      for (const { networkPath, rank } of sides) networkPath.announceToAll(operations[rank], 0);
      for (const { networkPath, rank } of sides) {
        let status = networkPath.advance(operations[rank], numberOf(rank), 0, hasty);
        for (let turn = 0; status === 'waiting' && turn < 1e6; turn++)
          status = networkPath.advance(operations[rank], numberOf(rank), 0, hasty);
        expect(status).toBe('mismatch');
      }
    });

    it('another thread goes on with it, and tells the others who has called', async () => {
      const sides = await sidesOf(4, algorithm);
      const arrays = sides.map(() => new Float32Array(100).fill(1));
      const operations = sides.map((each, rank) => bind(each, sumOf(100), arrays[rank]));
      const called = sides.filter(({ rank }) => rank !== 3);
      for (const { networkPath, rank } of called) networkPath.begin(operations[rank], 0, 0);
      for (const { networkPath, rank } of called) expect(networkPath.advance(operations[rank], 0, 0, hasty)).toBe('waiting');
      const others = called.map((each) => ({ ...each, networkPath: each.again() }));
      for (const { networkPath, rank } of others) networkPath.announceToAll(operations[rank], 0);
      for (let turn = 0; turn < 100; turn++) {
        for (const { networkPath, rank } of others) expect(networkPath.advance(operations[rank], 0, 0, hasty)).toBe('waiting');
      }
      for (const { networkPath } of others) expect(networkPath.late(0)).toEqual([3]);
      sides[3].networkPath.begin(operations[3], 0, 0);
      runAll([...others, sides[3]], operations, 0, 0);
      for (const array of arrays) expect([array[0], array[99]]).toEqual([4, 4]);
    });

    it('the end of an awaited socket is noticed', async () => {
      const sides = await sidesOf(2, algorithm);
      const operation = bind(sides[0], sumOf(100), new Float32Array(100));
      sides[0].networkPath.begin(operation, 0, 0);
      expect(sides[0].networkPath.advance(operation, 0, 0, hasty)).toBe('waiting');
      sides[1].wire.close();
      expect(sides[0].networkPath.advance(operation, 0, 0, patient)).toBe('ended');
    });
  });

  it('the end of a socket is noticed by those who still wait for its rank', async () => {
    const { sides } = await twoSides();
    const operation = bind(sides[0], sumOf(2), new Float32Array(2));
    sides[0].networkPath.begin(operation, 0, 0);
    expect(sides[0].networkPath.advance(operation, 0, 0, hasty)).toBe('waiting');
    sides[1].wire.close();
    expect(sides[0].networkPath.advance(operation, 0, 0, patient)).toBe('ended');
  });

  const header = (fields: { bytes?: number; turn?: number; kind?: number; signal?: number; buffer?: number; offset?: number }): Buffer => {
    const { bytes = 0, turn = 0, kind = 0, signal = 0, buffer = 2, offset = 0 } = fields;
    const head = Buffer.alloc(24);
    head.writeUInt32LE(bytes, 0);
    head.writeUInt16LE(turn, 4);
    head.writeUInt16LE(kind, 6);
    head.writeUInt32LE(signal, 8);
    head.writeUInt32LE(buffer, 12);
    head.writeBigUInt64LE(BigInt(offset), 16);
    return Buffer.concat([head, Buffer.alloc(Math.min(bytes, 4096), 0xa5)]);
  };
  it.each([
    ['an announcement that is too short', header({ bytes: 8 })],
    ['an announcement longer than a mailbox', header({ bytes: 9000 })],
    ['a slot that does not exist', header({ bytes: 32, turn: 2 })],
    ['a kind that does not exist', header({ bytes: 32, kind: 2 })],
    ['a signal that does not exist', header({ kind: 1, signal: 1000 })],
    ['a buffer that does not exist', header({ kind: 1, bytes: 8, buffer: 3 })],
    ['a put beyond the scratch', header({ kind: 1, bytes: 64, offset: networkPathScratchBytes - 32 })],
    ['an offset that overflows', header({ kind: 1, bytes: 64, offset: 2 ** 53 })],
    ['a put into data that is not there', header({ kind: 1, bytes: 64, buffer: 0, offset: 8 })],
    ['a put larger than any', header({ kind: 1, bytes: networkPathPutBytes(2) + 1 })],
  ])('%s ends the connection and writes nothing', async (_, message) => {
    const native = must(loadNative({ enabled: true }), () => 'the addon is built');
    const server = net.createServer((socket) => socket.end(message)).listen(0, '127.0.0.1');
    onTestFinished(() => void server.close());
    await once(server, 'listening');
    const dialled = net.connect({ port: (server.address() as net.AddressInfo).port, host: '127.0.0.1' });
    dialled.pause();
    await once(dialled, 'connect');
    const { fd } = must((dialled as unknown as { _handle?: { fd: number } })._handle, () => 'an open socket has a handle');
    const victim = side(native, 0, [native.takeSocket(fd)]);
    dialled.destroy();
    const data = new Float32Array(2);
    const operation = bind(victim, sumOf(2), data);
    victim.networkPath.begin(operation, 0, 0);
    // Whatever else is served on this thread, the server's bytes come.
    let status = victim.networkPath.advance(operation, 0, 0, hasty);
    while (status === 'waiting') {
      await new Promise((resolve) => setImmediate(resolve));
      status = victim.networkPath.advance(operation, 0, 0, hasty);
    }
    expect(status).toBe('ended');
    expect([...data]).toEqual([0, 0]);
    expect(victim.wire.scratch.every((scratch) => scratch.every((byte) => byte === 0))).toBe(true);
  });
});
