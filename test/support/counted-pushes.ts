/** Pushes whose sum tells their number: every push adds one to every element, exactly, whatever happens to servers meanwhile. */
import { expect } from 'vitest';
import type { Random } from '../../src/base/random.ts';
import type { KVStore } from '../../src/kvstore/calls/types.ts';
import type { KVJob } from './kv-job.ts';

export interface KillOptions {
  readonly random: Random;
  readonly kills: number;
  /** Most rounds between two kills. */
  readonly roundsMax: number;
  /** Most turns of the event loop from a push to a kill. */
  readonly turnsMax: number;
}

export class CountedPushes {
  readonly keys: readonly string[];
  readonly #counts: readonly number[];

  constructor(counts: Readonly<Record<string, number>>) {
    this.keys = Object.keys(counts);
    this.#counts = Object.values(counts);
  }

  /** Arrays of all sizes, filled with one value. */
  arrays(value: number): Float64Array[] {
    return this.#counts.map((count) => new Float64Array(count).fill(value));
  }

  async begin(stores: readonly KVStore[]): Promise<void> {
    await Promise.all(stores.map((kv) => kv.init(this.keys, this.arrays(0))));
    // The optimiser subtracts the gradient: with gradients of −1 every push adds one, exactly.
    await stores[0].setOptimizer({ name: 'sgd', learningRate: 1 });
    await Promise.all(stores.map((kv) => kv.barrier()));
  }

  async push(...stores: readonly KVStore[]): Promise<void> {
    await Promise.all(stores.map((kv) => kv.pushPull(this.keys, this.arrays(-1))));
  }

  async expectSum(kv: KVStore, sum: number): Promise<void> {
    const outs = this.arrays(0);
    await kv.pull(this.keys, outs);
    for (const out of outs) expect(new Set(out)).toEqual(new Set([sum]));
  }

  /** Kills a server and starts it again, in one of some rounds of pushes, again and again. @returns the number of rounds. */
  async pushThroughKills(job: KVJob, stores: readonly KVStore[], { random, kills, roundsMax, turnsMax }: KillOptions): Promise<number> {
    let pushes = 0;
    for (let kill = 0; kill < kills; kill++) {
      const rounds = 1 + random.integer(roundsMax);
      const victim = random.integer(2);
      const after = random.integer(rounds);
      for (let round = 0; round < rounds; round++) {
        const pushed = this.push(...stores);
        if (round === after) {
          // The kill comes sometimes before the pushes have left, sometimes with them half done.
          for (let turn = random.integer(turnsMax); turn > 0; turn--) await new Promise((resolve) => void setImmediate(resolve));
          await job.kill(victim);
          job.startServer(victim);
        }
        await pushed;
        pushes++;
      }
    }
    return pushes;
  }
}
