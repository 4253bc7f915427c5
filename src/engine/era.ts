/** The operations between two calls of `waitForAll`: how many have not completed, and what failed first. */
import type { ShoalError } from '../base/errors.ts';

export class Era {
  pending = 0;
  /** Of the operation that was pushed first among those that failed. */
  failure: ShoalError | undefined;
  #failedNumber = Infinity;
  readonly #onEnd: ((failure: ShoalError | undefined) => void)[] = [];
  closed = false;

  failed(number: number, error: ShoalError): void {
    if (number >= this.#failedNumber) return;
    this.#failedNumber = number;
    this.failure = error;
  }

  /** No more operations belong to it; `onEnd` is called when all before its end have completed. */
  close(onEnd: (failure: ShoalError | undefined) => void): void {
    this.closed = true;
    this.#onEnd.push(onEnd);
  }

  end(): void {
    for (const onEnd of this.#onEnd) onEnd(this.failure);
  }
}
