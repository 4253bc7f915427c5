/** Turns of the comm thread's event loop. A guest that finds more and more to do would keep the others' sockets waiting: from time to
 *  time it is asked to go on in the next turn. A guest alone is never asked. */
import type { Clock } from '../../base/clock.ts';

/** The length that a turn may get before a guest gives way. */
const turnMs = 2;

export interface TurnsOptions {
  readonly clock: Clock;
  /** Somebody else may be waiting. */
  readonly isShared: () => boolean;
  /** Calls it in the next turn. */
  readonly nextTurn: (resume: () => void) => void;
}

export class Turns {
  readonly #options: TurnsOptions;
  /** When somebody first asked in this turn. */
  #sinceMs: number | undefined;

  constructor(options: TurnsOptions) {
    this.#options = options;
  }

  /** See `GiveWay`. */
  readonly giveWay = (resume: () => void): boolean => {
    const { clock, isShared, nextTurn } = this.#options;
    if (!isShared()) return false;
    if (this.#sinceMs === undefined) {
      this.#sinceMs = clock.now();
      nextTurn(() => {
        this.#sinceMs = undefined;
      });
      return false;
    }
    if (clock.now() - this.#sinceMs < turnMs) return false;
    nextTurn(resume);
    return true;
  };
}
