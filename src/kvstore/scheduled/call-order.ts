/** Operations on one parameter reach the store underneath in the order of their calls, at any priorities: a pull contains at least the
 *  pushes before it. Only their starts are ordered; they overlap as the store allows. It must not know tasks. */
import { pushTo } from '../../base/collections/lists.ts';

/** The turn of one operation. It is over when all its parts have started, or it has ended; then the next one's comes. */
export interface Turn {
  readonly key: string;
  toStart: number;
  readonly waiting: (() => void)[];
}

export class CallOrder {
  /** Turns of each key; the first one is open. */
  readonly #turns = new Map<string, Turn[]>();

  /** Called in the order of the operations. @param parts number of the operation's parts, each of which starts once. */
  enter(key: string, parts: number): Turn {
    const turn: Turn = { key, toStart: parts, waiting: [] };
    pushTo(this.#turns, key, turn);
    return turn;
  }

  /** Runs it now, or when all that was called before has started. */
  whenOpen(turn: Turn, run: () => void): void {
    if (this.#turns.get(turn.key)?.[0] === turn) run();
    else turn.waiting.push(run);
  }

  /** One of the parts has started. With `all`, the operation has ended, perhaps before it could start: no part is waited for. */
  started(turn: Turn, which: 'one' | 'all'): void {
    turn.toStart = which === 'all' ? 0 : turn.toStart - 1;
    const turns = this.#turns.get(turn.key) ?? [];
    // A turn that is over before it is open does not let others pass.
    while (turns.length > 0 && turns[0].toStart <= 0) {
      turns.shift();
      for (const run of turns[0]?.waiting.splice(0) ?? []) run();
    }
    if (turns.length === 0 && this.#turns.get(turn.key) === turns) this.#turns.delete(turn.key);
  }
}
