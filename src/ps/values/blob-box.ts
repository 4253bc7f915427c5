/** Blobs that have arrived and those that are waited for, by sender and name, each in order. Bounded both ways. */
import type { Clock } from '../../base/clock.ts';
import { ShoalError } from '../../base/errors.ts';
import type { DType, TypedArray } from '../../memory/dtype.ts';

/** A message between two workers of a model that is split over them. */
export interface Blob {
  /** The direction in which it goes: a layer's output, forward, or its gradient, backward. */
  readonly kind: 'feature' | 'gradient';
  /** Name of the blob, for instance `layer3/output`. */
  readonly name: string;
  /** Copied before `sendBlob` returns. */
  readonly values: TypedArray;
}

/** A blob with elements of its own. */
export interface BlobData extends Blob {
  readonly dtype: DType;
}

export interface BlobBoxOptions {
  readonly clock: Clock;
  /** Blobs nobody has asked for yet, and askers, each. */
  readonly waitingMax: number;
  /** The receiver's name in errors: `worker 3 `. Default: none, the caller is meant. */
  readonly owner?: string;
}

type Settle = (outcome: TypedArray | ShoalError) => void;

/** The blobs and askers of one sender and name; one of both lists is empty. */
interface Waiting {
  readonly worker: number;
  readonly arrived: TypedArray[];
  readonly askers: Settle[];
}

export class BlobBox {
  readonly #options: BlobBoxOptions;
  readonly #waiting = new Map<string, Waiting>();
  #arrived = 0;
  #asking = 0;
  /** Bytes of blobs that nobody has asked for yet. */
  bytes = 0;

  constructor(options: BlobBoxOptions) {
    this.#options = options;
  }

  /** @throws ShoalError `usage` when too many wait. */
  put(worker: number, name: string, values: TypedArray): void {
    const { waitingMax } = this.#options;
    const waiting = this.#waitingFor(worker, name);
    const [settle] = waiting.askers;
    if (settle !== undefined) return settle(values);
    if (this.#arrived === waitingMax) throw new ShoalError('usage', `${waitingMax} blobs wait to be received; receive some first`);
    this.#waiting.set(keyOf(worker, name), waiting);
    waiting.arrived.push(values);
    this.#arrived++;
    this.bytes += values.byteLength;
    return undefined;
  }

  take(worker: number, name: string, timeoutMs: number): Promise<TypedArray> {
    const { clock, waitingMax, owner = '' } = this.#options;
    const waiting = this.#waitingFor(worker, name);
    const values = waiting.arrived.shift();
    if (values !== undefined) {
      this.#arrived--;
      this.bytes -= values.byteLength;
      this.#forgetIdle(worker, name, waiting);
      return Promise.resolve(values);
    }
    if (this.#asking === waitingMax) return Promise.reject(new ShoalError('usage', `${waitingMax} blobs are waited for already`));
    this.#waiting.set(keyOf(worker, name), waiting);
    this.#asking++;
    return new Promise((resolve, reject) => {
      const timer = clock.setTimer(timeoutMs, () => {
        const message = `${owner}waited ${timeoutMs} ms for blob '${name}' of worker ${worker}; does it call sendBlob?`;
        settle(new ShoalError('timeout', message, { timeoutMs }));
      });
      const settle: Settle = (outcome) => {
        timer.cancel();
        waiting.askers.splice(waiting.askers.indexOf(settle), 1);
        this.#asking--;
        this.#forgetIdle(worker, name, waiting);
        if (outcome instanceof ShoalError) reject(outcome);
        else resolve(outcome);
      };
      waiting.askers.push(settle);
    });
  }

  /** Whether somebody waits for a blob of that worker. */
  isWaiting(worker: number): boolean {
    return this.#askersOf(worker).length > 0;
  }

  /** Nothing comes from that worker any more. */
  fail(worker: number, error: ShoalError): void {
    for (const settle of this.#askersOf(worker)) settle(error);
  }

  /** Closes the box: nobody gets a blob any more. */
  close(error: ShoalError): void {
    for (const settle of this.#askersOf()) settle(error);
    this.#waiting.clear();
  }

  /** The askers for one sender's blobs, or for all. */
  #askersOf(worker?: number): Settle[] {
    return [...this.#waiting.values()].flatMap((waiting) => (worker === undefined || waiting.worker === worker ? waiting.askers : []));
  }

  #waitingFor(worker: number, name: string): Waiting {
    return this.#waiting.get(keyOf(worker, name)) ?? { worker, arrived: [], askers: [] };
  }

  /** Names may be made per step; none is kept for nothing. */
  #forgetIdle(worker: number, name: string, { arrived, askers }: Waiting): void {
    if (arrived.length + askers.length === 0) this.#waiting.delete(keyOf(worker, name));
  }
}

function keyOf(worker: number, name: string): string {
  return `${worker} ${name}`;
}
