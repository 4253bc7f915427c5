/** A rank's memory as curves in its trace: sampled at intervals, and only while tracing is on. */
import type { Clock, Timer } from '../base/clock.ts';
import type { NameId, TraceRecorder } from './recorder.ts';

/** Two of some 65,000 events that a ring holds, each time. */
const sampleMs = 250;

export interface MemorySamples {
  /** Now, whenever the next one is due. */
  sample(): void;
  close(): void;
}

interface MemorySamplesOptions {
  readonly trace: TraceRecorder;
  readonly clock: Clock;
  /** Resident bytes of the process: its own, and those that it has touched of other ranks'. */
  readonly residentBytes: () => number;
  /** Bytes that other ranks may reach: tensors, staging, control blocks. */
  readonly registeredBytes: () => number;
}

/** Begins to sample. */
export function startMemorySamples({ trace, clock, residentBytes, registeredBytes }: MemorySamplesOptions): MemorySamples | undefined {
  if (!trace.enabled) return undefined;
  const name = (text: string): NameId => trace.name(text, { category: 'memory', argument: 'bytes' });
  const [resident, registered] = [name('resident memory'), name('registered memory')];
  const sample = (): void => {
    trace.counter(resident, residentBytes());
    trace.counter(registered, registeredBytes());
  };
  let next: Timer;
  const goOn = (): void => {
    sample();
    next = clock.setTimer(sampleMs, goOn);
  };
  goOn();
  return { sample, close: () => next.cancel() };
}
