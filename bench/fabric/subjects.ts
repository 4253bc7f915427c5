/** The measured fabrics: those of the registry, and libfabric over each of the providers that any machine has. */
import { readSettings } from '../../src/base/settings/settings.ts';
import type { FabricProvider } from '../../src/fabric/fabric.ts';
import { fabricProviders } from '../../src/fabric/providers.ts';
import { libfabricProvider } from '../../src/fabric/providers/libfabric/libfabric.ts';

export interface Subject {
  /** Name in the results, without spaces. */
  readonly title: string;
  readonly provider: FabricProvider;
}

export const subjects: readonly Subject[] = [
  ...fabricProviders.filter(({ name }) => name !== 'libfabric').map((provider) => ({ title: provider.name, provider })),
  ...['tcp;ofi_rxm', 'shm'].map((name) => {
    const settings = readSettings({ SHOAL_LIBFABRIC_PROVIDER: name });
    const provider: FabricProvider = {
      ...libfabricProvider,
      unavailable: () => libfabricProvider.unavailable(settings),
      create: (options) => libfabricProvider.create({ ...options, settings }),
    };
    return { title: `libfabric-${name}`, provider };
  }),
];
