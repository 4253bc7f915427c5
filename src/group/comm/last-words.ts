/** Messages that a rank sends before it may end, and that its end must not overtake: a peer that is just writing to it would find the
 *  connection broken, and read no more. Peers acknowledge each, and the rank waits for the acknowledgements.
 *
 *      rank 2 ── abort, id ──▶ rank 0      rank 2 ◀── heard, id ── rank 0      then rank 2's own call fails
 *
 *  It must not know the content of the messages. */
import { setServedTimer, type Clock } from '../../base/clock.ts';
import type { PeerLink } from './links/peer-link.ts';
import { encodeControl, type ControlMessage } from './links/control-message.ts';

type LastWord = Extract<ControlMessage, { id?: number | undefined; type: 'abort' | 'abort-elsewhere' | 'trouble' }>;

/** Whoever is stopped does not answer. */
export const answerMs = 1000;
/** Stands for the store where a rank is meant otherwise. */
const theStore = -1;

export class LastWords {
  readonly #clock: Clock;
  readonly #links: () => readonly PeerLink[];
  /** Ranks that have not answered, by what they were told. */
  readonly #awaited = new Map<number, Set<number>>();
  #waiting: (() => void)[] = [];
  #nextId = 1;

  constructor(clock: Clock, links: () => readonly PeerLink[]) {
    this.#clock = clock;
    this.#links = links;
  }

  /** @param silent a rank that is told too, and may be unable to answer: nobody waits for it. */
  tell(ranks: readonly number[], message: LastWord, silent?: number): void {
    const id = this.#nextId++;
    const bytes = encodeControl({ ...message, id });
    const links = this.#links().filter((link) => !link.closed && ranks.includes(link.rank));
    for (const link of links) link.post(bytes);
    const answering = links.map(({ rank }) => rank).filter((rank) => rank !== silent);
    if (answering.length > 0) this.#await(id, answering);
  }

  /** Waits for what the store is told as well. @param told never rejects. */
  tellStore(told: Promise<void>): void {
    const id = this.#nextId++;
    this.#await(id, [theStore]);
    void told.then(() => this.onHeard(theStore, id));
  }

  #await(id: number, ranks: readonly number[]): void {
    this.#awaited.set(id, new Set(ranks));
    // Answers that have come while this process got no CPU are read first.
    setServedTimer(this.#clock, answerMs, () => this.#end(id), { keepAlive: false });
  }

  /** Resolves when all that was told has been heard by those who are still there, or some time has passed. */
  async heard(): Promise<void> {
    if (this.#awaited.size > 0) await new Promise<void>((resolve) => this.#waiting.push(resolve));
  }

  onHeard(rank: number, id: number): void {
    const ranks = this.#awaited.get(id);
    ranks?.delete(rank);
    if (ranks?.size === 0) this.#end(id);
  }

  onClosed(rank: number): void {
    for (const id of [...this.#awaited.keys()]) this.onHeard(rank, id);
  }

  #end(id: number): void {
    this.#awaited.delete(id);
    if (this.#awaited.size > 0) return;
    for (const resolve of this.#waiting.splice(0)) resolve();
  }
}
