import net from 'node:net';
import { describe, expect, it, onTestFinished } from 'vitest';
import type { ShoalError } from '../../base/errors.ts';
import { seededRandom, systemRandom } from '../../base/random.ts';
import { UnhurriedClock } from '../../base/testing/unhurried-clock.ts';
import { loadNative } from '../../memory/native.ts';
import type { Region } from '../../memory/region.ts';
import { createRegionAllocator } from '../../memory/regions/allocator.ts';
import { describeFabric, type FabricWorld } from '../conformance.ts';
import type { Connection } from '../fabric.ts';
import { flagSet, FrameType } from '../stream/frame.ts';
import { connected } from '../testing/connected.ts';
import { describeHostileWrites, streamOf } from '../testing/hostile-writes.ts';
import { ShmFabric, shmUnavailable, type ShmOptions } from './shm.ts';

const reason = shmUnavailable();
const clock = new UnhurriedClock();

function shmWorld(): FabricWorld {
  const allocator = createRegionAllocator({ native: loadNative({ enabled: true }) });
  const regions: Region[] = [];
  return {
    create: (options) => new ShmFabric({ ...options, regions: allocator }),
    region(bytes) {
      regions.push(allocator.create(bytes));
      return regions.at(-1)!;
    },
    raw: {
      purpose: 'fabric-shm',
      connect: ({ candidates }) => net.connect({ path: `\0${/shm:\/\/([^?]+)/.exec(candidates[0])![1]}` }),
    },
    pendingConnections: (fabric) => (fabric as ShmFabric).pendingConnections,
    close: () => regions.forEach((region) => region.close()),
  };
}

describe.skipIf(reason !== undefined)(`shm${reason === undefined ? '' : ` (skipped: ${reason})`}`, () => {
  describeFabric('shm', shmWorld);
  // The write itself is a copy to memory that both have; what the target looks at is its announcement.
  describeHostileWrites('shm', () => ({
    ...shmWorld(),
    forge: (dialled, where) => streamOf(dialled).postControl(FrameType.Written, { ...where, immediate: 2, flags: flagSet }),
    isTold: true,
  }));

  const fabricOf = (on: FabricWorld, rank: number, changes: Partial<ShmOptions> = {}): ShmFabric => {
    const options = { identity: { world: 'w', rank }, secret: Buffer.from('s'), clock, random: seededRandom(rank + 1) };
    const fabric = on.create({ ...options, ...changes }) as ShmFabric;
    onTestFinished(() => fabric.close());
    return fabric;
  };
  const peer = { world: 'w', rank: 1 };

  it('another host identity is unsupported, at once', async () => {
    const on = shmWorld();
    const [a, b] = [fabricOf(on, 0, { hostId: 'here' }), fabricOf(on, 1, { hostId: 'there' })];
    const address = await b.listen(() => undefined);
    const attempt = a.connect(address, { peer, timeoutMs: 600_000 });
    await expect(attempt).rejects.toMatchObject({ code: 'unsupported', message: expect.stringMatching(/there; here here/) });
  });

  it.each(['dialer', 'acceptor'] as const)('a %s that cannot map the other is unsupported on both ends', async (blind) => {
    const on = shmWorld();
    const allocator = createRegionAllocator({ native: loadNative({ enabled: true }) });
    const regions = {
      ...allocator,
      kind: 'shared' as const,
      open: (): never => {
        throw new Error('hidden by the container');
      },
    };
    const refused: ShoalError[] = [];
    const make = (rank: number, hides: boolean): ShmFabric => {
      const options = { identity: { world: 'w', rank }, secret: Buffer.from('s'), clock, random: systemRandom };
      const fabric = new ShmFabric({ ...options, regions: hides ? regions : allocator, onRefused: (error) => refused.push(error) });
      onTestFinished(() => fabric.close());
      return fabric;
    };
    const [a, b] = [make(0, blind === 'dialer'), make(1, blind === 'acceptor')];
    const address = await b.listen(() => expect.unreachable('no connection'));
    await expect(a.connect(address, { peer, timeoutMs: 20_000 })).rejects.toMatchObject({ code: 'unsupported', peer: 1 });
    await b.close();
    await expect.poll(() => refused.length).toBe(1);
    expect(refused.map(({ code }) => code)).toEqual([
      blind === 'acceptor' ? 'unsupported' : expect.stringMatching(/unsupported|peer-lost/),
    ]);
    on.close?.();
  });

  it('messages that are sent at once, and read ahead, wait for their handlers, in order, whatever their size', async () => {
    const on = shmWorld();
    const [a, b] = [fabricOf(on, 0), fabricOf(on, 1)];
    const accepted: Connection[] = [];
    const address = await b.listen((connection) => accepted.push(connection));
    const connection = await a.connect(address, { peer, timeoutMs: 20_000 });
    connection.setHandlers({ onMessage() {}, onImmediate() {}, onClose() {} });
    const sizes = [1, 0, 300, 5000, 3000, 70_000, 7, 2, 4096, 33];
    const sent = sizes.map((size, k) => connection.send(Buffer.alloc(size, k)));
    await expect.poll(() => accepted.length).toBe(1);
    const arrived: string[] = [];
    accepted[0].setHandlers({
      onMessage: (message) => arrived.push(`${message.length} × ${message[0]}`),
      onImmediate() {},
      onClose() {},
    });
    expect(arrived).toEqual([]);
    await Promise.all(sent);
    await expect.poll(() => arrived.length).toBe(sizes.length);
    expect(arrived).toEqual(sizes.map((size, k) => `${size} × ${size === 0 ? undefined : k}`));
    await connection.close();
  });

  it('a deregistered region is unmapped at the peer, and one mapped too late is withdrawn without harm', async () => {
    const on = shmWorld();
    const [a, b] = [fabricOf(on, 0), fabricOf(on, 1)];
    onTestFinished(() => on.close?.());
    const { atA, atB } = await connected(a, b);
    const region = on.region(4096);
    const registered = b.register(region);
    const mapped = atA.connection.map(registered);
    const view = new Uint8Array(mapped.buffer);
    view[0] = 5;
    expect(new Uint8Array(region.buffer)[0]).toBe(5);
    const late = b.register(region);
    await atA.connection.send(Buffer.from('mapped'));
    await atB.until(1);
    registered.deregister();
    late.deregister();
    const lateView = new Uint8Array(atA.connection.map(late).buffer);
    await atA.connection.send(Buffer.from('late'));
    await atB.until(2);
    await atB.connection.send(Buffer.from('after'));
    await atA.until(1);
    expect([view.length, lateView.length]).toEqual([0, 0]);
    expect(atA.closed).toBeUndefined();
  });

  it('a region that only threads can map is refused', () => {
    const on = shmWorld();
    const region = createRegionAllocator().create(64);
    expect(() => fabricOf(on, 0).register(region)).toThrow(expect.objectContaining({ code: 'unsupported' }));
    expect(
      () =>
        new ShmFabric({
          identity: peer,
          secret: Buffer.from('s'),
          clock,
          random: systemRandom,
          regions: createRegionAllocator(),
        }),
    ).toThrow(expect.objectContaining({ code: 'unsupported' }));
  });
});
