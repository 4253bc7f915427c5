/** The order in which all ranks of a group start their all-reduces, agreed on without a leader. Tensors become ready at different times on
 *  different ranks, and ranks that started them at once could deadlock. A state machine: messages in, messages out.
 *
 *  Each rank *posts* tensors, by key, as they become ready. In a *round* every rank sends all others its new posts. The
 *  n-th post of a key is ready everywhere when all ranks have announced it; all of them know that after the same round. Each cuts the
 *  same *batch* from the posts that are ready everywhere, by priority, of `batchBytes` or a little more, and appends it to the *order*. A
 *  tensor that becomes ready later, and is more urgent, comes first in the next batch: it overtakes between parts.
 *
 *      rank 0   posts a ──── posts ──▶ ┐                ┌▶ ready everywhere: a ▶ batch: a0 a1 ▶ starts a0, a1
 *      rank 1   posts a, b ─ posts ──▶ ┼ everyone's, of ┤
 *      rank 2   posts a ──── posts ──▶ ┘ one round      └▶ the same on all ranks
 *
 *  There is no deadlock (docs/scheduler.md has the argument): a rank answers a round at once; a rank with new posts, or that knows of more
 *  to start, begins a round when it has less than `lowBytes` left; and the order is one sequence, so that every rank may start its first
 *  operation that has not ended. */
import { PriorityQueue } from '../base/collections/priority-queue.ts';
import { ShoalError } from '../base/errors.ts';
import {
  anyList,
  anyNumber,
  anyText,
  checkArgument,
  checkFields,
  count,
  describeValue,
  integer,
  list,
  object,
  optionTable,
} from '../base/schema.ts';
import { groupBy } from '../base/collections/lists.ts';
import { partBytes, type Cut } from './task-parts.ts';

/** Options of `OrderAgreement`. `batchBytes` is the same on all ranks. */
export interface OrderOptions {
  /** Number of this rank, 0…size−1. */
  readonly rank: number;
  /** Number of ranks. */
  readonly size: number;
  /** World ranks of the members, for errors. Default: their numbers here. */
  readonly worldRanks?: readonly number[];
  /** About how many bytes one round decides. Default: 4 MiB. */
  readonly batchBytes?: number;
  /** A rank begins a round when it has at most this many bytes agreed on and not started. Default: half of `batchBytes`. */
  readonly lowBytes?: number;
}

/** A tensor that has become ready. Ranks that post a key for the n-th time post the same. */
export interface OrderPost extends Cut {
  /** Name of the tensor, by which ranks match their posts. */
  readonly key: string;
  /** Smaller is sooner; equal ones in the order of their keys. */
  readonly priority: number;
  /** Description of the operation, for ranks to compare. */
  readonly what: string;
}

/** A message to all other ranks; between any two ranks messages keep their order. */
export interface OrderMessage {
  /** Number of the round in which the sender announces these posts, from 0. */
  readonly round: number;
  /** Tensors that have become ready since the last message. */
  readonly posts: readonly OrderPost[];
  /** `batchBytes` of the sender: all ranks cut the same batches. */
  readonly batchBytes: number;
}

/** One part of one tensor. */
export interface Turn {
  /** Name of the tensor, as it was posted. */
  readonly key: string;
  /** Number of the post among those that came into the order. */
  readonly post: number;
  /** Index of the part in its tensor, from 0. */
  readonly part: number;
  /** Size of the part in bytes. */
  readonly bytes: number;
}

/** Plain data, so that worlds can be copied. */
export interface OrderState {
  /** The round that is open, or comes next. */
  round: number;
  /** True once this rank's posts of this round have been sent. */
  isOpen: boolean;
  /** Posts that are ready here, and not announced. */
  readonly news: OrderPost[];
  /** Posts that were announced in the open round. */
  told: readonly OrderPost[];
  /** Posts of each rank that were announced in rounds that have ended, and are not entirely in the order. The posts of one key
   *  keep their order. */
  readonly undecided: OrderPost[][];
  /** Posts of which a batch took some of the parts. */
  readonly cut: (Pick<Turn, 'key' | 'post'> & {
    /** Number of parts that batches took. */
    parts: number;
  })[];
  /** More is ready everywhere than the last batch had room for. */
  hasMore: boolean;
  /** Number of posts that came into the order. */
  decided: number;
  /** Posts of each rank in this round and, from ranks that are ahead, in the next. */
  readonly heard: (readonly OrderPost[] | null)[][];
  /** Turns that are agreed on, and not yet given out by `next`. */
  readonly agreed: Turn[];
  /** Number of turns that are agreed on, and not started here. */
  unstarted: number;
  /** Bytes of these turns. */
  unstartedBytes: number;
}

const orderOptions = optionTable<OrderOptions>({
  rank: count,
  size: integer({ min: 1 }),
  worldRanks: list(count),
  batchBytes: integer({ min: 1 }),
  lowBytes: count,
});
const postFields = object({ key: anyText, what: anyText });
const messageFields = object({ round: anyNumber, posts: anyList, batchBytes: anyNumber });
const turnFields = object({ bytes: count });

/** Most posts announced in one message; the others wait for the next round. */
export const postsPerMessage = 1024;

/** Agrees with the other ranks, without a leader, on one order in which all start their operations, so that collectives cannot deadlock.
 *  A state machine: its owner carries messages between ranks, which keep their order, and starts what `next` gives. */
export class OrderAgreement {
  /** All that this rank knows of the agreement. Given to a new `OrderAgreement` with the same options, a copy goes on from there. */
  readonly state: OrderState;
  readonly #options: Required<OrderOptions>;

  /** @param state to go on from. */
  constructor(options: OrderOptions, state?: OrderState) {
    checkFields('OrderAgreement', options, orderOptions);
    const { rank, size, batchBytes = 4 * 2 ** 20, lowBytes = Math.floor(batchBytes / 2) } = options;
    if (rank >= size) throw new ShoalError('usage', `OrderAgreement: there is no rank ${rank} of ${size}`);
    const { worldRanks = Array.from({ length: size }, (_, each) => each) } = options;
    this.#options = { rank, size, worldRanks, batchBytes, lowBytes };
    this.state = state ?? initialState(size);
  }

  /** Announces that a tensor has become ready here. A key may be ready several times: its posts are started in this order.
   *  @returns messages to all other ranks. @throws ShoalError `mismatch`, like `receive`. */
  ready(post: OrderPost): OrderMessage[] {
    checkArgument('ready: post', post, postFields);
    const fault = faultOf(post);
    if (fault !== undefined) throw new ShoalError('usage', `'${post.key}' is ready ${fault}`);
    this.state.news.push(post);
    return this.#proceed();
  }

  /** Takes a message of another rank. @returns messages to all others.
   *  @throws ShoalError `protocol` for a message that no rank of this group would send; `mismatch` when the other rank cuts other
   *          batches, and for posts that ranks describe differently: the same on all of them. */
  receive(from: number, message: OrderMessage): OrderMessage[] {
    checkArgument('receive: from', from, anyNumber);
    checkArgument('receive: message', message, messageFields);
    const { round, posts, batchBytes } = message;
    const { state } = this;
    this.#check(from, round, posts);
    if (batchBytes !== this.#options.batchBytes) {
      const peer = this.#options.worldRanks[from];
      const own = this.#options.worldRanks[this.#options.rank];
      const text = `rank ${peer} orders in batches of ${batchBytes} bytes, rank ${own} in batches of ${this.#options.batchBytes}`;
      throw new ShoalError('mismatch', `${text}; set the same on all ranks`, { peer });
    }
    state.heard[round - state.round][from] = posts;
    return this.#proceed();
  }

  /** The next turn in the order, each once; undefined when nothing more is agreed on yet. */
  next(): Turn | undefined {
    return this.state.agreed.shift();
  }

  /** Tells that a turn given by `next` has started here. @returns messages to all others. */
  started(turn: Pick<Turn, 'bytes'>): OrderMessage[] {
    checkArgument('started: turn', turn, turnFields);
    this.state.unstarted--;
    this.state.unstartedBytes -= turn.bytes;
    return this.#proceed();
  }

  /** Ranks that have not announced the oldest post of the key that is not in the order. */
  absent(key: string): number[] {
    checkArgument('absent: key', key, anyText);
    const { undecided, heard } = this.state;
    const has = (posts: readonly OrderPost[] | null): boolean => posts?.some((post) => post.key === key) ?? false;
    return undecided.flatMap((posts, rank) =>
      rank === this.#options.rank || has(posts) || heard.some((round) => has(round[rank])) ? [] : [rank],
    );
  }

  /** Ends the round that has everyone's posts, and begins the next if there is a reason to. */
  #proceed(): OrderMessage[] {
    const { state } = this;
    const out: OrderMessage[] = [];
    for (;;) {
      if (state.isOpen && state.heard[0].every((posts, rank) => posts !== null || rank === this.#options.rank)) this.#decide();
      else if (!state.isOpen && (this.#isAnswerDue() || this.#hasReason())) out.push(this.#tell());
      else return out;
    }
  }

  /** True when another rank has begun this round: this rank then answers even with nothing to announce, as others wait for it. */
  #isAnswerDue(): boolean {
    return this.state.heard[0].some((posts) => posts !== null);
  }

  #hasReason(): boolean {
    const { news, hasMore, unstarted, unstartedBytes } = this.state;
    if (unstarted > 0 && unstartedBytes > this.#options.lowBytes) return false;
    return news.length > 0 || hasMore;
  }

  #tell(): OrderMessage {
    const { state } = this;
    state.isOpen = true;
    state.told = state.news.splice(0, postsPerMessage);
    return { round: state.round, posts: state.told, batchBytes: this.#options.batchBytes };
  }

  #decide(): void {
    const { state } = this;
    for (const [rank, posts] of state.heard[0].entries()) state.undecided[rank].push(...(posts ?? state.told));
    state.heard[0] = state.heard[1];
    state.heard[1] = Array.from({ length: this.#options.size }, () => null);
    state.round++;
    state.isOpen = false;
    state.told = [];
    this.#cutBatch();
  }

  #cutBatch(): void {
    const { state } = this;
    const byKey = state.undecided.map((posts) => groupBy(posts, ({ key }) => key));
    const first = new PriorityQueue<OrderPost>(isSooner);
    const enter = (key: string): void => {
      const posts = byKey.map((each) => each.get(key)?.at(0));
      if (!posts.every((post) => post !== undefined)) return;
      checkSame(posts, this.#options.worldRanks);
      first.push(posts[0]);
    };
    for (const key of byKey[0].keys()) enter(key);
    const left = new Set<string>();
    for (let bytes = 0; first.length > 0 && bytes < this.#options.batchBytes;) {
      const post = first.peek() as OrderPost;
      bytes += this.#append(post);
      if (state.cut.some(({ key }) => key === post.key)) continue;
      first.pop();
      for (const each of byKey) each.get(post.key)?.shift();
      left.add(post.key);
      enter(post.key);
    }
    state.hasMore = first.length > 0;
    if (left.size === 0) return;
    for (const [rank, posts] of state.undecided.entries()) {
      // Posts that have left `undecided` are the first of their key.
      const over = new Map(Array.from(left, (key) => [key, byKey[rank].get(key)?.length ?? 0]));
      const kept: OrderPost[] = [];
      for (const post of posts.toReversed()) {
        const count = over.get(post.key);
        if (count !== undefined) over.set(post.key, count - 1);
        if (count === undefined || count > 0) kept.push(post);
      }
      state.undecided[rank] = kept.toReversed();
    }
  }

  /** Appends the post's next part to the order. */
  #append(post: OrderPost): number {
    const { state } = this;
    let cut = state.cut.find(({ key }) => key === post.key);
    if (cut === undefined) {
      cut = { key: post.key, post: state.decided++, parts: 0 };
      state.cut.push(cut);
    }
    const part = cut.parts++;
    const bytes = partBytes(post, part);
    state.agreed.push({ key: post.key, post: cut.post, part, bytes });
    state.unstarted++;
    state.unstartedBytes += bytes;
    if (cut.parts === post.parts) state.cut.splice(state.cut.indexOf(cut), 1);
    return bytes;
  }

  #check(from: number, round: number, posts: readonly OrderPost[]): void {
    const { state } = this;
    const peer = this.#options.worldRanks.at(from) ?? from;
    const refuse = (what: string): ShoalError => new ShoalError('protocol', `order message of rank ${peer}: ${what}`, { peer });
    if (!Number.isInteger(from) || from < 0 || from >= this.#options.size || from === this.#options.rank)
      throw refuse(`no other rank of ${this.#options.size}`);
    const ahead = round - state.round;
    // No rank ends a round without this rank's posts.
    if (ahead !== 0 && !(ahead === 1 && state.isOpen)) throw refuse(`round ${round} while this rank is in round ${state.round}`);
    if (state.heard[ahead][from] !== null) throw refuse(`posts of round ${round} for the second time`);
    if (ahead === 1 && state.heard[0][from] === null) throw refuse(`round ${round} before round ${state.round}`);
    if (posts.length > postsPerMessage) throw refuse(`${posts.length} posts, more than ${postsPerMessage}`);
    for (const post of posts) {
      const fault = faultOf(post);
      if (fault !== undefined) throw refuse(`'${post.key}' ${fault}`);
    }
  }
}

/** The reason why a post is invalid; undefined when it is valid. */
function faultOf({ priority, bytes, unitBytes, parts }: OrderPost): string | undefined {
  if (!Number.isFinite(priority)) return `with priority ${describeValue(priority)}`;
  if (!Number.isSafeInteger(bytes) || bytes < 0) return `with ${describeValue(bytes)} bytes`;
  if (!Number.isSafeInteger(unitBytes) || unitBytes <= 0 || bytes % unitBytes !== 0)
    return `with units of ${describeValue(unitBytes)} bytes`;
  if (!Number.isSafeInteger(parts) || parts <= 0) return 'without any part';
  return parts > 1 && parts > bytes / unitBytes ? `in ${parts} parts, more than there are units` : undefined;
}

/** @param posts one of each rank. @throws ShoalError `mismatch`. */
function checkSame(posts: readonly OrderPost[], worldRanks: readonly number[]): void {
  const [expected] = posts;
  for (const [rank, post] of posts.entries()) {
    const { priority, what, bytes, unitBytes, parts } = post;
    const isSame = priority === expected.priority && what === expected.what && bytes === expected.bytes;
    if (isSame && unitBytes === expected.unitBytes && parts === expected.parts) continue;
    const message = `rank ${worldRanks[rank]} schedules ${describePost(post)}, rank ${worldRanks[0]} ${describePost(expected)}; every rank gives a tensor the same name, size, operation, priority and partition`;
    throw new ShoalError('mismatch', message, { peer: worldRanks[rank] });
  }
}

function describePost({ key, priority, what, bytes, parts }: OrderPost): string {
  return `'${key}' (${what}, priority ${priority}, ${bytes} bytes in ${parts} parts)`;
}

function isSooner(a: OrderPost, b: OrderPost): boolean {
  return a.priority === b.priority ? a.key < b.key : a.priority < b.priority;
}

function initialState(size: number): OrderState {
  const ofRanks = <T>(make: () => T): T[] => Array.from({ length: size }, make);
  return {
    round: 0,
    isOpen: false,
    news: [],
    told: [],
    undecided: ofRanks(() => []),
    cut: [],
    hasMore: false,
    decided: 0,
    heard: [ofRanks(() => null), ofRanks(() => null)],
    agreed: [],
    unstarted: 0,
    unstartedBytes: 0,
  };
}
