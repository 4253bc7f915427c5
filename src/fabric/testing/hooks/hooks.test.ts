import { describe, expect, it } from 'vitest';
import { systemClock, VirtualClock } from '../../../base/clock.ts';
import { seededRandom } from '../../../base/random.ts';
import { UnhurriedClock } from '../../../base/testing/unhurried-clock.ts';
import { loadNative } from '../../../memory/native.ts';
import { createRegionAllocator } from '../../../memory/regions/allocator.ts';
import { createRecorder, nullRecorder } from '../../../trace/recorder.ts';
import type { Skip } from '../../../base/testing/skips.ts';
import { describeFabric, type FabricWorld } from '../../conformance.ts';
import type { Fabric, FabricOptions } from '../../fabric.ts';
import { LoopbackNetwork } from '../loopback.ts';
import { ShmFabric, shmUnavailable } from '../../providers/shm.ts';
import { TcpFabric } from '../../providers/tcp.ts';
import { connected } from '../connected.ts';
import { desertedTcpAddress } from '../deserted.ts';
import { threadRegion } from '../regions.ts';
import { countFabric } from './count.ts';
import { faultFabric } from './fault.ts';
import { FaultyWire } from './faulty-wire.ts';
import { traceFabric } from './trace.ts';

const noShm = shmUnavailable();
const strangers: Skip[] = [
  'strangers with random bytes, endless headers or silence are turned away in bounded memory',
  'a member that sends broken frames is refused with protocol and crashes nothing',
].map((test) => ({ test, reason: 'a hook is above the sockets' }));

const providers: { name: string; world: () => FabricWorld }[] = [
  {
    name: 'loopback',
    world: () => {
      const network = new LoopbackNetwork();
      return { create: (options) => network.createFabric(options), region: threadRegion };
    },
  },
  { name: 'tcp', world: () => ({ create: (options) => new TcpFabric(options), region: threadRegion, deserted: desertedTcpAddress }) },
];
if (noShm === undefined) {
  const regions = createRegionAllocator({ native: loadNative({ enabled: true }) });
  providers.push({
    name: 'shm',
    world: () => ({ create: (options) => new ShmFabric({ ...options, regions }), region: (bytes) => regions.create(bytes) }),
  });
}

const hooks: { name: string; wrap: (fabric: Fabric, options: FabricOptions) => Fabric; skips?: Skip[] }[] = [
  { name: 'count', wrap: (fabric) => countFabric(fabric).fabric },
  {
    name: 'trace',
    wrap: (fabric) => traceFabric(fabric, createRecorder({ clock: systemClock, thread: 'test', eventsMax: 4096 })),
  },
  { name: 'fault without faults', wrap: (fabric) => faultFabric(fabric, { clock: systemClock, random: seededRandom(1) }) },
  {
    name: 'fault with delays',
    wrap: (fabric, { maxQueuedBytes }) =>
      faultFabric(fabric, { clock: systemClock, random: seededRandom(1), delayMs: [0, 0.01], ...(maxQueuedBytes && { maxQueuedBytes }) }),
    skips: [
      {
        test: 'a broken connection is peer-lost on both sides and for everything in flight',
        reason: 'what the hook delays is not in flight below it',
      },
      {
        test: 'many concurrent writes land where they belong and resolve',
        reason: 'thousands of timers, one after the other, take too long',
      },
    ],
  },
];

for (const { name, wrap, skips = [] } of hooks) {
  for (const provider of providers) {
    const make = (): FabricWorld => {
      const world = provider.world();
      return { ...world, create: (options) => wrap(world.create(options), options) };
    };
    describeFabric(`${name} around ${provider.name}`, make, { skips: [...strangers, ...skips] });
  }
}

const patience = new UnhurriedClock();
const optionsOf = (rank: number): FabricOptions => ({
  identity: { world: 'w', rank },
  secret: Buffer.from('s'),
  clock: patience,
  random: seededRandom(rank),
});

describe('count', () => {
  it('knows operations and bytes of each kind and direction', async () => {
    const network = new LoopbackNetwork();
    const [a, b] = [0, 1].map((rank) => countFabric(network.createFabric(optionsOf(rank))));
    const { atA, atB } = await connected(a.fabric, b.fabric);
    const source = threadRegion(100);
    const target = b.fabric.register(threadRegion(100));
    await atA.connection.send(new Uint8Array(7));
    await atA.connection.write({ region: source, offset: 0, bytes: 100 }, { region: target, offset: 0 });
    await atA.connection.write({ region: source, offset: 0, bytes: 50 }, { region: target, offset: 0 }, 1);
    await atB.until(2);
    await atA.connection.close();
    await expect(atA.connection.send(new Uint8Array(1))).rejects.toMatchObject({ code: 'closed' });
    await Promise.all([atA.end(), atB.end()]);
    const nothing = { messages: 0, messageBytes: 0, immediates: 0 };
    expect(a.counts).toEqual({
      sent: { messages: 2, messageBytes: 8, writes: 2, writeBytes: 150, immediates: 1 },
      received: nothing,
      failed: 1,
      dialled: 1,
      accepted: 0,
      closed: 1,
      lost: 0,
    });
    expect(b.counts).toMatchObject({ received: { messages: 1, messageBytes: 7, immediates: 1 }, accepted: 1, closed: 1 });
  });
});

describe('trace', () => {
  it('records operations as spans and deliveries as spans without length', async () => {
    const network = new LoopbackNetwork();
    const recorder = createRecorder({ clock: systemClock, thread: 'test', eventsMax: 64 });
    const [a, b] = [0, 1].map((rank) => traceFabric(network.createFabric(optionsOf(rank)), recorder));
    const { atA, atB } = await connected(a, b);
    await atA.connection.send(new Uint8Array(7));
    await atB.until(1);
    await atA.connection.close();
    await Promise.all([atA.end(), atB.end()]);
    const { names, nameIds, arguments: values } = recorder.snapshot();
    const events = [...nameIds].map((id, k) => `${names[id].text} ${values[k]}`);
    expect(events).toContain('loopback send 7');
    expect(events).toContain('loopback message 7');
    expect(events.filter((event) => event.startsWith('loopback closed'))).toHaveLength(2);
    const plain = network.createFabric(optionsOf(2));
    expect(traceFabric(plain, nullRecorder)).toBe(plain);
  });
});

describe('fault', () => {
  it('delays operations on the clock given, in order', async () => {
    const network = new LoopbackNetwork();
    const clock = new VirtualClock();
    const a = faultFabric(network.createFabric(optionsOf(0)), { clock, random: seededRandom(1), delayMs: 10 });
    const { atA, atB } = await connected(a, network.createFabric(optionsOf(1)));
    const sent = [atA.connection.send(Buffer.from('1')), atA.connection.send(Buffer.from('2'))];
    clock.advance(10);
    await sent[0];
    expect(atB.events).toEqual([{ message: '1' }]);
    clock.advance(9.9);
    await new Promise((resolve) => setImmediate(resolve));
    expect(atB.events).toHaveLength(1);
    clock.advance(0.1);
    await sent[1];
    expect(atB.events).toEqual([{ message: '1' }, { message: '2' }]);
    await Promise.all([atA.connection.close(), atB.end()]);
  });

  for (const { name, world } of providers) {
    it(`drops a connection at the operation told: ${name}`, async () => {
      const on = world();
      const a = faultFabric(on.create(optionsOf(0)), { clock: systemClock, random: seededRandom(1), dropAt: 2 });
      const b = on.create(optionsOf(1));
      const { atA, atB } = await connected(a, b);
      await atA.connection.send(Buffer.from('0'));
      await atA.connection.send(Buffer.from('1'));
      await atB.until(2);
      await expect(atA.connection.send(Buffer.from('2'))).rejects.toMatchObject({ code: expect.stringMatching(/peer-lost|closed/) });
      expect(await atA.end()).toMatchObject({ code: 'peer-lost', peer: 1 });
      expect(await atB.end()).toMatchObject({ code: 'peer-lost', peer: 0 });
      expect(atB.events.slice(0, 2)).toEqual([{ message: '0' }, { message: '1' }]);
      await Promise.all([a.close(), b.close()]);
    });
  }

  for (const { name, world: newWorld } of providers.slice(1)) {
    const world = newWorld();
    const { create } = world;
    it(`a damaged header is a protocol error on both ends and delivers nothing: ${name}`, async () => {
      for (let seed = 0; seed < 32; seed++) {
        const wire = new FaultyWire({ random: seededRandom(seed), fault: 'corrupt-header', at: 1 });
        const [a, b] = [create(optionsOf(0)), create(optionsOf(1))];
        const { atA, atB } = await connected(a, b, (address) => wire.to(address));
        const target = world.region(4096);
        const registered = b.register(target);
        const source = world.region(4096);
        new Uint8Array(source.buffer).fill(1);
        await atA.connection.send(Buffer.from('before'));
        atA.connection.write({ region: source, offset: 0, bytes: 2048 }, { region: registered, offset: 0 }, 1).catch(() => undefined);
        expect(await atB.end()).toMatchObject({ code: 'protocol', message: expect.stringMatching(/check|header/) });
        expect(await atA.end()).toMatchObject({ code: 'protocol' });
        expect(atB.events.slice(0, -1)).toEqual([{ message: 'before' }]);
        if (name === 'tcp') expect(new Uint8Array(target.buffer).every((byte) => byte === 0)).toBe(true);
        await Promise.all([a.close(), b.close()]);
        wire.close();
      }
    });

    it(`a frame cut short is peer-lost on both ends and delivers nothing: ${name}`, async () => {
      const wire = new FaultyWire({ random: seededRandom(1), fault: 'truncate', at: 1 });
      const [a, b] = [create(optionsOf(0)), create(optionsOf(1))];
      const { atA, atB } = await connected(a, b, (address) => wire.to(address));
      await atA.connection.send(Buffer.from('before'));
      atA.connection.send(Buffer.alloc(100_000)).catch(() => undefined);
      expect(await atB.end()).toMatchObject({ code: 'peer-lost', peer: 0 });
      expect(await atA.end()).toMatchObject({ code: 'peer-lost', peer: 1 });
      expect(atB.events.slice(0, -1)).toEqual([{ message: 'before' }]);
      await Promise.all([a.close(), b.close()]);
      wire.close();
    });
  }
});
