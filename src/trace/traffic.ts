/** Sums of bytes from rank to rank, the source of a link matrix. Counting allocates nothing once a pair has been seen. The causes
 *  and times of movements are not known here. */

/** The bytes that one operation moves from one rank to another each time it runs. */
export interface Movement {
  readonly from: number;
  readonly to: number;
  readonly bytes: number;
  /** Number of pieces. */
  readonly transfers: number;
}

/** All traffic of a pair of world ranks; plain data, for another thread, and for the file. */
export type TrafficRow = readonly [from: number, to: number, bytes: number, transfers: number];

/** The traffic of one thread. */
export class Traffic {
  /** Sums by the sender, then by the receiver. */
  readonly #pairs = new Map<number, Map<number, { bytes: number; transfers: number }>>();

  /** @param ranks world ranks of the indices in the movements. */
  add(ranks: readonly number[], movements: readonly Movement[]): void {
    for (const { from, to, bytes, transfers } of movements) this.addOne(ranks[from], ranks[to], bytes, transfers);
  }

  addOne(from: number, to: number, bytes: number, transfers: number): void {
    const pair = this.#pairs.get(from)?.get(to) ?? this.#open(from, to);
    pair.bytes += bytes;
    pair.transfers += transfers;
  }

  rows(): TrafficRow[] {
    return [...this.#pairs].flatMap(([from, receivers]) =>
      [...receivers].map(([to, { bytes, transfers }]): TrafficRow => [from, to, bytes, transfers]),
    );
  }

  #open(from: number, to: number): { bytes: number; transfers: number } {
    const receivers = this.#pairs.get(from) ?? new Map<number, { bytes: number; transfers: number }>();
    this.#pairs.set(from, receivers);
    const pair = { bytes: 0, transfers: 0 };
    receivers.set(to, pair);
    return pair;
  }
}

/** Joins rows of several threads to one row of each pair. */
export function mergedTraffic(parts: readonly (readonly TrafficRow[])[]): TrafficRow[] {
  const sum = new Traffic();
  for (const [from, to, bytes, transfers] of parts.flat()) sum.addOne(from, to, bytes, transfers);
  return sum.rows();
}
