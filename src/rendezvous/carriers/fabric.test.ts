/** The suite on every fabric, and on the table of one process. */
import { describe } from 'vitest';
import type { Fabric, FabricOptions } from '../../fabric/fabric.ts';
import { LoopbackNetwork } from '../../fabric/testing/loopback.ts';
import { libfabricUnavailable } from '../../fabric/providers/libfabric/libfabric-devices.ts';
import { LibfabricFabric } from '../../fabric/providers/libfabric/libfabric.ts';
import { ShmFabric, shmUnavailable } from '../../fabric/providers/shm.ts';
import { TcpFabric } from '../../fabric/providers/tcp.ts';
import { threadRegion } from '../../fabric/testing/regions.ts';
import { loadNative } from '../../memory/native.ts';
import type { Region, RegionAllocator } from '../../memory/region.ts';
import { createRegionAllocator } from '../../memory/regions/allocator.ts';
import { networkPair, type NetworkPairOptions } from '../testing/network-pair.ts';
import { describeRendezvous, type RendezvousWorld } from './conformance.ts';
import { WorkerCore } from './worker-core.ts';

async function world(options: NetworkPairOptions, cleanUp: () => void = () => undefined): Promise<RendezvousWorld> {
  const pair = await networkPair(options);
  return {
    ...pair,
    async close() {
      await pair.close();
      cleanUp();
    },
  };
}

describeRendezvous(
  'one process',
  () => {
    const core = new WorkerCore({ rank: 0, device: '/job:worker/task:0/device:CPU:0', incarnation: 1n });
    return Promise.resolve({ a: core, b: core, close: () => core.close() });
  },
  {
    skips: [
      { test: 'waits for a step that has not begun where the tensor is sent', reason: 'one worker has begun a step or has not' },
      { test: 'fails what waits for a worker that dies, and nothing else', reason: 'it would die itself' },
      { test: 'fails what was sent to a worker that dies, now and in later steps, and nothing else', reason: 'it would die itself' },
      { test: 'asks again over the next connection when one breaks', reason: 'it has no connection' },
      {
        test: 'gives again what had not left when the connection broke, and says of the rest that it is lost',
        reason: 'it has no connection',
      },
      { test: 'fails what waits for a process that was killed, and goes on with the next one', reason: 'it would die itself' },
    ],
  },
);

describeRendezvous('loopback, with credit for a tensor at a time', () => {
  const network = new LoopbackNetwork();
  return world({ create: (options) => network.createFabric(options), region: threadRegion, limits: { creditBytes: 1 } });
});

describeRendezvous('loopback', () => {
  const network = new LoopbackNetwork();
  return world({ create: (options) => network.createFabric(options), region: threadRegion });
});
describeRendezvous('tcp', () => world({ create: (options: FabricOptions): Fabric => new TcpFabric(options), region: threadRegion }));
const noShm = shmUnavailable();
describe.skipIf(noShm !== undefined)(`shm${noShm === undefined ? '' : ` (skipped: ${noShm})`}`, () => {
  describeRendezvous('shm', () => inSharedMemory((options, regions) => new ShmFabric({ ...options, regions })));
});

for (const provider of ['tcp;ofi_rxm', 'shm']) {
  const reason = libfabricUnavailable({ provider });
  describe.skipIf(reason !== undefined)(`libfabric${reason === undefined ? '' : ` (skipped: ${reason})`}`, () => {
    describeRendezvous(
      `libfabric, ${provider}`,
      () => inSharedMemory((options) => new LibfabricFabric({ ...options, hostId: 'here', libfabric: { provider } })),
      {
        skips:
          provider === 'shm'
            ? []
            : [
                {
                  test: 'gives again what had not left when the connection broke, and says of the rest that it is lost',
                  reason: 'libfabric 1.17 reads freed memory when an endpoint of tcp;ofi_rxm is closed with large writes under way',
                },
              ],
      },
    );
  });
}

function inSharedMemory(create: (options: FabricOptions, regions: RegionAllocator) => Fabric): Promise<RendezvousWorld> {
  const regions = createRegionAllocator({ native: loadNative({ enabled: true }) });
  const made: Region[] = [];
  const region = (bytes: number): Region => {
    made.push(regions.create(bytes));
    return made.at(-1)!;
  };
  return world({ create: (options) => create(options, regions), region }, () => made.forEach((each) => each.close()));
}
