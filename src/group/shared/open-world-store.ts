/** Where the ranks of a world meet, on the real machine. */
import { systemClock } from '../../base/clock.ts';
import { systemRandom } from '../../base/random.ts';
import { openStore, type OpenedStore } from '../../store/open-store.ts';
import type { WorldPlan } from './comm-protocol.ts';

/** @throws ShoalError as `openStore`. */
export function openWorldStore(plan: WorldPlan, { connectTimeoutMs }: { readonly connectTimeoutMs: number }): Promise<OpenedStore> {
  const { settings, rank, size, url, environment, joinTimeoutMs } = plan;
  return openStore(url, {
    ...{ clock: systemClock, random: systemRandom },
    environment,
    settings,
    rank,
    worldSize: size,
    insecure: settings.insecure ? 'allow' : 'refuse',
    ...{ timeoutMs: joinTimeoutMs, connectTimeoutMs },
    ...(settings.secret === '' ? {} : { secret: settings.secret }),
  });
}
