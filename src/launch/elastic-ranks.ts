/** The world of a job that goes on without ranks that end badly, as its launcher sees it: how many are left, and those that are started again,
 *  each alone, as newcomers that wait until the others take them in:
 *
 *      rank 3 ends badly ── world 4 → 3 ── 1 s, 2 s, 4 s … ──▶ rank 4 is started ──▶ it has joined: world 3 → 4
 *                                             ▲                       └ it ends before ─┐
 *                                             └────────── while restarts are left ──────┘
 *
 *  It must not know how processes are started, nor how ranks agree. */
import { must } from '../base/assert.ts';
import type { Clock } from '../base/clock.ts';
import { messageOf } from '../base/errors.ts';
import { whenJoined } from '../store/ended-ranks.ts';
import type { Store } from '../store/store.ts';
import { succeeded } from './exit-reason.ts';
import { describeEnd } from './failure-text.ts';
import type { EndedProcess, ExpendableRanks } from './supervisor.ts';

/** A change of the world's ranks. */
export interface WorldChange {
  /** Since the launch. */
  readonly seconds: number;
  /** Number of ranks before and after. */
  readonly from: number;
  readonly to: number;
  /** The rank that was lost or has joined. */
  readonly rank: number;
  /** The rank that it was started again for. */
  readonly startedFor?: number;
  readonly text: string;
}

/** `world 3 → 4: rank 4 (started again for rank 3) joined`. */
export function describeChange({ from, to, rank, startedFor, text }: Omit<WorldChange, 'seconds'>): string {
  return `world ${from} → ${to}: rank ${rank}${startedFor === undefined ? '' : ` (started again for rank ${startedFor})`} ${text}`;
}

export interface ElasticRanksOptions {
  readonly clock: Clock;
  /** Ranks at the beginning: 0…size − 1. */
  readonly size: number;
  /** Least number of ranks: with fewer the job ends. */
  readonly min: number;
  /** Most restarts of a rank, for each place of this node. */
  readonly restarts: number;
  /** The part of the job's store that the ranks have. */
  readonly store: Store;
  /** Starts a process that joins the world as this rank. */
  readonly start: (newcomer: { readonly rank: number; readonly localRank: number }) => void;
  readonly say: (line: string) => void;
  readonly onChange: (change: Omit<WorldChange, 'seconds'>) => void;
}

interface Newcomer {
  readonly localRank: number;
  readonly startedFor: number;
  /** Aborted when it has ended. */
  readonly ended: AbortController;
}

const firstDelayMs = 1000;
const delayMaxMs = 30_000;
const foreverMs = 0x7fffffff;

export class ElasticRanks implements ExpendableRanks {
  readonly #options: ElasticRanksOptions;
  #size: number;
  /** Newcomers that have not joined, by their ranks. */
  readonly #waiting = new Map<number, Newcomer>();
  /** Local ranks of newcomers that have joined; that of another rank is its own number. */
  readonly #localRanks = new Map<number, number>();
  /** Restarts so far, by local rank. */
  readonly #restarts = new Map<number, number>();
  readonly #over = new AbortController();

  constructor(options: ElasticRanksOptions) {
    this.#options = options;
    this.#size = options.size;
  }

  isWaiting(rank: number): boolean {
    return this.#waiting.has(rank);
  }

  goOnWithout(): number | undefined {
    return this.#size > this.#options.min ? --this.#size : undefined;
  }

  /** The world goes on without a rank. */
  onLost(ended: EndedProcess, left: number): void {
    const rank = must(ended.rank, () => 'it is a rank');
    this.#options.onChange({ from: left + 1, to: left, rank, text: ended.text });
    const again = this.#startAgain(ended, rank, this.#localRanks.get(rank) ?? rank);
    this.#options.say(`world ${left + 1} → ${left}: ${describeEnd(ended)}; the others go on${again}`);
  }

  /** A newcomer has ended before it has joined. */
  onNewcomerEnd(ended: EndedProcess): void {
    const rank = must(ended.rank, () => 'it is a rank');
    const { localRank, startedFor, ended: aborting } = must(this.#waiting.get(rank), () => 'it waits');
    this.#waiting.delete(rank);
    aborting.abort();
    if (this.#over.signal.aborted) return;
    const again = succeeded(ended.ending) ? '' : this.#startAgain(ended, startedFor, localRank);
    this.#options.say(`rank ${rank} (started again for rank ${startedFor}) did not join: ${describeEnd(ended)}${again}`);
  }

  /** Nothing is started any more. */
  close(): void {
    this.#over.abort();
  }

  /** One that SIGTERM has asked to leave stays away. @returns words about it, for the end of a line. */
  #startAgain({ ending }: EndedProcess, rank: number, localRank: number): string {
    const { clock, restarts, say } = this.#options;
    const made = this.#restarts.get(localRank) ?? 0;
    if (ending.signal === 'SIGTERM') return ', and it was asked to leave';
    if (restarts === 0 || this.#over.signal.aborted) return '';
    if (made >= restarts) return `; ${restarts === 1 ? 'its restart is' : `its ${restarts} restarts are`} used up`;
    this.#restarts.set(localRank, made + 1);
    const delayMs = Math.min(firstDelayMs * 2 ** made, delayMaxMs);
    const failed = (error: unknown): void => {
      if (!this.#over.signal.aborted) say(`rank ${rank} could not be started again: ${messageOf(error)}`);
    };
    clock.setTimer(delayMs, () => void this.#start(rank, localRank).catch(failed));
    return `; it is started again in ${delayMs / 1000} s (${made + 1} of ${restarts})`;
  }

  async #start(startedFor: number, localRank: number): Promise<void> {
    const { size, store, start, say, onChange } = this.#options;
    // The store ends with the job.
    if (this.#over.signal.aborted) return;
    // A newcomer without a launcher takes its number from the same counter.
    const rank = size - 1 + (await store.add('newcomers', 1));
    if (this.#over.signal.aborted) return;
    const ended = new AbortController();
    this.#waiting.set(rank, { localRank, startedFor, ended });
    start({ rank, localRank });
    const signal = AbortSignal.any([ended.signal, this.#over.signal]);
    const hasJoined = await whenJoined(store, [rank], { timeoutMs: foreverMs, signal }).then(
      () => this.#waiting.delete(rank),
      () => false,
    );
    if (!hasJoined) return;
    this.#localRanks.set(rank, localRank);
    const to = ++this.#size;
    const change = { from: to - 1, to, rank, startedFor, text: 'joined' };
    onChange(change);
    say(describeChange(change));
  }
}
