import { describe, expect, it } from 'vitest';
import { seededRandom } from '../../base/random.ts';
import { UnhurriedClock } from '../../base/testing/unhurried-clock.ts';
import { describeFabric } from '../conformance.ts';
import { threadRegion } from './regions.ts';
import { LoopbackNetwork } from './loopback.ts';

const streams = 'a loopback has no socket that a stranger could reach';

describeFabric(
  'loopback',
  () => {
    const network = new LoopbackNetwork();
    return { create: (options) => network.createFabric(options), region: threadRegion };
  },
  {
    skips: [
      { test: 'strangers with random bytes, endless headers or silence are turned away in bounded memory', reason: streams },
      { test: 'a member that sends broken frames is refused with protocol and crashes nothing', reason: streams },
    ],
  },
);

describe('loopback', () => {
  it('two networks in one process do not see each other', async () => {
    const options = (rank: number) => ({
      identity: { world: 'w', rank },
      secret: Buffer.from('s'),
      clock: new UnhurriedClock(),
      random: seededRandom(rank),
    });
    const here = new LoopbackNetwork().createFabric(options(0));
    const there = new LoopbackNetwork().createFabric(options(1));
    const address = await there.listen(() => undefined);
    await expect(here.connect(address, { peer: { world: 'w', rank: 1 }, timeoutMs: 100 })).rejects.toMatchObject({ code: 'peer-lost' });
    await Promise.all([here.close(), there.close()]);
  });
});
