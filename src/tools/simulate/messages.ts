/** Messages, which serve again. */
import { doubled, none, Records } from './records.ts';

/** The fields of a message, by number:
 *  - `task`: its sender, and `operation`: the one that it is of. Messages with the same `origin` and target are a flow, and stay in order.
 *  - `target`: the rank whose signal it raises; `place`: that signal's.
 *  - `next`: the next message of the flow. In a flow's first message `last` is its last one, `nextFlow` the first one of the flow whose turn
 *    is next, and `nextHash` the first one of another flow with the same hash. */
export const [task, operation, origin, target, place, next, last, nextFlow, nextHash] = new Array(9).keys();

export class Messages extends Records {
  /** A message that is not in use; it knows the next one. */
  #free: number = none;
  /** Bytes that have not left, by message. */
  bytes: Float64Array = new Float64Array(256);

  constructor() {
    super(9);
  }

  /** @param values of the fields up to `place`. */
  make(bytes: number, values: readonly number[]): number {
    const made = this.#free === none ? this.add() : this.#free;
    if (this.#free !== none) this.#free = this.get(made, next);
    this.fill(made, values, none);
    if (made === this.bytes.length) this.bytes = doubled(this.bytes);
    this.bytes[made] = bytes;
    return made;
  }

  /** Nothing knows the message any more. */
  free(ended: number): void {
    this.set(ended, next, this.#free);
    this.#free = ended;
  }
}
