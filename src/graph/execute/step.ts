/** One step over partitions of this process: all of them start at once and meet in one rendezvous. The first that fails ends the step on
 *  all of them, with its cause; so do the caller's signal and the time limit. What kernels give later is not looked at. */
import type { Clock } from '../../base/clock.ts';
import { failureOf, ShoalError } from '../../base/errors.ts';
import type { Rendezvous } from '../../rendezvous/table/rendezvous.ts';
import { describeKey } from '../../rendezvous/table/rendezvous-key.ts';
import { describeNode } from '../structure/graph-node.ts';
import type { Value } from '../structure/value.ts';
import type { Executor } from './executor.ts';
import type { Flow } from './step-state.ts';

/** Where the partitions of a step meet each other, and those of other processes. */
export interface StepRendezvous extends Rendezvous<Value> {
  /** Keys that are asked for and have not come. */
  readonly awaited: readonly string[];
  /** Requests so far: a fused receive counts once. */
  readonly requests: number;
}

export interface StepOptions {
  readonly stepId: number;
  readonly feeds: readonly Value[];
  readonly fetchCount: number;
  readonly timeoutMs: number;
  readonly clock: Clock;
  readonly signal?: AbortSignal;
  readonly rendezvous: StepRendezvous;
}

export interface StepOutcome {
  /** Values by fetch; undefined: dead. */
  readonly results: readonly Flow[];
  /** Requests that receives made: what would be RPCs between processes. */
  readonly requests: number;
}

/** @throws ShoalError that names the step: what failed first, `timeout` with what was waited for, `aborted` by the signal. */
export async function runStep(executors: readonly Executor[], options: StepOptions): Promise<StepOutcome> {
  const { stepId, feeds, fetchCount, timeoutMs, clock, signal, rendezvous } = options;
  const abort = new AbortController();
  const results: Flow[] = Array.from({ length: fetchCount });
  const deadlineMs = clock.now() + timeoutMs;
  const runs: ReturnType<Executor['start']>[] = [];
  let stop: (cause: ShoalError) => void = () => {};
  const stopped = new Promise<never>((_, reject) => {
    stop = (cause) => {
      if (abort.signal.aborted) return;
      // The failures of receives must not be the first to be heard.
      reject(cause);
      abort.abort(cause);
      rendezvous.startAbort(cause);
    };
  });
  stopped.catch(() => {});
  const timedOut = (): ShoalError => {
    const waiting = [
      ...rendezvous.awaited.map((key) => `for ${describeKey(key)} (${key})`),
      ...runs.flatMap(({ running }) =>
        running.filter(({ control }) => control === 'kernel').map((node) => `for ${describeNode(node)} on ${node.device}`),
      ),
    ];
    return new ShoalError('timeout', `step ${stepId} did not end within ${timeoutMs} ms: it waits ${listed(waiting)}`, { timeoutMs });
  };
  const onAbort = (): void => stop(cancelledStep(stepId, signal));
  const timer = clock.setTimer(timeoutMs, () => stop(timedOut()), { keepAlive: true });
  signal?.addEventListener('abort', onAbort, { once: true });
  try {
    if (signal?.aborted === true) onAbort();
    const checkTime = (): void => {
      if (clock.now() > deadlineMs) stop(timedOut());
    };
    for (const executor of executors) {
      if (abort.signal.aborted) break;
      const run = executor.start({ stepId, rendezvous, signal: abort.signal, feeds, results, checkTime });
      runs.push(run);
      run.finished.catch((thrown: unknown) => stop(named(stepId, ShoalError.from(thrown))));
    }
    await Promise.race([stopped, Promise.all(runs.map(({ finished }) => finished)).catch(() => stopped)]);
    return { results, requests: rendezvous.requests };
  } finally {
    timer.cancel();
    signal?.removeEventListener('abort', onAbort);
  }
}

/** The caller's signal ended the step; with the cause where it is one. */
export function cancelledStep(stepId: number, signal: AbortSignal | undefined): ShoalError {
  return new ShoalError('aborted', `step ${stepId} was cancelled by its signal`, { cause: signal?.reason });
}

function named(stepId: number, cause: ShoalError): ShoalError {
  return failureOf(`step ${stepId} failed`, cause);
}

const listedMax = 8;

function listed(waiting: readonly string[]): string {
  if (waiting.length === 0) return 'for nodes that have not run';
  const more = waiting.length > listedMax ? ` and ${waiting.length - listedMax} more` : '';
  return `${waiting.slice(0, listedMax).join(', ')}${more}`;
}
