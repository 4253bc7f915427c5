/** Symbolic execution: runs all ranks' programs on expressions instead of numbers, in one order that the signals allow, and records each
 *  touch of memory and each channel's knowledge at that time. Because waits compare counters that only grow, every other order reaches the
 *  same end or the same deadlock; because the recorded accesses are then shown to be free of races (races.ts), every other order also
 *  computes the same values. Entry steps come first: each happens before every step of every channel, and touches only its own rank's
 *  memory, so they are run here and need no place in the order. It must not know collectives. */
import { assert, must } from '../base/assert.ts';
import { garbage, type Expressions, type Value } from './expression.ts';
import { IntervalMap, type Interval } from './interval-map.ts';
import { mailboxCount, type BufferName, type Location, type Plan, type Span, type Step } from './ir.ts';
import { bufferCounts } from './postcondition.ts';

/** One channel of one rank. */
export interface Thread {
  readonly index: number;
  readonly rank: number;
  readonly channel: number;
  readonly steps: readonly Step[];
}

/** A step that ran, with its thread's knowledge: `known[t]` steps of thread t had ended before it. */
export interface Event {
  readonly thread: Thread;
  readonly step: number;
  readonly known: Int32Array;
}

/** A touch of memory. It begins at its event and has ended at any of its ends that happened. */
export interface Access extends Span {
  readonly event: Event;
  readonly rank: number;
  readonly writes: boolean;
  readonly ends: readonly AccessEnd[];
}

/** A step of a thread; the access has ended when that step has. */
export interface AccessEnd {
  readonly thread: number;
  readonly step: number;
}

export interface Execution {
  readonly accesses: readonly Access[];
  /** Knowledge of each rank when all its channels have ended. */
  readonly knownAtEnd: readonly Int32Array[];
  readonly memory: readonly Readonly<Record<BufferName, IntervalMap>>[];
  /** Deadlock, signals raised by two channels, raises that no rank waits for, partial results in a plan that has none. */
  readonly problems: readonly string[];
  readonly completed: boolean;
}

export function executeSymbolically(plan: Plan, expressions: Expressions): Execution {
  return new SymbolicRun(plan, expressions).run();
}

interface Signal {
  readonly raises: Event[];
  /** Thread and step of the first wait with at least this value, per waiting thread, in order. */
  readonly waits: { readonly thread: number; readonly step: number; readonly value: number }[];
}

/** An access whose ends are not known yet. A put's are the waits for its signal's `ordinal`-th raise. */
type RecordedAccess = Omit<Access, 'ends'> & { readonly put?: { readonly signal: Signal; readonly ordinal: number } };

class SymbolicRun {
  readonly #plan: Plan;
  readonly #expressions: Expressions;
  readonly #threads: Thread[] = [];
  readonly #pc: Int32Array;
  readonly #known: Int32Array[];
  readonly #memory: Record<BufferName, IntervalMap>[];
  readonly #signals: Signal[][];
  /** Steps that flush, per thread. */
  readonly #flushes: number[][];
  readonly #problems: string[] = [];
  /** Puts keep their ordinal on the signal until all waits are known. */
  readonly #accesses: RecordedAccess[] = [];

  constructor(plan: Plan, expressions: Expressions) {
    this.#plan = plan;
    this.#expressions = expressions;
    for (const { rank, channels } of plan.programs) {
      channels.forEach((steps, channel) => this.#threads.push({ index: this.#threads.length, rank, channel, steps }));
    }
    this.#pc = new Int32Array(this.#threads.length);
    this.#known = this.#threads.map(() => new Int32Array(this.#threads.length));
    this.#flushes = this.#threads.map(({ steps }) => steps.flatMap((step, index) => (step.kind === 'flush' ? [index] : [])));
    this.#signals = plan.programs.map(({ signalCount }) => Array.from({ length: signalCount }, () => ({ raises: [], waits: [] })));
    this.#memory = plan.programs.map(({ rank, scratchCount }) => {
      const counts = bufferCounts(plan.request, rank);
      const initial = (buffer: BufferName): Value => expressions.leaf({ rank, buffer, delta: 0 });
      return {
        data: new IntervalMap(counts.data, initial('data')),
        input: new IntervalMap(counts.input, initial('input')),
        output: new IntervalMap(counts.output, garbage),
        scratch: new IntervalMap(scratchCount, garbage),
        mailbox: new IntervalMap(mailboxCount(plan.request), garbage),
      };
    });
  }

  run(): Execution {
    for (const { rank, entry } of this.#plan.programs) for (const { source, target } of entry) this.#copy(rank, source, target);
    let moved = true;
    while (moved) {
      moved = false;
      for (const thread of this.#threads) while (this.#advance(thread)) moved = true;
    }
    const completed = this.#threads.every((thread) => this.#pc[thread.index] === thread.steps.length);
    if (!completed) this.#reportDeadlock();
    this.#checkSignals(completed);
    const knownAtEnd = this.#plan.programs.map(({ rank }) => this.#knownAtEnd(rank));
    return {
      accesses: this.#accesses.map((access) => ({ ...access, ends: this.#endsOf(access) })),
      knownAtEnd,
      memory: this.#memory,
      problems: this.#problems,
      completed,
    };
  }

  /** Runs the thread's next step if it can. */
  #advance(thread: Thread): boolean {
    const index = this.#pc[thread.index];
    const step = thread.steps.at(index);
    if (index >= thread.steps.length || step === undefined) return false;
    if (step.kind === 'wait' && this.#signals[thread.rank][step.signal].raises.length < step.value) return false;
    this.#perform(thread, index, step);
    this.#pc[thread.index] = index + 1;
    return true;
  }

  #perform(thread: Thread, index: number, step: Step): void {
    const event: Event = { thread, step: index, known: this.#known[thread.index] };
    switch (step.kind) {
      case 'put': {
        const signal = this.#raise(step.peer, step.signal, event);
        const put = { signal, ordinal: signal.raises.length };
        this.#accesses.push(accessOf(event, { ...step.source, rank: thread.rank }, { writes: false, put }));
        this.#accesses.push(accessOf(event, { ...step.target, rank: step.peer }, { writes: true, put }));
        this.#copy(thread.rank, step.source, { ...step.target, rank: step.peer });
        return;
      }
      case 'signal':
        this.#raise(step.peer, step.signal, event);
        return;
      case 'wait': {
        const signal = this.#signals[thread.rank][step.signal];
        signal.waits.push({ thread: thread.index, step: index, value: step.value });
        this.#learn(thread, signal.raises[step.value - 1]);
        return;
      }
      case 'copy':
        this.#touch(event, [step.source], [step.target]);
        this.#copy(thread.rank, step.source, step.target);
        return;
      case 'reduce':
        this.#touch(event, step.sources, step.targets);
        this.#reduce(thread, index, step);
        return;
      case 'flush':
        return;
    }
  }

  #raise(rank: number, signalIndex: number, event: Event): Signal {
    const signal = this.#signals[rank][signalIndex];
    const first = signal.raises.at(0);
    if (first && first.thread !== event.thread) {
      this.#problems.push(`signal ${signalIndex} of rank ${rank} is raised by ${nameOf(first.thread)} and by ${nameOf(event.thread)}`);
    }
    signal.raises.push(event);
    return signal;
  }

  /** Adds all knowledge of the raising thread to this one's. It makes a new array, as earlier events share the old one. */
  #learn(thread: Thread, raise: Event): void {
    const known = this.#known[thread.index].slice();
    for (let index = 0; index < known.length; index++) known[index] = Math.max(known[index], raise.known[index]);
    known[raise.thread.index] = Math.max(known[raise.thread.index], raise.step + 1);
    this.#known[thread.index] = known;
  }

  #touch(event: Event, sources: readonly Location[], targets: readonly Location[]): void {
    const { rank } = event.thread;
    for (const source of sources) this.#accesses.push(accessOf(event, { ...source, rank: source.rank ?? rank }, { writes: false }));
    for (const target of targets) this.#accesses.push(accessOf(event, { ...target, rank: target.rank ?? rank }, { writes: true }));
  }

  #read(rank: number, location: Location): Interval[] {
    return this.#memory[location.rank ?? rank][location.buffer].read(location.offset, location.count);
  }

  #copy(rank: number, source: Location, target: Location): void {
    const shift = target.offset - source.offset;
    const moved = this.#read(rank, source).map(({ offset, count, value }) => ({
      offset: offset + shift,
      count,
      value: shifted(value, -shift),
    }));
    this.#memory[target.rank ?? rank][target.buffer].write(moved);
  }

  #reduce(thread: Thread, index: number, step: Extract<Step, { kind: 'reduce' }>): void {
    const { rank } = thread;
    const operands = step.sources.map((source) =>
      this.#read(rank, source).map(({ offset, count, value }) => ({
        offset: offset - source.offset,
        count,
        value: shifted(value, source.offset),
      })),
    );
    const partial = !step.final || operands.some((parts) => parts.some(({ value }) => !this.#expressions.isLeaf(value)));
    if (partial && !this.#plan.partials) {
      this.#problems.push(`${nameOf(thread)} step ${index} takes or makes a partial result, and the plan says partials: false`);
    }
    const results = refine(operands).map(({ offset, count, values }) => {
      const value = this.#evaluate(values, step);
      return { offset, count, value: step.final ? this.#expressions.final(value) : value };
    });
    for (const target of step.targets) {
      const placed = results.map(({ offset, count, value }) => ({
        offset: offset + target.offset,
        count,
        value: shifted(value, -target.offset),
      }));
      this.#memory[target.rank ?? rank][target.buffer].write(placed);
    }
  }

  #evaluate(values: readonly Value[], { tree }: Extract<Step, { kind: 'reduce' }>): Value {
    const stack: Value[] = [];
    for (const entry of tree) {
      if (entry >= 0) {
        stack.push(values[entry]);
        continue;
      }
      const right = must(stack.pop(), () => 'the tree was checked');
      const left = must(stack.pop(), () => 'the tree was checked');
      stack.push(this.#expressions.reduce(left, right));
    }
    assert(stack.length === 1, () => 'the tree was checked');
    return stack[0];
  }

  #endsOf({ event, put, writes }: RecordedAccess): AccessEnd[] {
    if (!put) return [{ thread: event.thread.index, step: event.step }];
    const ends: AccessEnd[] = [];
    for (const { thread, step, value } of put.signal.waits) {
      if (value >= put.ordinal && !ends.some((end) => end.thread === thread)) ends.push({ thread, step });
    }
    const flush = writes ? undefined : this.#flushes[event.thread.index].find((step) => step > event.step);
    if (flush !== undefined) ends.push({ thread: event.thread.index, step: flush });
    return ends;
  }

  #knownAtEnd(rank: number): Int32Array {
    const known = new Int32Array(this.#threads.length);
    for (const thread of this.#threads) {
      if (thread.rank !== rank) continue;
      this.#known[thread.index].forEach((value, index) => (known[index] = Math.max(known[index], value)));
      known[thread.index] = Math.max(known[thread.index], this.#pc[thread.index]);
    }
    return known;
  }

  #reportDeadlock(): void {
    for (const thread of this.#threads) {
      const index = this.#pc[thread.index];
      const step = thread.steps.at(index);
      if (index >= thread.steps.length || step?.kind !== 'wait') continue;
      const raised = this.#signals[thread.rank][step.signal].raises.length;
      this.#problems.push(
        `deadlock: ${nameOf(thread)} step ${index} waits for signal ${step.signal} ≥ ${step.value}, which is raised ${raised} times`,
      );
    }
  }

  #checkSignals(completed: boolean): void {
    if (!completed) return;
    this.#signals.forEach((signals, rank) =>
      signals.forEach(({ raises, waits }, index) => {
        const waited = Math.max(0, ...waits.map(({ value }) => value));
        if (raises.length === waited) return;
        const raiser = raises.at(0);
        const by = raiser ? ` by ${nameOf(raiser.thread)}` : '';
        this.#problems.push(`signal ${index} of rank ${rank} is raised ${raises.length} times${by} and waited for ${waited} times`);
      }),
    );
  }
}

export function nameOf({ rank, channel }: Thread): string {
  return `rank ${rank} channel ${channel}`;
}

function accessOf(event: Event, location: Span & { readonly rank: number }, how: Pick<RecordedAccess, 'writes' | 'put'>): RecordedAccess {
  const { rank, buffer, offset, count } = location;
  return { event, rank, buffer, offset, count, ...how };
}

function shifted({ node, delta }: Value, by: number): Value {
  return node === garbage.node ? garbage : { node, delta: delta + by };
}

/** Common refinement of several lists of adjoining intervals that cover the same elements. */
function refine(lists: readonly (readonly Interval[])[]): { offset: number; count: number; values: Value[] }[] {
  const edges = [...new Set(lists.flatMap((list) => list.flatMap(({ offset, count }) => [offset, offset + count])))].sort((a, b) => a - b);
  const cursors = lists.map(() => 0);
  return edges.slice(0, -1).map((offset, index) => {
    const values = lists.map((list, which) => {
      while (list[cursors[which]].offset + list[cursors[which]].count <= offset) cursors[which] += 1;
      return list[cursors[which]].value;
    });
    return { offset, count: edges[index + 1] - offset, values };
  });
}
