/** Several works as one: done when all are, and failed with the first error that one of them has. */
import type { ShoalError } from '../../base/errors.ts';
import { anyNumber, checkArgument } from '../../base/schema.ts';
import { HeededWork, type SettlingWork } from './work.ts';

export class JoinedWork extends HeededWork implements SettlingWork {
  readonly #works: readonly SettlingWork[];
  readonly #now: () => number;
  #left: number;
  #error: ShoalError | undefined;
  #listeners: (() => void)[] = [];

  /** @param now a clock, in milliseconds.
   *  @param onEnd runs once, before it counts as done; what it returns is the error where there is no other. */
  constructor(works: readonly SettlingWork[], now: () => number, onEnd: (error: ShoalError | undefined) => ShoalError | undefined) {
    super();
    this.#works = works;
    this.#now = now;
    // One more than there are: what is done already must not end it before all are counted.
    this.#left = works.length + 1;
    const settle = (): void => {
      this.#left -= 1;
      if (this.#left > 0) return;
      this.#error = works.find(({ error }) => error !== undefined)?.error;
      this.#error ??= onEnd(this.#error);
      for (const listener of this.#listeners.splice(0)) listener();
      this.ended(this.#error);
    };
    for (const work of works) work.onceSettled(settle);
    settle();
  }

  describe(): string {
    const [pending] = this.#works.filter((work) => work instanceof HeededWork);
    return `${this.#works.length} calls as one, the first of them ${pending?.describe()}`;
  }

  get done(): boolean {
    this.heed();
    // Looks for what has arrived.
    return this.#works.every(({ done }) => done) && this.#left === 0;
  }

  get error(): ShoalError | undefined {
    return this.done ? this.#error : undefined;
  }

  waitSync(timeoutMs = Infinity): void {
    checkArgument('waitSync: timeoutMs', timeoutMs, anyNumber);
    this.heed();
    const deadlineMs = this.#now() + timeoutMs;
    for (const work of this.#works) {
      try {
        work.waitSync(deadlineMs - this.#now());
      } catch (thrown) {
        if (!work.done) throw thrown;
      }
    }
    if (this.#error) throw this.#error;
  }

  onceSettled(listener: () => void): void {
    if (this.#left === 0) listener();
    else this.#listeners.push(listener);
  }

  then<A = void, B = never>(
    onFulfilled?: ((value: void) => A | PromiseLike<A>) | null,
    onRejected?: ((reason: unknown) => B | PromiseLike<B>) | null,
  ): Promise<A | B> {
    this.heed();
    return this.#all().then(onFulfilled, onRejected);
  }

  /** Awaits each of them: those that run on this thread when they are awaited must hear of it. */
  async #all(): Promise<void> {
    for (const work of this.#works) await work.then(undefined, () => undefined);
    if (this.#error) throw this.#error;
  }
}
