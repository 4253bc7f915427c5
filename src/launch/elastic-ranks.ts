/** Ranks of this node in a job that goes on without those that end badly: each is started again alone, as a newcomer that waits until the
 *  others take it in:
 *
 *      rank 3 ends badly ── 1 s, 2 s, 4 s … ──▶ rank 4 is started ──▶ it has joined
 *                               ▲                       └ it ends before ─┐
 *                               └────────── while restarts are left ──────┘
 *
 *  A node that comes later has newcomers from the start. It must not know how processes are started, nor how ranks agree. */
import { must } from '../base/assert.ts';
import type { Clock } from '../base/clock.ts';
import { messageOf } from '../base/errors.ts';
import { keepSeldomCode } from '../base/packages/cached-code.ts';
import { noteGone, whenJoined } from '../store/ended-ranks.ts';
import type { Store } from '../store/store.ts';
import { succeeded } from './exit-reason.ts';
import { describeEnd } from './failure-text.ts';
import type { JobFailure } from './node-records.ts';
import type { EndedProcess, ExpendableRanks } from './supervisor.ts';
import type { WorldListener } from './world-ledger.ts';

export interface ElasticRanksOptions {
  readonly clock: Clock;
  /** Ranks at the beginning: 0…size − 1. */
  readonly size: number;
  /** The first of them on this node. */
  readonly firstRank: number;
  /** Most restarts of a rank, for each place of this node. */
  readonly restarts: number;
  /** The part of the job's store that the ranks have. */
  readonly store: Store;
  readonly world: WorldListener;
  /** Starts a process that joins the world as this rank. */
  readonly start: (newcomer: Place) => void;
  readonly say: (line: string) => void;
}

export interface Place {
  readonly rank: number;
  readonly localRank: number;
}

interface Newcomer {
  readonly localRank: number;
  /** Undefined: it came with its node. */
  readonly startedFor: number | undefined;
  /** Aborted when it has ended. */
  readonly ended: AbortController;
}

const firstDelayMs = 1000;
const delayMaxMs = 30_000;
const foreverMs = 0x7fffffff;

export class ElasticRanks implements ExpendableRanks {
  readonly #options: ElasticRanksOptions;
  /** Newcomers that have not joined, by their ranks. */
  readonly #waiting = new Map<number, Newcomer>();
  /** Local ranks of newcomers that have joined. */
  readonly #localRanks = new Map<number, number>();
  /** Restarts so far, by local rank. */
  readonly #restarts = new Map<number, number>();
  /** Restarts that are about to be made. */
  #coming = 0;
  /** Ranks that have ended. */
  #gone = 0;
  readonly #over = new AbortController();

  constructor(options: ElasticRanksOptions) {
    this.#options = options;
  }

  /** A rank is about to be started again here. */
  get isAboutToStart(): boolean {
    return this.#coming > 0 && !this.#over.signal.aborted;
  }

  isWaiting(rank: number): boolean {
    return this.#waiting.has(rank);
  }

  goOnWithout(rank: number): boolean {
    return this.#options.world.goOnWithout(rank);
  }

  /** The world goes on without a rank. */
  onLost(ended: EndedProcess, failure: JobFailure): void {
    const { world } = this.#options;
    const rank = must(ended.rank, () => 'it is a rank');
    const again = this.#startAgain(ended, rank, this.#localRankOf(rank));
    world.hear({ what: 'ended', rank, text: ended.text, described: describeEnd(ended), again, failure });
    keepSeldomCode();
  }

  /** A rank has ended well. */
  onEndedWell(rank: number): void {
    this.#noteGone({ rank, text: 'exited with code 0' }, this.#localRankOf(rank), { returns: false });
    this.#options.world.hear({ what: 'ended', rank });
  }

  /** A newcomer has ended before it has joined. */
  onNewcomerEnd(ended: EndedProcess): void {
    const rank = must(ended.rank, () => 'it is a rank');
    const { localRank, startedFor, ended: aborting } = must(this.#waiting.get(rank), () => 'it waits');
    this.#waiting.delete(rank);
    aborting.abort();
    if (this.#over.signal.aborted) return;
    const again = succeeded(ended.ending) ? '' : this.#startAgain(ended, startedFor ?? rank, localRank);
    const why = startedFor === undefined ? '' : ` (started again for rank ${startedFor})`;
    this.#options.say(`rank ${rank}${why} did not join: ${describeEnd(ended)}${again}`);
    this.#options.world.hear({ what: 'ended', rank });
  }

  /** Newcomers of a node that has come later: their numbers. */
  async numbers(count: number): Promise<Place[]> {
    const { size, store } = this.#options;
    // A newcomer without a launcher takes its number from the same counter.
    const end = size + (await store.add('newcomers', count));
    return Array.from({ length: count }, (_, localRank) => ({ rank: end - count + localRank, localRank }));
  }

  /** A newcomer is about to be started: it counts from when it has joined. */
  expect({ rank, localRank }: Place, startedFor?: number): void {
    const { store, world } = this.#options;
    const ended = new AbortController();
    this.#waiting.set(rank, { localRank, startedFor, ended });
    world.hear({ what: 'waits', rank, startedFor });
    const signal = AbortSignal.any([ended.signal, this.#over.signal]);
    const joined = (): void => {
      this.#waiting.delete(rank);
      this.#localRanks.set(rank, localRank);
      world.hear({ what: 'joined', rank });
    };
    whenJoined(store, [rank], { timeoutMs: foreverMs, signal }).then(joined, () => undefined);
  }

  /** Nothing is started any more. */
  close(): void {
    this.#over.abort();
  }

  #localRankOf(rank: number): number {
    return this.#localRanks.get(rank) ?? rank - this.#options.firstRank;
  }

  /** Servers that the ranks use hear of it. */
  #noteGone({ rank = 0, text }: Pick<EndedProcess, 'rank' | 'text'>, localRank: number, { returns }: { returns: boolean }): void {
    const { store, firstRank } = this.#options;
    // Without the store the job ends.
    noteGone(store, this.#gone++, { rank, place: firstRank + localRank, text, returns }).catch(() => undefined);
  }

  /** One that SIGTERM has asked to leave stays away. @returns words about it, for the end of a line. */
  #startAgain(ended: EndedProcess, rank: number, localRank: number): string {
    const { clock, restarts, say } = this.#options;
    const made = this.#restarts.get(localRank) ?? 0;
    const isAsked = ended.ending.signal === 'SIGTERM';
    this.#noteGone(ended, localRank, { returns: !isAsked && made < restarts });
    if (isAsked) return ', and it was asked to leave';
    if (restarts === 0 || this.#over.signal.aborted) return '';
    if (made >= restarts) return `; ${restarts === 1 ? 'its restart is' : `its ${restarts} restarts are`} used up`;
    this.#restarts.set(localRank, made + 1);
    this.#coming++;
    const delayMs = Math.min(firstDelayMs * 2 ** made, delayMaxMs);
    const failed = (error: unknown): void => {
      if (!this.#over.signal.aborted) say(`rank ${rank} could not be started again: ${messageOf(error)}`);
    };
    clock.setTimer(delayMs, () => void this.#start(rank, localRank).catch(failed));
    return `; it is started again in ${delayMs / 1000} s (${made + 1} of ${restarts})`;
  }

  async #start(startedFor: number, localRank: number): Promise<void> {
    // The store ends with the job.
    if (this.#over.signal.aborted) return;
    try {
      const [{ rank }] = await this.numbers(1);
      if (this.#over.signal.aborted) return;
      this.expect({ rank, localRank }, startedFor);
      this.#options.start({ rank, localRank });
    } finally {
      this.#coming--;
    }
  }
}
