/** Finds the rank to blame for a wait that timed out: it asks the awaited rank which rank it waits for itself, and so on.
 *
 *      rank 0 waits for 1 ─▶ whom? ─▶ rank 1: for 2, in recv ─▶ whom? ─▶ rank 2: for nobody, or no answer     rank 2 is named
 *
 *  A rank that waits for the one that asks is named before others that wait for nobody: both would wait for ever, whoever came.
 *  Bounded: every rank is asked once, and one that does not answer in time counts as silent. It must not know the calls in which ranks
 *  wait. */
import { setServedTimer, type Clock, type Timer } from '../../../base/clock.ts';
import { answerMs } from './inquiry.ts';
import type { ControlMessage } from '../links/control-message.ts';

/** Ranks that an answer names at most. */
const waitRanksMax = 64;

/** The call in which a rank waits, and the ranks of the world that it waits for. */
export interface Wait {
  readonly text: string;
  readonly ranks: readonly number[];
  /** The time since when it waits, where that is known. */
  readonly sinceMs?: number;
  readonly path?: string;
  readonly group?: string;
}

export interface Culprit {
  /** Its number in the world; undefined where nobody was waited for. */
  readonly rank: number | undefined;
  /** The waits of all that were asked: `rank 1 waits for rank 2 in recv …; rank 2 does not answer`. */
  readonly text: string;
}

export interface WaitChainOptions {
  readonly rank: number;
  readonly clock: Clock;
  /** The wait of this rank; undefined: it waits for nothing. */
  readonly own: () => Wait | undefined;
  readonly tell: (rank: number, message: ControlMessage) => void;
}

interface Search {
  /** Answers in the order in which ranks were asked; undefined while they have not answered. */
  readonly answers: Map<number, Wait | undefined>;
  readonly onFound: (culprit: Culprit) => void;
  timer: Timer | undefined;
}

export class WaitChains {
  readonly #options: WaitChainOptions;
  readonly #searches = new Map<number, Search>();
  #nextId = 1;

  constructor(options: WaitChainOptions) {
    this.#options = options;
  }

  /** Finds who is to blame that this rank waits for `ranks`. Calls back once. */
  find(ranks: readonly number[], onFound: (culprit: Culprit) => void): void {
    const id = this.#nextId++;
    const search: Search = { answers: new Map(), onFound, timer: undefined };
    this.#searches.set(id, search);
    search.timer = setServedTimer(this.#options.clock, answerMs, () => this.#conclude(id, search));
    this.#ask(id, search, ranks);
    if (search.answers.size === 0) this.#conclude(id, search);
  }

  onControl(rank: number, message: Extract<ControlMessage, { type: 'whom' | 'waits' }>): void {
    const { id } = message;
    if (message.type === 'whom') {
      const { text, ranks } = this.#options.own() ?? { text: '', ranks: [] };
      this.#options.tell(rank, { type: 'waits', id, text, ranks: ranks.slice(0, waitRanksMax) });
      return;
    }
    const search = this.#searches.get(id);
    if (!search?.answers.has(rank)) return;
    search.answers.set(rank, message);
    this.#ask(id, search, message.ranks);
    if (![...search.answers.values()].includes(undefined)) this.#conclude(id, search);
  }

  /** Ends all searches; nobody is called back any more. */
  close(): void {
    for (const { timer } of this.#searches.values()) timer?.cancel();
    this.#searches.clear();
  }

  #ask(id: number, { answers }: Search, ranks: readonly number[]): void {
    for (const rank of ranks) {
      if (rank === this.#options.rank || answers.has(rank)) continue;
      answers.set(rank, undefined);
      this.#options.tell(rank, { type: 'whom', id });
    }
  }

  #conclude(id: number, { answers, onFound, timer }: Search): void {
    if (!this.#searches.delete(id)) return;
    timer?.cancel();
    const asked = [...answers];
    const [silent] = asked.find(([, wait]) => wait === undefined) ?? [];
    // This rank and one that waits for it would wait for ever, whoever else came. All ranks of a circle are as much to blame.
    const [circle] = asked.find(([, wait]) => wait?.ranks.includes(this.#options.rank)) ?? [];
    const [idle] = asked.find(([, wait]) => wait?.ranks.length === 0) ?? [];
    onFound({ rank: silent ?? circle ?? idle ?? asked.at(0)?.[0], text: asked.map(([each, wait]) => describe(each, wait)).join('; ') });
  }
}

function describe(rank: number, wait: Wait | undefined): string {
  if (wait === undefined) return `rank ${rank} does not answer`;
  if (wait.ranks.length === 0) return `rank ${rank} waits for nobody`;
  return `rank ${rank} itself waits for rank ${wait.ranks.join(', ')} in ${wait.text}`;
}
