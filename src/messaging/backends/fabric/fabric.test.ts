/** fabric:// over every fabric: the conformance suite, landing space, lent frames, peers that break the rules. */
import fc from 'fast-check';
import { beforeEach, describe, expect, it } from 'vitest';
import { systemRandom } from '../../../base/random.ts';
import { UnhurriedClock } from '../../../base/testing/unhurried-clock.ts';
import { libfabricUnavailable } from '../../../fabric/providers/libfabric/libfabric-devices.ts';
import { LibfabricFabric } from '../../../fabric/providers/libfabric/libfabric.ts';
import { TcpFabric } from '../../../fabric/providers/tcp.ts';
import { desertedTcpAddress } from '../../../fabric/testing/deserted.ts';
import { LoopbackNetwork } from '../../../fabric/testing/loopback.ts';
import { ShmFabric, shmUnavailable } from '../../../fabric/providers/shm.ts';
import type { Fabric, FabricOptions } from '../../../fabric/fabric.ts';
import { loadNative } from '../../../memory/native.ts';
import { createRegionAllocator } from '../../../memory/regions/allocator.ts';
import { describeMessaging, hostileTest } from '../../conformance.ts';
import { MessagingContext, type MessagingOptions } from '../../context.ts';
import { Dealer } from '../../dealer.ts';
import { Msg, type FramePlace } from '../../msg.ts';
import { Router } from '../../router.ts';
import { Landing } from './landing.ts';

const secret = new TextEncoder().encode('secret');
const world = 'fabric-test';
const clock = new UnhurriedClock();

/** Contexts with a fabric each. */
function makeWorld(create: (options: FabricOptions) => Fabric, landing?: 'copy' | 'borrow') {
  const fabrics: Fabric[] = [];
  return {
    context: (changes: Partial<MessagingOptions> = {}): MessagingContext => {
      const identity = { world, rank: fabrics.length };
      const fabric = create({ identity, secret, clock, random: systemRandom });
      fabrics.push(fabric);
      const regions = fabric.name === 'loopback' ? createRegionAllocator() : undefined;
      const endpoint = { fabric, identity, landingBytes: 512 * 1024, ...(regions && { regions }), ...(landing && { landing }) };
      return new MessagingContext({ world, secret, clock, fabric: endpoint, ...changes });
    },
    close: async (): Promise<void> => {
      await Promise.all(fabrics.map((fabric) => fabric.close()));
    },
  };
}

describeMessaging('fabric over loopback', () => {
  const network = new LoopbackNetwork();
  return { ...makeWorld((options) => network.createFabric(options)), url: () => 'fabric://loopback', rebinds: false };
});

describeMessaging('fabric over tcp', () => ({
  ...makeWorld((options) => new TcpFabric(options)),
  url: () => 'fabric://tcp',
  deserted: async () => `fabric://tcp/0?${new URLSearchParams({ world, at: (await desertedTcpAddress()).candidates[0] }).toString()}`,
  rebinds: false,
}));

const noShm = shmUnavailable();
describe.skipIf(noShm !== undefined)(`shm${noShm === undefined ? '' : ` (skipped: ${noShm})`}`, () => {
  describeMessaging('fabric over shm', () => ({
    ...makeWorld((options) => new ShmFabric(options)),
    url: () => 'fabric://shm',
    rebinds: false,
  }));
});

const libfabrics = ['tcp;ofi_rxm', 'shm'] as const;
const libfabricOf = (provider: string) => (options: FabricOptions) =>
  new LibfabricFabric({ ...options, hostId: 'here', libfabric: { provider } });
const missingOf = (provider: string): string | undefined => libfabricUnavailable({ provider });

for (const provider of libfabrics) {
  const missing = missingOf(provider);
  describe.skipIf(missing !== undefined)(`libfabric${missing === undefined ? '' : ` (skipped: ${missing})`}`, () => {
    const skips = [{ test: hostileTest, reason: 'a pipe is an endpoint, which takes long to make; what refuses them is above the fabric' }];
    const make = () => ({ ...makeWorld(libfabricOf(provider)), url: () => 'fabric://libfabric', rebinds: false });
    describeMessaging(`fabric over libfabric, ${provider}`, make, { skips });
  });
}

describe('lent frames', () => {
  const pair = async (landing: 'copy' | 'borrow'): Promise<{ dealer: Dealer; router: Router; close: () => Promise<void> }> => {
    const network = new LoopbackNetwork();
    const on = makeWorld((options) => network.createFabric(options), landing);
    const [a, b] = [on.context(), on.context()];
    const router = new Router(a);
    const dealer = new Dealer(b, { address: 1n });
    await dealer.connect(await router.bind('fabric://loopback'));
    const close = async (): Promise<void> => {
      await dealer.close({ timeoutMs: 0 });
      await router.close({ timeoutMs: 0 });
      await Promise.all([a.close(), b.close()]);
      await on.close();
    };
    return { dealer, router, close };
  };
  const frameOf = (value: number): Msg => {
    const msg = new Msg(1n, 0n);
    msg.addFrame(new Uint8Array(40_000 * (1 + (value % 2))).fill(value));
    return msg;
  };

  it('stay as they are until they are released, in whatever order, and the space is used again', async () => {
    const { dealer, router, close } = await pair('borrow');
    const held: Msg[] = [];
    for (let k = 0; k < 40; k++) {
      dealer.send(frameOf(k));
      held.push(await router.receive());
      if (held.length === 3) held.splice(k % 3, 1)[0].release();
      for (const msg of held) expect(new Set(msg.frameData()).size).toBe(1);
    }
    expect(held.map((msg) => msg.frameData()[0]).every((value) => value < 40)).toBe(true);
    await close();
  });

  it('that are never released hold nothing up: further ones are copied', async () => {
    const { dealer, router, close } = await pair('borrow');
    for (let k = 0; k < 40; k++) dealer.send(frameOf(k));
    const held: Msg[] = [];
    for (let k = 0; k < 40; k++) held.push(await router.receive());
    held.forEach((msg, k) => expect(msg.frameData().every((byte) => byte === k)).toBe(true));
    held.forEach((msg) => msg.release());
    dealer.send(frameOf(77));
    expect((await router.receive()).frameData()[79_999]).toBe(77);
    await close();
  });

  it('are not lent by default', async () => {
    const { dealer, router, close } = await pair('copy');
    const kept: Msg[] = [];
    for (let k = 0; k < 20; k++) {
      dealer.send(frameOf(k));
      kept.push(await router.receive());
    }
    kept.forEach((msg, k) => expect(msg.frameData().every((byte) => byte === k)).toBe(true));
    await close();
  });
});

it('a pipe to a peer that gives no room for a large frame ends when the time to close is over', async () => {
  const network = new LoopbackNetwork();
  const silent = network.createFabric({ identity: { world, rank: 9 }, secret, clock, random: systemRandom });
  const { candidates } = await silent.listen((connection) =>
    connection.setHandlers({ onMessage: () => undefined, onImmediate: () => undefined, onClose: () => undefined }),
  );
  const on = makeWorld((options) => network.createFabric(options));
  const context = on.context();
  const backend = await context.backendOf('fabric://loopback');
  const url = `fabric://loopback/9?${new URLSearchParams({ world, at: candidates[0] }).toString()}`;
  const pipe = await backend.connect(url, { timeoutMs: 5000, signal: new AbortController().signal });
  pipe.setHandlers({ onParts: () => undefined, onClose: () => undefined });
  pipe.send([new Uint8Array(100_000)]);
  await pipe.close(20);
  await context.close();
  await Promise.all([on.close(), silent.close()]);
}, 20_000);

interface Plane {
  readonly title: string;
  readonly name: string;
  readonly missing?: string | undefined;
  make(): (options: FabricOptions) => Fabric;
}

const planes: readonly Plane[] = [
  {
    title: 'loopback',
    name: 'loopback',
    make: () => {
      const network = new LoopbackNetwork();
      return (options) => network.createFabric(options);
    },
  },
  { title: 'tcp', name: 'tcp', make: () => (options) => new TcpFabric(options) },
  ...libfabrics.map((provider) => ({
    title: `libfabric, ${provider}`,
    name: 'libfabric',
    missing: missingOf(provider),
    make: () => libfabricOf(provider),
  })),
];

describe.each(planes)('placed frames over $title', ({ name, missing, make }) => {
  beforeEach((context) => missing !== undefined && context.skip(missing));
  const bytes = 200_000;

  /** Frames go to the router's process. */
  const pair = async () => {
    const on = makeWorld(make());
    const [a, b] = [on.context(), on.context()];
    const router = new Router(a);
    const dealer = new Dealer(b, { address: 1n });
    await dealer.connect(await router.bind(`fabric://${name}`));
    const places = a.places!;
    const region = createRegionAllocator({ native: name === 'libfabric' ? loadNative({ enabled: true }) : undefined }).create(3 * bytes);
    const send = (value: number, place?: FramePlace): void => {
      const msg = new Msg(1n, 0n);
      msg.addFrame('head');
      const frame = new Uint8Array(bytes).fill(value);
      if (place === undefined) msg.addFrame(frame);
      else msg.addPlacedFrame(frame, place);
      dealer.send(msg);
    };
    const receive = async (value: number): Promise<Uint8Array> => {
      const msg = await router.receive();
      expect(msg.frameCount).toBe(2);
      const [, frame] = msg.frames;
      expect(new Set(frame)).toEqual(new Set([value]));
      return frame;
    };
    const close = async (): Promise<void> => {
      await dealer.close({ timeoutMs: 0 });
      await router.close({ timeoutMs: 0 });
      await Promise.all([a.close(), b.close()]);
      await on.close();
    };
    return { places, region, router, dealer, send, receive, received: () => router.receive(), close };
  };

  it('are written where the receiver wants them, and copied nowhere', async () => {
    const { places, region, send, receive, close } = await pair();
    const rkey = places.open(region);
    for (let k = 1; k <= 4; k++) {
      send(k, { rkey, offset: k * 1000 });
      const frame = await receive(k);
      expect([frame.buffer === region.buffer, frame.byteOffset, frame.byteLength]).toEqual([true, k * 1000, bytes]);
    }
    expect(places.counters).toEqual({ bytesPlaced: 4 * bytes, bytesLent: 0, bytesCopied: 0 });
    await close();
  });

  it('arrive as any other where there is no such place, or it is too small', async () => {
    const { places, region, router, dealer, send, receive, close } = await pair();
    const rkey = places.open(region);
    send(1, { rkey, offset: 2 * bytes + 1 });
    send(2, { rkey: rkey ^ 1, offset: 0 });
    send(3);
    for (const value of [1, 2, 3]) expect((await receive(value)).buffer).not.toBe(region.buffer);
    expect(new Set(new Uint8Array(region.buffer))).toEqual(new Set([0]));
    expect(places.counters).toEqual({ bytesPlaced: 0, bytesLent: 0, bytesCopied: 3 * bytes });
    places.close(rkey, { inFlight: false });
    places.close(rkey, { inFlight: false });
    // Behind the word of it.
    router.send(new Msg(0n, 1n));
    await dealer.receive();
    send(4, { rkey, offset: 0 });
    expect((await receive(4)).buffer).not.toBe(region.buffer);
    await close();
  });

  it('change nothing in a place that was closed while they were under way, and arrive all the same', async () => {
    const { places, region, dealer, send, received, close } = await pair();
    for (let turns = 0; turns < 12; turns++) {
      const rkey = places.open(region);
      for (let k = 0; k < 3; k++) send(10 + k, { rkey, offset: k * bytes });
      // Sent, in part perhaps; received, in part perhaps.
      for (let turn = 0; turn < turns; turn++) await new Promise((resolve) => void setImmediate(resolve));
      places.close(rkey, { inFlight: true });
      const now = new Uint8Array(region.buffer).fill(0x77);
      send(20);
      const got: Uint8Array[] = [];
      for (const value of [10, 11, 12, 20]) {
        // The frame had arrived in the place before that was closed, and is not there any more.
        const [, frame] = (await received()).frames;
        if (frame.buffer !== region.buffer) expect(new Set(frame)).toEqual(new Set([value]));
        got.push(frame);
      }
      expect(got.at(-1)!.buffer).not.toBe(region.buffer);
      await dealer.flushed();
      expect(new Set(now)).toEqual(new Set([0x77]));
    }
    await close();
  });

  it('that are sent again, to who may have used the memory for other things since, arrive elsewhere', async () => {
    const { places, region, router, send, receive, received, close } = await pair();
    const rkey = places.open(region);
    send(1, { rkey, offset: 0 });
    expect((await receive(1)).buffer).toBe(region.buffer);
    // Before the sender has heard that it came. Whoever had it is another one from now on.
    router.forget(1n);
    const now = new Uint8Array(region.buffer).fill(0x77);
    const [, frame] = (await received()).frames;
    expect(new Set(frame)).toEqual(new Set([1]));
    expect(new Set(now)).toEqual(new Set([0x77]));
    // A frame that is sent for the first time has its place.
    send(2, { rkey, offset: 0 });
    expect((await receive(2)).buffer).toBe(region.buffer);
    await close();
  });
});

describe('landing slots', () => {
  it('are never given twice, and both sides agree', () => {
    fc.assert(
      fc.property(fc.integer({ min: 1, max: 20 }), fc.array(fc.nat(65_536), { maxLength: 100 }), (slots, steps) => {
        const [sender, receiver] = [new Landing(65_536, slots), new Landing(65_536, slots)];
        const { slotBytes, pieceBytes } = sender;
        expect(slotBytes * slots).toBeLessThanOrEqual(65_536);
        const held: { slot: number; count: number }[] = [];
        const taken = (): number => held.reduce((sum, { count }) => sum + count, 0);
        for (const step of steps) {
          const piece = step % 2 === 0 ? sender.take(step + 1) : undefined;
          if (piece !== undefined) {
            const { slot, bytes } = piece;
            const count = Math.ceil(bytes / slotBytes);
            expect(bytes).toBeGreaterThan(0);
            expect(bytes).toBeLessThanOrEqual(Math.min(step + 1, pieceBytes));
            for (const other of held) expect(slot + count <= other.slot || other.slot + other.count <= slot).toBe(true);
            expect(receiver.land(slot, pieceBytes + 1)).toBe(false);
            expect(receiver.land(slot, bytes)).toBe(true);
            expect(receiver.land(slot, 1)).toBe(false);
            held.push({ slot, count });
          } else if (step % 2 === 0) {
            // No room for as much as that.
            expect(slots - taken()).toBeLessThan(Math.ceil(Math.min(step + 1, pieceBytes) / slotBytes));
          } else if (held.length > 0) {
            const [{ slot, count }] = held.splice(step % held.length, 1);
            expect([receiver.free(slot), sender.free(slot)]).toEqual([count, count]);
            expect([receiver.free(slot), sender.free(slot)]).toEqual([0, 0]);
          }
          expect(sender.mayLend(taken(), 1)).toBe(taken() + 1 <= slots >> 1);
        }
        expect([sender.free(slots), receiver.land(slots, 1)]).toEqual([0, false]);
      }),
    );
  });
});

describe('fabric endpoints', () => {
  it('are checked', async () => {
    await using none = new MessagingContext({ world, secret });
    await using router = new Router(none);
    await expect(router.bind('fabric://tcp')).rejects.toMatchObject({ code: 'usage', message: expect.stringMatching(/option fabric/) });
    const on = makeWorld((options) => new TcpFabric(options));
    await using context = on.context();
    await using dealer = new Dealer(context, { address: 1n });
    for (const url of ['fabric://tcp', 'fabric://tcp/1?world=x', 'fabric://shm/1?world=x&at=y']) {
      await expect(dealer.connect(url)).rejects.toMatchObject({ code: 'usage' });
    }
    await on.close();
  });

  it('of peers that break the rules are closed with protocol', async () => {
    const on = makeWorld((options) => new TcpFabric(options));
    await using context = on.context({ limits: { messageBytes: 2 ** 20 } });
    const events: (string | undefined)[] = [];
    await using router = new Router(context, { onPeer: ({ error }) => events.push(error?.code) });
    const url = await router.bind('fabric://tcp');
    const candidates = new URLSearchParams(url.slice(url.indexOf('?'))).getAll('at');
    const piece = (slot: number, bytes: number, partBytes: number): Buffer => {
      const message = Buffer.alloc(16);
      message.writeUInt8(2);
      message.writeUInt8(3, 1);
      message.writeUInt16LE(slot, 2);
      message.writeUInt32LE(bytes, 4);
      message.writeDoubleLE(partBytes, 8);
      return message;
    };
    const want = Buffer.of(3);
    const hostile: Buffer[][] = [
      [Buffer.of()],
      [Buffer.of(99)],
      [Buffer.of(1)],
      [piece(0, 10, 10)],
      [want, want],
      [want, piece(64, 10, 10)],
      [want, piece(0, 128 * 1024 + 1, 128 * 1024 + 1)],
      [want, piece(63, 8 * 1024 + 1, 8 * 1024 + 1)],
      [want, piece(0, 10, Number.NaN)],
      [want, piece(0, 10, 2 ** 50)],
      Array.from({ length: 100 }, () => Buffer.concat([Buffer.of(1, 0), Buffer.alloc(32 * 1024)])),
      [want, piece(0, 20, 10)],
      [want, piece(0, 10, 20)],
      [Buffer.of(5, 0, 0, 0)],
      [Buffer.concat([Buffer.of(4), Buffer.alloc(15)])],
      [Buffer.of(6)],
      [Buffer.concat([Buffer.of(6), Buffer.alloc(7), Buffer.alloc(8, 0xff)])],
      [Buffer.of(7)],
      [Buffer.of(8)],
      [Buffer.concat([Buffer.of(8), Buffer.alloc(23)])],
      [Buffer.concat([Buffer.of(8), Buffer.alloc(15), Buffer.alloc(8, 0x11)])],
    ];
    for (const [k, messages] of hostile.entries()) {
      const fabric = new TcpFabric({ identity: { world, rank: 50 + k }, secret, clock, random: systemRandom });
      const connection = await fabric.connect({ provider: 'tcp', candidates }, { peer: { world, rank: 0 }, timeoutMs: 10_000 });
      connection.setHandlers({ onMessage: () => undefined, onImmediate: () => undefined, onClose: () => undefined });
      await Promise.allSettled(messages.map((message) => connection.send(message)));
      await expect.poll(() => events.length).toBe(k + 1);
      expect(events.at(-1)).toBe('protocol');
      await fabric.close();
    }
    await router.close({ timeoutMs: 0 });
    await on.close();
  });
});
