/** Stores that need no servers, made from the environment. */
import { systemClock } from '../../base/clock.ts';
import { createLogger } from '../../base/log.ts';
import { readSettings, type Environment } from '../../base/settings/settings.ts';
import { initProcessGroup } from '../../group/init.ts';
import { createKernels } from '../../memory/kernels/create-kernels.ts';
import { loadNative } from '../../memory/native.ts';
import { createParameterKernels } from '../../memory/parameter-kernels/create-parameter-kernels.ts';
import { createRegionAllocator } from '../../memory/regions/allocator.ts';
import { CollectiveStore } from '../collective/collective-store.ts';
import { LocalStore } from './local-store.ts';
import type { KVStore } from '../values/types.ts';

export function createLocal(environment: Environment): KVStore {
  const { native: enabled, timeoutMs, logLevel } = readSettings(environment);
  const native = loadNative({ enabled });
  return new LocalStore({
    log: createLogger({ level: logLevel, clock: systemClock, speaker: 'store' }),
    kernels: createKernels({ native }),
    parameterKernels: createParameterKernels({ native }),
    allocator: createRegionAllocator({ native }),
    clock: systemClock,
    timeoutMs,
  });
}

/** Joins the world of the environment; closing the store leaves it. @throws as `initProcessGroup`. */
export async function createCollective(environment: Environment): Promise<KVStore> {
  const { native: enabled, timeoutMs, logLevel } = readSettings(environment);
  const native = loadNative({ enabled });
  const group = await initProcessGroup({ environment });
  try {
    return await CollectiveStore.open({
      group,
      log: createLogger({ level: logLevel, clock: systemClock, speaker: `store of worker ${group.rank}` }),
      kernels: createKernels({ native }),
      parameterKernels: createParameterKernels({ native }),
      clock: systemClock,
      timeoutMs,
      onClosed: () => group.destroy(),
    });
  } catch (error) {
    await group.destroy();
    throw error;
  }
}
