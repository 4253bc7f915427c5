/** The progress loop of a group in the comm thread: advances all that can advance, polls a while, then sleeps; rung awake.
 *
 *      something arrived ─▶ look at every queue ─┬─ moved ─▶ look again, or give other groups a turn
 *                                                └─ nothing ─▶ poll (adaptive-spin.ts) ─▶ announce sleep, look once more ─▶ return */
import type { Clock } from '../../../base/clock.ts';
import type { ControlBlock } from '../../../collectives/control-block.ts';
import type { GiveWay } from '../../../comm/thread/guest.ts';
import type { CallQueue } from './call-queue.ts';
import type { AdaptiveSpin } from './adaptive-spin.ts';
import type { Members } from './members.ts';

export interface ProgressLoopOptions {
  readonly clock: Clock;
  readonly own: ControlBlock;
  readonly members: Pick<Members, 'rung'>;
  readonly queues: readonly Pick<CallQueue<unknown>, 'advance' | 'size'>[];
  readonly spin: AdaptiveSpin;
  /** The group is open, and nothing speaks against going on. */
  readonly mayRun: () => boolean;
  /** Asks for other groups' turn; true: `resume` is called after it. */
  readonly giveWay: GiveWay | undefined;
  /** All that could advance has. */
  readonly onSettled: () => void;
}

export class ProgressLoop {
  readonly #options: ProgressLoopOptions;
  #running = false;
  #again = false;
  #awaitsTurn = false;
  readonly #resume = (): void => {
    this.#awaitsTurn = false;
    this.run();
  };

  constructor(options: ProgressLoopOptions) {
    this.#options = options;
  }

  /** Called whenever something arrived; never blocks longer than the spin budget. */
  run(): void {
    if (this.#running) {
      this.#again = true;
      return;
    }
    this.#running = true;
    try {
      do {
        this.#again = false;
        this.#runUntilIdle();
      } while (this.#again);
    } finally {
      this.#running = false;
    }
    this.#options.onSettled();
  }

  /** This rank has rung itself: a run that is under way looks once more. */
  again(): void {
    this.#again = true;
  }

  #runUntilIdle(): void {
    const { own, clock, spin, members, mayRun } = this.#options;
    if (this.#awaitsTurn || !mayRun()) return;
    own.sleeping = false;
    const { rung } = members;
    while (this.#runnable() && mayRun()) {
      const moved = this.#step();
      if (members.rung !== rung) {
        // The next call may be long work, which ranks that have been rung could be doing too: their bells must leave first.
        if (!this.#givesWay()) queueMicrotask(() => this.run());
        return;
      }
      if (moved) {
        spin.ends(clock.now());
        if (this.#givesWay()) return;
        continue;
      }
      if (spin.waits(clock.now())) continue;
      if (own.sleeping) return;
      own.sleeping = true; // and look once more: what arrived in between rings no bell
    }
    own.sleeping = false;
    spin.stops();
  }

  /** It goes on in the next turn of the event loop, and not before. */
  #givesWay(): boolean {
    this.#awaitsTurn = this.#options.giveWay?.(this.#resume) ?? false;
    return this.#awaitsTurn;
  }

  /** One look at everything; true when something moved. */
  #step(): boolean {
    let moved = false;
    for (const queue of this.#options.queues) if (queue.advance()) moved = true;
    return moved;
  }

  #runnable(): boolean {
    for (const queue of this.#options.queues) if (queue.size > 0) return true;
    return false;
  }
}
