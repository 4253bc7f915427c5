/** The plan builder: algorithm files write plans with it. It emits steps for all ranks, numbers signals, counts how often each
 *  was raised, and lays out scratch, so that an algorithm says only which rank sends what to which, and when it is used. It must
 *  not know algorithms or collectives; whether the result is right is the verifier's business.
 *
 *      const sent = b.send(1, 0, data(0, 8), slot);    rank 1: put ──▶ rank 0: signal 0 becomes 1
 *      b.wait(sent);                                   rank 0: wait signal 0 ≥ 1
 *
 *  Spans of no elements are dropped by every verb: nothing is emitted for them. */
import { assert } from '../base/assert.ts';
import { ShoalError } from '../base/errors.ts';
import { getOrMake } from '../base/collections/lists.ts';
import { canonicalTree, postfix, type AssociationTree } from './association.ts';
import {
  mailboxCount,
  type BufferName,
  type Location,
  type Plan,
  type PlanRequest,
  type Program,
  type Loop,
  type Span,
  type Step,
} from './ir.ts';
import { lineCount, pieces, segments, type Range } from './ranges.ts';
import { hostOfRanks, rankCount, type Topology } from './topology.ts';

/** The signal by which the target of a `send` or `notify` knows that it has happened; `wait` waits for it. Undefined: nothing was
 *  to be sent. */
export type Arrival = { readonly rank: number; readonly signal: number; readonly value: number } | undefined;

export interface BuildOptions {
  /** Keep only this rank's steps; the plan's other programs have none. */
  readonly onlyRank?: number;
  /** True for the program of the only rank that is lowered to run whole: what it does again and again is in it once, as a `Loop` among the
   *  steps. Default: false. */
  readonly loops?: boolean;
  /** False when memory has no room for more steps, which ends the building with a ShoalError `unsupported`. Asked now
   *  and then. Default: there is always room. */
  readonly hasRoom?: () => boolean;
  /** Gets every step of a channel as it is emitted, for a plan that is only timed: its programs are left without. */
  readonly onStep?: (rank: number, channel: number, step: Step) => void;
}

export class PlanBuilder {
  readonly request: PlanRequest;
  readonly topology: Topology;
  /** Number of ranks. */
  readonly n: number;
  /** The ranks 0…n−1. */
  readonly ranks: readonly number[];
  readonly root: number;
  /** The canonical association of the topology. */
  readonly tree: AssociationTree;
  readonly hostOf: readonly number[];
  /** Ranges of the per-rank counts in the buffer that holds all of them. */
  readonly segments: readonly Range[];
  /** The only rank whose steps are kept; undefined: those of all ranks. The algorithm must say this rank's own verbs, and the messages to
   *  it that it waits for; it may leave out the rest if its signals and scratch have fixed places that do not depend on earlier verbs. */
  readonly onlyRank: number | undefined;
  readonly #programs: ProgramDraft[];
  /** Waits by value and signal: equal ones of all ranks are one object. */
  readonly #waits: Step[][] = [];
  readonly #options: BuildOptions;
  /** Arrivals at the only rank, since the last loop began. */
  #arrivals: { value: number }[] = [];
  #steps = 0;
  #channel = 0;
  #partials = false;

  /** @param request with `counts` or `splits` filled in where the collective has them. */
  constructor(request: PlanRequest, options: BuildOptions = {}) {
    this.#options = options;
    this.request = request;
    this.onlyRank = options.onlyRank;
    this.topology = request.topology;
    this.n = rankCount(request.topology);
    this.ranks = Array.from({ length: this.n }, (_, rank) => rank);
    this.root = request.root ?? 0;
    this.tree = canonicalTree(request.topology);
    this.hostOf = hostOfRanks(request.topology);
    this.segments = segments(request.counts ?? []);
    this.#programs = this.ranks.map((rank) => new ProgramDraft(rank));
  }

  /** All other ranks, beginning with the next one: at step k every rank talks to rank + k, so no rank is the target of all. */
  peersOf(rank: number): number[] {
    if (this.n >= stepsPerQuestion) this.#checkRoom();
    return this.ranks.slice(1).map((k) => (rank + k) % this.n);
  }

  /** Makes steps that `emit` emits go to channel `index` of their ranks. */
  onChannel(index: number, emit: () => void): void {
    const before = this.#channel;
    this.#channel = index;
    try {
      emit();
    } finally {
      this.#channel = before;
    }
  }

  /** Calls `emit` so many times. From one time to the next, places in the ranks' own data lie `by` elements further on; signals and scratch
   *  are the same. Where loops are kept, only the first time is emitted. */
  loop(times: number, by: number, emit: (time: number) => void): void {
    for (let time = this.#emitLoop(times, by, emit); time < times; time++) emit(time);
  }

  /** @returns how many times have been emitted. */
  #emitLoop(times: number, by: number, emit: (time: number) => void): number {
    const { onlyRank, loops } = this.#options;
    if (onlyRank === undefined || loops !== true || times < 2) return 0;
    const { channels, raised } = this.#programs[onlyRank];
    const channel = (channels[this.#channel] ??= []);
    const [begin, before] = [channel.length, [...raised]];
    this.#arrivals = [];
    emit(0);
    const [raises = 0, ...others] = raised.map((value, signal) => value - (before[signal] ?? 0));
    if (others.some((each) => each !== raises)) return 1;
    channel.push({ kind: 'loop', times, by, raises, steps: channel.splice(begin) as Step[] });
    // Steps after the loop wait for the signals of its last time; the arrivals were numbered as those of the first.
    for (const arrival of this.#arrivals) arrival.value += (times - 1) * raises;
    for (const signal of raised.keys()) raised[signal] += (times - 1) * raises;
    return times;
  }

  /** True if messages from one of the ranks to the other must be said in full. For other ranks it is enough to say the first
   *  message from one to another: it numbers the signal. */
  concerns(from: number, to: number): boolean {
    return this.#keeps(from) || this.#keeps(to);
  }

  /** Cuts `range` into pieces of at most the request's `pieceCount`. */
  pieces(range: Range): Range[] {
    return pieces(range, this.request.pieceCount ?? Number.MAX_SAFE_INTEGER);
  }

  /** Place of `rank`'s part of the whole, or of `range` of it, in its `buffer` that holds nothing else. */
  part(buffer: BufferName, rank: number, range: Range = this.segments[rank]): Span {
    return { buffer, offset: range.offset - this.segments[rank].offset, count: range.count };
  }

  /** Fresh scratch of `rank`, beginning on a line. */
  scratch(rank: number, count: number): Span {
    const draft = this.#programs[rank];
    const offset = draft.scratchCount;
    draft.scratchCount += Math.ceil(count / lineCount) * lineCount;
    return { buffer: 'scratch', offset, count };
  }

  /** All of `rank`'s scratch, for an algorithm that lays it out itself; the same at every call. */
  scratchOf(rank: number, count: number): Span {
    const draft = this.#programs[rank];
    if (draft.scratchCount === 0) this.scratch(rank, count);
    return { buffer: 'scratch', offset: 0, count };
  }

  /** Adds an entry step: before `rank` announces the call it copies `source`, of its data or input, into fresh space of its
   *  mailbox, where from then on every rank may read it. */
  enter(rank: number, source: Span): Span {
    const draft = this.#programs[rank];
    const target: Span = { buffer: 'mailbox', offset: draft.mailboxCount, count: source.count };
    draft.mailboxCount += source.count;
    const most = mailboxCount(this.request);
    assert(draft.mailboxCount <= most, () => `${draft.mailboxCount} elements enter a mailbox of ${most}`);
    if (source.count > 0 && this.#keeps(rank)) draft.entry.push({ kind: 'copy', target, source });
    return target;
  }

  /** Starts copying `from`'s source into `to`'s target. The source must stay as it is until `flush`, or until something that
   *  happens after `to` has waited for the arrival.
   *  @param signal of `to`, raised by `from` on this channel only. Default: the first that has none yet; an algorithm gives all
   *          of its signals or none. */
  send(from: number, to: number, source: Span, target: Span, signal?: number): Arrival {
    assert(source.count === target.count, () => `send of ${source.count} elements into ${target.count}`);
    if (source.count === 0) return undefined;
    const arrival = this.#arrival(from, to, signal);
    if (!this.#keeps(from)) return arrival;
    this.#emit(from, { kind: 'put', peer: to, source, target, signal: arrival.signal });
    this.#programs[from].unflushed.add(this.#channel);
    return arrival;
  }

  /** Tells `to` that `from`'s earlier steps are done. `signal` as in `send`. */
  notify(from: number, to: number, signal?: number): NonNullable<Arrival> {
    const arrival = this.#arrival(from, to, signal);
    this.#emit(from, { kind: 'signal', peer: to, signal: arrival.signal });
    return arrival;
  }

  /** Makes the target of an arrival wait for it; emitted once per channel, also when several sends to it share the wait. */
  wait(arrival: Arrival): void {
    if (arrival === undefined) return;
    const { rank, signal, value } = arrival;
    if (!this.#keeps(rank)) return;
    const waited = (this.#programs[rank].waited[this.#channel] ??= []);
    if ((waited[signal] ?? 0) >= value) return;
    waited[signal] = value;
    const waits = (this.#waits[value] ??= []);
    this.#emit(rank, (waits[signal] ??= { kind: 'wait', signal, value }));
  }

  /** A send that its target waits for at once. */
  transfer(from: number, to: number, source: Span, target: Span): void {
    this.wait(this.send(from, to, source, target));
  }

  /** Every rank tells every other one that it got here, and waits for the same from all. */
  barrier(): void {
    this.tellAll(() => {});
  }

  /** Every rank does `before`, tells that peer, goes on to its next one, and in the end waits for the same from all. No other
   *  signals are raised on this channel. */
  tellAll(before: (rank: number, peer: number) => void): void {
    const arrivals = this.ranks.flatMap((rank) => {
      // Ranks whose steps are not kept only tell the one whose steps are.
      const peers = this.onlyRank === undefined || this.#keeps(rank) ? this.peersOf(rank) : [this.onlyRank];
      return peers.map((peer) => {
        before(rank, peer);
        return this.notify(rank, peer, rank < peer ? rank : rank - 1);
      });
    });
    for (const arrival of arrivals) this.wait(arrival);
  }

  /** Copies within `rank`'s reach. Nothing is emitted when both are the same place. */
  copy(rank: number, target: Location, source: Location): void {
    assert(source.count === target.count, () => `copy of ${source.count} elements into ${target.count}`);
    const [to, from] = [local(rank, target), local(rank, source)];
    if (source.count === 0 || (to.buffer === from.buffer && to.rank === from.rank && to.offset === from.offset)) return;
    this.#emit(rank, { kind: 'copy', target: to, source: from });
  }

  /** `rank` reduces all ranks' contributions along the canonical tree; `sourceOf` gives the place of each rank's. The result is final. */
  reduceAll(rank: number, targets: readonly Location[], sourceOf: (rank: number) => Location): void {
    if (targets[0].count === 0 || !this.#keeps(rank)) return;
    const sources = this.ranks.map(sourceOf);
    this.reduce(rank, { targets, sources, tree: postfix(this.tree, (each) => each), final: true });
  }

  /** `rank` combines two partial results, `left` before `right`. `final`: together they hold every rank's contribution. */
  combine(rank: number, target: Span, operands: { left: Span; right: Span; final: boolean }): void {
    if (target.count === 0) return;
    const { left, right, final } = operands;
    this.reduce(rank, { targets: [target], sources: [left, right], tree: [0, 1, -1], final });
  }

  /** Emits any reduction; the verbs above are for the usual ones. */
  reduce(rank: number, step: Omit<Extract<Step, { kind: 'reduce' }>, 'kind'>): void {
    for (const { count } of [...step.targets, ...step.sources]) {
      assert(count === step.targets[0].count, () => 'operands of a reduction have equal counts');
    }
    if (!step.final) this.#partials = true;
    if (!this.#keeps(rank)) return;
    const own = (location: Location): Location => local(rank, location);
    this.#emit(rank, { kind: 'reduce', ...step, targets: step.targets.map(own), sources: step.sources.map(own) });
  }

  /** Declares that partial sums travel, which every rank must know: for a rank that may not see the step that makes them. */
  movePartials(): void {
    this.#partials = true;
  }

  /** Waits until `rank`'s sends so far have left their sources. */
  flush(rank: number): void {
    if (this.#programs[rank].unflushed.delete(this.#channel)) this.#emit(rank, { kind: 'flush' });
  }

  /** The plan. Channels that sent end with a flush, because a caller may reuse its buffers when its program has ended. */
  finish(algorithm: string, association: Plan['association']): Plan {
    for (const rank of this.ranks) {
      for (const channel of [...this.#programs[rank].unflushed]) this.onChannel(channel, () => this.flush(rank));
    }
    const programs = this.#programs.map((draft) => draft.finish());
    const plan: Plan = { request: this.request, algorithm, association, partials: this.#partials, programs };
    return this.onlyRank === undefined ? plan : { ...plan, onlyRank: this.onlyRank };
  }

  #arrival(from: number, to: number, numbered?: number): NonNullable<Arrival> {
    assert(from !== to, () => `rank ${from} sends to itself`);
    const draft = this.#programs[to];
    const signal = numbered ?? draft.numberOf(this.#channel * this.n + from);
    const value = (draft.raised[signal] ?? 0) + 1;
    draft.raised[signal] = value;
    const arrival = { rank: to, signal, value };
    if (this.#options.loops === true && this.#keeps(to)) this.#arrivals.push(arrival);
    return arrival;
  }

  #checkRoom(): void {
    if (this.#options.hasRoom?.() !== false) return;
    const message = `this ${this.request.collective} of ${this.n} ranks has no room in memory; ask for fewer ranks or for an algorithm with fewer messages, or give Node.js more (NODE_OPTIONS=--max-old-space-size=16000)`;
    throw new ShoalError('unsupported', message, { operation: this.request.collective });
  }

  #keeps(rank: number): boolean {
    return this.onlyRank === undefined || this.onlyRank === rank;
  }

  #emit(rank: number, step: Step): void {
    if (!this.#keeps(rank)) return;
    this.#steps += 1;
    if (this.#steps % stepsPerQuestion === 0) this.#checkRoom();
    if (this.#options.onStep !== undefined) return this.#options.onStep(rank, this.#channel, step);
    const { channels } = this.#programs[rank];
    while (channels.length <= this.#channel) channels.push([]);
    channels[this.#channel].push(step);
  }
}

const stepsPerQuestion = 4096;

/** A span of a buffer. */
export function span(buffer: BufferName, range: Range): Span {
  return { buffer, offset: range.offset, count: range.count };
}

/** The elements of `outer` from `offset` on. */
export function within(outer: Span, offset: number, count: number): Span {
  assert(offset >= 0 && offset + count <= outer.count, () => `[${offset}, ${offset + count}) is outside a span of ${outer.count}`);
  if (count === outer.count) return outer;
  return { buffer: outer.buffer, offset: outer.offset + offset, count };
}

/** A span of another rank's buffer. */
export function at(rank: number, location: Span): Location {
  const { buffer, offset, count } = location;
  return { buffer, offset, count, rank };
}

class ProgramDraft {
  readonly rank: number;
  readonly entry: Program['entry'][number][] = [];
  readonly channels: (Step | Loop)[][] = [[]];
  /** Number of raises emitted, by signal. */
  readonly raised: number[] = [];
  /** Signals that got the next number, by the rank and channel that raise them (channel × n + rank). */
  readonly #numbers = new Map<number, number>();
  /** Highest value waited for, by channel and signal. */
  readonly waited: number[][] = [];
  /** Channels with sends since their last flush. */
  readonly unflushed = new Set<number>();
  scratchCount = 0;
  mailboxCount = 0;

  constructor(rank: number) {
    this.rank = rank;
  }

  finish(): Program {
    const { rank, entry, channels, scratchCount, raised } = this;
    return { rank, entry, channels: channels as Step[][], scratchCount, signalCount: raised.length };
  }

  /** The signal that is raised by the rank and channel with this key. */
  numberOf(key: number): number {
    return getOrMake(this.#numbers, key, () => this.#numbers.size);
  }
}

/** The location without its rank when that is the running rank's own memory. */
function local(rank: number, location: Location): Location {
  if (location.rank !== rank) return location;
  const { buffer, offset, count } = location;
  return { buffer, offset, count };
}
