/** Every provider refuses the writes of a member that does not keep to the rules: they go past the checks of its own end. */
import { describe, expect, it, onTestFinished } from 'vitest';
import { sleep, systemClock } from '../../base/clock.ts';
import { seededRandom } from '../../base/random.ts';
import { UnhurriedClock } from '../../base/testing/unhurried-clock.ts';
import type { Region } from '../../memory/region.ts';
import type { Connection, Fabric, FabricOptions } from '../fabric.ts';
import type { FramedSocket } from '../stream/framed-socket.ts';
import { connected } from './connected.ts';

/** The stream under a connection of a fabric over streams. */
export function streamOf(connection: Connection): FramedSocket {
  return (connection as unknown as { readonly stream: FramedSocket }).stream;
}

export interface HostileTarget {
  readonly rkey: number;
  readonly offset: number;
  readonly bytes: number;
}

export interface HostileWorld {
  create(options: FabricOptions): Fabric;
  region(bytes: number): Region;
  /** Writes there from the dialer's end, or says that it has. It has written 8 bytes to the region before, as members do. */
  forge(dialled: Connection, target: HostileTarget, isKnown: boolean): void;
  /** Says whether the target learns of it: both ends close with `protocol`. Otherwise a device drops it, perhaps with all that comes behind it
   *  on this connection. */
  readonly isTold: boolean;
}

const bytes = 64 * 1024;
/** Time in which a device would do what it must not. */
const deviceMs = 200;
/** The largest number of 64 bits that a double has, less what is written: offset and length together pass 2⁶⁴. */
const nearTheEnd = 2 ** 64 - 2048;

const attacks: readonly [string, (rkey: number) => HostileTarget][] = [
  ['an unknown rkey', (rkey) => ({ rkey: (rkey ^ 1) >>> 0, offset: 0, bytes: 4096 })],
  ['what begins in the region and ends behind it', (rkey) => ({ rkey, offset: bytes - 2048, bytes: 4096 })],
  ['what lies behind the region', (rkey) => ({ rkey, offset: bytes, bytes: 4096 })],
  ['an offset that wraps around to the region', (rkey) => ({ rkey, offset: nearTheEnd, bytes: 4096 })],
];

export function describeHostileWrites(name: string, makeWorld: () => HostileWorld): void {
  describe(`writes of a hostile member over ${name}`, () => {
    const start = async () => {
      const world = makeWorld();
      const clock = new UnhurriedClock();
      const fabricOf = (rank: number): Fabric => {
        const fabric = world.create({ identity: { world: 'w', rank }, secret: Buffer.from('s'), clock, random: seededRandom(rank + 1) });
        onTestFinished(() => fabric.close());
        return fabric;
      };
      const fabrics = [0, 1].map(fabricOf);
      const { atA, atB, address } = await connected(fabrics[0], fabrics[1]);
      const target = world.region(bytes);
      const registered = fabrics[1].register(target);
      const source = world.region(8);
      await atA.connection.write({ region: source, offset: 0, bytes: 8 }, { region: registered, offset: 0 }, 1);
      await atB.until(1);
      const content = new Uint8Array(target.buffer, 0, bytes);
      content.fill(0xee);
      const refused = async (): Promise<void> => {
        if (world.isTold) {
          expect(await atB.end()).toMatchObject({ code: 'protocol', peer: 0 });
          expect(await atA.end()).toMatchObject({ code: 'protocol', peer: 1 });
          expect(atB.events).toHaveLength(2);
        } else {
          await Promise.race([atA.end(), atB.end(), sleep(systemClock, deviceMs)]);
        }
        expect(content.every((byte) => byte === 0xee)).toBe(true);
        // Others are not disturbed.
        const other = fabricOf(2);
        const connection = await other.connect(address, { peer: { world: 'w', rank: 1 }, timeoutMs: 60_000 });
        connection.setHandlers({ onMessage() {}, onImmediate() {}, onClose() {} });
        const own = world.region(8);
        const given = fabrics[1].register(own);
        new Uint8Array(source.buffer).fill(9, 0, 8);
        await connection.write({ region: source, offset: 0, bytes: 8 }, { region: given, offset: 0 }, 3);
        await connection.close();
        expect([...new Uint8Array(own.buffer, 0, 8)]).toEqual(Array.from({ length: 8 }, () => 9));
      };
      return { world, atA, atB, registered, content, refused };
    };

    it.each(attacks)('are refused, and nothing is written: %s', async (_, targetOf) => {
      const { world, atA, registered, refused } = await start();
      const where = targetOf(registered.rkey);
      world.forge(atA.connection, where, where.rkey === registered.rkey);
      await refused();
    });

    it('reach the region where they are allowed', async () => {
      const { world, atA, atB, registered, content } = await start();
      world.forge(atA.connection, { rkey: registered.rkey, offset: 64, bytes: 4096 }, true);
      if (world.isTold) await atA.connection.send(Buffer.from('written')).then(() => atB.until(2));
      else await expect.poll(() => content.indexOf(7)).toBe(64);
      expect(atB.closed).toBeUndefined();
    });

    it('are refused, and nothing is written: a region that was deregistered', async () => {
      const { world, atA, atB, registered, refused } = await start();
      registered.deregister();
      await atB.connection.send(Buffer.from('withdrawn'));
      await atA.until(1);
      // Its end has told so by now: what it says after that is not believed.
      await atA.connection.send(Buffer.from('known'));
      await atB.until(2);
      atB.events.length = 1;
      world.forge(atA.connection, { rkey: registered.rkey, offset: 0, bytes: 4096 }, true);
      await refused();
    });
  });
}
