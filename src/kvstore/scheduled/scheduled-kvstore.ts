/** ByteScheduler's `ScheduledKVStore`: wraps any store. Invalid arguments are refused before any effect. */
import { ShoalError } from '../../base/errors.ts';
import { anyNumber, anyObject, anyText, anything, checkOptions, describeValue, noOptions, optionTable } from '../../base/schema.ts';
import type { DependencyEngine } from '../../engine/engine.ts';
import type { Variable } from '../../engine/variable.ts';
import type { SchedulingStatus } from '../../group/caller/types.ts';
import type { Core, ShutdownMode } from '../../scheduler/core.ts';
import { CheckedStore, serverRefusal } from '../calls/checked-store.ts';
import type { KVStore, Value } from '../calls/types.ts';
import { elementsOf } from '../calls/values-argument.ts';
import { ScheduledBackend, type ScheduledKVStoreOptions } from './scheduled-backend.ts';

const scheduledOptions = optionTable<ScheduledKVStoreOptions>({
  creditBytes: anyNumber,
  partitionBytes: anyNumber,
  timeoutMs: anyNumber,
  tuning: anything,
  engine: anyObject,
  observer: anyObject,
  clock: anyObject,
  environment: anyObject,
});
const closeOptions = optionTable<{ readonly mode?: ShutdownMode }>({ mode: anyText });

/** A store whose pushes and pulls go in the order in which the next step needs them: parameters are cut into parts, and the parts of
 *  what has the higher `priority` start first, within a credit of bytes in flight. Its calls are those of the store underneath, which it
 *  owns from now on; all workers wrap theirs alike.
 *
 *      const kv = new ScheduledKVStore(await create('dist_async'));
 *      kv.push(layer, gradients[layer], { priority: -layer });
 *      kv.pull(layer, weights[layer], { priority: -layer }); */
export class ScheduledKVStore extends CheckedStore {
  readonly #backend: ScheduledBackend | undefined;

  /** @throws ShoalError `usage` for a credit or partition that cannot be. */
  constructor(store: KVStore, options: ScheduledKVStoreOptions = noOptions) {
    checkOptions('ScheduledKVStore', options, scheduledOptions);
    const end = CheckedStore.endOf(store);
    if (end === undefined)
      throw new ShoalError('usage', `ScheduledKVStore: the first argument is a store of create, not ${describeValue(store)}`);
    // A server has nothing to schedule.
    const backend = 'served' in end ? undefined : new ScheduledBackend(end, () => store.close(), options);
    super(backend ?? end);
    this.#backend = backend;
  }

  /** Credit and partition can be changed here, and the queue be looked at. */
  get core(): Core {
    return this.#scheduled.core;
  }

  /** Credit and partition that are in force, and whether they are tuned. */
  get scheduling(): SchedulingStatus {
    return this.#scheduled.scheduling;
  }

  /** The engine through which others work on values that they push and pull. */
  get engine(): DependencyEngine {
    return this.#scheduled.engine;
  }

  /** The engine's variable of a value that pushes read and pulls write. After a failure a value has a new one. */
  variableOf(value: Value): Variable {
    elementsOf(value);
    return this.#scheduled.variableOf(value);
  }

  /** `drain` (default): what was called is done first. `abort`: what has not started fails. */
  override async close(options: { readonly mode?: ShutdownMode } = noOptions): Promise<void> {
    checkOptions('close', options, closeOptions);
    const { mode = 'drain' } = options;
    if (mode !== 'drain' && mode !== 'abort')
      throw new ShoalError('usage', `close: mode is 'drain' or 'abort', not ${describeValue(mode)}`);
    return this.end(mode);
  }

  /** @throws ShoalError `usage` on servers. */
  get #scheduled(): ScheduledBackend {
    if (this.#backend === undefined) throw serverRefusal();
    return this.#backend;
  }
}
