/** The resources that a rendezvous worker takes from the machine. With another set of these it runs the same in another thread. */
import { systemClock } from '../base/clock.ts';
import { systemRandom } from '../base/random.ts';
import { readSettings, type Environment, type Settings } from '../base/settings/settings.ts';
import { EventPolling } from '../fabric/event-polling.ts';
import type { FabricOptions, FabricProvider } from '../fabric/fabric.ts';
import { fabricProviders } from '../fabric/providers.ts';
import { loadNative } from '../memory/native.ts';
import type { RegionAllocator } from '../memory/region.ts';
import { createRegionAllocator } from '../memory/regions/allocator.ts';

export interface RendezvousEnvironment extends Pick<FabricOptions, 'clock' | 'random' | 'polling'> {
  readonly providers: readonly FabricProvider[];
  /** The user's settings, of which each provider reads its own. */
  readonly settings: Settings | undefined;
  readonly regions: RegionAllocator;
}

/** @throws ShoalError `config` when a setting is malformed. */
export function systemEnvironment(variables: Environment = process.env): RendezvousEnvironment {
  const settings = readSettings(variables);
  return {
    clock: systemClock,
    random: systemRandom,
    providers: fabricProviders,
    settings,
    regions: createRegionAllocator({ native: loadNative({ enabled: settings.native }) }),
    polling: new EventPolling(systemClock),
  };
}
