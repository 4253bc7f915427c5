/** Credit and partition of a scheduled store, and the tuning that changes them, over all its workers: worker 0 measures and decides, the
 *  others are told by blobs. A worker that tunes while others do not waits for them when it initialises the first parameter, and says
 *  so. */
import { totalmem } from 'node:os';
import { textOf } from '../../base/bytes.ts';
import type { Clock } from '../../base/clock.ts';
import { isShoalError, ShoalError } from '../../base/errors.ts';
import { createLogger } from '../../base/log.ts';
import { seededRandom } from '../../base/random.ts';
import type { Settings } from '../../base/settings/settings.ts';
import type { SchedulingStatus } from '../../group/caller/types.ts';
import { rememberedPoints } from '../../group/comm/schedule/remembered-points.ts';
import type { TypedArray } from '../../memory/dtype.ts';
import type { Core } from '../../scheduler/core.ts';
import { StepTuning } from '../../scheduler/tuner/step-tuning.ts';
import {
  describeSpace,
  spaceOf,
  tuningOf,
  type PointChange,
  type SearchSpace,
  type TuningOptions,
  type TuningSpec,
} from '../../scheduler/tuner/tuner.ts';
import type { Backend } from '../calls/operation.ts';

export interface StoreSchedulingOptions {
  /** The store underneath. */
  readonly inner: Backend;
  readonly core: Core;
  readonly clock: Clock;
  readonly settings: Settings;
  /** The caller's choice. Undefined: by the settings. */
  readonly tuning: TuningOptions | boolean | undefined;
  readonly timeoutMs: number;
  /** Operations end when other workers have made theirs: the credit is that of the store's own links. */
  readonly needsOthers: boolean;
}

const changeName = 'shoal/schedule/change';
const presenceName = 'shoal/schedule/tunes';

export class StoreScheduling {
  /** No part is larger, whatever the tuning comes to. */
  readonly partLimitBytes: number;
  readonly #options: StoreSchedulingOptions;
  /** The space that is searched. Undefined: nothing is tuned. */
  readonly #space: SearchSpace | undefined;
  readonly #steps: StepTuning | undefined;
  #agreed: Promise<void> | undefined;
  #linkCreditBytes: number;
  #state: SchedulingStatus['tuning'] = 'fixed';
  #sinceStep = 0;

  /** @throws ShoalError `usage` for what cannot be tuned. */
  constructor(options: StoreSchedulingOptions) {
    this.#options = options;
    const { inner, core, clock, settings, needsOthers } = options;
    const { type, rank, numWorkers, numServers } = inner.place;
    this.#linkCreditBytes = settings.creditBytes;
    // Calls of a collective store are passed on as they are made.
    const spec = needsOthers && type === 'collective' ? undefined : tuningSpecOf(options);
    this.#space = spec?.space;
    this.partLimitBytes = Math.min(core.partitionBytes, spec?.space.partitionBytes?.least ?? Infinity);
    if (spec === undefined) return;
    this.#state = 'tuning';
    this.#steps = new StepTuning({
      spec,
      leads: rank === 0,
      clock,
      // It draws points that cover the space: any do.
      random: seededRandom(1),
      memory: rememberedPoints({
        folder: settings.scheduleTuningDir,
        world: `${numWorkers}-workers`,
        network: `${type}-${numServers}-servers`,
        space: spec.space,
        log: createLogger({ level: settings.logLevel, clock, speaker: `store of worker ${rank}` }),
      }),
      tell: (change) => this.#tell(change),
      onApplied: (change) => this.#apply(change),
      // Parts of a store need not be alike on all workers.
      late: 'apply',
    });
  }

  /** Credit and partition that are in force. */
  get status(): SchedulingStatus {
    const { core, needsOthers } = this.#options;
    const creditBytes = needsOthers ? this.#linkCreditBytes : core.creditBytes;
    return { creditBytes, partitionBytes: core.partitionBytes, tuning: this.#state, sinceStep: this.#sinceStep };
  }

  /** Called before the first parameter, with all workers. @throws ShoalError `mismatch` for a worker that does not tune alike. */
  agree(): Promise<void> | undefined {
    if (this.#space !== undefined) this.#agreed ??= this.#agree(this.#space);
    return this.#agreed;
  }

  /** An operation on a parameter begins. */
  begin(kind: string, key: string, bytes: number): void {
    this.#steps?.begin(`${kind} ${key}`, bytes);
  }

  async #agree(own: SearchSpace): Promise<void> {
    const { inner, timeoutMs } = this.#options;
    const { rank, numWorkers } = inner.place;
    const others = Array.from({ length: numWorkers }, (_, worker) => worker).filter((worker) => worker !== rank);
    const waited = rank === 0 ? others : [0];
    for (const worker of waited) await this.#send(worker, presenceName, own);
    for (const worker of waited) {
      try {
        this.#compare(worker, own, (await inner.ask({ type: 'receive-blob', worker, name: presenceName, timeoutMs })) as Uint8Array);
      } catch (thrown) {
        if (!isShoalError(thrown) || thrown.code !== 'timeout') throw thrown;
        const alone = `worker ${rank} tunes credit and partition, and worker ${worker} has not said within ${timeoutMs} ms that it does`;
        throw new ShoalError('mismatch', `${alone}: tune on all workers, or on none`, { peer: worker, cause: thrown });
      }
    }
    if (rank === 0) return;
    // Told while this worker's thread waits for a step, it is applied in time.
    const onValues = (values: TypedArray): void => this.#steps?.receive(JSON.parse(textOf(values as Uint8Array)) as PointChange);
    inner.set({ type: 'listen', worker: 0, name: changeName, onValues });
  }

  /** Parameters are cut by the least partition. */
  #compare(worker: number, own: SearchSpace, theirs: Uint8Array): void {
    const texts = [own, JSON.parse(textOf(theirs)) as SearchSpace].map(describeSpace);
    if (texts[0] === texts[1]) return;
    const differs = `worker ${this.#options.inner.place.rank} tunes ${texts[0]}, and worker ${worker} ${texts[1]}`;
    throw new ShoalError('mismatch', `${differs}: tune in the same space on all workers`, { peer: worker });
  }

  #tell(change: PointChange): void {
    for (let worker = 1; worker < this.#options.inner.place.numWorkers; worker++) {
      // A worker that cannot be told has other troubles, which the store's calls name.
      this.#send(worker, changeName, change).catch(() => undefined);
    }
  }

  async #send(worker: number, name: string, said: SearchSpace | PointChange): Promise<void> {
    const values = new TextEncoder().encode(JSON.stringify(said));
    await this.#options.inner.ask({ type: 'send-blob', worker, blob: { kind: 'feature', name, dtype: 'uint8', values } });
  }

  #apply({ atStep, point: { creditBytes, partitionBytes }, isFinal }: PointChange): void {
    const { inner, core, needsOthers } = this.#options;
    if (creditBytes !== undefined && needsOthers) {
      inner.set({ type: 'credit', creditBytes });
      this.#linkCreditBytes = creditBytes;
    } else if (creditBytes !== undefined) core.setCredit(creditBytes);
    if (partitionBytes !== undefined) core.setPartition(partitionBytes);
    this.#state = isFinal ? 'converged' : 'tuning';
    this.#sinceStep = atStep;
  }
}

/** Undefined: nothing is tuned. */
function tuningSpecOf({ tuning, settings }: StoreSchedulingOptions): TuningSpec | undefined {
  if (tuning !== undefined) return tuningOf('ScheduledKVStore', tuning, { kind: 'parameter-server', memoryBytes: totalmem() });
  const { scheduleCreditTuning: credit, schedulePartitionTuning: partition } = settings;
  return credit || partition ? { space: spaceOf('parameter-server', { credit, partition }) } : undefined;
}
