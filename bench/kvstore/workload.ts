/** The workload of every contestant: push and pull lists of keys, again and again, with values that are written before each time,
 *  as training does, and checked after it. The slowest worker of an iteration counts; run.ts finds it.
 *
 *  Environment: BENCH_ROWS, JSON of `Row[]`; BENCH_WARM_UPS, iterations that are not counted; BENCH_RESULTS, a folder that gets
 *  worker-<rank>.json. */
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { systemStopwatch } from '../../src/base/clock.ts';

export interface Row {
  readonly name: string;
  readonly keys: number;
  /** Bytes of each key. */
  readonly bytes: number;
  readonly iterations: number;
}

/** Microseconds per iteration, by name of the row. */
export type Times = Record<string, number[]>;

export interface Prepared {
  /** Values, written before each iteration. */
  readonly values: readonly Float32Array[];
  /** Memory of the results; may be the values'. */
  readonly outs: readonly Float32Array[];
  pushPull(): Promise<void>;
}

export interface Contestant {
  readonly rank: number;
  readonly workers: number;
  barrier(): Promise<void>;
  prepare(row: Row): Promise<Prepared>;
}

const warmUps = Number(process.env.BENCH_WARM_UPS ?? 1);

/** Measures every row and writes this worker's times. */
export async function measure({ rank, workers, barrier, prepare }: Contestant): Promise<void> {
  const rows = JSON.parse(process.env.BENCH_ROWS ?? '[]') as Row[];
  const times: Times = {};
  for (const row of rows) {
    const { values, outs, pushPull } = await prepare(row);
    times[row.name] = [];
    for (let i = -warmUps; i < row.iterations; i++) {
      for (const value of values) value.fill(rank + 1 + i + warmUps);
      await barrier();
      const startUs = systemStopwatch.nowUs();
      await pushPull();
      if (i >= 0) times[row.name].push(systemStopwatch.nowUs() - startUs);
      check(outs, (workers * (workers + 1)) / 2 + workers * (i + warmUps));
    }
  }
  writeFileSync(join(process.env.BENCH_RESULTS ?? '.', `worker-${rank}.json`), JSON.stringify(times));
}

/** Checks some elements of every output; a contestant that is fast and wrong must not win. */
function check(outs: readonly Float32Array[], expected: number): void {
  for (const [key, out] of outs.entries()) {
    for (const at of [0, out.length >> 1, out.length - 1]) {
      if (out[at] !== expected) throw new Error(`key ${key}, element ${at} is ${out[at]}, not ${expected}`);
    }
  }
}
