/** Requests that wait to be sent to one server, the most urgent first. Pushes of a slot keep their order: an urgent one makes those before
 *  it as urgent. */
import type { ClientRequest } from './client-request.ts';

export interface Waiting {
  readonly request: ClientRequest;
  sent: boolean;
  /** Requests that push to the same slots and were added before, when they had not been sent. */
  after: Waiting[];
}

export class WaitingRequests<Entry extends Waiting> {
  readonly #entries: Entry[] = [];
  /** The last request that pushes to each slot. */
  readonly #lastPush: Waiting[] = [];

  get length(): number {
    return this.#entries.length;
  }

  add(entry: Entry): void {
    this.#entries.push(entry);
    const { pushed, priority } = entry.request;
    if (pushed === undefined) return;
    for (const { firstSlot, slots } of pushed) {
      for (let slot = firstSlot; slot < firstSlot + slots; slot++) {
        const before = this.#lastPush[slot];
        this.#lastPush[slot] = entry;
        if (before === undefined || before === entry || before.sent || entry.after.at(-1) === before) continue;
        entry.after.push(before);
      }
    }
    for (const before of entry.after) raise(before, priority);
  }

  mostUrgent(): Entry | undefined {
    let best: Entry | undefined;
    for (const entry of this.#entries) if (best === undefined || entry.request.priority > best.request.priority) best = entry;
    return best;
  }

  /** @returns false when it does not wait. */
  delete(request: ClientRequest): boolean {
    const index = this.#entries.findIndex((entry) => entry.request === request);
    if (index < 0) return false;
    this.#entries.splice(index, 1);
    return true;
  }

  clear(): void {
    this.#entries.length = 0;
  }
}

function raise(entry: Waiting, priority: number): void {
  if (entry.sent || entry.request.priority >= priority) return;
  entry.request.priority = priority;
  for (const before of entry.after) raise(before, priority);
}
