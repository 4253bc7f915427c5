/** The world of a job that goes on without ranks that end badly, kept by the launcher of node 0 for all nodes: who is in it, and whether
 *  enough are left. It hears of every rank from the launcher of its node:
 *
 *      `waits`   a process was started that is to join                         `joined`   world 4 → 5
 *      `ended`   well, or badly: world 5 → 4, or the job fails with it         a launcher is gone: its ranks are lost, together
 *
 *  When the last rank has ended, and none is about to join, the job is over. It must not know how news travels. */
import { setServedTimer, type Clock } from '../base/clock.ts';
import { anyText, count, literal, object, optional, type Shape } from '../base/schema.ts';
import { failureShape, type JobFailure } from './node-records.ts';

/** A launcher's word about a rank of its node. */
export interface RankNews {
  readonly what: 'waits' | 'joined' | 'ended';
  readonly rank: number;
  /** The rank that it was started again for. */
  readonly startedFor?: number | undefined;
  /** The words for its end: `exited with code 3`; with the error that it wrote; and what follows from it, for the end of a line. */
  readonly text?: string | undefined;
  readonly described?: string | undefined;
  readonly again?: string | undefined;
  /** Undefined: it has ended well. */
  readonly failure?: JobFailure | undefined;
}

export const newsShape: Shape<RankNews> = object({
  what: literal('waits', 'joined', 'ended'),
  rank: count,
  startedFor: optional(count),
  text: optional(anyText),
  described: optional(anyText),
  again: optional(anyText),
  failure: optional(failureShape),
});

/** The world, as a launcher sees it: that one tells it of its ranks. */
export interface WorldListener {
  /** Takes a rank that has ended badly out of the world. False: too few are left, and the job ends with this rank. */
  goOnWithout(rank: number): boolean;
  hear(news: RankNews): void;
}

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

export interface LedgerOptions {
  readonly clock: Clock;
  /** Numbers of ranks per node, with which the world begins; the nodes' numbers are the keys. */
  readonly sizes: ReadonlyMap<number, number>;
  /** Least number of ranks: with fewer the job ends. */
  readonly min: number;
  readonly hostOf: (node: number) => string;
  readonly say: (line: string) => void;
  readonly onChange: (change: Omit<WorldChange, 'seconds'>) => void;
  /** The job fails: too few are left. */
  readonly onTooFew: (failure: JobFailure) => void;
  /** A rank was lost with the launcher of its node, which could not tell of its end. */
  readonly onLostWithNode: (rank: number, failure: JobFailure) => void;
  /** All have ended, and the job goes on no more. */
  readonly onOver: () => void;
}

interface Newcomer {
  readonly node: number;
  readonly startedFor: number | undefined;
}

/** Served time in which a launcher tells that a newcomer has joined, when the others have ended meanwhile. */
const joinedOnItsWayMs = 500;
/** Ranks of a node that join within it are told in one line. */
const joinTogetherMs = 200;

export class WorldLedger {
  readonly #options: LedgerOptions;
  #size = 0;
  /** The ranks of the world that run, and their nodes. */
  readonly #members = new Map<number, number>();
  /** Processes that have not joined. */
  readonly #waiting = new Map<number, Newcomer>();
  /** Ranks that have joined, of which no line has been printed yet. */
  #joined: { readonly rank: number; readonly node: number }[] = [];
  #isOver = false;

  constructor(options: LedgerOptions) {
    this.#options = options;
    for (const [node, size] of options.sizes) for (let each = 0; each < size; each++) this.#members.set(this.#size++, node);
  }

  /** Ranks that run, of which some may not have joined. */
  get ranks(): readonly number[] {
    return [...this.#members.keys(), ...this.#waiting.keys()];
  }

  /** True if ranks of other nodes are in the world. */
  hasOthers(node: number): boolean {
    return [...this.#members.values()].some((each) => each !== node);
  }

  /** The means of a node's launcher. */
  listener(node: number): WorldListener {
    return { goOnWithout: (rank) => this.#goOnWithout(rank), hear: (news) => this.hear(node, news) };
  }

  hear(node: number, news: RankNews): void {
    const { what, rank, startedFor } = news;
    if (this.#isOver) return;
    if (what === 'waits') this.#waiting.set(rank, { node, startedFor });
    if (what === 'joined') this.#onJoined(rank);
    if (what === 'ended') this.#onEnded(news);
  }

  /** The launcher of a node is gone, with all its ranks. */
  nodeGone(node: number, host: string): void {
    if (this.#isOver) return;
    for (const [rank, newcomer] of this.#waiting) if (newcomer.node === node) this.#waiting.delete(rank);
    const ranks = [...this.#members].flatMap(([rank, each]) => (each === node ? [rank] : []));
    this.#tellJoined();
    const from = this.#size;
    const text = `was lost with node ${node} (${host})`;
    for (const rank of ranks) {
      this.#members.delete(rank);
      this.#options.onChange({ from: this.#size, to: --this.#size, rank, text });
      this.#options.onLostWithNode(rank, { node, host, rank, exitCode: 1, text, final: true });
    }
    if (ranks.length === 0) return this.#lookWhetherOver();
    const { min, say } = this.#options;
    if (this.#size < min) {
      const left = `${this.#size} of the ${min} ranks that the job needs are left`;
      return this.#fail({ node, host, exitCode: 1, text: `its launcher was lost with ${namesOf(ranks)}, and ${left}`, final: true });
    }
    say(`world ${from} → ${this.#size}: node ${node} (${host}) was lost with ${namesOf(ranks)}; the others go on`);
    this.#lookWhetherOver();
  }

  /** Nothing is heard any more. */
  close(): void {
    this.#tellJoined();
    this.#isOver = true;
  }

  #goOnWithout(rank: number): boolean {
    if (this.#size <= this.#options.min) return false;
    this.#tellJoined();
    this.#size--;
    return this.#members.delete(rank);
  }

  #onJoined(rank: number): void {
    const newcomer = this.#waiting.get(rank);
    if (newcomer === undefined) return;
    const { clock, say, onChange } = this.#options;
    const { node, startedFor } = newcomer;
    this.#waiting.delete(rank);
    this.#members.set(rank, node);
    if (startedFor !== undefined) this.#tellJoined();
    const to = ++this.#size;
    const change = { from: to - 1, to, rank, ...(startedFor !== undefined && { startedFor }), text: 'joined' };
    onChange(change);
    if (startedFor !== undefined) return say(describeChange(change));
    this.#joined.push({ rank, node });
    if (this.#joined.length === 1) setServedTimer(clock, joinTogetherMs, () => this.#tellJoined());
  }

  /** Says who has joined, in one line for all of a node. */
  #tellJoined(): void {
    let from = this.#size - this.#joined.length;
    for (const node of new Set(this.#joined.map((each) => each.node))) {
      const ranks = this.#joined.flatMap((each) => (each.node === node ? [each.rank] : []));
      this.#options.say(`world ${from} → ${from + ranks.length}: ${namesOf(ranks)} on node ${node} (${this.#options.hostOf(node)}) joined`);
      from += ranks.length;
    }
    this.#joined = [];
  }

  #onEnded({ rank, text = '', described = text, again = '', failure }: RankNews): void {
    if (this.#waiting.delete(rank)) return this.#lookWhetherOver();
    if (failure !== undefined) {
      // That of a rank of this node has been asked before.
      const isLost = !this.#members.has(rank) || this.#goOnWithout(rank);
      if (!isLost) return this.#fail(failure);
      this.#options.onChange({ from: this.#size + 1, to: this.#size, rank, text });
      this.#options.say(`world ${this.#size + 1} → ${this.#size}: ${described}; the others go on${again}`);
    }
    this.#members.delete(rank);
    this.#lookWhetherOver();
  }

  #lookWhetherOver(): void {
    if (this.#isOver || this.#members.size > 0) return;
    if (this.#waiting.size === 0) return this.#end();
    // Nobody is left who could take them in, unless it has been done.
    setServedTimer(this.#options.clock, joinedOnItsWayMs, () => {
      if (this.#members.size === 0) this.#end();
    });
  }

  #fail(failure: JobFailure): void {
    this.close();
    this.#options.onTooFew(failure);
  }

  #end(): void {
    if (this.#isOver) return;
    this.close();
    this.#options.onOver();
  }
}

/** `rank 4`, `ranks 4, 5`. */
function namesOf(ranks: readonly number[]): string {
  return `${ranks.length === 1 ? 'rank' : 'ranks'} ${ranks.toSorted((a, b) => a - b).join(', ')}`;
}
