/** Operations on one parameter reach the store underneath in the order of their calls, at any priorities: a pull contains at least the
 *  pushes before it. Only their starts are ordered; they overlap as the store allows. It must not know tasks. */

export class CallOrder {
  readonly #last = new Map<string, Turn>();

  /** Called in the order of the operations. @param parts of the operation, each of which starts once. */
  enter(key: string, parts: number): Turn {
    const before = this.#last.get(key);
    const turn = new Turn(parts, () => {
      if (this.#last.get(key) === turn) this.#last.delete(key);
    });
    this.#last.set(key, turn);
    if (before === undefined) turn.open();
    else before.next = turn;
    return turn;
  }
}

/** One operation's. It is over when all its parts have started, or it has ended; then the next one's comes. */
export class Turn {
  next: Turn | undefined;
  readonly #waiting: (() => void)[] = [];
  readonly #onOver: () => void;
  #toStart: number;
  #isOpen = false;

  constructor(parts: number, onOver: () => void) {
    this.#toStart = parts;
    this.#onOver = onOver;
  }

  /** Runs it now, or when all that was called before has started. */
  whenOpen(run: () => void): void {
    if (this.#isOpen) run();
    else this.#waiting.push(run);
  }

  /** One of the parts has started. */
  partStarted(): void {
    this.#toStart--;
    if (this.#toStart === 0) this.#pass();
  }

  /** The operation has ended, perhaps before it could start. */
  end(): void {
    if (this.#toStart <= 0) return;
    this.#toStart = 0;
    this.#pass();
  }

  open(): void {
    this.#isOpen = true;
    for (const run of this.#waiting.splice(0)) run();
    if (this.#toStart === 0) this.#pass();
  }

  /** An operation that ended before its turn does not let others pass. */
  #pass(): void {
    if (!this.#isOpen) return;
    this.#onOver();
    const { next } = this;
    this.next = undefined;
    next?.open();
  }
}
