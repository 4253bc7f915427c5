/** A map of at most so many entries. A new one beyond that replaces the one that was used least recently. */

interface Entry<V> {
  readonly value: V;
  usedAt: number;
}

export class BoundedCache<K, V> {
  readonly #most: number;
  readonly #onDropped: (value: V) => void;
  readonly #entries = new Map<K, Entry<V>>();
  #uses = 0;

  /** @param onDropped is told of a value that makes room. */
  constructor(most: number, onDropped: (value: V) => void = () => {}) {
    this.#most = most;
    this.#onDropped = onDropped;
  }

  /** Uses an entry. Allocates nothing: the oldest is looked for when room is needed. */
  get(key: K): V | undefined {
    const entry = this.#entries.get(key);
    if (entry === undefined) return undefined;
    entry.usedAt = ++this.#uses;
    return entry.value;
  }

  /** Adds or replaces an entry, and returns its value. */
  put(key: K, value: V): V {
    this.#entries.set(key, { value, usedAt: ++this.#uses });
    if (this.#entries.size > this.#most) {
      const [oldest, { value: dropped }] = [...this.#entries].reduce((a, b) => (b[1].usedAt < a[1].usedAt ? b : a));
      this.#entries.delete(oldest);
      this.#onDropped(dropped);
    }
    return value;
  }

  delete(key: K): void {
    this.#entries.delete(key);
  }

  clear(): void {
    this.#entries.clear();
  }

  *values(): Generator<V> {
    for (const { value } of this.#entries.values()) yield value;
  }
}
