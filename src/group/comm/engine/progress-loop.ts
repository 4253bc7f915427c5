/** The progress loop of a group in the comm thread: advances all that can advance, polls a while, then sleeps; rung awake.
 *
 *      something arrived ─▶ look at every queue ─┬─ moved ─▶ look again, or give other groups a turn
 *                                                └─ nothing ─▶ poll (adaptive-spin.ts) ─▶ announce sleep, look once more ─▶ return */
import type { CallQueue } from './call-queue.ts';
import type { AdaptiveSpin } from './adaptive-spin.ts';
import type { GroupContext } from './group-context.ts';

export class ProgressLoop {
  readonly #group: GroupContext;
  readonly #queues: readonly CallQueue<unknown>[];
  readonly #spin: AdaptiveSpin;
  #running = false;
  #again = false;
  #awaitsTurn = false;
  readonly #resume = (): void => {
    this.#awaitsTurn = false;
    this.run();
  };

  constructor(group: GroupContext, queues: readonly CallQueue<unknown>[], spin: AdaptiveSpin) {
    this.#group = group;
    this.#queues = queues;
    this.#spin = spin;
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
    this.#group.life.settled();
  }

  /** This rank has rung itself: a run that is under way looks once more. */
  again(): void {
    this.#again = true;
  }

  #runUntilIdle(): void {
    const { world, members, life } = this.#group;
    if (this.#awaitsTurn || !life.mayRun) return;
    const spin = this.#spin;
    const { clock } = world.env;
    const { own, rung } = members;
    own.sleeping = false;
    while (this.#runnable() && life.mayRun) {
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
    this.#awaitsTurn = this.#group.world.env.giveWay?.(this.#resume) ?? false;
    return this.#awaitsTurn;
  }

  /** One look at everything; true when something moved. */
  #step(): boolean {
    let moved = false;
    for (const queue of this.#queues) if (queue.advance()) moved = true;
    return moved;
  }

  #runnable(): boolean {
    for (const queue of this.#queues) if (queue.size > 0) return true;
    return false;
  }
}
