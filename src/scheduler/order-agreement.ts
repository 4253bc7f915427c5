/** In which order all ranks of a group start their all-reduces, without a leader: tensors become ready at other times on other ranks,
 *  and ranks that started them as they come would wait for each other for ever. A state machine: messages in, messages out.
 *
 *  Each rank counts, for each key, how often its tensor has become ready. In a *round* every rank tells all others its counts. What is
 *  ready everywhere is the minimum over the ranks, so all of them know the same; each cuts the same *batch* from it, by priority, of
 *  `batchBytes` or a little more, and appends it to the *order*. What becomes ready later, and is needed sooner, comes first in the
 *  next batch: it overtakes between parts.
 *
 *      rank 0   ready a ── counts ──▶ ┐                ┌▶ minimum {a} ▶ batch: a0 a1 ▶ starts a0, a1
 *      rank 1   ready a, b ─ counts ─▶┼ everyone's, of ┤
 *      rank 2   ready a ── counts ──▶ ┘ one round      └▶ the same on all ranks
 *
 *  Nothing waits for ever (docs/scheduler.md has the argument): a rank answers a round at once, whatever it is doing; who has news or
 *  knows of more to start, and has less than `lowBytes` to do, begins a round; and the order is one sequence, so that its first
 *  operation that has not ended is one that every rank may start. */
import { ShoalError } from '../base/errors.ts';
import { describeValue } from '../base/settings/options.ts';

export interface OrderOptions {
  readonly rank: number;
  /** Ranks. */
  readonly size: number;
  /** Keys are numbered in the order of their priority: 0 is the soonest. */
  readonly keys: number;
  /** One round decides about as many bytes. Default: 4 MiB. */
  readonly batchBytes?: number;
  /** With at most so many bytes agreed on and not started, a rank begins a round. Default: half of `batchBytes`. */
  readonly lowBytes?: number;
}

/** To all other ranks, in order between any two. */
export interface OrderMessage {
  readonly round: number;
  /** Of each key: how often it has become ready. */
  readonly counts: readonly number[];
  /** Of the sender: all ranks cut the same batches. */
  readonly batchBytes: number;
}

/** One part of one tensor. */
export interface Turn {
  readonly key: number;
  /** How often the key was decided before. */
  readonly post: number;
  readonly part: number;
  readonly bytes: number;
}

/** Plain data, so that worlds can be copied. */
export interface OrderState {
  /** The one that is open, or comes next. */
  round: number;
  /** Own counts of this round have been sent. */
  isOpen: boolean;
  /** Of each key. */
  readonly counts: number[];
  /** As they were told last. */
  told: number[];
  /** Of each key: ready everywhere. */
  minimum: number[];
  /** Of each key: posts of which all parts are in the order. */
  readonly decided: number[];
  /** Of each key: parts in the order, of the post that is being cut. */
  readonly cut: number[];
  /** Of each key: sizes of the parts of its posts that are not decided. */
  readonly posts: (readonly number[])[][];
  /** Of each rank: its counts in this round and, from those that are ahead, in the next. */
  readonly heard: (readonly number[] | null)[][];
  /** Agreed on, and not given out by `next`. */
  readonly agreed: Turn[];
  /** Agreed on, and not started here. */
  unstarted: number;
  unstartedBytes: number;
}

export class OrderAgreement {
  readonly state: OrderState;
  readonly #rank: number;
  readonly #size: number;
  readonly #keys: number;
  readonly #batchBytes: number;
  readonly #lowBytes: number;

  /** @param state goes on from it. */
  constructor(options: OrderOptions, state?: OrderState) {
    const { rank, size, keys, batchBytes = 4 * 2 ** 20, lowBytes = Math.floor(batchBytes / 2) } = options;
    for (const [name, value, least] of [
      ['rank', rank, 0],
      ['size', size, 1],
      ['keys', keys, 0],
      ['batchBytes', batchBytes, 1],
      ['lowBytes', lowBytes, 0],
    ] as const) {
      if (Number.isSafeInteger(value) && value >= least) continue;
      throw new ShoalError('usage', `OrderAgreement: ${name} must be an integer from ${least}, not ${describeValue(value)}`);
    }
    if (rank >= size) throw new ShoalError('usage', `OrderAgreement: there is no rank ${rank} of ${size}`);
    this.#rank = rank;
    this.#size = size;
    this.#keys = keys;
    this.#batchBytes = batchBytes;
    this.#lowBytes = lowBytes;
    this.state = state ?? initialState(size, keys);
  }

  /** A tensor has become ready here. A key may be ready several times: its posts are started in this order.
   *  @param parts bytes of each of its parts, which are the same on all ranks. @returns messages to all other ranks. */
  ready(key: number, parts: readonly number[]): OrderMessage[] {
    const { state } = this;
    if (!(key in state.counts)) throw new ShoalError('usage', `there is no key ${describeValue(key)} among ${this.#keys}`);
    if (parts.length === 0) throw new ShoalError('usage', `key ${key} is ready without any part`);
    state.counts[key]++;
    state.posts[key].push(parts);
    return this.#proceed();
  }

  /** A message of another rank. @returns messages to all others.
   *  @throws ShoalError `protocol` for what no rank of this group would say; `mismatch` for other batches than this rank's. */
  receive(from: number, { round, counts, batchBytes }: OrderMessage): OrderMessage[] {
    const { state } = this;
    this.#check(from, round, counts);
    if (batchBytes !== this.#batchBytes) {
      const message = `rank ${from} orders in batches of ${batchBytes} bytes, this rank in batches of ${this.#batchBytes}`;
      throw new ShoalError('mismatch', `${message}; set the same on all ranks`, { peer: from });
    }
    state.heard[round - state.round][from] = counts;
    return this.#proceed();
  }

  /** What comes next in the order, once; undefined: nothing more is agreed on yet. */
  next(): Turn | undefined {
    return this.state.agreed.shift();
  }

  /** A turn that `next` gave has started here. @returns messages to all others. */
  started({ bytes }: Turn): OrderMessage[] {
    this.state.unstarted--;
    this.state.unstartedBytes -= bytes;
    return this.#proceed();
  }

  /** Ends the round that has everyone's counts, and begins the next if there is a reason to. */
  #proceed(): OrderMessage[] {
    const { state } = this;
    const out: OrderMessage[] = [];
    for (;;) {
      if (state.isOpen && state.heard[0].every((counts, rank) => counts !== null || rank === this.#rank)) this.#decide();
      else if (!state.isOpen && (this.#isAnswerDue() || this.#hasReason())) out.push(this.#tell());
      else return out;
    }
  }

  /** Somebody has begun this round: it is answered whatever there is to say, for others wait for it. */
  #isAnswerDue(): boolean {
    return this.state.heard[0].some((counts) => counts !== null);
  }

  #hasReason(): boolean {
    const { counts, told, minimum, decided, unstarted, unstartedBytes } = this.state;
    if (unstarted > 0 && unstartedBytes > this.#lowBytes) return false;
    return counts.some((count, key) => count > told[key] || minimum[key] > decided[key]);
  }

  #tell(): OrderMessage {
    const { state } = this;
    state.isOpen = true;
    state.told = [...state.counts];
    return { round: state.round, counts: state.told, batchBytes: this.#batchBytes };
  }

  #decide(): void {
    const { state } = this;
    const all = state.heard[0].map((counts) => counts ?? state.told);
    state.minimum = state.minimum.map((_, key) => Math.min(...all.map((counts) => counts[key])));
    state.heard[0] = state.heard[1];
    state.heard[1] = Array.from({ length: this.#size }, () => null);
    state.round++;
    state.isOpen = false;
    let bytes = 0;
    // Keys are in the order of their priority.
    for (let key = 0; key < this.#keys && bytes < this.#batchBytes;) {
      if (state.minimum[key] <= state.decided[key]) key++;
      else bytes += this.#append(key);
    }
  }

  #append(key: number): number {
    const { state } = this;
    const [parts] = state.posts[key];
    const part = state.cut[key]++;
    const bytes = parts[part];
    state.agreed.push({ key, post: state.decided[key], part, bytes });
    state.unstarted++;
    state.unstartedBytes += bytes;
    if (part + 1 === parts.length) {
      state.posts[key].shift();
      state.decided[key]++;
      state.cut[key] = 0;
    }
    return bytes;
  }

  #check(from: number, round: number, counts: readonly number[]): void {
    const { state } = this;
    const refuse = (what: string): ShoalError => new ShoalError('protocol', `order message of rank ${from}: ${what}`, { peer: from });
    if (!Number.isInteger(from) || from < 0 || from >= this.#size || from === this.#rank) throw refuse(`no other rank of ${this.#size}`);
    const ahead = round - state.round;
    // Nobody ends a round without this rank's counts.
    if (ahead !== 0 && !(ahead === 1 && state.isOpen)) throw refuse(`round ${round} while this rank is in round ${state.round}`);
    if (state.heard[ahead][from] !== null) throw refuse(`counts of round ${round} for the second time`);
    if (counts.length !== this.#keys) throw refuse(`${counts.length} counts of ${this.#keys} keys`);
    const before = ahead === 1 ? state.heard[0][from] : null;
    if (ahead === 1 && before === null) throw refuse(`round ${round} before round ${state.round}`);
    const isCount = (count: number, key: number): boolean =>
      Number.isSafeInteger(count) && count >= (before === null ? state.minimum[key] : before[key]);
    if (!counts.every(isCount)) throw refuse('counts that go back');
  }
}

function initialState(size: number, keys: number): OrderState {
  const zeros = (): number[] => Array.from({ length: keys }, () => 0);
  const silence = (): null[] => Array.from({ length: size }, () => null);
  return {
    round: 0,
    isOpen: false,
    counts: zeros(),
    told: zeros(),
    minimum: zeros(),
    decided: zeros(),
    cut: zeros(),
    posts: Array.from({ length: keys }, () => []),
    heard: [silence(), silence()],
    agreed: [],
    unstarted: 0,
    unstartedBytes: 0,
  };
}
