/** A link of the scheduler: one destination (a server, a group) with its queue, and its account of bytes in flight.
 *
 *  Admission is exact: a task starts when its bytes and those in flight are within the credit, or when nothing is in flight. Only the
 *  first task is considered: a smaller one behind it does not pass, or large ones would starve. */
import { PriorityQueue } from '../base/collections/priority-queue.ts';
import { anyNumber, anyText, literal, optionTable } from '../base/schema.ts';
import type { CreditAccount, SharedResource } from './arbiter.ts';
import { hasArrivedSooner, isSooner, type Task } from './task.ts';

/** Order of the ready tasks of a link: by priority, or by the time at which they became ready. */
export type LinkOrder = 'priority' | 'arrival';

/** Options of a link, as `setLink` takes them; what is not given stays as it is. */
export interface LinkOptions {
  /** Credit of this link alone. Default: the core's. */
  readonly creditBytes?: number;
  /** Partition of tensors that are posted for this link from now on. Default: the core's. */
  readonly partitionBytes?: number;
  /** Order in which ready tasks start. Default: `priority`. `arrival` is for orders that are agreed on elsewhere. */
  readonly order?: LinkOrder;
  /** Resource that the link shares with other accounts of the core's arbiter. Default: none. */
  readonly resource?: SharedResource;
}

export const linkOptions = optionTable<LinkOptions>({
  creditBytes: anyNumber,
  partitionBytes: anyNumber,
  order: literal('priority', 'arrival'),
  resource: anyText,
});

/** Status of a link, as `statusOf` returns it. */
export interface LinkStatus {
  /** Most bytes in flight; one larger task may be alone. */
  readonly creditBytes: number;
  /** Bytes of the tasks that have started and not ended. */
  readonly inFlightBytes: number;
  /** Number of tasks in flight. */
  readonly inFlight: number;
  /** Number of tasks in the queue, which wait for credit. Tasks that were given up count until they would be the first. */
  readonly queued: number;
}

export class SchedulerLink {
  readonly order: LinkOrder;
  /** Credit of this link alone; undefined: the core's. */
  ownCreditBytes: number | undefined;
  ownPartitionBytes: number | undefined;
  readonly account: CreditAccount;
  /** True while the core starts the link's tasks: it sees tasks that become ready meanwhile. */
  isPumping = false;
  /** Tasks that wait, with those that ended while they did and have not reached the front. */
  readonly queue: PriorityQueue<Task>;

  constructor(order: LinkOrder, open: (link: SchedulerLink) => CreditAccount) {
    this.account = open(this);
    this.order = order;
    this.queue = new PriorityQueue(order === 'priority' ? isSooner : hasArrivedSooner);
  }
}
