/** The measured seconds of each test file: `TEST_DURATIONS=write npm test` on a machine that does nothing else writes
 *  test/durations.json, in whole seconds, without files that take less than one. */
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { TestModule } from 'vitest/node';
import { repositoryRoot } from './repository.ts';

const path = join(repositoryRoot, 'test/durations.json');

/** Files of src/ that take this long run in a process of their own: what runs beside them would change their speed, and they its. */
export const longSeconds = 15;

/** Seconds by test file. */
export function readDurations(): ReadonlyMap<string, number> {
  return new Map(Object.entries(JSON.parse(readFileSync(path, 'utf8')) as Record<string, number>));
}

/** True when this run is there to measure. */
export const isMeasured = process.env.TEST_DURATIONS === 'write';

export function writeDurations(modules: readonly TestModule[]): void {
  const seconds = modules.map((module): [string, number] => [module.relativeModuleId, Math.round(module.diagnostic().duration / 1000)]);
  const long = seconds.filter(([, duration]) => duration > 0).toSorted(([a], [b]) => (a < b ? -1 : 1));
  writeFileSync(path, `${JSON.stringify(Object.fromEntries(long), null, 2)}\n`);
}
