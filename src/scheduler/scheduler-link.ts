/** A link of the scheduler: one destination (a server, a group) with its queue, and its account of bytes in flight.
 *
 *  Admission is exact: a task starts when its bytes and those in flight are within the credit, or when nothing is in flight. Only the
 *  first task is considered: a smaller one behind it does not pass, or large ones would starve. */
import { PriorityQueue } from '../base/priority-queue.ts';
import type { CreditAccount } from './arbiter.ts';
import { hasArrivedSooner, isSooner, type Task } from './task.ts';

/** Order of the ready tasks of a link: by priority, or by the time at which they became ready. */
export type LinkOrder = 'priority' | 'arrival';

export class SchedulerLink {
  readonly order: LinkOrder;
  /** Credit of this link alone; undefined: the core's. */
  ownCreditBytes: number | undefined;
  ownPartitionBytes: number | undefined;
  readonly account: CreditAccount;
  /** True while the core starts the link's tasks: it sees tasks that become ready meanwhile. */
  isPumping = false;
  readonly #queue: PriorityQueue<Task>;

  constructor(order: LinkOrder, open: (link: SchedulerLink) => CreditAccount) {
    this.account = open(this);
    this.order = order;
    this.#queue = new PriorityQueue(order === 'priority' ? isSooner : hasArrivedSooner);
  }

  /** Number of tasks that wait, with those that ended while they did and have not reached the front. */
  get queued(): number {
    return this.#queue.length;
  }

  push(task: Task): void {
    this.#queue.push(task);
  }

  peek(): Task | undefined {
    return this.#queue.peek();
  }

  pop(): Task | undefined {
    return this.#queue.pop();
  }
}
