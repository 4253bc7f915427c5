/** The contract of every fabric as one suite, run on each provider and on each hook around one. A new provider passes it
 *  unchanged; tests of an ability that it lacks are skipped by name with the reason. */
import type net from 'node:net';
import fc from 'fast-check';
import { describe, expect, onTestFinished } from 'vitest';
import { Handshake } from '../base/auth.ts';
import { claimOf } from '../base/secure/link.ts';
import type { ShoalError } from '../base/errors.ts';
import { seededRandom } from '../base/random.ts';
import { testsBut, type Skip } from '../base/testing/skips.ts';
import { UnhurriedClock } from '../base/testing/unhurried-clock.ts';
import type { Region } from '../memory/region.ts';
import type { Connection, ConnectionHandlers, Fabric, FabricAddress, FabricOptions, RegisteredRegion } from './fabric.ts';
import { encodeHeader, FrameType, headerBytes } from './stream/frame.ts';

/** The provider's part of the suite. */
export interface FabricWorld {
  create(options: FabricOptions): Fabric;
  /** A region filled with zeros; the world releases it. */
  region(bytes: number): Region;
  /** Stream fabrics: a plain socket to the listener, and the handshake's purpose. */
  readonly raw?: { connect(address: FabricAddress): net.Socket; readonly purpose: string };
  /** An address where nobody listens. Default: the address of a fabric that has closed; another process may get its port. */
  deserted?(): Promise<FabricAddress>;
  /** Number of sockets that have not authenticated yet. */
  pendingConnections?(fabric: Fabric): number;
  close?(): void;
}

type Event = { message: string } | { immediate: number } | { closed: ShoalError | undefined };

/** Records deliveries; `until` waits for a number of them or for the end. */
export class Inbox implements ConnectionHandlers {
  readonly events: Event[] = [];
  readonly connection: Connection;
  onEvent: (() => void) | undefined;
  #waiting: { ready: () => boolean; resolve: () => void }[] = [];

  constructor(connection: Connection) {
    this.connection = connection;
    connection.setHandlers(this);
  }

  onMessage(message: Uint8Array): void {
    this.#record({ message: Buffer.from(message).toString('latin1') });
  }

  onImmediate(immediate: number): void {
    this.#record({ immediate });
  }

  onClose(error: ShoalError | undefined): void {
    this.#record({ closed: error });
  }

  get closed(): { error: ShoalError | undefined } | undefined {
    const ends = this.events.flatMap((event) => ('closed' in event ? [{ error: event.closed }] : []));
    expect(ends.length).toBeLessThan(2);
    return ends[0];
  }

  until(count: number): Promise<void> {
    return this.#when(() => this.events.length >= count);
  }

  async end(): Promise<ShoalError | undefined> {
    await this.#when(() => this.closed !== undefined);
    return this.closed!.error;
  }

  #when(ready: () => boolean): Promise<void> {
    if (ready()) return Promise.resolve();
    return new Promise((resolve) => this.#waiting.push({ ready, resolve }));
  }

  #record(event: Event): void {
    this.events.push(event);
    this.onEvent?.();
    this.#waiting = this.#waiting.filter(({ ready, resolve }) => {
      if (ready()) resolve();
      return !ready();
    });
  }
}

const world = 'conformance';
const secret = new TextEncoder().encode('secret of the conformance suite');
const MiB = 1024 * 1024;
const clock = new UnhurriedClock();

export function describeFabric(name: string, makeWorld: () => FabricWorld, options: { skips?: readonly Skip[] } = {}): void {
  const { test, checkSkips } = testsBut(options.skips);

  describe(`fabric conformance: ${name}`, () => {
    const make = (): FabricWorld => {
      const made = makeWorld();
      onTestFinished(() => made.close?.());
      return made;
    };
    const fabricOf = (on: FabricWorld, rank: number, changes: Partial<FabricOptions> = {}): Fabric => {
      const fabric = on.create({ identity: { world, rank }, secret, clock, random: seededRandom(rank + 1), ...changes });
      onTestFinished(() => fabric.close());
      return fabric;
    };
    const listening = async (fabric: Fabric): Promise<{ address: FabricAddress; next: () => Promise<Connection> }> => {
      const arrived: Connection[] = [];
      const wanted: ((connection: Connection) => void)[] = [];
      const address = await fabric.listen((connection) => {
        const want = wanted.shift();
        if (want === undefined) arrived.push(connection);
        else want(connection);
      });
      return {
        address,
        next: () => new Promise((resolve) => (arrived.length > 0 ? resolve(arrived.shift()!) : wanted.push(resolve))),
      };
    };
    const desertedAddress = async (on: FabricWorld): Promise<FabricAddress> => {
      if (on.deserted !== undefined) return on.deserted();
      const gone = fabricOf(on, 1);
      const address = await gone.listen(() => undefined);
      await gone.close();
      return address;
    };
    /** Two connected fabrics: rank 0 (a) has dialled rank 1 (b). */
    const pair = async (changes: Partial<FabricOptions> = {}) => {
      const on = make();
      const [a, b] = [fabricOf(on, 0, changes), fabricOf(on, 1, changes)];
      const { address, next } = await listening(b);
      const accepted = next();
      const dialled = await a.connect(address, { peer: { world, rank: 1 }, timeoutMs: 10_000 });
      const atA = new Inbox(dialled);
      const atB = new Inbox(await accepted);
      return { on, a, b, address, next, atA, atB, ab: atA.connection, ba: atB.connection };
    };
    /** A registered region at b, filled with 0xee, and a source at a with a pattern. */
    const buffers = (
      p: { on: FabricWorld; b: Fabric },
      bytes: number,
    ): { source: Region; target: Region; registered: RegisteredRegion } => {
      const source = p.on.region(bytes);
      const pattern = new Uint8Array(source.buffer, 0, bytes);
      for (let k = 0; k < bytes; k++) pattern[k] = (k * 7 + (k >> 8)) & 0xff;
      const target = p.on.region(bytes);
      new Uint8Array(target.buffer).fill(0xee);
      return { source, target, registered: p.b.register(target) };
    };
    const view = (region: Region): Buffer => Buffer.from(region.buffer, 0, region.bytes);
    const untouched = (region: Region): boolean => view(region).every((byte) => byte === 0xee);

    test('each end knows the identity of the other', async () => {
      const { ab, ba, a } = await pair();
      expect(ab.peer).toEqual({ world, rank: 1 });
      expect(ba.peer).toEqual({ world, rank: 0 });
      expect(ab.description).toContain(a.name);
    });

    test('messages arrive in order, in both directions, whatever their size', async () => {
      const { ab, ba, atA, atB } = await pair();
      const texts = Array.from({ length: 50 }, (_, k) => `${k}:`.padEnd((k * 2909) % 100_000, 'x')).concat('');
      const sent = texts.flatMap((text) => [ab.send(Buffer.from(text, 'latin1')), ba.send(Buffer.from(text, 'latin1'))]);
      await Promise.all([...sent, atA.until(texts.length), atB.until(texts.length)]);
      const expected = texts.map((message) => ({ message }));
      expect(atA.events).toEqual(expected);
      expect(atB.events).toEqual(expected);
    });

    test('a message may be changed when send has returned', async () => {
      const { ab, atB } = await pair();
      const message = Buffer.from('before');
      const sent = ab.send(message);
      message.write('change');
      await sent;
      await atB.until(1);
      expect(atB.events).toEqual([{ message: 'before' }]);
    });

    test('an immediate is delivered after the data of its write and of earlier writes', async () => {
      const p = await pair();
      const { source, target, registered } = buffers(p, 8192);
      const seen: boolean[] = [];
      p.atB.onEvent = () => seen.push(view(target).equals(view(source)));
      const sent = [
        p.ab.write({ region: source, offset: 0, bytes: 4096 }, { region: registered, offset: 0 }),
        p.ab.write({ region: source, offset: 4096, bytes: 4096 }, { region: registered, offset: 4096 }, 17),
      ];
      await Promise.all([...sent, p.atB.until(1)]);
      expect(p.atB.events).toEqual([{ immediate: 17 }]);
      expect(seen).toEqual([true]);
    });

    test('a write from several sources lands one behind the other, after earlier writes and before later ones', async () => {
      const p = await pair();
      if (p.ab.gather === undefined) return;
      const { source, target, registered } = buffers(p, 8192);
      const seen: boolean[] = [];
      p.atB.onEvent = () => seen.push(view(target).subarray(100, 4100).equals(view(source).subarray(0, 4000)));
      const spans = [
        [0, 1000],
        [1000, 0],
        [1000, 1],
        [1001, 2999],
      ].map(([offset, bytes]) => ({ region: source, offset, bytes }));
      await Promise.all([
        p.ab.write({ region: source, offset: 0, bytes: 4100 }, { region: registered, offset: 0 }),
        p.ab.gather(spans, { region: registered, offset: 100 }),
        p.ab.write({ region: source, offset: 0, bytes: 1 }, { region: registered, offset: 8191 }, 1),
        p.ab.gather([], { region: registered, offset: 0 }),
        p.atB.until(1),
      ]);
      expect(seen).toEqual([true]);
      await expect(p.ab.gather([{ region: source, offset: 8000, bytes: 200 }], { region: registered, offset: 0 })).rejects.toMatchObject({
        code: 'usage',
      });
    });

    test('the smallest and the largest immediate, with and without bytes', async () => {
      const p = await pair();
      const { source, registered } = buffers(p, 64);
      const immediates = [0, 0xffffffff, 0, 0xffffffff];
      const sent = immediates.map((immediate, k) =>
        p.ab.write({ region: source, offset: 0, bytes: k < 2 ? 64 : 0 }, { region: registered, offset: 0 }, immediate),
      );
      await Promise.all([...sent, p.atB.until(4)]);
      expect(p.atB.events).toEqual(immediates.map((immediate) => ({ immediate })));
      await expect(p.ab.write({ region: source, offset: 0, bytes: 0 }, { region: registered, offset: 0 }, 2 ** 32)).rejects.toMatchObject({
        code: 'usage',
      });
    });

    test('a write of no bytes changes nothing and needs no region', async () => {
      const p = await pair();
      const { source, target } = buffers(p, 64);
      const nowhere = { rkey: 0, bytes: 0, handle: '' };
      await p.ab.write({ region: source, offset: 64, bytes: 0 }, { region: nowhere, offset: 0 });
      await p.ab.write({ region: source, offset: 0, bytes: 0 }, { region: nowhere, offset: 0 }, 5);
      await p.atB.until(1);
      expect(p.atB.events).toEqual([{ immediate: 5 }]);
      expect(untouched(target)).toBe(true);
    });

    test('a source outside its region is a usage error and leaves the connection alone', async () => {
      const p = await pair();
      const { source, registered } = buffers(p, 64);
      for (const [offset, bytes] of [
        [0, 65],
        [64, 1],
        [-1, 2],
        [0.5, 1],
        [0, Number.NaN],
      ] as const) {
        await expect(p.ab.write({ region: source, offset, bytes }, { region: registered, offset: 0 })).rejects.toMatchObject({
          code: 'usage',
        });
      }
      await p.ab.send(Buffer.from('alive'));
      await p.atB.until(1);
      expect(p.atB.events).toEqual([{ message: 'alive' }]);
    });

    test('many concurrent writes land where they belong and resolve', async () => {
      const p = await pair();
      const count = 2000;
      const { source, target, registered } = buffers(p, count * 24);
      const sent = Array.from({ length: count }, (_, k) => {
        const offset = ((k * 1009) % count) * 24;
        return p.ab.write({ region: source, offset, bytes: 24 }, { region: registered, offset }, k);
      });
      await Promise.all([...sent, p.atB.until(count)]);
      expect(p.atB.events).toEqual(Array.from({ length: count }, (_, immediate) => ({ immediate })));
      expect(view(target).equals(view(source))).toBe(true);
    });

    test('a write of 64 MiB, and one in the other direction at the same time', async () => {
      const p = await pair();
      const there = buffers(p, 64 * MiB);
      const back = { source: there.source, target: p.on.region(16 * MiB) };
      const backRegistered = p.a.register(back.target);
      await Promise.all([
        p.ab.write({ region: there.source, offset: 0, bytes: 64 * MiB }, { region: there.registered, offset: 0 }, 1),
        p.ba.write({ region: back.source, offset: 5, bytes: 16 * MiB }, { region: backRegistered, offset: 0 }, 2),
        p.atB.until(1),
        p.atA.until(1),
      ]);
      expect(view(there.target).equals(view(there.source))).toBe(true);
      expect(view(back.target).equals(view(back.source).subarray(5, 5 + 16 * MiB))).toBe(true);
    });

    const refusals: [string, (r: RegisteredRegion) => { rkey: number; offset: number; bytes: number }][] = [
      ['one byte past the end', (r) => ({ rkey: r.rkey, offset: 1, bytes: r.bytes })],
      ['behind the end', (r) => ({ rkey: r.rkey, offset: r.bytes, bytes: 1 })],
      ['an offset and length whose sum overflows', (r) => ({ rkey: r.rkey, offset: Number.MAX_SAFE_INTEGER, bytes: 8 })],
      ['an unknown rkey', (r) => ({ rkey: (r.rkey ^ 1) >>> 0, offset: 0, bytes: 8 })],
    ];
    for (const [title, forge] of refusals) {
      test(`a write to ${title} is refused: both ends close with protocol, nothing is written`, async () => {
        const p = await pair();
        const { source, target, registered } = buffers(p, 4096);
        const { rkey, offset, bytes } = forge(registered);
        // The forged description is larger than the region, as a broken or hostile peer's would be.
        const forged = { ...registered, region: undefined, rkey, bytes: Number.MAX_SAFE_INTEGER };
        p.ab.write({ region: source, offset: 0, bytes }, { region: forged, offset }, 1).catch(() => undefined);
        expect(await p.atB.end()).toMatchObject({ code: 'protocol', peer: 0 });
        expect(await p.atA.end()).toMatchObject({ code: 'protocol', peer: 1 });
        expect(untouched(target)).toBe(true);
        expect(p.atB.events).toHaveLength(1);
        await expect(p.ab.send(Buffer.from('late'))).rejects.toMatchObject({ code: 'closed' });
      });
    }

    test('a write to a deregistered region is refused, one before it was not', async () => {
      const p = await pair();
      const { source, target, registered } = buffers(p, 4096);
      await p.ab.write({ region: source, offset: 0, bytes: 4096 }, { region: registered, offset: 0 }, 1);
      await p.atB.until(1);
      view(target).fill(0xee);
      registered.deregister();
      registered.deregister();
      await p.ba.send(Buffer.from('withdrawn'));
      await p.atA.until(1);
      p.ab.write({ region: source, offset: 0, bytes: 4096 }, { region: registered, offset: 0 }, 2).catch(() => undefined);
      expect(await p.atB.end()).toMatchObject({ code: 'protocol' });
      expect(await p.atA.end()).toMatchObject({ code: 'protocol' });
      expect(untouched(target)).toBe(true);
    });

    test('one refused connection leaves the others alone', async () => {
      const p = await pair();
      const other = fabricOf(p.on, 2);
      const atOther = new Inbox(await other.connect(p.address, { peer: { world, rank: 1 }, timeoutMs: 10_000 }));
      const farEnd = new Inbox(await p.next());
      const { source, registered, target } = buffers(p, 64);
      const forged = { rkey: registered.rkey, bytes: 1000, handle: registered.handle };
      p.ab.write({ region: source, offset: 0, bytes: 64 }, { region: forged, offset: 900 }, 1).catch(() => undefined);
      expect(await p.atA.end()).toMatchObject({ code: 'protocol' });
      await atOther.connection.write({ region: source, offset: 0, bytes: 64 }, { region: registered, offset: 0 });
      await atOther.connection.close();
      expect(await atOther.end()).toBeUndefined();
      expect(await farEnd.end()).toBeUndefined();
      expect(view(target).equals(view(source))).toBe(true);
    });

    test('map gives the bytes that the peer sees, or the reason why it cannot', async () => {
      const p = await pair();
      const { source, target, registered } = buffers(p, 4096);
      if (!p.a.capabilities.loadStore) {
        expect(() => p.ab.map(registered)).toThrow(expect.objectContaining({ code: 'unsupported' }));
        return;
      }
      const mapped = p.ab.map({ rkey: registered.rkey, bytes: registered.bytes, handle: registered.handle });
      expect(p.ab.map(registered)).toBe(mapped);
      view(mapped).set(view(source));
      expect(view(target).equals(view(source))).toBe(true);
      view(target)[0] = 99;
      expect(view(mapped)[0]).toBe(99);
    });

    test('callbacks never run inside a call', async () => {
      const p = await pair();
      const { source, registered } = buffers(p, 64);
      let inside = false;
      let violations = 0;
      p.atA.onEvent = p.atB.onEvent = () => (violations += inside ? 1 : 0);
      inside = true;
      const sent = [
        p.ab.send(Buffer.from('x')),
        p.ab.write({ region: source, offset: 0, bytes: 64 }, { region: registered, offset: 0 }, 1),
      ];
      inside = false;
      await Promise.all([...sent, p.atB.until(2)]);
      inside = true;
      const closed = p.ab.close();
      inside = false;
      await closed;
      await Promise.all([p.atA.end(), p.atB.end()]);
      expect(violations).toBe(0);
    });

    test('close flushes posted operations and ends both sides in order', async () => {
      const p = await pair();
      const { source, target, registered } = buffers(p, 8 * MiB);
      const sent = [
        p.ab.write({ region: source, offset: 0, bytes: 8 * MiB }, { region: registered, offset: 0 }, 3),
        p.ab.send(Buffer.from('last')),
      ];
      const closed = p.ab.close(20_000);
      await Promise.all([...sent, closed, p.ab.close()]);
      expect(await p.atB.end()).toBeUndefined();
      expect(await p.atA.end()).toBeUndefined();
      expect(p.atB.events).toEqual([{ immediate: 3 }, { message: 'last' }, { closed: undefined }]);
      expect(view(target).equals(view(source))).toBe(true);
      await expect(p.ab.send(Buffer.from('x'))).rejects.toMatchObject({ code: 'closed' });
      await expect(p.ba.write({ region: source, offset: 0, bytes: 0 }, { region: registered, offset: 0 }, 1)).rejects.toMatchObject({
        code: 'closed',
      });
    });

    test('both sides may close at once, and a fabric closes its connections', async () => {
      const p = await pair();
      await Promise.all([p.a.close(), p.b.close()]);
      expect(await p.atA.end()).toBeUndefined();
      expect(await p.atB.end()).toBeUndefined();
      await expect(p.a.connect(p.address, { peer: { world, rank: 1 }, timeoutMs: 1000 })).rejects.toMatchObject({ code: 'closed' });
    });

    test('a broken connection is peer-lost on both sides and for everything in flight', async () => {
      const p = await pair();
      // The operations are messages: on a fabric with loads and stores a write is not in flight for any time.
      const pending = Array.from({ length: 8 }, () => p.ab.send(Buffer.alloc(4 * MiB)));
      const outcomes = Promise.allSettled(pending);
      (p.ab as Connection & { abort(): void }).abort();
      expect(await p.atA.end()).toMatchObject({ code: 'peer-lost', peer: 1, bytes: expect.any(Number) });
      expect(await p.atB.end()).toMatchObject({ code: 'peer-lost', peer: 0, message: expect.stringMatching(/rank 1 lost rank 0/) });
      const rejected = (await outcomes).filter((outcome) => outcome.status === 'rejected');
      expect(rejected.length).toBeGreaterThan(0);
      for (const { reason } of rejected) expect(reason).toMatchObject({ code: 'peer-lost', peer: 1 });
      expect(p.atA.closed!.error!.message).toMatch(/operations with \d+ bytes were in flight/);
      await expect(p.ab.send(Buffer.from('x'))).rejects.toMatchObject({ code: 'closed' });
    });

    test('data that a slow peer does not take is bounded: senders wait, then go on', async () => {
      const on = make();
      const [a, b] = [fabricOf(on, 0, { maxQueuedBytes: MiB }), fabricOf(on, 1)];
      const { address, next } = await listening(b);
      const accepted = next();
      const atA = new Inbox(await a.connect(address, { peer: { world, rank: 1 }, timeoutMs: 10_000 }));
      const slow = await accepted; // no handlers yet: deliveries wait
      const chunk = Buffer.alloc(64 * 1024, 'x');
      const total = 1024;
      let taken = 0;
      let stopped = false;
      const sender = (async () => {
        for (; taken < total && !stopped; taken++) await atA.connection.send(chunk);
      })();
      // Waits until a long row of turns moves nothing, as the sender then waits. The kernel's buffers add to our bound, but are
      // bounded too.
      for (let still = 0, last = -1; still < 200; last = taken) {
        await new Promise((resolve) => setImmediate(resolve));
        still = taken === last ? still + 1 : 0;
      }
      expect(taken).toBeLessThan(total);
      stopped = true;
      // A caller that posts without awaiting meets the bound and is refused, with the connection intact.
      const flood = Array.from({ length: 40 }, () =>
        atA.connection.send(chunk).then(
          () => 'sent',
          (error: ShoalError) => error.code,
        ),
      );
      const atB = new Inbox(slow);
      const outcomes = await Promise.all(flood);
      expect(new Set(outcomes)).toEqual(new Set(['sent', 'out-of-memory']));
      await sender;
      await atB.until(taken + outcomes.filter((outcome) => outcome === 'sent').length);
      expect(atB.closed).toBeUndefined();
    });

    test('a wrong secret is an auth error for the dialer and disturbs nobody', async () => {
      const refused: ShoalError[] = [];
      const p = await pair({ onRefused: (error) => refused.push(error) });
      const outsider = fabricOf(p.on, 2, { secret: Buffer.from('guess') });
      await expect(outsider.connect(p.address, { peer: { world, rank: 1 }, timeoutMs: 10_000 })).rejects.toMatchObject({
        code: 'auth',
        peer: 1,
      });
      expect(refused).toEqual([expect.objectContaining({ code: 'auth', peer: 2 })]);
      await p.ab.send(Buffer.from('alive'));
      await p.atB.until(1);
    });

    test('another world or another rank than expected is a config error that says what differs', async () => {
      const p = await pair();
      const foreigner = fabricOf(p.on, 2, { identity: { world: 'elsewhere', rank: 2 } });
      const toElsewhere = foreigner.connect(p.address, { peer: { world: 'elsewhere', rank: 1 }, timeoutMs: 10_000 });
      await expect(toElsewhere).rejects.toMatchObject({ code: 'config', message: expect.stringMatching(/another world/) });
      const toRank7 = p.a.connect(p.address, { peer: { world, rank: 7 }, timeoutMs: 10_000 });
      await expect(toRank7).rejects.toMatchObject({ code: 'config', message: expect.stringMatching(/expected rank 7/) });
    });

    test('an address where nobody listens is an error within the time given that lists it', async () => {
      const on = make();
      const a = fabricOf(on, 0);
      const address = await desertedAddress(on);
      const attempt = a.connect(address, { peer: { world, rank: 1 }, timeoutMs: 300 });
      const error = await attempt.then(
        () => undefined,
        (thrown: ShoalError) => thrown,
      );
      expect(['timeout', 'peer-lost']).toContain(error?.code);
      expect(error!.message).toContain(address.candidates[0]);
    });

    test('connecting can be cancelled', async () => {
      const on = make();
      const a = fabricOf(on, 0);
      const address = await desertedAddress(on);
      const abort = new AbortController();
      const attempt = a.connect(address, { peer: { world, rank: 1 }, timeoutMs: 600_000, signal: abort.signal });
      abort.abort();
      const error = await attempt.then(
        () => undefined,
        (thrown: ShoalError) => thrown,
      );
      expect(['aborted', 'peer-lost']).toContain(error?.code);
    });

    test('strangers with random bytes, endless headers or silence are turned away in bounded memory', async () => {
      const p = await pair();
      const { raw } = p.on;
      const strangers = Array.from({ length: 100 }, (_, k) => {
        const socket = raw!.connect(p.address).resume();
        socket.on('error', () => undefined);
        if (k % 3 === 0) socket.write(seededRandom(k).bytes(100_000));
        if (k % 3 === 1) socket.write(Buffer.alloc(1 << 20, 'SHOAL\x01\x01\x00', 'latin1'));
        return socket;
      });
      onTestFinished(() => strangers.forEach((socket) => socket.destroy()));
      // The fabric ends those that sent something; the silent ones hold a place each, at most 64.
      await Promise.all(
        strangers
          .filter((_, k) => k % 3 !== 2)
          .map((socket) => new Promise<void>((resolve) => (socket.closed ? resolve() : socket.once('close', () => resolve())))),
      );
      expect(p.on.pendingConnections!(p.b)).toBeLessThanOrEqual(64);
      const member = fabricOf(p.on, 2);
      const atMember = new Inbox(await member.connect(p.address, { peer: { world, rank: 1 }, timeoutMs: 10_000 }));
      const farEnd = new Inbox(await p.next());
      await Promise.all([atMember.connection.close(), farEnd.end()]);
      await p.ab.send(Buffer.from('alive'));
      await p.atB.until(1);
    });

    test('a member that sends broken frames is refused with protocol and crashes nothing', async () => {
      const on = make();
      const b = fabricOf(on, 1);
      const ends: Promise<ShoalError | undefined>[] = [];
      const target = on.region(64);
      new Uint8Array(target.buffer).fill(0xee);
      const { rkey } = b.register(target);
      const address = await b.listen((connection) => ends.push(new Inbox(connection).end()));
      let salt = 0;
      await fc.assert(
        fc.asyncProperty(
          fc.oneof(
            // Random bytes; a valid header changed in one place; valid checks over hostile fields.
            fc.uint8Array({ minLength: 64, maxLength: 400 }),
            fc.record({
              type: fc.nat(20),
              flags: fc.nat(3),
              immediate: fc.nat(),
              rkey: fc.constantFrom(rkey, 7),
              offset: fc.maxSafeNat(),
              bytes: fc.integer({ min: 2 ** 25, max: 2 ** 53 - 1 }),
            }),
          ),
          async (attack) => {
            const socket = on.raw!.connect(address);
            socket.on('error', () => undefined);
            const random = seededRandom(1000 + salt++);
            const dialer = new Handshake({
              role: 'dialer',
              secret,
              purpose: on.raw!.purpose,
              world,
              rank: 0,
              random,
              link: claimOf('local'),
            });
            socket.write(dialer.start()!);
            await new Promise<void>((resolve, reject) => {
              socket.on('data', (bytes) => {
                const step = dialer.bytesWanted > 0 ? dialer.push(bytes) : {};
                if (step.send !== undefined) socket.write(step.send);
                if (step.done !== undefined) resolve();
              });
              socket.once('close', () => reject(new Error('closed during the handshake')));
            });
            const ended = new Promise<void>((resolve) => socket.once('close', () => resolve()));
            const frame = Buffer.alloc(headerBytes);
            if (attack instanceof Uint8Array) {
              socket.write(attack);
            } else {
              encodeHeader(new DataView(frame.buffer, frame.byteOffset), 0, {
                type: FrameType.Open,
                flags: 0,
                immediate: 0,
                rkey: 0,
                offset: 0,
                bytes: 0,
              });
              socket.write(Buffer.from(frame));
              encodeHeader(new DataView(frame.buffer, frame.byteOffset), 0, attack);
              socket.end(frame);
            }
            await ended;
          },
        ),
        { numRuns: 60 },
      );
      const errors = await Promise.all(ends);
      for (const error of errors) if (error !== undefined) expect(['protocol', 'peer-lost']).toContain(error.code);
      expect(untouched(target)).toBe(true);
      const member = fabricOf(on, 2);
      await (await member.connect(address, { peer: { world, rank: 1 }, timeoutMs: 10_000 })).close();
    });

    test('any interleaving of messages, writes and immediates arrives in order with the right content', async () => {
      const p = await pair();
      const bytesTotal = 300_000;
      const { source, target, registered } = buffers(p, bytesTotal);
      const operation = fc.oneof(
        fc.record({ kind: fc.constant('message' as const), bytes: fc.oneof(fc.nat(40), fc.nat(100_000)) }),
        fc.record({
          kind: fc.constant('write' as const),
          offset: fc.nat(bytesTotal),
          bytes: fc.oneof(fc.nat(40), fc.nat(bytesTotal)),
          immediate: fc.option(fc.nat(), { nil: undefined }),
          awaited: fc.boolean(),
        }),
      );
      await fc.assert(
        fc.asyncProperty(fc.array(operation, { maxLength: 60 }), async (operations) => {
          const from = p.atB.events.length;
          view(target).fill(0xee);
          const shadow = Buffer.from(view(target));
          const expected: Event[] = [];
          const snapshots: Buffer[] = [];
          const seen: Buffer[] = [];
          p.atB.onEvent = () => seen.push(Buffer.from(view(target)));
          const sent: Promise<void>[] = [];
          for (const [k, op] of operations.entries()) {
            if (op.kind === 'message') {
              const message = `${k}`.padEnd(op.bytes, 'm');
              expected.push({ message });
              sent.push(p.ab.send(Buffer.from(message, 'latin1')));
            } else {
              const bytes = Math.min(op.bytes, bytesTotal - op.offset);
              view(source).copy(shadow, op.offset, op.offset, op.offset + bytes);
              sent.push(p.ab.write({ region: source, offset: op.offset, bytes }, { region: registered, offset: op.offset }, op.immediate));
              if (op.immediate !== undefined) expected.push({ immediate: op.immediate });
              if (op.awaited) await sent.at(-1);
            }
            while (snapshots.length < expected.length) snapshots.push(Buffer.from(shadow));
          }
          sent.push(p.ab.send(Buffer.from('end')));
          expected.push({ message: 'end' });
          snapshots.push(shadow);
          await Promise.all([...sent, p.atB.until(from + expected.length)]);
          expect(p.atB.events.slice(from)).toEqual(expected);
          // Data that an immediate announced is there; data of later writes may be there already.
          for (const [k, snapshot] of snapshots.entries()) {
            const now = seen[k];
            for (let at = 0; at < bytesTotal; at += 97)
              if (snapshot[at] !== 0xee && now[at] !== snapshot[at]) throw new Error(`event ${k}: byte ${at} is missing`);
          }
          expect(seen.at(-1)!.equals(shadow)).toBe(true);
        }),
        { numRuns: 25 },
      );
    });

    checkSkips();
  });
}
