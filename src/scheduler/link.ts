/** One destination: its queue, and its account of bytes in flight.
 *
 *  Admission is exact: a task starts when its bytes and those in flight are within the credit, or when nothing is in flight. Only the
 *  first task is considered: a smaller one behind it does not pass, or large ones would starve. */
import { PriorityQueue } from '../base/priority-queue.ts';
import type { CreditAccount } from './arbiter.ts';
import { hasArrivedSooner, isSooner, type Task } from './task.ts';

/** Which of the tasks that are ready is first: by priority, or the one that became ready first. */
export type LinkOrder = 'priority' | 'arrival';

export class Link {
  readonly order: LinkOrder;
  /** Undefined: that of the core. */
  ownCreditBytes: number | undefined;
  ownPartitionBytes: number | undefined;
  readonly account: CreditAccount;
  /** The core is starting its tasks: what becomes ready meanwhile is seen. */
  isPumping = false;
  readonly #queue: PriorityQueue<Task>;

  constructor(order: LinkOrder, open: (link: Link) => CreditAccount) {
    this.account = open(this);
    this.order = order;
    this.#queue = new PriorityQueue(order === 'priority' ? isSooner : hasArrivedSooner);
  }

  /** Tasks that wait, and those that ended while they did and have not reached the front. */
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
