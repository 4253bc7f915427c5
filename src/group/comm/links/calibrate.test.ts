/** Rates of a world: measured at its start, the same on all ranks, or not at all. */
import { describe, expect, it } from 'vitest';
import { systemClock, VirtualClock, type Clock } from '../../../base/clock.ts';
import { seededRandom } from '../../../base/random.ts';
import type { Fabric } from '../../../fabric/fabric.ts';
import { faultFabric } from '../../../fabric/testing/hooks/fault.ts';
import { createKernels } from '../../../memory/kernels/create-kernels.ts';
import { defaultCostModel } from '../../../plan/cost.ts';
import { grid, oneHost, separateHosts } from '../../../plan/topology.ts';
import { agreedModel, measureArithmetic, measuringRanks, timedPeer } from './calibrate.ts';
import { LinkProbe } from './link-probe.ts';
import type { PeerLink } from './peer-link.ts';
import type { ScratchBlock, ScratchPool } from './scratch-pool.ts';
import type { CommGroup } from '../../api/process-group.ts';
import { InProcessSite, startRanks } from '../../testing/in-process-world.ts';
import { encodeNumbered, MessageType } from './wire.ts';

describe('a world of several hosts', () => {
  it.each([
    ['tcp', ['a', 'b', 'c']],
    ['network', ['a', 'b']],
    ['host', ['a', 'a', 'b', 'b']],
  ] as const)('over %s knows its rates, alike on all ranks', async (kind, hostIds) => {
    await using world = await startRanks(hostIds.length, { kind, hostIds, clock: systemClock });
    const [first, ...others] = world.groups.map((group) => group.costModel);
    expect(first).toBeDefined();
    for (const other of others) expect(other).toEqual(first);
    for (const rate of Object.values(first ?? {})) {
      expect(Number.isFinite(rate)).toBe(true);
      expect(rate).toBeGreaterThanOrEqual(0);
    }
  });

  it('knows how slow its links are: they, not what is assumed, were timed', async () => {
    const delayMs = 5;
    const wrap = (fabric: Fabric, rank: number): Fabric =>
      faultFabric(fabric, { clock: systemClock, random: seededRandom(rank + 1), delayMs });
    await using world = await startRanks(3, { kind: 'network', hostIds: ['a', 'b', 'c'], clock: timeWithoutLimits, wrap });
    const { networkLatency = 0, networkOverhead = 0 } = world.groups[0].costModel ?? {};
    // A round trip takes two delays, some timers are early by less than one. What of it counts as overhead is chance.
    expect(networkLatency + networkOverhead).toBeGreaterThan((0.3 * delayMs) / 1e3);
    expect(defaultCostModel.networkLatency + defaultCostModel.networkOverhead).toBeLessThan((0.1 * delayMs) / 1e3);
  });

  it('that it gets by a newcomer knows its rates from then on', async () => {
    const site = new InProcessSite(2, { kind: 'host', hostIds: ['a', 'a', 'b'], clock: systemClock });
    const groups = await Promise.all([0, 1].map((rank) => site.start(rank)));
    expect(groups.map(({ costModel }) => costModel)).toEqual([undefined, undefined]);
    const late = site.start(2);
    await expect.poll(() => groups.map(({ waiting }) => waiting)).toEqual([1, 1]);
    const grown = [...((await Promise.all(groups.map((group) => group.grow()))) as CommGroup[]), await late];
    const [first, ...others] = grown.map(({ costModel }) => costModel);
    expect(first).toBeDefined();
    for (const other of others) expect(other).toEqual(first);
    await Promise.all(grown.map((group) => group.destroy()));
  });

  it('measures nothing when told to assume, and on one host', async () => {
    await using assumed = await startRanks(2, { kind: 'tcp', settings: { calibration: 'assume' } });
    await using alone = await startRanks(2, { kind: 'host' });
    for (const group of [...assumed.groups, ...alone.groups]) expect(group.costModel).toBeUndefined();
  });

  it('gives back the memory it lent: a peer that asks again, as one does that gave up meanwhile, is lent the same', async () => {
    const clock = new VirtualClock();
    const pool = new CountingPool();
    const probe = new LinkProbe({ clock, scratch: pool as unknown as ScratchPool });
    const answers: string[] = [];
    const link = { rank: 1, post: (message: Uint8Array) => answers.push(new TextDecoder().decode(message)) } as unknown as PeerLink;
    probe.onControl(link, { type: 'probe-open', bytes: 100 });
    probe.onControl(link, { type: 'probe-open', bytes: 100 });
    expect(answers).toEqual([expect.stringContaining('probe-opened'), answers[0]]);
    expect(pool).toMatchObject({ taken: 1, given: 0 });
    probe.onControl(link, { type: 'probe-close' });
    probe.onControl(link, { type: 'probe-open', bytes: 100 });
    probe.onControl(link, { type: 'probe-close' });
    probe.onControl(link, { type: 'probe-close' });
    expect(pool).toMatchObject({ taken: 2, given: 2 });
  });
});

describe('a link', () => {
  const options = (clock: VirtualClock, pool: CountingPool): ConstructorParameters<typeof LinkProbe>[0] => ({
    clock,
    scratch: pool as unknown as ScratchPool,
  });

  it('has the latency, the overhead and the rate of the wire between: on virtual time, exactly', async () => {
    const clock = new VirtualClock();
    const pool = new CountingPool();
    const probe = new LinkProbe(options(clock, pool));
    // 2 ms each way, 0.01 ms per write and 0.001 ms per kilobyte of the sender's time.
    let freeMs = 0;
    const later = (delayMs: number, run: () => void): void => void clock.setTimer(delayMs, run);
    const link = {
      rank: 1,
      remote: () => ({ rkey: 1, bytes: 1, handle: '' }),
      connection: {
        write: ({ bytes }: { bytes: number }) => {
          freeMs = Math.max(freeMs, clock.now()) + 0.01 + bytes / 1024e3;
          return new Promise<void>((resolve) => later(freeMs - clock.now(), resolve));
        },
      },
      post: (message: Uint8Array) => {
        if (message[0] === MessageType.Probe) {
          const id = new DataView(message.buffer).getUint32(4, true);
          later(Math.max(0, freeMs - clock.now()) + 4, () => probe.onMessage(link, encodeNumbered(MessageType.Answer, id)));
        } else if (new TextDecoder().decode(message).includes('probe-open')) {
          later(4, () => probe.onControl(link, { type: 'probe-opened', key: 1 }));
        }
      },
    } as unknown as PeerLink;
    const measured = probe.measure(link);
    let done = false;
    void measured.then(() => (done = true));
    while (!done) {
      clock.advance(0.01);
      // Lets promises that timers have settled go on.
      for (let turn = 0; turn < 20; turn++) await Promise.resolve();
    }
    const rates = await measured;
    expect(rates?.overhead).toBeCloseTo((0.01 + 64 / 1024e3) / 1e3, 6);
    expect(rates?.latency).toBeCloseTo(2e-3, 4);
    expect((rates?.byte ?? 0) * 1024e6).toBeCloseTo(1, 2);
    expect(pool).toMatchObject({ taken: 1, given: 1 });
  });

  it('to a peer that does not answer is given up after a second', async () => {
    const clock = new VirtualClock();
    const pool = new CountingPool();
    const probe = new LinkProbe(options(clock, pool));
    const measured = probe.measure({ rank: 1, post: () => undefined } as unknown as PeerLink);
    clock.advance(1000);
    expect(await measured).toBeUndefined();
    expect(pool).toMatchObject({ taken: 0, given: 0 });
  });
});

describe('agreedModel', () => {
  it('takes the median of each rate, and assumes what nobody measured', () => {
    const model = agreedModel([{ networkLatency: 1e-3 }, { networkLatency: 3e-3, networkByte: 1.2345e-9 }, { networkLatency: 9e-3 }]);
    expect(model).toEqual({ ...defaultCostModel, networkLatency: 3e-3, networkByte: 1.2e-9 });
  });

  it('is none when nothing was measured', () => {
    expect(agreedModel([{}, {}])).toBeUndefined();
  });
});

it('one rank per host measures, sixteen at most, and none where there is one host', () => {
  expect(measuringRanks(grid(3, 2))).toEqual([0, 2, 4]);
  expect(measuringRanks(oneHost(4))).toEqual([]);
  expect(measuringRanks(separateHosts(100))).toHaveLength(16);
});

it('a clock that stands still has measured nothing', () => {
  expect(measureArithmetic({ clock: new VirtualClock(), kernels: createKernels() })).toEqual({});
});

it('a rank that measures times the link to the next host, the last one to the first', () => {
  expect([0, 2, 4].map((rank) => timedPeer(rank, grid(3, 2)))).toEqual([2, 4, 0]);
});

/** The system's time, on which nobody is given up: a process may not be served for long. */
const timeWithoutLimits: Clock = { ...systemClock, setTimer: () => ({ cancel: () => undefined }) };

/** Blocks that hold nothing, counted. */
class CountingPool {
  taken = 0;
  given = 0;

  take(bytes: number): ScratchBlock {
    this.taken += 1;
    return { key: this.taken, bytes, region: {} } as ScratchBlock;
  }

  give(): void {
    this.given += 1;
  }
}
