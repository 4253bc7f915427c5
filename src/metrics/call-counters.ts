/** Counts of a thread's calls: a row of numbers for each group, collective and path, in memory that another thread may read.
 *
 *      row   calls · bytes · seconds · calls by duration: a bucket for each bound, and one beyond
 *
 *  Bounded: groups with a larger number share the last place. One thread writes. */
import { collectives } from '../plan/ir.ts';
import { sample, type MetricKey, type Sample } from './definitions.ts';

/** Kinds that are counted: collectives and messages. */
const kinds = [...collectives, 'send', 'recv'] as const;
export type CountedKind = (typeof kinds)[number];

/** The way of a call, as the timeline names it. */
const paths = ['comm thread', 'host path', 'network path'] as const;
export type CountedPath = (typeof paths)[number];

/** Groups with counts of their own, and one place for all others. */
const groupsMax = 16;
/** Upper bounds of the buckets, in seconds. */
export const bounds = [1e-6, 4e-6, 1.6e-5, 6.4e-5, 2.56e-4, 1e-3, 4e-3, 1.6e-2, 6.4e-2, 0.256, 1, 4, 16, 64] as const;
const secondsAt = 2;
const bucketsAt = 3;
const rowWords = bucketsAt + bounds.length + 1;
const groupWords = kinds.length * paths.length * rowWords;

/** Numbers that the counts of a thread take. */
export const counterWords = groupsMax * groupWords;

export class CallCounters {
  readonly #words: Float64Array;

  /** @param words zeros at first. Default: memory of this thread's own. */
  constructor(words: Float64Array = new Float64Array(counterWords)) {
    this.#words = words;
  }

  row(group: number, kind: CountedKind, path: CountedPath): number {
    return Math.min(group, groupsMax - 1) * groupWords + (kinds.indexOf(kind) * paths.length + paths.indexOf(path)) * rowWords;
  }

  /** @param bytes of all of them. */
  count(row: number, bytes: number, calls = 1): void {
    this.#words[row] += calls;
    this.#words[row + 1] += bytes;
  }

  /** @param calls number of calls that took this time. */
  time(row: number, seconds: number, calls = 1): void {
    let bucket = 0;
    while (bucket < bounds.length && seconds > bounds[bucket]) bucket++;
    this.#words[row + secondsAt] += seconds * calls;
    this.#words[row + bucketsAt + bucket] += calls;
  }

  /** A new group has a number that another one had. */
  clear(group: number): void {
    if (group < groupsMax - 1) this.#words.fill(0, group * groupWords, (group + 1) * groupWords);
  }

  /** Values of all rows that count something, together with the counts of another thread. @param names of groups, by number. */
  samples(names: ReadonlyMap<number, string>, other: CallCounters): Sample[] {
    const sums = Float64Array.from(this.#words, (value, at) => value + other.#words[at]);
    const result: Sample[] = [];
    for (let row = 0; row < sums.length; row += rowWords) {
      const place = Math.floor(row / groupWords);
      const group = place === groupsMax - 1 ? 'other' : names.get(place);
      if (sums[row] === 0 || group === undefined) continue;
      const within = (row % groupWords) / rowWords;
      const [collective, path] = [kinds[Math.floor(within / paths.length)], paths[within % paths.length]];
      result.push(...rowSamples(sums.subarray(row, row + rowWords), { group, collective, path }));
    }
    return result;
  }
}

function rowSamples(row: Float64Array, labels: Sample['labels']): Sample[] {
  const of = (metric: MetricKey, value: number): Sample => sample(metric, value, labels);
  const timed = { count: 0 };
  const buckets = Array.from(row.subarray(bucketsAt), (calls, at) => {
    timed.count += calls;
    return sample('seconds', timed.count, { ...labels, le: at < bounds.length ? bounds[at] : '+Inf' }, '_bucket');
  });
  const [sum, count] = [sample('seconds', row[secondsAt], labels, '_sum'), sample('seconds', timed.count, labels, '_count')];
  return [of('calls', row[0]), of('bytes', row[1]), ...buckets, sum, count];
}
