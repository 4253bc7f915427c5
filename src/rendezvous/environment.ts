/** What a rendezvous worker takes from the machine: everything it does runs the same in another thread, given another of these. */
import { systemClock, type Clock } from '../base/clock.ts';
import { systemRandom, type Random } from '../base/random.ts';
import { EventPolling } from '../fabric/event-polling.ts';
import type { FabricProvider } from '../fabric/fabric.ts';
import { fabricProviders } from '../fabric/providers.ts';
import { loadNative } from '../memory/native.ts';
import type { RegionAllocator } from '../memory/region.ts';
import { createRegionAllocator } from '../memory/regions/allocator.ts';

export interface RendezvousEnvironment {
  readonly clock: Clock;
  readonly random: Random;
  readonly providers: readonly FabricProvider[];
  readonly regions: RegionAllocator;
  /** Default: threads sleep until something comes. */
  readonly polling?: EventPolling;
}

export function systemEnvironment(): RendezvousEnvironment {
  const regions = createRegionAllocator({ native: loadNative({ enabled: true }) });
  return { clock: systemClock, random: systemRandom, providers: fabricProviders, regions, polling: new EventPolling(systemClock) };
}
