/** The options by which a program schedules all-reduces: checked before ranks agree on them. */
import { totalmem } from 'node:os';
import { ShoalError } from '../../base/errors.ts';
import { checkFields } from '../../base/schema.ts';
import { settingDefinitions } from '../../base/settings/settings.ts';
import { checkBytes } from '../../scheduler/core.ts';
import { tuningOf } from '../../scheduler/tuner/tuner.ts';
import { schedulingOptions } from '../caller/call-options.ts';
import type { SchedulingOptions } from '../caller/types.ts';
import type { Scheduling } from '../../call/group-spec.ts';

/** Smallest parts that a program may ask for: each costs all ranks about as much as a small all-reduce. */
export const { least: partitionBytesMin = 1 } = settingDefinitions.schedulePartitionBytes;

/** @throws ShoalError `usage` for credits and partitions that cannot be. */
export function checkedScheduling(call: string, options: SchedulingOptions, least: number): Partial<Scheduling> {
  checkFields(call, options, schedulingOptions);
  const { creditBytes, partitionBytes, tuning } = options;
  for (const [name, bytes] of Object.entries({ creditBytes, partitionBytes }))
    if (bytes !== undefined) checkBytes(`${call}: ${name}`, bytes, totalmem());
  const spec = tuning === undefined ? undefined : tuningOf(call, tuning, { kind: 'all-reduce', memoryBytes: totalmem() });
  const smallest = Math.min(partitionBytes ?? least, spec?.space.partitionBytes?.least ?? least);
  if (smallest < least) {
    const problem = `partitionBytes must be at least ${least}, not ${smallest}`;
    throw new ShoalError('usage', `${call}: ${problem}: every part costs all ranks about as much as a small all-reduce`);
  }
  return {
    ...(creditBytes === undefined ? {} : { creditBytes }),
    ...(partitionBytes === undefined ? {} : { partitionBytes }),
    ...(tuning === undefined ? {} : { tuning: spec }),
  };
}

/** Checks what comes from the settings; what a program says has been checked before. @throws ShoalError `usage`. */
export function checkSettings({ creditBytes, partitionBytes }: Scheduling): void {
  checkBytes('SHOAL_SCHEDULE_CREDIT_BYTES', creditBytes, totalmem());
  checkBytes('SHOAL_SCHEDULE_PARTITION_BYTES', partitionBytes, totalmem());
}
