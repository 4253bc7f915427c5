/** One pushed function, from its push to its completion. */
import type { ShoalError } from '../base/errors.ts';
import type { Era } from './era.ts';
import type { QueuedVariable, Waiter } from './variable.ts';

/** Ends an operation, with an error if it failed. It may be called while the function runs, or at any time after. */
export type OnComplete = (error?: unknown) => void;

/** A function that an engine runs. It holds its variables until it, or what it has started, calls `onComplete`; an error that it throws
 *  ends it as well, and so does a promise that it returns and that rejects. */
export type AsyncFunction = (onComplete: OnComplete) => void;

/** Options of `pushAsync` and `pushSync`. */
export interface PushOptions {
  /** Priority: of two operations that could start, the one with the larger number starts. Default: 0. */
  readonly priority?: number;
  /** Name for messages. */
  readonly name?: string;
  /** Called in place of the function when a variable that it depends on is poisoned. */
  readonly onPoisoned?: (error: ShoalError) => void;
}

/** An operation as it was pushed. */
export interface Pushed {
  readonly name: string;
  readonly priority: number;
  readonly reads: readonly QueuedVariable[];
  readonly writes: readonly QueuedVariable[];
  readonly run: AsyncFunction;
  /** Action when a variable is poisoned: none, this function instead, or `run` all the same. */
  readonly onPoisoned: ((error: ShoalError) => void) | 'run' | undefined;
}

export class Operation implements Waiter {
  readonly pushed: Pushed;
  /** Number of the operation in the order of pushes. */
  readonly number: number;
  readonly era: Era;
  /** `calling` while its function runs: if it then calls `onComplete` and throws as well, it has failed. */
  state: 'waiting' | 'calling' | 'running' = 'waiting';
  /** Outcome of the operation, or its future outcome while its function still runs. */
  completion: { readonly error: ShoalError | undefined; readonly thrown: boolean } | undefined;
  readonly #onReady: (operation: Operation) => void;
  /** Number of variables that are not granted yet. */
  #missing: number;

  constructor(pushed: Pushed, number: number, era: Era, onReady: (operation: Operation) => void) {
    this.pushed = pushed;
    this.number = number;
    this.era = era;
    this.#onReady = onReady;
    this.#missing = pushed.reads.length + pushed.writes.length;
  }

  granted(): void {
    if (--this.#missing === 0) this.#onReady(this);
  }

  /** Asks for all variables of the operation. */
  request(): void {
    const { reads, writes } = this.pushed;
    if (this.#missing === 0) this.#onReady(this);
    for (const variable of reads) if (variable.request(this, false)) this.granted();
    for (const variable of writes) if (variable.request(this, true)) this.granted();
  }

  release(): void {
    for (const variable of this.pushed.reads) variable.release(false);
    for (const variable of this.pushed.writes) variable.release(true);
  }

  /** The error of the first poisoned variable. */
  get poison(): ShoalError | undefined {
    const { reads, writes } = this.pushed;
    return (reads.find(({ poison }) => poison !== undefined) ?? writes.find(({ poison }) => poison !== undefined))?.poison;
  }
}
