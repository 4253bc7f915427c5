/** Jobs of the launcher whose output several cases of a file read. */
import { shoal, type Ended } from '../../fixtures/launch-harness.ts';

export interface SharedJob {
  /** The way of its data, for titles. */
  readonly place: string;
  /** Its end and output; the first call starts it. */
  readonly job: () => Promise<Ended>;
}

const places: readonly (readonly [string, Readonly<Record<string, string>>])[] = [
  ['in shared memory', {}],
  ['over TCP', { SHOAL_FABRICS: 'tcp' }],
];

/** One job for each way of its data. */
export function sharedJobs(...args: readonly string[]): SharedJob[] {
  return places.map(([place, env]) => {
    let ended: Promise<Ended> | undefined;
    return { place, job: () => (ended ??= shoal(['run', ...args], { env }).ended) };
  });
}
