import net from 'node:net';
import { afterEach, describe, expect, it } from 'vitest';
import { systemClock } from '../base/clock.ts';
import { seededRandom } from '../base/random.ts';
import { loadNative, nativeUnavailableReason } from '../memory/native.ts';
import { congestionTuner, type CongestionNative } from './congestion.ts';
import { Inbox } from './conformance.ts';
import { TcpFabric } from './providers/tcp.ts';
import { connected } from './testing/connected.ts';

/** A kernel whose sockets begin with `system` and that grants `granted`. */
function kernel(system: string, granted: readonly string[]): CongestionNative {
  let inForce = system;
  return {
    congestionControl: (_, names) => {
      inForce = names.find((name) => granted.includes(name)) ?? inForce;
      return inForce;
    },
  };
}

describe('congestion control', () => {
  const cleanups: (() => unknown)[] = [];
  afterEach(async () => {
    for (const cleanup of cleanups.splice(0).reverse()) await cleanup();
  });

  it('of the system stays unless it is bbr', () => {
    expect(congestionTuner(kernel('dctcp', ['cubic', 'reno']), [])(3)).toBe('dctcp');
    expect(congestionTuner(kernel('bbr', ['cubic', 'reno']), [])(3)).toBe('cubic');
    expect(congestionTuner(kernel('bbr', ['reno']), [])(3)).toBe('reno');
    expect(congestionTuner(kernel('bbr', []), [])(3)).toBe('bbr');
  });

  it('that is wanted is taken in order, also bbr; what is not granted changes nothing', () => {
    expect(congestionTuner(kernel('cubic', ['reno', 'bbr']), ['dctcp', 'bbr', 'reno'])(3)).toBe('bbr');
    expect(congestionTuner(kernel('bbr', ['cubic']), ['dctcp'])(3)).toBe('bbr');
  });

  const native = loadNative({ enabled: true });
  it.skipIf(native === undefined)(
    `of a real socket is what the kernel says${native === undefined ? ` (skipped: ${nativeUnavailableReason()})` : ''}`,
    async () => {
      const { congestionControl } = native!;
      const server = net.createServer().listen(0, '127.0.0.1');
      cleanups.push(() => server.close());
      await new Promise((resolve) => server.once('listening', resolve));
      const socket = net.connect((server.address() as net.AddressInfo).port, '127.0.0.1');
      cleanups.push(() => socket.destroy());
      await new Promise((resolve) => socket.once('connect', resolve));
      const { fd } = (socket as unknown as { _handle: { fd: number } })._handle;
      const before = congestionControl(fd, []);
      expect(before).toMatch(/^[a-z0-9_]+$/);
      expect(congestionControl(fd, ['no-such-name'])).toBe(before);
      expect(congestionControl(fd, ['no-such-name', 'reno'])).toBe('reno');
      expect(congestionControl(fd, [])).toBe('reno');
      expect(congestionControl(0, [])).toBeUndefined();
      expect(() => congestionControl(fd, ['a-name-that-is-longer-than-any'])).not.toThrow();
    },
  );

  it('of both ends is told in their descriptions', async () => {
    const fabricOf = (rank: number): TcpFabric => {
      const options = { identity: { world: 'w', rank }, secret: Buffer.from('s'), clock: systemClock, random: seededRandom(rank + 1) };
      const fabric = new TcpFabric({ ...options, tuneSocket: (descriptor) => (descriptor > 2 ? `control-${rank}` : undefined) });
      cleanups.push(() => fabric.close());
      return fabric;
    };
    const { atA, atB } = await connected(fabricOf(0), fabricOf(1));
    expect(atA.connection.description).toMatch(/^tcp .*, control-0$/);
    expect(atB.connection.description).toMatch(/^tcp .*, control-1$/);
    expect(atA).toBeInstanceOf(Inbox);
  });
});
