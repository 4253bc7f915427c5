/** The registry of fabrics, best first. A new provider is its own file or folder, and one line here. */
import { ShoalError } from '../base/errors.ts';
import type { FabricProvider } from './fabric.ts';
import { libfabricProvider } from './providers/libfabric/libfabric.ts';
import { shmProvider } from './providers/shm.ts';
import { tcpProvider } from './providers/tcp.ts';

/** Fabrics between processes. Tests have one within a thread (testing/loopback.ts). */
export const fabricProviders: readonly FabricProvider[] = [shmProvider, libfabricProvider, tcpProvider];

/** The providers with these names. @throws ShoalError `config` for a name that none has. */
export function fabricsNamed(names: readonly string[]): FabricProvider[] {
  const unknown = names.find((name) => fabricProviders.every((each) => each.name !== name));
  if (unknown === undefined) return names.flatMap((name) => fabricProviders.filter((each) => each.name === name));
  throw new ShoalError('config', `unknown fabric '${unknown}' in SHOAL_FABRICS; use ${fabricProviders.map(({ name }) => name).join(', ')}`);
}
