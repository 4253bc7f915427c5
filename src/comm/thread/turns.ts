/** Turns of the comm thread's event loop. A guest that finds more and more to do would keep the others' sockets waiting: from time to
 *  time it is asked to go on in the next turn. A guest alone is never asked. */
import type { Clock } from '../../base/clock.ts';
import type { GiveWay } from './guest.ts';

/** The length that a turn may get before a guest gives way. */
const turnMs = 2;

export interface TurnsOptions {
  readonly clock: Clock;
  /** Somebody else may be waiting. */
  readonly isShared: () => boolean;
  /** Calls it in the next turn. */
  readonly nextTurn: (resume: () => void) => void;
}

export function turnsOf({ clock, isShared, nextTurn }: TurnsOptions): GiveWay {
  /** When somebody first asked in this turn. */
  let sinceMs: number | undefined;
  return (resume) => {
    if (!isShared()) return false;
    if (sinceMs === undefined) {
      sinceMs = clock.now();
      nextTurn(() => {
        sinceMs = undefined;
      });
      return false;
    }
    if (clock.now() - sinceMs < turnMs) return false;
    nextTurn(resume);
    return true;
  };
}
