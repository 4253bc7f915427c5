/** What operations depend on. A variable knows who holds it and who waits for it, in the order in which they were pushed:
 *
 *      waiting  ── R R W R ──▶  granted: any number of readers, or one writer
 *
 *  A reader is granted when nobody waits before it and no writer holds the variable, a writer when nobody holds it. It stands for
 *  data and never touches any; what is *poisoned* is what the last writer should have written. */
import type { ShoalError } from '../base/errors.ts';
import { Fifo } from '../base/fifo.ts';

/** As programs hold it. */
export interface Variable {
  readonly name: string;
}

/** Who waits for a variable. */
export interface Waiter {
  /** It now reads or writes the variable, until it releases it. */
  granted(): void;
}

/** What the work on variables amounts to, over all of an engine. */
export interface VariableSteps {
  /** How often it was asked whether a waiter can be granted. */
  attempts: number;
}

interface Waiting {
  readonly waiter: Waiter;
  readonly writes: boolean;
}

export class QueuedVariable implements Variable {
  readonly name: string;
  /** The engine that made it: no other takes it. */
  readonly owner: object;
  /** No operation may name it any more. */
  deleted = false;
  /** The push that named it last: a second naming in one push is a duplicate. */
  namedBy = -1;
  /** Why its value is not to be relied on: the error of the operation that should have written it. */
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

  /** @returns whether it is granted at once; if not, the waiter is told. */
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
