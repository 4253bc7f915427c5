/** One step over partitions of this process: all of them start at once and meet in one rendezvous. The first that fails ends the step on
 *  all of them, with its cause; so do the signals and the time limit. What kernels give later is not looked at. */
import { setMaxListeners } from 'node:events';
import type { Clock } from '../../base/clock.ts';
import { failureOf, isShoalError, ShoalError } from '../../base/errors.ts';
import { describeKey } from '../../rendezvous/table/rendezvous-key.ts';
import type { StepRendezvous } from '../../rendezvous/carriers/step-rendezvous.ts';
import { describeNode } from '../structure/graph-node.ts';
import type { Value } from '../structure/value.ts';
import type { DeviceValues } from './device-values.ts';
import type { Executor } from './executor.ts';
import type { Flow } from './step-state.ts';
import { listed } from '../../base/collections/lists.ts';

export interface StepOptions {
  readonly stepId: number;
  readonly feeds: readonly Value[];
  readonly fetchCount: number;
  readonly timeoutMs: number;
  readonly clock: Clock;
  /** Each of them ends the step. */
  readonly signals: readonly AbortSignal[];
  /** Begun with the step, and ended by whoever ends it. */
  readonly devices: DeviceValues;
  /** The meeting of the partitions with each other, and with those of other processes. */
  readonly rendezvous: StepRendezvous<Value>;
}

export interface StepOutcome {
  /** Values by fetch; undefined: dead. */
  readonly results: readonly Flow[];
  /** Requests that receives made: what would be RPCs between processes. */
  readonly requests: number;
}

/** @throws ShoalError that names the step: what failed first, `timeout` with what was waited for, `aborted` by the signal. */
export function runStep(executors: readonly Executor[], options: StepOptions): Promise<StepOutcome> {
  const { stepId, feeds, fetchCount, timeoutMs, clock, devices, rendezvous } = options;
  devices.begin(stepId);
  const results: Flow[] = Array.from({ length: fetchCount });
  const deadlineMs = clock.now() + timeoutMs;
  const runs: ReturnType<Executor['start']>[] = [];
  const timedOut = (): ShoalError => {
    const waiting = [
      ...rendezvous.awaited.map((key) => `for ${describeKey(key)} (${key})`),
      ...runs.flatMap(({ running }) =>
        running.filter(({ control }) => control === 'kernel').map((node) => `for ${describeNode(node)} on ${node.device}`),
      ),
    ];
    const what = waiting.length === 0 ? 'for nodes that have not run' : listed(waiting);
    return new ShoalError('timeout', `step ${stepId} did not end within ${timeoutMs} ms: it waits ${what}`, { timeoutMs });
  };
  const ending = endTogether({ ...options, timedOut, onEnd: (cause) => rendezvous.startAbort(cause) }, async (signal, fail) => {
    const checkTime = (): void => {
      if (clock.now() > deadlineMs) fail(timedOut());
    };
    for (const executor of executors) {
      if (signal.aborted) break;
      const run = executor.start({ stepId, rendezvous, devices, signal, feeds, results, checkTime });
      runs.push(run);
      run.finished.catch((thrown: unknown) => fail(failureOf(`step ${stepId} failed`, ShoalError.from(thrown))));
    }
    await Promise.all(runs.map(({ finished }) => finished));
    return { results, requests: rendezvous.requests };
  });
  return ending.finally(() => runs.forEach((run) => run.close()));
}

export interface EndTogetherOptions extends Pick<StepOptions, 'stepId' | 'clock' | 'timeoutMs' | 'signals'> {
  readonly timedOut: () => ShoalError;
  /** Tells the parts why they end. */
  readonly onEnd: (cause: ShoalError) => void;
}

/** Runs the parts of a step. The first failure ends all of them; so do the signals and the time limit.
 *  @param run is given the signal of the end, and what begins it. */
export async function endTogether<T>(
  { stepId, clock, timeoutMs, signals, timedOut, onEnd }: EndTogetherOptions,
  run: (signal: AbortSignal, fail: (cause: ShoalError) => void) => Promise<T>,
): Promise<T> {
  const abort = new AbortController();
  // One for every part.
  setMaxListeners(0, abort.signal);
  let isOver = false;
  let fail!: (cause: ShoalError) => void;
  const failed = new Promise<never>((_, reject) => {
    fail = (cause) => {
      if (isOver) return;
      isOver = true;
      // The failures of the parts must not be the first to be heard.
      reject(cause);
      onEnd(cause);
      abort.abort(cause);
    };
  });
  failed.catch(() => {});
  const onAbort = (): void => {
    const cause = signals.find(({ aborted }) => aborted)?.reason as unknown;
    // A task that was told why says that, not that it was told.
    fail(isShoalError(cause) ? cause : new ShoalError('aborted', `step ${stepId} was cancelled by its signal`, { cause }));
  };
  const timer = clock.setTimer(timeoutMs, () => fail(timedOut()), { keepAlive: true });
  for (const signal of signals) signal.addEventListener('abort', onAbort);
  try {
    if (signals.some(({ aborted }) => aborted)) onAbort();
    const all = run(abort.signal, fail).catch((thrown: unknown) => {
      fail(ShoalError.from(thrown));
      return failed;
    });
    return await Promise.race([failed, all]);
  } finally {
    timer.cancel();
    for (const signal of signals) signal.removeEventListener('abort', onAbort);
  }
}
