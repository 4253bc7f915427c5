/** The work of a send or receive; a finished receive has its source. */
import { PendingWork, type WorkHooks, type WorkWaiter } from '../../comm/caller/work.ts';
import type { ReceiveWork } from './types.ts';

export class MessageWork extends PendingWork implements ReceiveWork {
  #source: number | undefined;

  constructor(waiter: WorkWaiter, description: string, { onSuccess, ...hooks }: WorkHooks) {
    const hear = (answer: unknown): void => {
      onSuccess?.();
      this.#source = answer as number | undefined;
    };
    super(waiter, description, { ...hooks, onSuccess: hear });
  }

  get source(): number | undefined {
    return this.done ? this.#source : undefined;
  }
}
