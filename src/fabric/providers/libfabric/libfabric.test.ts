import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import net from 'node:net';
import fc from 'fast-check';
import { describe, expect, it, onTestFinished, vi } from 'vitest';
import type { ShoalError } from '../../../base/errors.ts';
import { sleep, systemClock, VirtualClock } from '../../../base/clock.ts';
import { seededRandom, systemRandom } from '../../../base/random.ts';
import { reservePort } from '../../../base/testing/reserved-port.ts';
import { UnhurriedClock } from '../../../base/testing/unhurried-clock.ts';
import { loadNative } from '../../../memory/native.ts';
import { loadNativeWithOfi, ofiAddressFormats } from './native-ofi.ts';
import type { Region } from '../../../memory/region.ts';
import { createRegionAllocator } from '../../../memory/regions/allocator.ts';
import { abortConnection } from '../../abortable.ts';
import { describeFabric, Inbox, type FabricWorld } from '../../conformance.ts';
import { connected } from '../../testing/connected.ts';
import { describeHostileWrites } from '../../testing/hostile-writes.ts';
import type { LibfabricConnection } from './libfabric-connection.ts';
import { libfabricUnavailable } from './libfabric-devices.ts';
import { LibfabricEndpoint, mustWait } from './libfabric-endpoint.ts';
import { decodeMessageHeader, decodeSequenced, encodeMessageHeader, encodeSequenced, grantLayout } from './libfabric-message.ts';
import { sharedMemoryName, sweepSharedMemory } from './libfabric-shm-files.ts';
import { LibfabricFabric, type LibfabricOptions } from './libfabric.ts';

function world(changes: Partial<LibfabricOptions>): FabricWorld {
  const allocator = createRegionAllocator({ native: loadNative({ enabled: true }) });
  const regions: Region[] = [];
  const query = `?provider=${encodeURIComponent(changes.libfabric!.provider!)}`;
  return {
    create: (options) => new LibfabricFabric({ ...options, hostId: 'here', ...changes }),
    region(bytes) {
      regions.push(allocator.create(bytes));
      return regions.at(-1)!;
    },
    raw: {
      purpose: 'fabric-libfabric',
      connect({ candidates }) {
        const [, host, port] = /libfabric:\/\/([^:]+):(\d+)/.exec(candidates[0])!;
        return net.connect(Number(port), host);
      },
    },
    deserted: async () => ({ provider: 'libfabric', candidates: [`libfabric://127.0.0.1:${await reservePort()}${query}&host=here`] }),
    pendingConnections: (fabric) => (fabric as LibfabricFabric).pendingConnections,
    close: () => regions.forEach((region) => region.close()),
  };
}

/** Every way to keep order, on every provider of this machine that has it. */
const variants = [
  { provider: 'tcp;ofi_rxm', order: 'ordered' },
  { provider: 'tcp;ofi_rxm', order: 'fenced' },
  { provider: 'shm', order: 'ordered' },
  { provider: 'shm', order: 'sequenced' },
  { provider: 'shm', order: 'fenced' },
] as const;

for (const { provider, order } of variants) {
  const reason = libfabricUnavailable({ provider });
  const title = `libfabric ${provider}, ${order}`;
  describe.skipIf(reason !== undefined)(`${title}${reason === undefined ? '' : ` (skipped: ${reason})`}`, () => {
    describeFabric(title, () => world({ libfabric: { provider }, order }));
  });
}

for (const { provider, order } of variants) {
  const reason = libfabricUnavailable({ provider });
  describe.skipIf(reason !== undefined)(`${provider}${reason === undefined ? '' : ` (skipped: ${reason})`}`, () => {
    describeHostileWrites(`libfabric ${provider}, ${order}`, () => {
      const write = vi.spyOn(LibfabricEndpoint.prototype, 'write');
      onTestFinished(() => write.mockRestore());
      return {
        ...world({ libfabric: { provider }, order }),
        forge(dialled, { offset, bytes }, isKnown) {
          const { endpoint } = dialled as LibfabricConnection;
          const [, granted] = write.mock.calls.at(-1)!;
          const key = isKnown ? granted.key : granted.key ^ 1n;
          // In an address of 64 bits, which may wrap around.
          const address = BigInt.asUintN(64, granted.address + BigInt(offset));
          const request = { ...granted, source: new Uint8Array(bytes).fill(7), key, address };
          const status = endpoint.write(endpoint.takeSlot()!, request, { from: 0, bytes, to: 0, data: -1, delivered: order !== 'ordered' });
          expect(status).toBe(0);
        },
        isTold: false,
      };
    });
  });
}

const noTcp = libfabricUnavailable({ provider: 'tcp;ofi_rxm' });
const noShm = libfabricUnavailable({ provider: 'shm' });
const skipped = (reason: string | undefined): string => (reason === undefined ? '' : ` (skipped: ${reason})`);

describe('libfabric', () => {
  const clock = new UnhurriedClock();
  const fabricOf = (rank: number, changes: Partial<LibfabricOptions> = {}): LibfabricFabric => {
    const options = { identity: { world: 'w', rank }, secret: Buffer.from('s'), clock, random: seededRandom(rank + 1), hostId: 'here' };
    const fabric = new LibfabricFabric({ ...options, ...changes });
    onTestFinished(() => fabric.close());
    return fabric;
  };
  const regionOf = (bytes: number): Region => {
    const region = createRegionAllocator({ native: loadNative({ enabled: true }) }).create(bytes);
    onTestFinished(() => region.close());
    return region;
  };

  it('says why libfabric cannot be used', () => {
    expect(libfabricUnavailable({ provider: 'pigeon' })).toMatch(/native addon|libfabric|pigeon/);
    expect(() => fabricOf(0, { libfabric: { provider: 'pigeon' } })).toThrow(expect.objectContaining({ code: 'unsupported' }));
  });

  it.skipIf(noTcp !== undefined)(`keeps the best order that its provider has${skipped(noTcp)}`, () => {
    expect(fabricOf(0, { libfabric: { provider: 'tcp' } })).toMatchObject({ provider: 'tcp;ofi_rxm', order: 'ordered' });
  });

  it.skipIf(noTcp !== undefined || noShm !== undefined)(
    `another provider or another host is unsupported, at once${skipped(noTcp ?? noShm)}`,
    async () => {
      const [a, b] = [fabricOf(0, { libfabric: { provider: 'tcp' } }), fabricOf(1, { libfabric: { provider: 'shm' } })];
      const c = fabricOf(2, { libfabric: { provider: 'shm' }, hostId: 'there' });
      const address = await b.listen(() => undefined);
      for (const [fabric, reason] of [
        [a, /uses libfabric's shm/],
        [c, /another host/],
      ] as const) {
        const attempt = fabric.connect(address, { peer: { world: 'w', rank: 1 }, timeoutMs: 600_000 });
        await expect(attempt).rejects.toMatchObject({ code: 'unsupported', message: expect.stringMatching(reason) });
      }
    },
  );

  for (const [provider, reason] of [
    ['tcp;ofi_rxm', noTcp],
    ['shm', noShm],
  ] as const) {
    it.skipIf(reason !== undefined)(
      `${provider}: many connections, made and closed in the midst, leave nothing open${skipped(reason)}`,
      async () => {
        const libfabric = { provider, queueDepth: 16 };
        const open = (): number => readdirSync('/proc/self/fd').length;
        const round = async (seed: number): Promise<void> => {
          const b = fabricOf(1, { libfabric });
          const target = regionOf(1 << 20);
          const ends: Promise<unknown>[] = [];
          const address = await b.listen((connection) => ends.push(new Inbox(connection).end()));
          const registered = b.register(target);
          const dialers = Array.from({ length: 4 }, (_, k) => fabricOf(10 + seed * 10 + k, { libfabric }));
          await Promise.all(
            dialers.map(async (fabric, k) => {
              const inbox = new Inbox(await fabric.connect(address, { peer: { world: 'w', rank: 1 }, timeoutMs: 60_000 }));
              const source = regionOf(1 << 20);
              const sent = Array.from({ length: 20 }, (_, at) =>
                inbox.connection.write({ region: source, offset: 0, bytes: 1 << 20 }, { region: registered, offset: 0 }, at),
              );
              const outcomes = Promise.allSettled(sent);
              if (k % 2 === 0) abortConnection(inbox.connection);
              else await inbox.connection.close(30_000);
              await Promise.all([outcomes, inbox.end()]);
            }),
          );
          await Promise.all([...dialers, b].map((fabric) => fabric.close()));
          await Promise.all(ends);
        };
        await round(0);
        const before = open();
        for (let k = 1; k < 3; k++) await round(k);
        // Regions of the rounds are closed at the end of the test.
        expect(open()).toBeLessThanOrEqual(before + 2 * 5);
        expect(namesOfThisProcess()).toEqual([]);
      },
    );

    it.skipIf(reason !== undefined)(
      `${provider}: a region may be closed as soon as it is deregistered, whatever is on its way${skipped(reason)}`,
      async () => {
        const [a, b] = [fabricOf(0, { libfabric: { provider } }), fabricOf(1, { libfabric: { provider } })];
        const { atA, atB } = await connected(a, b);
        const source = regionOf(4 << 20);
        for (let round = 0; round < 10; round++) {
          const target = regionOf(4 << 20);
          const registered = b.register(target);
          const writes = Array.from({ length: 8 }, (_, at) =>
            atA.connection.write({ region: source, offset: 0, bytes: 4 << 20 }, { region: registered, offset: 0 }, at),
          );
          const outcomes = Promise.allSettled(writes);
          await Promise.race([atB.until(atB.events.length + 1), atB.end()]);
          registered.deregister();
          target.close();
          await outcomes;
          if (atA.closed !== undefined) break;
        }
        // Messages that came too late were refused, if there were any.
        if (atA.closed === undefined && atB.closed === undefined) return;
        expect(await atB.end()).toMatchObject({ code: 'protocol' });
        expect(await atA.end()).toMatchObject({ code: 'protocol' });
      },
    );
  }

  it.skipIf(noTcp !== undefined)(
    `a member that does not confirm that a region was withdrawn writes to it for 10 s at most${skipped(noTcp)}`,
    async () => {
      const libfabric = { provider: 'tcp;ofi_rxm' };
      const clockOfB = new VirtualClock();
      const [a, b] = [fabricOf(0, { libfabric }), fabricOf(1, { libfabric, clock: clockOfB })];
      const { atA, atB } = await connected(a, b);
      const write = vi.spyOn(LibfabricEndpoint.prototype, 'write');
      const send = vi.spyOn(LibfabricEndpoint.prototype, 'send');
      onTestFinished(() => [write, send].forEach((spy) => spy.mockRestore()));
      const [source, target] = [regionOf(64), regionOf(64)];
      const registered = b.register(target);
      await atA.connection.write({ region: source, offset: 0, bytes: 64 }, { region: registered, offset: 0 }, 1);
      await atB.until(1);
      const { endpoint } = atA.connection as LibfabricConnection;
      const [, granted] = write.mock.calls.at(-1)!;
      send.mockImplementation(function (this: LibfabricEndpoint, slot) {
        this.giveBack(slot);
        return 0;
      });
      registered.deregister();
      const content = new Uint8Array(target.buffer, 0, 64);
      const forge = (value: number): void =>
        void endpoint.write(
          endpoint.takeSlot()!,
          { ...granted, source: new Uint8Array(64).fill(value) },
          { from: 0, bytes: 64, to: 0, data: -1, delivered: false },
        );
      // Pages of its own would have to be looked at elsewhere: this region is still open.
      forge(7);
      await expect.poll(() => content[63]).toBe(7);
      clockOfB.advance(10_000);
      forge(8);
      await Promise.race([atA.end(), atB.end(), sleep(systemClock, 200)]);
      expect([...new Set(content)]).toEqual([7]);
    },
  );

  it.skipIf(noTcp !== undefined)(`ends with queues of different depths keep to each other's depth${skipped(noTcp)}`, async () => {
    const of = (queueDepth: number): Partial<LibfabricOptions> => ({ libfabric: { provider: 'tcp', queueDepth } });
    const { atA, atB } = await connected(fabricOf(0, of(16)), fabricOf(1, of(200)));
    const count = 600;
    const sent = [atA, atB].flatMap(({ connection }) => Array.from({ length: count }, (_, k) => connection.send(Buffer.from(`${k}`))));
    await Promise.all([...sent, atA.until(count), atB.until(count)]);
    for (const { events } of [atA, atB]) expect(events).toEqual(Array.from({ length: count }, (_, k) => ({ message: `${k}` })));
  });

  it.skipIf(noTcp !== undefined)(`a stranger's message to an endpoint is dropped and reported${skipped(noTcp)}`, async () => {
    const refused: ShoalError[] = [];
    const libfabric = { provider: 'tcp;ofi_rxm' };
    const [a, b] = [fabricOf(0, { libfabric }), fabricOf(1, { libfabric, onRefused: (error) => refused.push(error) })];
    const { atA, atB } = await connected(a, b);
    const native = loadNativeWithOfi()!;
    const device = native.ofiOpen('tcp;ofi_rxm', '', ofiAddressFormats.ipv4, 16, 16, 0, true);
    const stranger = new LibfabricEndpoint({ native, device: device.handle, source: '127.0.0.1', receives: 16, transmits: 16 });
    onTestFinished(() => {
      stranger.close();
      native.ofiCloseDevice(device.handle);
    });
    expect(stranger.connect((atB.connection as LibfabricConnection).endpoint.name)).toBe(0);
    const slot = stranger.takeSlot()!;
    const quiet = { onReceived: () => undefined, onRemoteData: () => undefined, onTransmitted: () => undefined, onFailed: () => undefined };
    while (mustWait(stranger.send(slot, 100))) {
      stranger.poll(quiet, 'many');
      await new Promise((resolve) => setImmediate(resolve));
    }
    while (refused.length === 0) {
      stranger.poll(quiet, 'many');
      await new Promise((resolve) => setImmediate(resolve));
    }
    expect(refused[0]).toMatchObject({ code: 'auth' });
    await atA.connection.send(Buffer.from('alive'));
    await atB.until(1);
    expect(atB.events).toEqual([{ message: 'alive' }]);
  });

  it('files that killed processes have left in /dev/shm are removed, those of the living are not', async () => {
    if (!existsSync('/dev/shm')) return;
    const own = `${sharedMemoryName(systemRandom).slice('fi_shm://'.length)}:0:0`;
    const [namespace, pid, start] = own.split('-').slice(1);
    const dead = own.replace(`-${pid}-${start}-`, `-${pid}-${Number(start) + 1}-`);
    expect(namespace).toMatch(/^\d+$/);
    // It ends after its parent has become another program, which does not collect it; a shell would.
    const parent = spawn('sh', ['-c', 'exec 3<&0; read line <&3 & echo $!; exec sleep 600'], { stdio: ['pipe', 'pipe', 'ignore'] });
    onTestFinished(() => void parent.kill('SIGKILL'));
    const child = Number(String((await once(parent.stdout, 'data'))[0]));
    await expect.poll(() => readFileSync(`/proc/${parent.pid}/comm`, 'latin1').trim()).toBe('sleep');
    parent.stdin.write('end\n');
    const status = (): string[] => readFileSync(`/proc/${child}/stat`, 'latin1').replace(/.*\) /, '').split(' ');
    await expect.poll(() => status()[0]).toBe('Z');
    const uncollected = own.replace(`-${pid}-${start}-`, `-${child}-${status()[19]}-`);
    for (const name of [own, dead, uncollected]) writeFileSync(`/dev/shm/${name}`, 'x');
    onTestFinished(() => [own, dead, uncollected].forEach((name) => rmSync(`/dev/shm/${name}`, { force: true })));
    sweepSharedMemory();
    expect([dead, uncollected].filter((name) => existsSync(`/dev/shm/${name}`))).toEqual([]);
    expect(existsSync(`/dev/shm/${own}`)).toBe(true);
  });
});

function namesOfThisProcess(): string[] {
  return readdirSync('/dev/shm').filter((name) => name.startsWith('shoal-') && name.includes(`-${process.pid}-`));
}

describe('announcements that carry their number', () => {
  it('come back as they were, for every immediate and number', () => {
    fc.assert(
      fc.property(fc.nat(0xffffffff), fc.nat(1000), fc.option(fc.nat(0xffffffff), { nil: undefined }), (expected, ahead, immediate) => {
        const sequence = (expected + ahead) >>> 0;
        const data = encodeSequenced(sequence, immediate);
        expect(Number.isSafeInteger(data)).toBe(true);
        expect(decodeSequenced(data, expected)).toEqual({ sequence, immediate });
      }),
    );
  });

  it('the header of a message and a grant keep their bytes', () => {
    const view = new DataView(new ArrayBuffer(26));
    const header = { kind: 2, credits: 515, sequence: 0xfffffffe, a: 7, b: 9 };
    encodeMessageHeader(view, 2, header, Uint8Array.of(1, 2, 3, 4, 5, 6, 7, 8));
    expect(Buffer.from(view.buffer).toString('hex')).toBe('000002000302feffffff01020304050607080700000009000000');
    const grant = grantLayout.encode({ address: 0x0102030405060708n, key: 9n, bytes: 2 ** 40 });
    expect(Buffer.from(grant).toString('hex')).toBe('080706050403020109000000000000000000000000007042');
  });

  it('bytes that no member sends are refused or not taken', () => {
    const token = Buffer.alloc(8, 7);
    const header = { kind: 0, credits: 0, sequence: 0, a: 0, b: 0 };
    fc.assert(
      fc.property(fc.uint8Array({ maxLength: 100 }), fc.boolean(), (bytes, member) => {
        if (member) bytes.set(token.subarray(0, Math.max(0, Math.min(8, bytes.length - 8))), Math.min(8, bytes.length));
        try {
          decodeMessageHeader(new DataView(bytes.buffer), 0, bytes.length, token, header);
        } catch (thrown) {
          expect(thrown).toMatchObject({ code: 'protocol' });
        }
      }),
      { numRuns: 2000 },
    );
  });
});
