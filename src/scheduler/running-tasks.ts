/** The tasks that run, and the timer that ends those which take too long. */
import type { Clock, Timer } from '../base/clock.ts';
import type { Task } from './task.ts';
import { TaskList } from './task-list.ts';

export class RunningTasks {
  readonly #clock: Clock;
  readonly #timeoutMs: number;
  readonly #onOverdue: (task: Task) => void;
  /** In the order in which they started, which is that of their deadlines. */
  readonly tasks = new TaskList<Task>();
  #timer: Timer | undefined;

  /** @param onOverdue ends the task, so that it leaves the list. */
  constructor(clock: Clock, timeoutMs: number, onOverdue: (task: Task) => void) {
    this.#clock = clock;
    this.#timeoutMs = timeoutMs;
    this.#onOverdue = onOverdue;
  }

  /** Adds a task that starts now. */
  add(task: Task): void {
    task.startedMs = this.#clock.now();
    this.tasks.add(task);
    this.#timer ??= this.#clock.setTimer(this.#timeoutMs, this.#onTimer);
  }

  endOverdue(): void {
    for (let task = this.tasks.first; task !== undefined && this.#leftMs(task) <= 0; task = this.tasks.first) this.#onOverdue(task);
  }

  stopTimer(): void {
    this.#timer?.cancel();
    this.#timer = undefined;
  }

  readonly #onTimer = (): void => {
    this.#timer = undefined;
    this.endOverdue();
    const { first } = this.tasks;
    if (first !== undefined) this.#timer ??= this.#clock.setTimer(this.#leftMs(first), this.#onTimer);
  };

  #leftMs(task: Task): number {
    return task.startedMs + this.#timeoutMs - this.#clock.now();
  }
}
