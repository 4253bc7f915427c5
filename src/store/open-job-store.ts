/** Opens a store for a program: c10d's TCPStore, FileStore and HashStore by their URLs. */
import { systemClock } from '../base/clock.ts';
import { messageOf, ShoalError } from '../base/errors.ts';
import { systemRandom } from '../base/random.ts';
import { anyNumber, anyObject, anyText, checkArgument, checkOptions, noOptions, optionTable } from '../base/schema.ts';
import { readSettings, type Environment } from '../base/settings/settings.ts';
import type { JobStore } from './store.ts';

/** A process's way to the store of its job. */
export interface StoreOptions {
  /** This process's number; needed for `tcp://` and `file://`. */
  readonly rank?: number;
  /** Number of processes; needed with `rank`. */
  readonly worldSize?: number;
  /** The secret of a `tcp://` store: processes that know it may connect. Needed where other hosts can connect. */
  readonly secret?: string;
  /** Timeout of waits that give none. Default 5 minutes. */
  readonly timeoutMs?: number;
  /** Timeout of connecting. Default 30 s. */
  readonly connectTimeoutMs?: number;
  /** Variables that `env://` reads instead of `process.env`. */
  readonly environment?: Environment;
}

const storeOptions = optionTable<StoreOptions>({
  rank: anyNumber,
  worldSize: anyNumber,
  secret: anyText,
  timeoutMs: anyNumber,
  connectTimeoutMs: anyNumber,
  environment: anyObject,
});

/** A store apart from any group: `tcp://host:port` (rank 0 serves, and waits at its `close` a little for the others), `file:///folder`,
 *  `hash://` (this process alone), or `env://`: that of the launcher. In a group's script, take `group.store`.
 *  @throws ShoalError `usage`; `config` for an environment that cannot be understood; `auth`; `timeout` when it does not answer. */
export async function openStore(url: string, options: StoreOptions = noOptions): Promise<JobStore> {
  checkArgument('openStore: url', url, anyText);
  checkOptions('openStore', options, storeOptions);
  for (const limitMs of [options.timeoutMs, options.connectTimeoutMs])
    if (limitMs !== undefined && !(limitMs > 0)) throw new ShoalError('usage', `openStore: limits must be positive, not ${limitMs}`);
  const { rank, worldSize } = options;
  const isPlace = Number.isInteger(rank) && Number.isInteger(worldSize) && Number(rank) >= 0 && Number(rank) < Number(worldSize);
  if ((rank !== undefined || worldSize !== undefined) && !isPlace)
    throw new ShoalError('usage', `openStore: rank ${rank} of ${worldSize} is not possible; ranks are 0…worldSize−1`);
  const { environment = process.env, ...given } = options;
  // Clients and servers of stores are loaded where one is opened.
  const beneath = await import('./open-store.ts');
  try {
    beneath.parseStoreUrl(url);
  } catch (thrown) {
    throw new ShoalError('usage', `openStore: ${messageOf(thrown)}`, { cause: thrown });
  }
  const opened = await beneath.openStore(url, {
    clock: systemClock,
    random: systemRandom,
    environment: { ...environment },
    settings: readSettings(environment),
    ...given,
  });
  return opened.store;
}
