/** A bounded pool: things are made when they are first needed, up to a limit, and then lent. A caller that comes when all are
 *  lent waits in line. */
import { Fifo } from '../../base/collections/fifo.ts';

interface Waiting<T> {
  readonly resolve: (item: T | Promise<T>) => void;
  readonly reject: (error: unknown) => void;
}

export class BoundedPool<T> {
  readonly #make: () => T | Promise<T>;
  readonly #max: number;
  readonly #free: T[] = [];
  readonly #waiting = new Fifo<Waiting<T>>();
  #made = 0;
  #closed: { readonly error: unknown } | undefined;

  constructor(max: number, make: () => T | Promise<T>) {
    this.#max = max;
    this.#make = make;
  }

  /** @throws errors of `make`, and the error that the pool was closed with. */
  take(): Promise<T> {
    if (this.#closed) return Promise.reject(this.#closed.error);
    const free = this.#free.pop();
    if (free !== undefined) return Promise.resolve(free);
    if (this.#made < this.#max) return this.#create();
    return new Promise((resolve, reject) => this.#waiting.push({ resolve, reject }));
  }

  /** Returns a lent item, for the next caller. @returns false when the pool is closed: the item is the caller's to end. */
  give(item: T): boolean {
    if (this.#closed) return false;
    const next = this.#waiting.shift();
    if (next) next.resolve(item);
    else this.#free.push(item);
    return true;
  }

  /** Tells that a lent item is gone: another may be made. */
  forget(): void {
    this.#made -= 1;
    if (this.#closed) return;
    const next = this.#waiting.shift();
    if (next) next.resolve(this.#create());
  }

  /** Rejects all who wait, and all later callers, with the error. @returns the items that are not lent. */
  close(error: unknown): T[] {
    this.#closed ??= { error };
    for (let next = this.#waiting.shift(); next; next = this.#waiting.shift()) next.reject(error);
    return this.#free.splice(0);
  }

  async #create(): Promise<T> {
    this.#made += 1;
    try {
      return await this.#make();
    } catch (thrown) {
      this.forget();
      throw thrown;
    }
  }
}
