/** Time for tests with limits that they are not about, or that must end but not when: a process that got no CPU for seconds finds
 *  none of them passed. It must not serve where time is measured, or spun away: it moves between turns only. */
import { systemClock, VirtualClock, type Clock, type Timer } from '../clock.ts';

const tickMs = 2;

/** A clock that goes on, while timers run, by `tickMs` for every turn of the event loop that took at least as long, however long.
 *  Data that had arrived is served in between. */
export class UnhurriedClock implements Clock {
  readonly #time = new VirtualClock();
  #running = 0;
  #ticks = false;

  now(): number {
    return this.#time.now();
  }

  wallNow(): number {
    return systemClock.wallNow();
  }

  setTimer(delayMs: number, callback: () => void): Timer {
    let runs = true;
    const end = (): void => {
      if (runs) this.#running--;
      runs = false;
    };
    this.#running++;
    const timer = this.#time.setTimer(delayMs, () => {
      end();
      callback();
    });
    this.#tick();
    return {
      cancel: () => {
        end();
        timer.cancel();
      },
    };
  }

  #tick(): void {
    if (this.#ticks || this.#running === 0) return;
    this.#ticks = true;
    systemClock.setTimer(tickMs, () => {
      this.#ticks = false;
      this.#time.advance(tickMs);
      this.#tick();
    });
  }
}
