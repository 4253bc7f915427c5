/** The timed loop. No barrier between iterations, as in the programs with which Shoal is compared: a rank that is ahead waits
 *  inside the next call, and its sample says so.
 *
 *    touch all buffers │ clock │ start 0 … start K−1 │ wait 0, start K │ … │ wait N−1 │ clock
 *                              └───────────── one sample: N operations, K in flight ─────────────┘ */
import type { Stopwatch } from '../../base/clock.ts';
import type { ProcessGroup } from '../../group/caller/types.ts';
import type { Operation, Pending } from './operation.ts';
import type { BenchOptions } from './options.ts';

/** `parallel` is at least 1. */
export interface MeasureOptions extends Pick<BenchOptions, 'parallel' | 'wait' | 'touch'> {
  readonly operations: readonly Operation[];
  readonly iterations: number;
  readonly stopwatch: Stopwatch;
}

/** Microseconds per operation, one sample per iteration. */
export async function measure(options: MeasureOptions): Promise<Float64Array> {
  const { operations, iterations, stopwatch, touch } = options;
  const samples = new Float64Array(iterations);
  if (touch === 'once') for (const operation of operations) operation.touch();
  const [only] = operations;
  // The commonest case has loops that contain only the call.
  if (operations.length === 1 && options.wait === 'sync') {
    for (let i = 0; i < iterations; i++) {
      if (touch === 'each') only.touch();
      const startUs = stopwatch.nowUs();
      only.start().waitSync();
      samples[i] = stopwatch.nowUs() - startUs;
    }
    return samples;
  }
  for (let i = 0; i < iterations; i++) {
    if (touch === 'each') for (const operation of operations) operation.touch();
    const startUs = stopwatch.nowUs();
    if (operations.length === 1) await only.start();
    else await runAll(options);
    samples[i] = (stopwatch.nowUs() - startUs) / operations.length;
  }
  return samples;
}

/** Runs every operation once, at most `parallel` of them at a time. */
export async function runAll({ operations, parallel, wait }: Pick<MeasureOptions, 'operations' | 'parallel' | 'wait'>): Promise<void> {
  const started: Pending[] = [];
  const finish = async (index: number): Promise<void> => {
    if (wait === 'sync') started[index].waitSync();
    else await started[index];
  };
  for (const [index, operation] of operations.entries()) {
    if (index >= parallel) await finish(index - parallel);
    started.push(operation.start());
  }
  for (let index = Math.max(0, operations.length - parallel); index < operations.length; index++) await finish(index);
}

/** Number of wrong elements of this rank after `checks` calls of each operation; null when nothing is checked. */
export async function countWrong(
  group: ProcessGroup,
  operations: readonly Operation[],
  { checks, parallel, wait }: Pick<MeasureOptions, 'parallel' | 'wait'> & { readonly checks: number },
): Promise<number | null> {
  if (checks === 0) return null;
  let wrong = 0;
  for (let round = 0; round < checks; round++) {
    for (const operation of operations) operation.arm();
    await runAll({ operations, parallel, wait });
    // Peers may read and write each other's tensors, so no rank checks before all have finished.
    await group.barrier();
    for (const operation of operations) wrong += operation.wrong();
    await group.barrier();
  }
  return wrong;
}
