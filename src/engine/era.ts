/** The operations between two calls of `waitForAll`: the number that have not completed, and the first failure. */
import type { ShoalError } from '../base/errors.ts';

export class Era {
  pending = 0;
  /** The error of the operation that was pushed first among those that failed. */
  failure: ShoalError | undefined;
  #failedNumber = Infinity;
  readonly #onEnd: ((failure: ShoalError | undefined) => void)[] = [];
  closed = false;

  failed(number: number, error: ShoalError): void {
    if (number >= this.#failedNumber) return;
    this.#failedNumber = number;
    this.failure = error;
  }

  /** Closes the era: no more operations belong to it. `onEnd` is called when all of it and of earlier eras have completed. */
  close(onEnd: (failure: ShoalError | undefined) => void): void {
    this.closed = true;
    this.#onEnd.push(onEnd);
  }

  end(): void {
    for (const onEnd of this.#onEnd) onEnd(this.failure);
  }
}
