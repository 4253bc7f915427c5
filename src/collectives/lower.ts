/** Lowering: one rank's program of a plan → code for the step machine, for one dtype, operator and set of links.
 *
 *  Steps that only touch memory of this host become machine instructions; steps that need the network become `call`
 *  instructions whose argument indexes `calls`. It must not know algorithms, and nothing here runs anything. */
import { assert } from '../base/assert.ts';
import { dtypeInfo, type DType } from '../memory/dtype.ts';
import { combineOpOf, reduceOpCode, type ReduceOp } from '../memory/reduce-op.ts';
import { Opcode } from '../memory/step-machine.ts';
import type { BufferName, Location, Program, Span, Step } from '../plan/ir.ts';
import { headerSleepingOffset, signalOffset } from './control-block.ts';

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
  /** Machine code, one per channel. */
  readonly channels: readonly Float64Array[];
  readonly calls: readonly NetworkCall[];
  /** What each segment index stands for. */
  readonly segments: readonly SegmentName[];
  readonly scratchBytes: number;
  readonly signalCount: number;
}

export interface LoweringOptions {
  readonly dtype: DType;
  /** Undefined for collectives that reduce nothing. */
  readonly op: ReduceOp | undefined;
  /** Ranks in the group: what Avg divides by. */
  readonly size: number;
  /** Whether each rank's memory can be loaded and stored from here. */
  readonly loadStore: readonly boolean[];
}

export function lowerProgram(program: Program, options: LoweringOptions): Lowered {
  const lowering = new Lowering(program.rank, options);
  const channels = program.channels.map((steps) => lowering.channel(steps));
  return {
    channels,
    calls: lowering.calls,
    segments: lowering.segments,
    scratchBytes: program.scratchCount * dtypeInfo(options.dtype).bytes,
    signalCount: program.signalCount,
  };
}

class Lowering {
  readonly calls: NetworkCall[] = [];
  readonly segments: SegmentName[] = [];
  readonly #indices = new Map<string, number>();
  readonly #rank: number;
  readonly #options: LoweringOptions;
  readonly #elementBytes: number;
  #code: number[] = [];

  constructor(rank: number, options: LoweringOptions) {
    this.#rank = rank;
    this.#options = options;
    this.#elementBytes = dtypeInfo(options.dtype).bytes;
  }

  channel(steps: readonly Step[]): Float64Array {
    this.#code = [];
    for (const step of steps) this.#step(step);
    this.#code.push(Opcode.End);
    return Float64Array.from(this.#code);
  }

  #step(step: Step): void {
    switch (step.kind) {
      case 'put':
        return this.#put(step);
      case 'signal':
        return this.#signal(step.peer, step.signal);
      case 'wait':
        this.#code.push(Opcode.Wait, this.#segment({ kind: 'slot', rank: this.#rank }), signalOffset(step.signal), step.value);
        return;
      case 'copy':
        if (step.target.count > 0) this.#copy(step.target, step.source);
        return;
      case 'reduce':
        if (step.targets[0].count > 0) this.#reduce(step);
        return;
      case 'flush':
        this.#call({ kind: 'flush' });
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
    const scale = op === 'avg' && step.final ? 1 / size : Number.NaN;
    this.#code.push(Opcode.Reduce, dtypeInfo(dtype).code, reduceOpCode(combineOpOf(op)), step.targets[0].count, scale);
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
    return [this.#segment({ kind: 'buffer', rank, buffer: location.buffer }), location.offset * this.#elementBytes];
  }

  #segment(name: SegmentName): number {
    const key = name.kind === 'buffer' ? `${name.buffer}:${name.rank}` : `${name.kind}:${name.rank}`;
    let index = this.#indices.get(key);
    if (index === undefined) {
      index = this.segments.length;
      this.segments.push(name);
      this.#indices.set(key, index);
    }
    return index;
  }
}
