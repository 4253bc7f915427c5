/** Pushes whose pulls have not come, one of a key at most. They are let go when the turn of the event loop ends. */
import type { PendingWork } from '../../comm/caller/work.ts';
import type { StoreOperation } from './store-operation.ts';

export interface BufferedPush {
  readonly push: StoreOperation;
  readonly work: PendingWork;
}

export class PushBuffer {
  readonly #pushes = new Map<string, BufferedPush>();
  readonly #onTurnEnd: () => void;
  #isWaiting = false;

  /** @param onTurnEnd once in a turn in which there was a push. */
  constructor(onTurnEnd: () => void) {
    this.#onTurnEnd = onTurnEnd;
  }

  get keys(): string[] {
    return [...this.#pushes.keys()];
  }

  add(buffered: BufferedPush): void {
    this.#pushes.set(buffered.push.key, buffered);
    if (this.#isWaiting) return;
    this.#isWaiting = true;
    queueMicrotask(() => {
      this.#isWaiting = false;
      this.#onTurnEnd();
    });
  }

  /** No longer buffered. */
  take(key: string): BufferedPush | undefined {
    const buffered = this.#pushes.get(key);
    this.#pushes.delete(key);
    return buffered;
  }
}
