/** Who has connected and not yet proved that it belongs here: the one rule of everything that listens. Strangers cost a bounded
 *  amount: at most so many at once, each for so long. When more come, the oldest goes: a flood cannot lock members out. It must
 *  not know sockets.
 *
 *      enter ──▶ stranger ──trust──▶ proved, not ready yet ──leave──▶ a member, or gone
 *                   └── too slow, or the oldest of too many: `end` */
import { setServedTimer, type Clock, type Timer } from '../clock.ts';
import { ShoalError } from '../errors.ts';

export interface StrangersOptions<S> {
  readonly clock: Clock;
  readonly most: number;
  /** Default 5000. */
  readonly timeoutMs?: number | undefined;
  /** Lets go of it; `why` says what for, after its name. */
  readonly end: (stranger: S, why: ShoalError) => void;
}

/** Members of a world with many ranks may all come at once. */
export function strangersMost(worldSize = 0): number {
  return Math.max(64, worldSize);
}

export class Strangers<S> {
  readonly #options: StrangersOptions<S>;
  /** In order of arrival, with their deadlines. */
  readonly #present = new Map<S, Timer>();

  constructor(options: StrangersOptions<S>) {
    this.#options = options;
  }

  get size(): number {
    return this.#present.size;
  }

  enter(stranger: S): void {
    const { clock, most, timeoutMs = 5000 } = this.#options;
    const [oldest] = this.#present.keys();
    if (oldest !== undefined && this.#present.size >= most) {
      const crowd = `more than ${most} connections wait for their handshake; this one was the oldest`;
      this.#end(oldest, new ShoalError('aborted', crowd));
    }
    const onLate = (): void =>
      this.#end(stranger, new ShoalError('timeout', `it did not finish its handshake in ${timeoutMs} ms`, { timeoutMs }));
    // Members whose processes, or ours, get little CPU are no strangers: what they have sent is read first.
    this.#present.set(stranger, setServedTimer(clock, timeoutMs, onLate, { keepAlive: false }));
  }

  /** It has proved that it belongs here, and still counts: it is waited for as long as it takes. */
  trust(stranger: S): void {
    this.#present.get(stranger)?.cancel();
  }

  /** Idempotent. */
  leave(stranger: S): void {
    this.trust(stranger);
    this.#present.delete(stranger);
  }

  /** Nobody is waited for any more. */
  close(): void {
    for (const stranger of this.#present.keys()) this.#end(stranger, new ShoalError('peer-lost', 'nobody listens any more'));
  }

  #end(stranger: S, why: ShoalError): void {
    this.leave(stranger);
    this.#options.end(stranger, why);
  }
}
