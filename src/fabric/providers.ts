/** The registry of fabrics, best first. libfabric comes before tcp where it has hardware; elsewhere it is used only on request. A
 *  new provider is its own file and one line here. */
import type { FabricProvider } from './fabric.ts';
import { libfabricProvider } from './providers/libfabric.ts';
import { ShmFabric, shmUnavailable } from './providers/shm.ts';
import { TcpFabric } from './providers/tcp.ts';

/** Fabrics between processes. Tests have one within a thread (testing/loopback.ts). */
export const fabricProviders: readonly FabricProvider[] = [
  {
    name: 'shm',
    description: "processes of one host; a write is one copy into the peer's mapped memory",
    unavailable: shmUnavailable,
    create: (options) => new ShmFabric(options),
  },
  {
    name: 'tcp',
    description: 'any hosts; the kernel receives straight into registered memory',
    unavailable: () => undefined,
    create: (options) => new TcpFabric(options),
  },
  libfabricProvider(),
];
