/** A rank's memory as curves in its trace: sampled at intervals, and only while tracing is on. */
import type { Clock, Timer } from '../../../base/clock.ts';
import type { NameId, TraceRecorder } from '../../../trace/recorder.ts';

/** Two of some 65,000 events that a ring holds, each time. */
const sampleMs = 250;

export interface MemorySamplesOptions {
  readonly trace: TraceRecorder;
  readonly clock: Clock;
  /** Resident bytes of the process: its own, and those that it has touched of other ranks'. */
  readonly residentBytes: () => number;
  /** Bytes that other ranks may reach: tensors, staging, control blocks. */
  readonly registeredBytes: () => number;
}

export class MemorySamples {
  readonly #options: MemorySamplesOptions;
  readonly #resident: NameId;
  readonly #registered: NameId;
  #next: Timer | undefined;

  constructor(options: MemorySamplesOptions) {
    this.#options = options;
    const name = (text: string): NameId => options.trace.name(text, { category: 'memory', argument: 'bytes' });
    this.#resident = name('resident memory');
    this.#registered = name('registered memory');
  }

  /** Begins to sample. */
  start(): void {
    if (this.#options.trace.enabled) this.#sampleAndGoOn();
  }

  /** Now, whenever the next one is due. */
  sample(): void {
    const { trace, residentBytes, registeredBytes } = this.#options;
    if (!trace.enabled) return;
    trace.counter(this.#resident, residentBytes());
    trace.counter(this.#registered, registeredBytes());
  }

  close(): void {
    this.#next?.cancel();
  }

  #sampleAndGoOn(): void {
    this.sample();
    this.#next = this.#options.clock.setTimer(sampleMs, () => this.#sampleAndGoOn());
  }
}
