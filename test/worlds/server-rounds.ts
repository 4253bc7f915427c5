/** A rank's calls to the parameter servers, and the expected answers. Every parameter begins as zeros, and every worker pushes it in each
 *  of its rounds; the optimiser subtracts the sum of a round. A push that is lost or counts twice shows in every later pull. */
import type { KVStore, KVWork } from '../../src/kvstore/calls/types.ts';
import { parameterCounts, type Action } from './world-plan.ts';
import { wrong, type Ending } from './ending.ts';

const matrix = { key: 'rows', rows: 9, width: 3 } as const;
const nameOf = (count: number): string => `w${count}`;

interface Place {
  readonly rank: number;
  readonly size: number;
}

export class ServerRounds {
  readonly #store: KVStore;
  readonly #place: Place;
  /** Number of pushes of this rank, by parameter. A pull contains as many of every other rank. */
  readonly #rounds = new Map<string, number>();

  private constructor(store: KVStore, place: Place) {
    this.#store = store;
    this.#place = place;
  }

  static async begin(store: KVStore, place: Place): Promise<ServerRounds> {
    await store.init(
      parameterCounts.map(nameOf),
      parameterCounts.map((count) => new Float32Array(count)),
    );
    await store.init(matrix.key, new Float32Array(matrix.rows * matrix.width), { shape: [matrix.rows, matrix.width] });
    if (place.rank === 0) await store.setOptimizer({ name: 'sgd', learningRate: 1 });
    return new ServerRounds(store, place);
  }

  /** Begins a call. @returns the function that ends it. */
  call({ call, count }: Extract<Action, { on: 'servers' }>, index: number): Ending {
    const key = nameOf(count);
    const out = new Float32Array(count);
    switch (call) {
      case 'push-pull':
        return this.#end(this.#store.pushPull(key, out.fill(this.#next(key)), out), this.#expect(key, out, index));
      case 'push':
        return this.#end(this.#store.push(key, out.fill(this.#next(key))), () => undefined);
      case 'pull':
        return this.#end(this.#store.pull(key, out), this.#expect(key, out, index));
      case 'rows':
        return this.#callRows(index);
    }
  }

  /** Pushes the row of this rank and the one below, and pulls all. */
  #callRows(index: number): Ending {
    const { key, rows, width } = matrix;
    const { rank, size } = this.#place;
    const values = new Float32Array(2 * width).fill(this.#next(key));
    const pushed = this.#store.rowSparsePush(key, { indices: Int32Array.of(rank, rank + 1), values });
    const out = new Float32Array(rows * width);
    const pulled = this.#store.rowSparsePull(key, out, { rowIds: Int32Array.from({ length: rows }, (_, row) => row) });
    const round = this.#rounds.get(key)!;
    const check = (): void => {
      for (const [k, value] of out.entries()) {
        const row = Math.floor(k / width);
        const expected = -(row < size ? sumOf([row], round) : 0) - (row > 0 && row <= size ? sumOf([row - 1], round) : 0);
        if (value !== expected) wrong(this.#place, index, `row ${row} of the servers has ${value}, not ${expected}`);
      }
    };
    const end = this.#end(pulled, check);
    const pushEnd = this.#end(pushed, () => undefined);
    return async () => {
      await pushEnd();
      await end();
    };
  }

  #next(key: string): number {
    const round = this.#rounds.get(key) ?? 0;
    this.#rounds.set(key, round + 1);
    return valueOf(this.#place.rank, round);
  }

  /** Makes the check of a pull that begins now. */
  #expect(key: string, out: Float32Array, index: number): () => void {
    const ranks = Array.from({ length: this.#place.size }, (_, rank) => rank);
    const expected = 0 - sumOf(ranks, this.#rounds.get(key) ?? 0);
    return () => {
      if (out.some((value) => value !== expected)) wrong(this.#place, index, `the servers have ${out[0]} for '${key}', not ${expected}`);
    };
  }

  #end(work: KVWork, check: () => void): Ending {
    // The code that awaits the work gets its error, so this rejection is not unhandled.
    work.then(undefined, () => undefined);
    return async () => {
      await work;
      check();
    };
  }
}

const valueOf = (rank: number, round: number): number => rank + 1 + round;

/** Sum of the pushes of these ranks in this many rounds. */
function sumOf(ranks: readonly number[], rounds: number): number {
  let sum = 0;
  for (const rank of ranks) for (let round = 0; round < rounds; round++) sum += valueOf(rank, round);
  return sum;
}
