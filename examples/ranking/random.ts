/** Numbers for generators of examples. */
import type { seededRandom } from 'shoal/ddp';

export type Random = ReturnType<typeof seededRandom>;

/** A number of the standard normal distribution. */
export function normal(random: Random): number {
  return Math.sqrt(-2 * Math.log(1 - random.next())) * Math.cos(2 * Math.PI * random.next());
}
