/** Strangers: peers that have connected and not yet proved that they belong here. This is the one rule of everything that
 *  listens. They cost a bounded amount: a limited number at once, each for a limited time. When more come, the oldest goes: a
 *  flood cannot lock members out. It must not know sockets.
 *
 *      enter ──▶ stranger ──trust──▶ proved, not ready yet ──leave──▶ a member, or gone
 *                   └── too slow, or the oldest of too many: `end` */
import { setServedTimer, type Clock, type Timer } from '../clock.ts';
import { ShoalError } from '../errors.ts';

export interface StrangersOptions<S> {
  readonly clock: Clock;
  readonly most: number;
  /** Time in which a stranger has to prove that it belongs here. Default 5000. */
  readonly timeoutMs?: number | undefined;
  /** Ends the stranger's connection; `why` has the reason, after the stranger's name. */
  readonly end: (stranger: S, why: ShoalError) => void;
}

/** Most strangers at once: members of a world with many ranks may all come at the same time. */
export function strangersMost(worldSize = 0): number {
  return Math.max(64, worldSize);
}

export class Strangers<S> {
  readonly #options: StrangersOptions<S>;
  /** Present strangers in order of arrival, with the timers of their deadlines. */
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
    // Members whose processes, or ours, get little CPU are not strangers: their data is read first.
    this.#present.set(stranger, setServedTimer(clock, timeoutMs, onLate, { keepAlive: false }));
  }

  /** The stranger has proved that it belongs here, and still counts until it leaves; its time is not limited any more. */
  trust(stranger: S): void {
    this.#present.get(stranger)?.cancel();
  }

  /** Removes a stranger, or one that was trusted. Idempotent. */
  leave(stranger: S): void {
    this.trust(stranger);
    this.#present.delete(stranger);
  }

  /** Ends all that are present. */
  close(): void {
    for (const stranger of this.#present.keys()) this.#end(stranger, new ShoalError('peer-lost', 'nobody listens any more'));
  }

  #end(stranger: S, why: ShoalError): void {
    this.leave(stranger);
    this.#options.end(stranger, why);
  }
}
