import net from 'node:net';
import { describe, expect, it, onTestFinished } from 'vitest';
import { seededRandom } from '../base/random.ts';
import { UnhurriedClock } from '../base/testing/unhurried-clock.ts';
import { loadNative, nativeUnavailableReason } from '../memory/native.ts';
import type { GivenSocket } from './fabric.ts';
import { congestionTuner, LossWatch, type CongestionNative, type SocketTuning } from './congestion.ts';
import { TcpFabric } from './providers/tcp.ts';
import { connected } from './testing/connected.ts';
import { threadRegion } from './testing/regions.ts';

/** A kernel whose sockets begin with `system`, that grants `granted`, and counts `segments`: sent, and sent again. */
function kernel(system: string, granted: readonly string[], segments?: [number, number], roundTripUs = 100): CongestionNative {
  let inForce = system;
  return {
    socketRoundTrip: () => roundTripUs,
    congestionControl: (_, names) => {
      inForce = names.find((name) => granted.includes(name)) ?? inForce;
      return inForce;
    },
    socketSegments: (_, counts) => {
      if (segments !== undefined) counts.set(segments);
      return segments !== undefined;
    },
  };
}

describe('congestion control', () => {
  const told: string[] = [];
  const tuned = (native: CongestionNative, wanted: readonly string[] = []): SocketTuning =>
    congestionTuner({ native, wanted, onLoss: (message) => told.push(message) })(3, 'tcp 10.0.0.4:41234');
  const chosen = (native: CongestionNative, wanted?: readonly string[]): string | undefined => tuned(native, wanted).congestionControl;

  it('of the system stays unless it is bbr', () => {
    expect(chosen(kernel('dctcp', ['cubic', 'reno']))).toBe('dctcp');
    expect(chosen(kernel('bbr', ['cubic', 'reno']))).toBe('cubic');
    expect(chosen(kernel('bbr', ['reno']))).toBe('reno');
    expect(chosen(kernel('bbr', []))).toBe('bbr');
  });

  it('of the system stays on long paths, where few losses suffice for bbr', () => {
    expect(chosen(kernel('bbr', ['cubic', 'reno'], undefined, 50_000))).toBe('bbr');
    const segments: [number, number] = [0, 0];
    const tuning = tuned(kernel('cubic', ['bbr'], segments, 50_000));
    reviewLossy(tuning, segments, 1);
    expect(tuning.congestionControl).toBe('cubic');
    reviewLossy(tuning, segments, 1);
    expect(tuning.congestionControl).toBe('bbr');
  });

  it('that is wanted is taken in order, also bbr; what is not granted changes nothing', () => {
    expect(chosen(kernel('cubic', ['reno', 'bbr']), ['dctcp', 'bbr', 'reno'])).toBe('bbr');
    expect(chosen(kernel('bbr', ['cubic']), ['dctcp'])).toBe('bbr');
  });

  /** Reviews a link that sends 400 segments at a time and loses one of each. */
  function reviewLossy(tuning: SocketTuning, segments: [number, number], times = 20): void {
    for (let k = 0; k < times; k++) {
      segments[0] += 400;
      segments[1] += 1;
      tuning.review(3);
    }
  }

  it('of a link that loses again and again becomes bbr, which is told once', () => {
    const segments: [number, number] = [0, 0];
    const tuning = tuned(kernel('cubic', ['bbr'], segments));
    reviewLossy(tuning, segments, 11);
    expect(tuning.congestionControl).toBe('cubic');
    told.length = 0;
    reviewLossy(tuning, segments);
    expect(tuning.congestionControl).toBe('bbr');
    expect(told).toEqual(['tcp 10.0.0.4:41234 loses packets again and again, 12 of 4800 were sent twice: bbr takes over from cubic']);
  });

  it('of a link that loses stays when the system does not grant bbr, does not count, or another was wanted', () => {
    told.length = 0;
    const segments: [number, number] = [0, 0];
    const refused = tuned(kernel('cubic', [], segments));
    reviewLossy(refused, segments);
    expect(refused.congestionControl).toBe('cubic');
    expect(told).toEqual([expect.stringContaining('cubic stays, because the system does not grant bbr')]);
    const uncounted = tuned(kernel('cubic', ['bbr']));
    reviewLossy(uncounted, segments);
    expect(uncounted.congestionControl).toBe('cubic');
    const wanted = tuned(kernel('bbr', ['bbr', 'cubic'], segments), ['cubic']);
    reviewLossy(wanted, segments);
    expect(wanted.congestionControl).toBe('cubic');
  });

  const native = loadNative({ enabled: true });
  it.skipIf(native === undefined)(
    `of a real socket is what the kernel says${native === undefined ? ` (skipped: ${nativeUnavailableReason()})` : ''}`,
    async () => {
      const { congestionControl, socketSegments } = native!;
      const server = net.createServer().listen(0, '127.0.0.1');
      onTestFinished(() => void server.close());
      await new Promise((resolve) => server.once('listening', resolve));
      const socket = net.connect((server.address() as net.AddressInfo).port, '127.0.0.1');
      onTestFinished(() => void socket.destroy());
      await new Promise((resolve) => socket.once('connect', resolve));
      const { fd } = (socket as unknown as { _handle: { fd: number } })._handle;
      const before = congestionControl(fd, []);
      expect(before).toMatch(/^[a-z0-9_]+$/);
      expect(congestionControl(fd, ['no-such-name'])).toBe(before);
      expect(congestionControl(fd, ['no-such-name', 'reno'])).toBe('reno');
      expect(congestionControl(fd, [])).toBe('reno');
      expect(congestionControl(0, [])).toBeUndefined();
      expect(() => congestionControl(fd, ['a-name-that-is-longer-than-any'])).not.toThrow();
      const counts = new Float64Array(2);
      await new Promise((resolve) => socket.write(Buffer.alloc(10), resolve));
      expect(socketSegments(fd, counts)).toBe(true);
      expect(counts).toEqual(new Float64Array([1, 0]));
      expect(socketSegments(0, counts)).toBe(false);
    },
  );

  it('of both ends is told in their descriptions, and reviewed by the end that has written much', async () => {
    const clock = new UnhurriedClock();
    const reviewed: number[] = [];
    const fabricOf = (rank: number): TcpFabric => {
      const options = { identity: { world: 'w', rank }, secret: Buffer.from('s'), clock, random: seededRandom(rank + 1) };
      const congestionControl = `control-${rank}`;
      const review = (descriptor: number): number => reviewed.push(descriptor > 2 ? rank : -1);
      const fabric = new TcpFabric({ ...options, tuneSocket: () => ({ congestionControl, review }) });
      onTestFinished(() => fabric.close());
      return fabric;
    };
    const [a, b] = [fabricOf(0), fabricOf(1)];
    const { atA, atB } = await connected(a, b);
    expect(atA.connection.description).toMatch(/^tcp .*, control-0$/);
    expect(atB.connection.description).toMatch(/^tcp .*, control-1$/);
    const bytes = 256 * 1024;
    const [region, target] = [threadRegion(bytes), b.register(threadRegion(bytes))];
    for (let k = 0; k < 8; k++) await atA.connection.write({ region, offset: 0, bytes }, { region: target, offset: 0 });
    expect(reviewed).toEqual([0, 0, 0, 0]);
  });

  it('of sockets that are given away is chosen by both ends, and reviewed by their takers', async () => {
    const fabricOf = (rank: number, told: string[]): TcpFabric => {
      const options = {
        identity: { world: 'w', rank },
        secret: Buffer.from('s'),
        clock: new UnhurriedClock(),
        random: seededRandom(rank + 1),
      };
      const tuneSocket = (tuned: number): SocketTuning => {
        told.push(`tuned ${tuned}`);
        return { congestionControl: 'cubic', review: (descriptor) => void told.push(`reviewed ${descriptor}`) };
      };
      const fabric = new TcpFabric({ ...options, tuneSocket });
      onTestFinished(() => fabric.close());
      return fabric;
    };
    const [dialler, listener]: [string[], string[]] = [[], []];
    const [a, b] = [fabricOf(0, dialler), fabricOf(1, listener)];
    const address = await b.listen(() => undefined);
    const accepted = new Promise<GivenSocket>((resolve) => {
      b.sockets.onSocket = (_peer, _tag, accept) => resolve(accept(() => 8));
    });
    const opened = await a.sockets.open(address, { peer: { world: 'w', rank: 1 }, timeoutMs: 10_000, tag: 3 }, () => 7);
    opened.review();
    (await accepted).review();
    expect(dialler).toEqual(['tuned 7', 'reviewed 7']);
    // The stream was tuned before it was known that it would be given away.
    expect(listener.slice(-2)).toEqual(['tuned 8', 'reviewed 8']);
  });
});

describe('LossWatch', () => {
  const segments = 400;

  /** Number of windows until the watch says that the link is lossy; `loses` gives the segments that a window loses. */
  function windowsUntilLossy(loses: (window: number) => number, most = 10_000): number | undefined {
    const watch = new LossWatch();
    let resent = 0;
    for (let window = 1; window <= most; window++) {
      resent += loses(window);
      if (watch.isLossy(window * segments, resent)) return window;
    }
    return undefined;
  }

  it('sees loss at random within some windows, the rarer the later', () => {
    const random = seededRandom(1);
    const losing = (share: number) => (): number => Array.from({ length: segments }).filter(() => random.next() < share).length;
    expect(windowsUntilLossy(losing(0.01))).toBeLessThan(16);
    expect(windowsUntilLossy(losing(0.004))).toBeLessThan(64);
    expect(windowsUntilLossy(losing(0.0002))).toBeUndefined();
  });

  it('is not moved by bursts, however large', () => {
    expect(windowsUntilLossy((window) => (window % 2 === 0 ? segments / 2 : 0))).toBeUndefined();
    expect(windowsUntilLossy((window) => (window <= 11 ? segments : 0))).toBeUndefined();
  });

  it('counts looks that come early to the window under way', () => {
    const watch = new LossWatch();
    for (let sent = 1; sent < 11 * 256; sent++) expect(watch.isLossy(sent, sent)).toBe(false);
    const seen = Array.from({ length: 600 }, (_, k) => watch.isLossy(11 * 256 + k, 11 * 256 + k));
    expect(seen).toContain(true);
  });
});
