/** A concrete interpreter: runs a plan on numbers, in a random order, as hostile as the contract allows. Independent of the
 *  verifier, which it cross-checks: every plan that the verifier accepts must come out right here under every seed.
 *
 *  - Ranks begin at random times; before that their buffers hold garbage. Channels start when all have done their entry steps.
 *  - A put reads its source late, in parts, and writes its target later still, in parts; only then is its signal raised, in the
 *    order of its channel's puts to that peer.
 *  - When a rank's program has ended its results are taken and its buffers, the mailbox excepted, are overwritten, as a caller might do.
 *
 *  Every element is two numbers. `tree` is combined by an operator that neither commutes nor associates, so it tells association
 *  and operand order; `sum` is added modulo 2³², so it tells only how often each rank contributed. */
import { must } from '../../base/assert.ts';
import type { Random } from '../../base/random.ts';
import { canonicalTree, type AssociationTree } from '../association.ts';
import { mailboxCount, type BufferName, type Location, type Plan, type Span, type Step } from '../ir.ts';
import { bufferCounts, expectations, reduces, type Expectation } from '../postcondition.ts';
import { spanText } from '../structure.ts';

export interface InterpretResult {
  readonly ok: boolean;
  readonly problems: readonly string[];
}

/** Runs the plan once in the order that `random` chooses. */
export function interpret(plan: Plan, random: Random): InterpretResult {
  return new Interpreter(plan, random).run();
}

interface Elements {
  readonly tree: Uint32Array;
  readonly sum: Uint32Array;
}

interface Channel {
  readonly rank: number;
  readonly steps: readonly Step[];
  pc: number;
  /** Puts and signals to peers that have not been delivered, oldest first. */
  readonly transfers: Transfer[];
}

interface Transfer {
  readonly peer: number;
  readonly signal: number;
  readonly source: Span | undefined;
  readonly target: Span | undefined;
  /** Elements that have been read so far. */
  readonly staged: Elements;
  /** Number of elements read, and in `written` written, so far. */
  read: number;
  written: number;
}

type Phase = 'waiting' | 'entering' | 'announced' | 'running' | 'ended';

class Interpreter {
  readonly #plan: Plan;
  readonly #random: Random;
  readonly #memory: Record<BufferName, Elements>[];
  readonly #initial: Record<'data' | 'input', Elements>[];
  readonly #results: Record<BufferName, Elements>[] = [];
  readonly #channels: Channel[];
  readonly #signals: number[][];
  readonly #phase: Phase[];
  /** Number of entry steps done, per rank. */
  readonly #entered: number[];
  readonly #problems: string[] = [];

  constructor(plan: Plan, random: Random) {
    this.#plan = plan;
    this.#random = random;
    const counts = plan.programs.map(({ rank, scratchCount }) => ({ ...bufferCounts(plan.request, rank), scratch: scratchCount }));
    const noise = (count: number): Elements => noiseOf(count, random);
    this.#memory = counts.map(({ data, input, output, scratch }) => ({
      data: noise(data),
      input: noise(input),
      output: noise(output),
      scratch: noise(scratch),
      mailbox: noise(mailboxCount(plan.request)),
    }));
    this.#initial = counts.map(({ data, input }) => ({ data: noise(data), input: noise(input) }));
    this.#channels = plan.programs.flatMap(({ rank, channels }) => channels.map((steps) => ({ rank, steps, pc: 0, transfers: [] })));
    this.#signals = plan.programs.map(({ signalCount }) => Array.from({ length: signalCount }, () => 0));
    this.#phase = plan.programs.map(() => 'waiting');
    this.#entered = plan.programs.map(() => 0);
  }

  run(): InterpretResult {
    const slow = this.#plan.programs.map(() => this.#random.integer(4) === 0);
    for (;;) {
      const possible = this.#actions();
      if (possible.length === 0) break;
      const brisk = possible.filter(({ rank }) => !slow[rank]);
      // Slow ranks move when no other can, and now and then.
      const choice = brisk.length > 0 && this.#random.integer(20) > 0 ? brisk : possible;
      choice[this.#random.integer(choice.length)].act();
    }
    this.#phase.forEach((phase, rank) => {
      if (phase !== 'ended') this.#problems.push(`rank ${rank} never ends`);
    });
    if (this.#problems.length === 0) this.#checkResults();
    return { ok: this.#problems.length === 0, problems: this.#problems };
  }

  #actions(): { rank: number; act: () => void }[] {
    const actions: { rank: number; act: () => void }[] = [];
    this.#phase.forEach((phase, rank) => {
      if (phase === 'waiting') actions.push({ rank, act: () => this.#begin(rank) });
      if (phase === 'entering') actions.push({ rank, act: () => this.#enter(rank) });
    });
    for (const channel of this.#channels) {
      const { rank, steps, pc, transfers } = channel;
      if (this.#phase[rank] === 'running' && pc < steps.length && this.#canRun(channel, steps[pc])) {
        actions.push({ rank, act: () => this.#step(channel, steps[pc]) });
      }
      transfers.forEach((transfer, index) => {
        if (this.#canMove(transfers, index)) actions.push({ rank, act: () => this.#move(channel, transfer) });
      });
    }
    return actions;
  }

  #begin(rank: number): void {
    this.#phase[rank] = 'entering';
    for (const buffer of ['data', 'input'] as const) assign(this.#memory[rank][buffer], this.#initial[rank][buffer]);
  }

  /** One entry step, or the announcement after the last; the last rank's announcement starts all channels. */
  #enter(rank: number): void {
    const step = this.#plan.programs[rank].entry.at(this.#entered[rank]);
    if (step !== undefined) {
      const { source, target } = step;
      copyElements(this.#elements(rank, target), target.offset, this.#elements(rank, source), source.offset, source.count);
      this.#entered[rank] += 1;
      return;
    }
    this.#phase[rank] = 'announced';
    if (this.#phase.some((phase) => phase !== 'announced')) return;
    this.#phase.fill('running');
    for (const each of this.#plan.programs) this.#endIfDone(each.rank);
  }

  #endIfDone(rank: number): void {
    if (this.#channels.some((channel) => channel.rank === rank && channel.pc < channel.steps.length)) return;
    this.#phase[rank] = 'ended';
    this.#results[rank] = structuredClone(this.#memory[rank]);
    for (const buffer of ['data', 'input', 'output', 'scratch'] as const) {
      const elements = this.#memory[rank][buffer];
      assign(elements, noiseOf(elements.sum.length, this.#random));
    }
  }

  #canRun(channel: Channel, step: Step): boolean {
    if (step.kind === 'wait') return (this.#signals[channel.rank][step.signal] ?? 0) >= step.value;
    if (step.kind === 'flush') return channel.transfers.every(({ source, read }) => source === undefined || read === source.count);
    return true;
  }

  /** True if a transfer may move: parts may move in any order, but a signal is raised after those before it to the same peer. */
  #canMove(transfers: readonly Transfer[], index: number): boolean {
    const { peer, source, written } = transfers[index];
    if (source !== undefined && written < source.count) return true;
    return !transfers.slice(0, index).some((earlier) => earlier.peer === peer);
  }

  #move(channel: Channel, transfer: Transfer): void {
    const { source, target, staged, peer } = transfer;
    if (source !== undefined && transfer.read < source.count) {
      const count = 1 + this.#random.integer(source.count - transfer.read);
      const from = this.#elements(channel.rank, source);
      copyElements(staged, transfer.read, from, source.offset + transfer.read, count);
      transfer.read += count;
      return;
    }
    if (target !== undefined && transfer.written < target.count) {
      const count = 1 + this.#random.integer(target.count - transfer.written);
      copyElements(this.#targetElements(peer, target), target.offset + transfer.written, staged, transfer.written, count);
      transfer.written += count;
      return;
    }
    channel.transfers.splice(channel.transfers.indexOf(transfer), 1);
    this.#signals[peer][transfer.signal] += 1;
  }

  #step(channel: Channel, step: Step): void {
    const { rank } = channel;
    channel.pc += 1;
    switch (step.kind) {
      case 'put':
        channel.transfers.push({ ...step, staged: emptyElements(step.source.count), read: 0, written: 0 });
        break;
      case 'signal':
        channel.transfers.push({ ...step, source: undefined, target: undefined, staged: emptyElements(0), read: 0, written: 0 });
        break;
      case 'copy': {
        const { source, target } = step;
        const from = this.#elements(source.rank ?? rank, source);
        copyElements(this.#targetElements(target.rank ?? rank, target), target.offset, from, source.offset, source.count);
        break;
      }
      case 'reduce':
        this.#reduce(rank, step);
        break;
      case 'wait':
      case 'flush':
        break;
    }
    this.#endIfDone(rank);
  }

  #reduce(rank: number, { targets, sources, tree, final }: Extract<Step, { kind: 'reduce' }>): void {
    for (let index = 0; index < targets[0].count; index++) {
      const stack: [tree: number, sum: number][] = [];
      for (const entry of tree) {
        if (entry >= 0) {
          const { tree: t, sum } = this.#elements(sources[entry].rank ?? rank, sources[entry]);
          stack.push([t[sources[entry].offset + index], sum[sources[entry].offset + index]]);
          continue;
        }
        const right = must(stack.pop(), () => 'postfix');
        const left = must(stack.pop(), () => 'postfix');
        stack.push([mix(left[0], right[0]), (left[1] + right[1]) >>> 0]);
      }
      const [t, sum] = stack[0];
      for (const target of targets) {
        const elements = this.#targetElements(target.rank ?? rank, target);
        elements.tree[target.offset + index] = final ? finish(t) : t;
        elements.sum[target.offset + index] = final ? finish(sum) : sum;
      }
    }
  }

  #elements(rank: number, location: Location): Elements {
    const elements = this.#memory[rank][location.buffer];
    if (location.offset < 0 || location.offset + location.count > elements.sum.length)
      this.#problems.push(`${spanText(location)} is out of bounds`);
    return elements;
  }

  #targetElements(rank: number, location: Location): Elements {
    if (this.#phase[rank] === 'ended') this.#problems.push(`rank ${rank}'s ${spanText(location)} is written after its program has ended`);
    return this.#elements(rank, location);
  }

  #checkResults(): void {
    const { request, programs, association } = this.#plan;
    const canonical = canonicalTree(request.topology);
    for (const { rank } of programs) {
      for (const expectation of expectations(request, rank)) {
        const { buffer, range } = expectation;
        const result = this.#results[rank][buffer];
        for (let position = range.offset; position < range.offset + range.count; position++) {
          const wanted = this.#wanted(expectation, position, canonical);
          const rightTree =
            expectation.kind === 'reduction' && association === 'relaxed' && programs.length > 1
              ? request.collective !== 'all-reduce' || result.tree[position] === this.#results[0][buffer].tree[position]
              : result.tree[position] === wanted[0];
          if (rightTree && result.sum[position] === wanted[1]) continue;
          this.#problems.push(`rank ${rank} ${buffer}[${position}] is wrong`);
          return;
        }
      }
    }
  }

  #wanted(expectation: Expectation, position: number, canonical: AssociationTree): [tree: number, sum: number] {
    const index = position + expectation.delta;
    const at = (rank: number): [number, number] => {
      const { tree, sum } = this.#initial[rank][expectation.from];
      return [tree[index], sum[index]];
    };
    if (expectation.kind === 'copy') return at(expectation.rank);
    const visit = (node: AssociationTree): [number, number] => {
      if (node.kind === 'leaf') return at(node.rank);
      const [left, right] = [visit(node.left), visit(node.right)];
      return [mix(left[0], right[0]), (left[1] + right[1]) >>> 0];
    };
    const [tree, sum] = visit(canonical);
    return reduces(this.#plan.request) ? [finish(tree), finish(sum)] : [tree, sum];
  }
}

/** An operator that neither commutes nor associates. */
function mix(left: number, right: number): number {
  return (Math.imul(left, 0x9e3779b1) ^ Math.imul(right + 0x7f4a7c15, 0x85ebca6b)) >>> 0;
}

/** The effect of `final` on a result, once. */
function finish(value: number): number {
  return Math.imul(value ^ 0x5bd1e995, 0x2545f491) >>> 0;
}

function emptyElements(count: number): Elements {
  return { tree: new Uint32Array(count), sum: new Uint32Array(count) };
}

function noiseOf(count: number, random: Random): Elements {
  const elements = emptyElements(count);
  for (let index = 0; index < count; index++) {
    elements.tree[index] = random.integer(2 ** 32);
    elements.sum[index] = random.integer(2 ** 32);
  }
  return elements;
}

function assign(target: Elements, source: Elements): void {
  target.tree.set(source.tree);
  target.sum.set(source.sum);
}

function copyElements(target: Elements, targetOffset: number, source: Elements, sourceOffset: number, count: number): void {
  target.tree.set(source.tree.subarray(sourceOffset, sourceOffset + count), targetOffset);
  target.sum.set(source.sum.subarray(sourceOffset, sourceOffset + count), targetOffset);
}
