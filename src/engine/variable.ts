/** A variable, on which operations depend. It knows its holders and its waiters, in the order in which they were pushed:
 *
 *      waiting  ── R R W R ──▶  granted: any number of readers, or one writer
 *
 *  A reader is granted when none waits before it and no writer holds the variable, a writer when none holds it. It stands for
 *  data and never touches any; data that the last writer should have written, and did not, is *poisoned*. */
import type { ShoalError } from '../base/errors.ts';
import { Fifo } from '../base/collections/fifo.ts';

/** A variable as programs hold it. */
export interface Variable {
  /** Name for messages. */
  readonly name: string;
}

/** An operation that waits for a variable. */
export interface Waiter {
  /** It now reads or writes the variable, until it releases it. */
  granted(): void;
}

/** Counter of the work on all variables of an engine. */
export interface VariableSteps {
  /** Number of times that a waiter was considered. */
  attempts: number;
}

interface Waiting {
  readonly waiter: Waiter;
  readonly writes: boolean;
}

export class QueuedVariable implements Variable {
  readonly name: string;
  /** The engine that made the variable: no other accepts it. */
  readonly owner: object;
  /** True once no operation may name it any more. */
  deleted = false;
  /** Number of the push that named it last: a second naming in one push is a duplicate. */
  namedBy = -1;
  /** The reason not to rely on the variable's value: the error of the operation that should have written it. */
  poison: ShoalError | undefined;
  readonly #waiting = new Fifo<Waiting>();
  readonly #steps: VariableSteps;
  #readers = 0;
  #written = false;

  constructor(name: string, owner: object, steps: VariableSteps) {
    this.name = name;
    this.owner = owner;
    this.#steps = steps;
  }

  /** @returns true if it is granted at once; if not, the waiter is told later. */
  request(waiter: Waiter, writes: boolean): boolean {
    if (this.#waiting.length === 0 && this.#grants(writes)) return true;
    this.#waiting.push({ waiter, writes });
    return false;
  }

  release(writes: boolean): void {
    if (writes) this.#written = false;
    else this.#readers--;
    for (let next = this.#waiting.peek(); next !== undefined && this.#grants(next.writes); next = this.#waiting.peek()) {
      this.#waiting.shift();
      next.waiter.granted();
    }
  }

  #grants(writes: boolean): boolean {
    this.#steps.attempts++;
    if (this.#written || (writes && this.#readers > 0)) return false;
    if (writes) this.#written = true;
    else this.#readers++;
    return true;
  }
}
