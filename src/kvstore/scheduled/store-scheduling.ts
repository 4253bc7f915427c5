/** Credit and partition of a scheduled store: where they are, and the tuning that changes them. */
import { totalmem } from 'node:os';
import type { Clock } from '../../base/clock.ts';
import { createLogger } from '../../base/log.ts';
import type { Settings } from '../../base/settings/settings.ts';
import type { SchedulingStatus } from '../../group/caller/types.ts';
import { rememberedPoints } from '../../group/comm/schedule/remembered-points.ts';
import type { Core } from '../../scheduler/core.ts';
import type { PointMemory } from '../../scheduler/tuner/step-tuning.ts';
import { spaceOf, tuningOf, type PointChange, type SearchSpace, type TuningOptions, type TuningSpec } from '../../scheduler/tuner/tuner.ts';
import type { Backend, StorePlace } from '../calls/operation.ts';
import { StoreTuning } from './store-tuning.ts';

export interface StoreSchedulingOptions {
  /** The store underneath. */
  readonly inner: Backend;
  readonly core: Core;
  readonly clock: Clock;
  readonly settings: Settings;
  /** As asked for. Undefined: by the settings. */
  readonly tuning: TuningOptions | boolean | undefined;
  readonly timeoutMs: number;
  /** Operations end when other workers have made theirs: the credit is that of the store's own links. */
  readonly needsOthers: boolean;
}

export class StoreScheduling {
  /** No part is larger, whatever the tuning comes to. */
  readonly partLimitBytes: number;
  readonly #options: StoreSchedulingOptions;
  readonly #tuning: StoreTuning | undefined;
  #linkCreditBytes: number;
  #state: SchedulingStatus['tuning'] = 'fixed';
  #sinceStep = 0;

  /** @throws ShoalError `usage` for what cannot be tuned. */
  constructor(options: StoreSchedulingOptions) {
    this.#options = options;
    const { inner, core, clock, settings, timeoutMs, needsOthers } = options;
    this.#linkCreditBytes = settings.creditBytes;
    // Calls of a collective store are passed on as they are made.
    const spec = needsOthers && inner.place.type === 'collective' ? undefined : tuningSpecOf(options);
    this.partLimitBytes = Math.min(core.partitionBytes, spec?.space.partitionBytes?.least ?? Infinity);
    if (spec === undefined) return;
    this.#state = 'tuning';
    const memory = memoryOf(inner.place, clock, settings, spec.space);
    this.#tuning = new StoreTuning({ inner, spec, clock, timeoutMs, memory, onApplied: (change) => this.#apply(change) });
  }

  /** What is in force. */
  get status(): SchedulingStatus {
    const { core, needsOthers } = this.#options;
    const creditBytes = needsOthers ? this.#linkCreditBytes : core.creditBytes;
    return { creditBytes, partitionBytes: core.partitionBytes, tuning: this.#state, sinceStep: this.#sinceStep };
  }

  /** Before the first parameter, with all workers. @throws ShoalError `mismatch` for a worker that does not tune alike. */
  agree(): Promise<void> | undefined {
    return this.#tuning?.agree();
  }

  /** An operation on a parameter begins. */
  begin(kind: string, key: string, bytes: number): void {
    this.#tuning?.begin(kind, key, bytes);
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

function memoryOf(place: StorePlace, clock: Clock, settings: Settings, space: SearchSpace): PointMemory | undefined {
  return rememberedPoints({
    folder: settings.scheduleTuningDir,
    world: `${place.numWorkers}-workers`,
    network: `${place.type}-${place.numServers}-servers`,
    space,
    log: createLogger({ level: settings.logLevel, clock, speaker: `store of worker ${place.rank}` }),
  });
}
