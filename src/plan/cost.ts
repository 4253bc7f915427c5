/** The cost of a plan, without running it: counts that are exact (bytes, messages, hops) and a time that is a model.
 *
 *  The time is an event simulation of all channels with α-β-γ costs per link class. A message occupies its sender for `overhead`,
 *  then the sending host's port for its bytes, arrives `latency` later and occupies the receiving host's port: n−1 senders at one
 *  receiver queue there (incast), and ranks of one host share its ports. Taking it in costs the receiver `overhead` again.
 *  Between ranks of one host the sender copies. Hockney's α-β model with the o of LogP (Culler et al., 1993). */
import { assert } from '../base/assert.ts';
import { PriorityQueue } from '../base/collections/priority-queue.ts';
import type { Location, Plan, Step } from './ir.ts';
import { hostOfRanks } from './topology.ts';

/** Rates: seconds, and seconds per byte. */
export interface CostModel {
  /** Time from a sender's last byte on the wire until its signal is seen. */
  readonly networkLatency: number;
  /** Time per message, of its sender and again of its receiver. */
  readonly networkOverhead: number;
  readonly networkByte: number;
  /** Time from a store until the signal is seen by another rank of the host. */
  readonly hostLatency: number;
  /** Time of copying between ranks of a host. */
  readonly hostByte: number;
  /** Time of copying inside a rank. */
  readonly selfByte: number;
  /** Time of reducing, per byte of each source. */
  readonly reduceByte: number;
}

/** TCP on a 10 Gbit/s network, user-space stacks in JavaScript at both ends. Only ratios should be trusted. */
export const defaultCostModel: CostModel = {
  networkLatency: 40e-6,
  networkOverhead: 15e-6,
  networkByte: 0.85e-9,
  hostLatency: 0.5e-6,
  hostByte: 0.15e-9,
  selfByte: 0.1e-9,
  reduceByte: 0.12e-9,
};

export interface RankCost {
  readonly steps: number;
  readonly networkMessages: number;
  readonly networkBytesOut: number;
  readonly networkBytesIn: number;
  /** Bytes that the rank puts to, and loads from or stores to, other ranks of the host. */
  readonly hostBytes: number;
  /** Bytes that reductions read. */
  readonly reduceBytes: number;
  readonly scratchBytes: number;
  /** Time at which the rank's program ends. */
  readonly seconds: number;
}

export interface PlanCost {
  /** Costs of all ranks, or of those whose programs were built because all others are like them. */
  readonly ranks: readonly RankCost[];
  /** Bytes between hosts, of all ranks together. */
  readonly networkBytes: number;
  /** Longest chain of messages between hosts, each waiting for the one before. */
  readonly networkHops: number;
  /** Time at which the last program ends, all having begun at once. The announcement of the call comes on top, but for the bytes
   *  of mailboxes that travel with it to other hosts. */
  readonly seconds: number;
}

/** An observer of the event simulation; times in seconds. */
export interface CostObserver {
  /** A step of a channel; its time includes waiting. */
  readonly onStep?: (rank: number, channel: number, step: Step, from: number, to: number) => void;
  /** A message between hosts: the times at which it began to leave, and at which it had been taken in. */
  readonly onMessage?: (from: number, to: number, bytes: number, left: number, arrived: number) => void;
}

/** @param elementBytes size of the dtype that the plan would run with. */
export function costOf(plan: Plan, elementBytes: number, model: CostModel = defaultCostModel, observer: CostObserver = {}): PlanCost {
  return new CostRun(plan, elementBytes, model, observer).run();
}

interface Thread {
  readonly rank: number;
  readonly channel: number;
  readonly steps: readonly Step[];
  pc: number;
  seconds: number;
  hops: number;
  /** Time at which the thread's puts have left. */
  sent: number;
}

interface Signal {
  readonly raises: { readonly seconds: number; readonly hops: number }[];
  readonly parked: { readonly thread: Thread; readonly value: number }[];
}

class CostRun {
  readonly #plan: Plan;
  readonly #bytes: number;
  readonly #model: CostModel;
  readonly #observer: CostObserver;
  readonly #hostOf: readonly number[];
  /** Number of ranks with a program; the others are like them, and so are their hosts. */
  readonly #built: number;
  readonly #threads: Thread[];
  /** Threads by time, the earliest first. */
  readonly #ready = new PriorityQueue<Thread>((a, b) => a.seconds < b.seconds);
  readonly #signals: Signal[][];
  readonly #egressFree: number[];
  readonly #ingressFree: number[];
  /** Time at which each rank can take in the next message. */
  readonly #receiverFree: number[];
  readonly #ranks: { -readonly [K in keyof RankCost]: RankCost[K] }[];

  constructor(plan: Plan, elementBytes: number, model: CostModel, observer: CostObserver) {
    this.#observer = observer;
    assert(plan.onlyRank === undefined, () => `only rank ${plan.onlyRank}'s program was built; a cost needs all`);
    this.#plan = plan;
    this.#bytes = elementBytes;
    this.#model = model;
    this.#hostOf = hostOfRanks(plan.request.topology);
    this.#built = plan.programs.length;
    this.#threads = plan.programs.flatMap(({ rank, channels }) =>
      channels.map((steps, channel) => ({ rank, channel, steps, pc: 0, seconds: 0, hops: 0, sent: 0 })),
    );
    this.#signals = plan.programs.map(({ signalCount }) => Array.from({ length: signalCount }, () => ({ raises: [], parked: [] })));
    this.#egressFree = plan.request.topology.hosts.map(() => 0);
    this.#ingressFree = plan.request.topology.hosts.map(() => 0);
    this.#receiverFree = plan.programs.map(() => 0);
    this.#ranks = plan.programs.map(({ entry, channels, scratchCount }) => ({
      steps: channels.reduce((sum, steps) => sum + steps.length, entry.length),
      networkMessages: 0,
      networkBytesOut: 0,
      networkBytesIn: 0,
      hostBytes: 0,
      reduceBytes: 0,
      scratchBytes: scratchCount * elementBytes,
      seconds: 0,
    }));
  }

  run(): PlanCost {
    this.#enter();
    for (const thread of this.#threads) this.#ready.push(thread);
    for (let thread = this.#ready.pop(); thread; thread = this.#ready.pop()) this.#advance(thread);
    for (const thread of this.#threads) {
      assert(
        thread.pc === thread.steps.length,
        () => `${this.#plan.algorithm} ${this.#plan.request.collective}: rank ${thread.rank} never ends`,
      );
      const cost = this.#ranks[thread.rank];
      cost.seconds = Math.max(cost.seconds, thread.seconds);
    }
    return {
      ranks: this.#ranks,
      networkBytes: (this.#ranks.reduce((sum, rank) => sum + rank.networkBytesOut, 0) * this.#hostOf.length) / this.#built,
      networkHops: Math.max(0, ...this.#threads.map(({ hops }) => hops)),
      seconds: Math.max(0, ...this.#ranks.map(({ seconds }) => seconds)),
    };
  }

  /** Channels start when the last rank has done its entry steps. Announcing is the same for all plans, but for the bytes of
   *  mailboxes, which travel with it to every rank of another host. */
  #enter(): void {
    const { programs } = this.#plan;
    const filled = programs.map(({ entry }) => entry.reduce((sum, { source }) => sum + source.count, 0) * this.#bytes);
    const start = Math.max(0, ...filled.map((bytes) => bytes * this.#model.selfByte));
    for (const { rank: from } of programs) {
      for (const { rank: to } of programs) {
        if (filled[from] === 0 || this.#hostOf[from] === this.#hostOf[to]) continue;
        this.#ranks[from].networkBytesOut += filled[from];
        this.#ranks[to].networkBytesIn += filled[from];
        this.#egressFree[this.#hostOf[from]] += filled[from] * this.#model.networkByte;
        this.#ingressFree[this.#hostOf[to]] += filled[from] * this.#model.networkByte;
      }
    }
    const travelled = start + Math.max(...this.#egressFree, ...this.#ingressFree);
    for (const thread of this.#threads) thread.seconds = travelled;
  }

  /** Runs one step of a thread, and puts it back in line, so that ports are taken in order of time. */
  #advance(thread: Thread): void {
    const step = thread.steps.at(thread.pc);
    if (thread.pc >= thread.steps.length || step === undefined) return;
    const before = thread.seconds;
    if (step.kind === 'wait') {
      const signal = this.#signals[thread.rank][step.signal];
      const raise = signal.raises.at(step.value - 1);
      if (raise === undefined) {
        signal.parked.push({ thread, value: step.value });
        return;
      }
      thread.seconds = Math.max(thread.seconds, raise.seconds);
      thread.hops = Math.max(thread.hops, raise.hops);
    } else {
      this.#perform(thread, step);
    }
    this.#observer.onStep?.(thread.rank, thread.channel, step, before, thread.seconds);
    thread.pc += 1;
    this.#ready.push(thread);
  }

  #perform(thread: Thread, step: Exclude<Step, { kind: 'wait' }>): void {
    switch (step.kind) {
      case 'put':
        return this.#send(thread, step.peer, step.signal, step.source.count * this.#bytes);
      case 'signal':
        return this.#send(thread, step.peer, step.signal, 0);
      case 'copy': {
        const bytes = step.source.count * this.#bytes;
        const crosses = this.#isRemote(thread, step.source) || this.#isRemote(thread, step.target);
        if (crosses) this.#ranks[thread.rank].hostBytes += bytes;
        thread.seconds += bytes * (crosses ? this.#model.hostByte : this.#model.selfByte);
        return;
      }
      case 'reduce':
        return this.#reduce(thread, step);
      case 'flush':
        thread.seconds = Math.max(thread.seconds, thread.sent);
    }
  }

  #reduce(thread: Thread, { sources, targets }: Extract<Step, { kind: 'reduce' }>): void {
    const cost = this.#ranks[thread.rank];
    for (const source of sources) {
      const bytes = source.count * this.#bytes;
      cost.reduceBytes += bytes;
      thread.seconds += bytes * this.#model.reduceByte;
    }
    for (const location of [...sources, ...targets]) {
      if (!this.#isRemote(thread, location)) continue;
      const bytes = location.count * this.#bytes;
      cost.hostBytes += bytes;
      thread.seconds += bytes * this.#model.hostByte;
    }
  }

  #send(thread: Thread, peer: number, signal: number, bytes: number): void {
    const { networkLatency, networkOverhead, networkByte, hostLatency, hostByte } = this.#model;
    const { rank } = thread;
    const stands = peer % this.#built;
    const [from, to] = [this.#hostOf[rank], this.#hostOf[stands]];
    if (from === this.#hostOf[peer]) {
      this.#ranks[rank].hostBytes += bytes;
      thread.seconds += bytes * hostByte;
      this.#raise(stands, signal, { seconds: thread.seconds + hostLatency, hops: thread.hops });
      return;
    }
    this.#ranks[rank].networkMessages += 1;
    this.#ranks[rank].networkBytesOut += bytes;
    this.#ranks[stands].networkBytesIn += bytes;
    thread.seconds += networkOverhead;
    const leaves = Math.max(thread.seconds, this.#egressFree[from]);
    this.#egressFree[from] = leaves + bytes * networkByte;
    thread.sent = Math.max(thread.sent, this.#egressFree[from]);
    const enters = Math.max(leaves + networkLatency, this.#ingressFree[to]);
    this.#ingressFree[to] = enters + bytes * networkByte;
    this.#receiverFree[stands] = Math.max(this.#ingressFree[to], this.#receiverFree[stands] + networkOverhead);
    this.#observer.onMessage?.(rank, peer, bytes, leaves, this.#receiverFree[stands]);
    this.#raise(stands, signal, { seconds: this.#receiverFree[stands], hops: thread.hops + 1 });
  }

  /** True for another rank's memory, except mailboxes of other hosts, which have come to this one. */
  #isRemote({ rank }: Thread, location: Location): boolean {
    if (location.rank === undefined || location.rank === rank) return false;
    return this.#hostOf[location.rank] === this.#hostOf[rank];
  }

  #raise(rank: number, index: number, raise: Signal['raises'][number]): void {
    const signal = this.#signals[rank][index];
    const before = signal.raises.at(-1);
    signal.raises.push({ seconds: Math.max(raise.seconds, before?.seconds ?? 0), hops: Math.max(raise.hops, before?.hops ?? 0) });
    for (let parked = signal.parked.length - 1; parked >= 0; parked--) {
      const { thread, value } = signal.parked[parked];
      if (value > signal.raises.length) continue;
      signal.parked.splice(parked, 1);
      this.#ready.push(thread);
    }
  }
}
