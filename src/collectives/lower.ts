/** Lowering: one rank's program of a plan → code for the step machine, for one dtype, operator and set of links.
 *
 *  Steps that only touch memory of this host become machine instructions; steps that need the network become `call`
 *  instructions whose argument indexes `calls`. It must not know algorithms, and nothing here runs anything. */
import { assert } from '../base/assert.ts';
import { getOrMake } from '../base/collections/lists.ts';
import { sum } from '../base/numbers.ts';
import { dtypeInfo, type DType } from '../memory/dtype.ts';
import { combineOpOf, reduceOpCode, type ReduceOp } from '../memory/reduce-op.ts';
import { Opcode } from '../memory/step-machine.ts';
import type { BufferName, Location, Program, Loop, Span, Step } from '../plan/ir.ts';
import type { Movement } from '../trace/traffic.ts';
import {
  beginContractOffset,
  beginPublishedOffset,
  contractBytes,
  headerSleepingOffset,
  mailboxOffset,
  signalOffset,
} from './control-block.ts';
import { movementsOf } from './movement.ts';

/** Memory that the code names; bound to a view before the code runs.
 *  `slot` is the operation's slot of a rank's control block, `header` the block's header. */
export type SegmentName =
  | { readonly kind: 'buffer'; readonly rank: number; readonly buffer: BufferName }
  | { readonly kind: 'slot'; readonly rank: number }
  | { readonly kind: 'header'; readonly rank: number };

/** A step the network performs. Offsets and counts in bytes. */
export type NetworkCall =
  | {
      readonly kind: 'put';
      readonly peer: number;
      readonly buffer: BufferName;
      readonly offset: number;
      readonly bytes: number;
      readonly targetBuffer: BufferName;
      readonly targetOffset: number;
      readonly signal: number;
    }
  | { readonly kind: 'signal'; readonly peer: number; readonly signal: number }
  | { readonly kind: 'flush' };

export interface Lowered {
  /** Machine code of the entry steps: touches own buffers and the own slot only. */
  readonly entry: Float64Array;
  /** Machine code, one per channel. */
  readonly channels: readonly Float64Array[];
  readonly calls: readonly NetworkCall[];
  /** The memory that each segment index stands for. */
  readonly segments: readonly SegmentName[];
  readonly scratchBytes: number;
  readonly signalCount: number;
  /** Bytes of the mailbox that the entry fills. */
  readonly mailboxBytes: number;
  /** Bytes that move between ranks each time the code runs. */
  readonly movements: readonly Movement[];
}

export interface LoweringOptions {
  readonly dtype: DType;
  /** Undefined for collectives that reduce nothing. */
  readonly op: ReduceOp | undefined;
  /** Number of ranks in the group, by which Avg divides. */
  readonly size: number;
  /** True for each rank whose memory can be loaded and stored from here. */
  readonly loadStore: readonly boolean[];
  /** Most scratch that `lowerWhole` may use. Default: none. */
  readonly scratchBytesMax?: number;
}

export function lowerProgram(program: Program, options: LoweringOptions): Lowered {
  const lowering = new Lowering(program.rank, options);
  const entry = lowering.channel(program.entry);
  const channels = program.channels.map((steps) => lowering.channel(steps));
  return {
    entry,
    channels,
    calls: lowering.calls,
    segments: lowering.segments,
    scratchBytes: program.scratchCount * dtypeInfo(options.dtype).bytes,
    signalCount: program.signalCount,
    mailboxBytes: Math.max(0, ...program.entry.map(({ target }) => target.offset + target.count)) * dtypeInfo(options.dtype).bytes,
    movements: movementsOf(program, { elementBytes: dtypeInfo(options.dtype).bytes, loadStore: options.loadStore }),
  };
}

/** A whole operation as one piece of code, from entry to end, for ranks that all share memory:
 *
 *      entry · own card → own slot · publish · for each peer: wait, match contract, match addresses · channel
 *
 *  The *card* is a private segment: contract, own addresses, then the addresses each peer is expected to announce. A peer
 *  that announces others stops the machine with `differs`, so that its memory is bound anew before it is touched. */
export interface LoweredWhole extends Pick<Lowered, 'segments' | 'scratchBytes' | 'signalCount' | 'movements'> {
  readonly code: Float64Array;
  /** Operands that must be set before each run: to the number of the host path's operation, from 1. */
  readonly ordinalOperands: readonly number[];
  /** Index of the card's segment: the one after those in `segments`. */
  readonly cardSegment: number;
  /** True if some peer's buffer is touched, so that addresses matter. */
  readonly touchesPeers: boolean;
}

export const cardAddressesOffset = Math.ceil(contractBytes / 8) * 8;
export const addressesBytes = 48;
const cardLineBytes = 64;
const cardOwnBytes = Math.ceil((cardAddressesOffset + addressesBytes) / cardLineBytes) * cardLineBytes;

/** Offset in the card of the addresses expected of a rank. */
export function cardExpectedOffset(rank: number): number {
  return cardOwnBytes + rank * cardLineBytes;
}

export function cardBytes(ranks: number): number {
  return cardExpectedOffset(ranks);
}

/** Lowers a whole operation. `differs` stops with the peer's rank when its contract differs, with size + rank when its addresses do.
 *  @returns undefined when the program needs the network or several channels. */
export function lowerWhole(program: Program<Step | Loop>, options: LoweringOptions): LoweredWhole | undefined {
  return runsWhole(program, options) ? new Lowering(program.rank, options).whole(program) : undefined;
}

/** True if `lowerWhole` has code for the program. */
export function runsWhole(
  { channels, scratchCount }: Program<unknown>,
  { dtype, scratchBytesMax = 0, loadStore }: LoweringOptions,
): boolean {
  return channels.length <= 1 && scratchCount * dtypeInfo(dtype).bytes <= scratchBytesMax && loadStore.every(Boolean);
}

class Lowering {
  readonly calls: NetworkCall[] = [];
  readonly segments: SegmentName[] = [];
  readonly #indices = new Map<string, number>();
  readonly #rank: number;
  readonly #options: LoweringOptions;
  readonly #elementBytes: number;
  /** The code before `#code`. */
  readonly #parts: (number[] | Float64Array)[] = [];
  #code: number[] = [];
  /** Elements by which places in own data lie further on, and what is added to values that are waited for: of the time that is lowered. */
  #by = 0;
  #raises = 0;

  constructor(rank: number, options: LoweringOptions) {
    this.#rank = rank;
    this.#options = options;
    this.#elementBytes = dtypeInfo(options.dtype).bytes;
  }

  whole(program: Program<Step | Loop>): LoweredWhole {
    const { size } = this.#options;
    const peers = Array.from({ length: size }, (_, rank) => rank).filter((rank) => rank !== this.#rank);
    const touchesPeers = program.channels.some((steps) => steps.some((step) => touchesPeer(step, this.#rank)));
    const card = -1; // numbered when all other segments are known
    const cardOperands: number[] = [];
    const ordinalOperands: number[] = [];
    const own = this.#segment({ kind: 'slot', rank: this.#rank });
    const emit = (...operands: number[]): void => void this.#code.push(...operands);
    const emitCard = (offset: number): void => {
      cardOperands.push(this.#code.length);
      emit(card, offset);
    };
    const emitOrdinal = (): void => {
      ordinalOperands.push(this.#code.length);
      emit(0);
    };
    for (const step of program.entry) this.#step(step);
    // Other ranks may touch this rank's buffers even if it touches none of theirs; mailboxes have no addresses.
    const usesMailbox = program.entry.length > 0;
    if (!usesMailbox) {
      emit(Opcode.Copy, own, 0);
      emitCard(cardAddressesOffset);
      emit(addressesBytes);
    }
    emit(Opcode.Copy, own, beginContractOffset);
    emitCard(0);
    emit(contractBytes);
    peers.forEach((peer, index) => {
      // The first peer's code announces the call; that of the others only checks whether their rank sleeps.
      if (index === 0) {
        emit(Opcode.Publish, own, beginPublishedOffset);
        emitOrdinal();
      } else emit(Opcode.Signal, own, beginPublishedOffset, 0);
      emit(this.#segment({ kind: 'header', rank: peer }), headerSleepingOffset, peer);
    });
    for (const peer of peers) {
      const slot = this.#segment({ kind: 'slot', rank: peer });
      emit(Opcode.Wait, slot, beginPublishedOffset);
      emitOrdinal();
      emit(Opcode.Match, slot, beginContractOffset);
      emitCard(0);
      emit(contractBytes, peer);
      if (!touchesPeers) continue;
      emit(Opcode.Match, slot, 0);
      emitCard(cardExpectedOffset(peer));
      emit(addressesBytes, size + peer);
    }
    this.#steps(program.channels[0] ?? []);
    const code = this.#finished();
    for (const operand of cardOperands) code[operand] = this.segments.length;
    return {
      code,
      ordinalOperands,
      segments: this.segments,
      cardSegment: this.segments.length,
      scratchBytes: program.scratchCount * this.#elementBytes,
      signalCount: program.signalCount,
      touchesPeers,
      movements: movementsOf(program, { elementBytes: this.#elementBytes, loadStore: this.#options.loadStore }),
    };
  }

  channel(steps: readonly Step[]): Float64Array {
    this.#code = [];
    this.#steps(steps);
    return this.#finished();
  }

  /** Joins a copy out of a place and the following copy into it to one instruction, which moves each line once. */
  #steps(steps: readonly (Step | Loop)[]): void {
    for (let index = 0; index < steps.length; index++) {
      const step = steps[index];
      const following = steps.at(index + 1);
      if (step.kind === 'loop') this.#loop(step);
      else if (step.kind === 'copy' && following?.kind === 'copy' && this.#shifts(step, following)) {
        const { target, source } = step;
        this.#code.push(Opcode.Shift, ...this.#location(target), ...this.#location(source), ...this.#location(following.source));
        this.#code.push(source.count * this.#elementBytes);
        index += 1;
      } else this.#step(step);
    }
  }

  /** Every operand grows by as much from each time to the next, or not at all. */
  #loop({ times, by, raises, steps }: Loop): void {
    this.#parts.push(this.#code);
    const [first, second] = [0, 1].map((time) => {
      [this.#by, this.#raises, this.#code] = [time * by, time * raises, []];
      this.#steps(steps);
      return this.#code;
    });
    [this.#by, this.#raises, this.#code] = [0, 0, []];
    const growing = [...first.keys()].filter((operand) => second[operand] !== first[operand]);
    const [body, all] = [Float64Array.from(first), new Float64Array(times * first.length)];
    for (let time = 0; time < times; time++) {
      all.set(body, time * body.length);
      for (const operand of growing) body[operand] += second[operand] - first[operand];
    }
    this.#parts.push(all);
  }

  /** Ends the code. */
  #finished(): Float64Array {
    const parts = [...this.#parts, this.#code, [Opcode.End]];
    const code = new Float64Array(sum(parts.map(({ length }) => length)));
    let at = 0;
    for (const part of parts) {
      code.set(part, at);
      at += part.length;
    }
    return code;
  }

  /** True if the second copy fills exactly the place that the first one emptied, from a source other than the first one's target. */
  #shifts(first: Extract<Step, { kind: 'copy' }>, second: Extract<Step, { kind: 'copy' }>): boolean {
    const { target: result, source: through } = first;
    const next = second.source;
    const refilled =
      this.#sameBuffer(through, second.target) && through.offset === second.target.offset && through.count === second.target.count;
    const apart = (a: Location, b: Location): boolean =>
      !this.#sameBuffer(a, b) || a.offset + a.count <= b.offset || b.offset + b.count <= a.offset;
    return refilled && through.count > 0 && apart(result, through) && apart(through, next) && apart(result, next);
  }

  #sameBuffer(a: Location, b: Location): boolean {
    return a.buffer === b.buffer && (a.rank ?? this.#rank) === (b.rank ?? this.#rank);
  }

  #step(step: Step): void {
    switch (step.kind) {
      case 'put':
        return this.#put(step);
      case 'signal':
        return this.#signal(step.peer, step.signal);
      case 'wait':
        this.#code.push(
          Opcode.Wait,
          this.#segment({ kind: 'slot', rank: this.#rank }),
          signalOffset(step.signal),
          step.value + this.#raises,
        );
        return;
      case 'copy':
        if (step.target.count > 0) this.#copy(step.target, step.source);
        return;
      case 'reduce':
        if (step.targets[0].count > 0) this.#reduce(step);
        return;
      case 'flush':
        // Loads and stores have left their source when they are done, so only the network needs a flush.
        if (!this.#options.loadStore.every(Boolean)) this.#call({ kind: 'flush' });
        return;
    }
  }

  #put(step: Extract<Step, { kind: 'put' }>): void {
    const { peer, source, target, signal } = step;
    if (this.#options.loadStore[peer]) {
      if (source.count > 0) this.#copy({ ...target, rank: peer }, source);
      this.#signal(peer, signal);
      return;
    }
    if (source.count === 0) {
      this.#call({ kind: 'signal', peer, signal });
      return;
    }
    const bytes = this.#elementBytes;
    this.#call({
      kind: 'put',
      peer,
      buffer: source.buffer,
      offset: source.offset * bytes,
      bytes: source.count * bytes,
      targetBuffer: target.buffer,
      targetOffset: target.offset * bytes,
      signal,
    });
  }

  #signal(peer: number, signal: number): void {
    if (peer !== this.#rank && !this.#options.loadStore[peer]) {
      this.#call({ kind: 'signal', peer, signal });
      return;
    }
    const slot = this.#segment({ kind: 'slot', rank: peer });
    const header = this.#segment({ kind: 'header', rank: peer });
    this.#code.push(Opcode.Signal, slot, signalOffset(signal), 1, header, headerSleepingOffset, peer);
  }

  #copy(target: Location, source: Location): void {
    this.#code.push(Opcode.Copy, ...this.#location(target), ...this.#location(source), target.count * this.#elementBytes);
  }

  #reduce(step: Extract<Step, { kind: 'reduce' }>): void {
    const { dtype, op, size } = this.#options;
    assert(op !== undefined, () => 'a plan that reduces needs an operator');
    const divisor = op === 'avg' && step.final ? size : Number.NaN;
    this.#code.push(Opcode.Reduce, dtypeInfo(dtype).code, reduceOpCode(combineOpOf(op)), step.targets[0].count, divisor);
    this.#code.push(step.targets.length, ...step.targets.flatMap((target) => this.#location(target)));
    this.#code.push(step.sources.length, ...step.sources.flatMap((source) => this.#location(source)));
    this.#code.push(step.tree.length, ...step.tree);
  }

  #call(call: NetworkCall): void {
    this.#code.push(Opcode.Call, this.calls.length);
    this.calls.push(call);
  }

  #location(location: Location | Span): [segment: number, offset: number] {
    const rank = 'rank' in location && location.rank !== undefined ? location.rank : this.#rank;
    if (location.buffer === 'mailbox') {
      return [this.#segment({ kind: 'slot', rank }), mailboxOffset + location.offset * this.#elementBytes];
    }
    const offset = location.offset + (location.buffer === 'data' && rank === this.#rank ? this.#by : 0);
    return [this.#segment({ kind: 'buffer', rank, buffer: location.buffer }), offset * this.#elementBytes];
  }

  #segment(name: SegmentName): number {
    const key = name.kind === 'buffer' ? `${name.buffer}:${name.rank}` : `${name.kind}:${name.rank}`;
    return getOrMake(this.#indices, key, () => this.segments.push(name) - 1);
  }
}

function touchesPeer(step: Step | Loop, rank: number): boolean {
  if (step.kind === 'loop') return step.steps.some((each) => touchesPeer(each, rank));
  const locations: readonly Location[] =
    step.kind === 'reduce' ? [...step.targets, ...step.sources] : step.kind === 'copy' ? [step.target, step.source] : [];
  const elsewhere = locations.some((each) => each.buffer !== 'mailbox' && each.rank !== undefined && each.rank !== rank);
  return elsewhere || step.kind === 'put';
}
