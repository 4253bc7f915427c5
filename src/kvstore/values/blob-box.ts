/** Blobs that have arrived and those that are waited for, by sender and name, each in order. Bounded both ways. */
import type { Clock } from '../../base/clock.ts';
import { ShoalError } from '../../base/errors.ts';
import type { TypedArray } from '../../memory/dtype.ts';

export interface BlobBoxOptions {
  readonly clock: Clock;
  /** Blobs nobody has asked for yet, and askers, each. */
  readonly waitingMax: number;
}

interface Asker {
  readonly worker: number;
  readonly name: string;
  settle(outcome: TypedArray | ShoalError): void;
}

export class BlobBox {
  readonly #options: BlobBoxOptions;
  readonly #arrived: { readonly worker: number; readonly name: string; readonly values: TypedArray }[] = [];
  readonly #askers: Asker[] = [];

  constructor(options: BlobBoxOptions) {
    this.#options = options;
  }

  /** @throws ShoalError `usage` when too many wait. */
  put(worker: number, name: string, values: TypedArray): void {
    const asker = this.#askers.findIndex((each) => each.worker === worker && each.name === name);
    if (asker >= 0) {
      this.#askers.splice(asker, 1)[0].settle(values);
      return;
    }
    const { waitingMax } = this.#options;
    if (this.#arrived.length === waitingMax) throw new ShoalError('usage', `${waitingMax} blobs wait to be received; receive some first`);
    this.#arrived.push({ worker, name, values });
  }

  take(worker: number, name: string, timeoutMs: number): Promise<TypedArray> {
    const { clock, waitingMax } = this.#options;
    const at = this.#arrived.findIndex((each) => each.worker === worker && each.name === name);
    if (at >= 0) return Promise.resolve(this.#arrived.splice(at, 1)[0].values);
    if (this.#askers.length === waitingMax) return Promise.reject(new ShoalError('usage', `${waitingMax} blobs are waited for already`));
    return new Promise((resolve, reject) => {
      const timer = clock.setTimer(timeoutMs, () => {
        this.#askers.splice(this.#askers.indexOf(asker), 1);
        const message = `waited ${timeoutMs} ms for blob '${name}' of worker ${worker}; does it call sendBlob?`;
        asker.settle(new ShoalError('timeout', message, { timeoutMs }));
      });
      const asker: Asker = {
        worker,
        name,
        settle: (outcome) => {
          timer.cancel();
          if (outcome instanceof ShoalError) reject(outcome);
          else resolve(outcome);
        },
      };
      this.#askers.push(asker);
    });
  }

  /** Whether somebody waits for a blob of that worker. */
  isWaiting(worker: number): boolean {
    return this.#askers.some((each) => each.worker === worker);
  }

  /** Nothing comes from that worker any more. */
  fail(worker: number, error: ShoalError): void {
    const [own, others] = [true, false].map((is) => this.#askers.filter((each) => (each.worker === worker) === is));
    this.#askers.splice(0, this.#askers.length, ...others);
    for (const asker of own) asker.settle(error);
  }

  /** Nobody will get anything any more. */
  close(error: ShoalError): void {
    for (const asker of this.#askers.splice(0)) asker.settle(error);
    this.#arrived.length = 0;
  }
}
