/** The tensors that are scheduled, by key, and which is needed sooner. Ranks that order tasks alike have equal tables. */
import { ShoalError } from '../base/errors.ts';
import { checkKind, describeValue } from '../base/settings/options.ts';

/** What ranks compare. */
export interface KeyEntry {
  readonly key: string;
  /** Smaller is sooner. */
  readonly priority: number;
  readonly bytes: number;
}

export interface KeyTableOptions {
  /** Default: 1,048,576. */
  readonly keysMax?: number;
}

export class KeyTable {
  readonly #entries = new Map<string, KeyEntry>();
  readonly #keysMax: number;
  #order: readonly KeyEntry[] | undefined;
  readonly #indices = new Map<string, number>();

  constructor({ keysMax = 2 ** 20 }: KeyTableOptions = {}) {
    if (!Number.isSafeInteger(keysMax) || keysMax <= 0) {
      throw new ShoalError('usage', `KeyTable: keysMax must be a positive integer, not ${describeValue(keysMax)}`);
    }
    this.#keysMax = keysMax;
  }

  /** @param priority smaller is sooner. Default: that of the order in which keys are registered, which is that of the layers.
   *  @throws ShoalError `usage` for a key that is registered already, or after `seal`. */
  register(key: string, bytes: number, priority = this.#entries.size): void {
    checkKind('register: key', key, 'string');
    if (this.#order !== undefined) {
      throw new ShoalError(
        'usage',
        `register: '${key}' is late: the table was sealed with ${this.#entries.size} keys; register all of them first`,
      );
    }
    if (this.#entries.has(key)) throw new ShoalError('usage', `register: '${key}' is registered already; keys are unique`);
    if (!Number.isSafeInteger(bytes) || bytes < 0)
      throw new ShoalError('usage', `register: bytes of '${key}' must be a whole number, not ${describeValue(bytes)}`);
    if (!Number.isFinite(priority))
      throw new ShoalError('usage', `register: priority of '${key}' must be a finite number, not ${describeValue(priority)}`);
    if (this.#entries.size >= this.#keysMax)
      throw new ShoalError('out-of-memory', `register: '${key}' is one more than keysMax = ${this.#keysMax}`);
    this.#entries.set(key, { key, priority, bytes });
  }

  /** No key is registered any more. @returns all of them, the soonest first; equal priorities in the order of their keys, which is the
   *  same on all ranks whatever they registered first. */
  seal(): readonly KeyEntry[] {
    if (this.#order === undefined) {
      this.#order = [...this.#entries.values()].sort((a, b) => a.priority - b.priority || (a.key < b.key ? -1 : 1));
      for (const [index, { key }] of this.#order.entries()) this.#indices.set(key, index);
    }
    return this.#order;
  }

  /** The place of a key in the order; the table must be sealed. @throws ShoalError `usage` for a key that is not in it. */
  indexOf(key: string): number {
    const index = this.#indices.get(key);
    if (index !== undefined) return index;
    const reason = this.#entries.has(key) ? 'the table is not sealed yet' : 'it was never registered';
    throw new ShoalError('usage', `'${key}' has no place in the order: ${reason}`);
  }

  /** @param order what another rank's `seal` gave. @throws ShoalError `mismatch` that names the first difference. */
  compare(rank: number, order: readonly KeyEntry[]): void {
    const own = this.seal();
    for (let index = 0; index < Math.max(own.length, order.length); index++) {
      const [mine, theirs] = [own.at(index), order.at(index)];
      if (mine?.key === theirs?.key && mine?.priority === theirs?.priority && mine?.bytes === theirs?.bytes) continue;
      const message = `rank ${rank} schedules ${describeEntry(theirs)} where this rank schedules ${describeEntry(mine)}, at place ${index}`;
      throw new ShoalError('mismatch', `${message}; every rank registers the same keys, sizes and priorities`, { peer: rank });
    }
  }
}

function describeEntry(entry: KeyEntry | undefined): string {
  return entry === undefined ? 'nothing' : `'${entry.key}' (priority ${entry.priority}, ${entry.bytes} bytes)`;
}
