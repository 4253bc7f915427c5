/** The registry of fabrics, best first. A new provider is its own file or folder, and one line here. */
import type { FabricProvider } from './fabric.ts';
import { libfabricProvider } from './providers/libfabric/libfabric.ts';
import { shmProvider } from './providers/shm.ts';
import { tcpProvider } from './providers/tcp.ts';

/** Fabrics between processes. Tests have one within a thread (testing/loopback.ts). */
export const fabricProviders: readonly FabricProvider[] = [shmProvider, libfabricProvider, tcpProvider];
