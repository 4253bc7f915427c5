/** The step machine in JavaScript: the twin of the addon's (native/step_machine.cc), instruction by instruction.
 *
 *  Signal words are read and written with Atomics, which are sequentially consistent: more than the contract asks.
 *  It cannot give the CPU away: while a wait spins it looks again and again, reading the clock every 64 looks. */
import { assert } from '../../base/assert.ts';
import type { Clock } from '../../base/clock.ts';
import { dtypes, type DTypeInfo } from '../dtype.ts';
import { overlap, overlapFault, same, treeDepth } from '../kernels/check.ts';
import { reduceJs } from '../kernels/js-reduce.ts';
import { Scratch } from '../kernels/js-scratch.ts';
import { reduceOps, type CombineOp } from '../reduce-op.ts';
import {
  machineStatuses,
  notStarted,
  Opcode,
  RepetitionNumber,
  type MachineState,
  type MachineStatus,
  type Repetition,
  type RepetitionOptions,
  type Segments,
  type StepMachine,
} from '../step-machine.ts';
import { BoundSegments } from './bound-segments.ts';
import { MachineRegisters } from './machine-registers.ts';

const combineOps = reduceOps.slice(0, 7) as readonly CombineOp[];
const countMax = 2 ** 48;
const looksPerClock = 64;

class JsSegments extends BoundSegments {
  /** The whole words of each segment's buffer, from its first byte. */
  readonly words: Int32Array[] = [];

  override set(index: number, view: Uint8Array): void {
    super.set(index, view);
    this.words[index] = new Int32Array(view.buffer, 0, Math.floor(view.buffer.byteLength / 4));
  }
}

/** A signal word: an index into words. */
interface Word {
  words: Int32Array;
  index: number;
}

export class JsStepMachine implements StepMachine {
  readonly name = 'js';
  readonly #clock: Clock;
  readonly #scratch = new Scratch();

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  createSegments(count: number): Segments {
    return new JsSegments(count);
  }

  createState(peers: number): MachineState {
    return new MachineRegisters(peers);
  }

  run(code: Float64Array, segments: Segments, state: MachineState, spinNs: number, _yields: boolean): MachineStatus {
    assert(segments instanceof JsSegments && state instanceof MachineRegisters, () => 'segments and state come from another step machine');
    segments.dropLost();
    return new Run(code, segments, state, spinNs, this.#clock, this.#scratch).run();
  }

  repetition({ code, segments, state, numbers, operands, runs, stop, record, log, spinNs, yields }: RepetitionOptions): Repetition {
    const records = Math.floor(log.length / record.length);
    return () => {
      if (numbers[RepetitionNumber.Closed] !== 0 || Atomics.load(stop, 0) !== 0) return notStarted;
      const run = ++runs[0];
      const ordinal = numbers[RepetitionNumber.Ordinal]++;
      record[0] = run;
      const at = ((run - 1) % records) * record.length;
      log[at] = 0;
      log.set(record.subarray(1), at + 1);
      log[at] = run;
      for (const operand of operands) code[operand] = ordinal + 1;
      state.pc = 0;
      const status = this.run(code, segments[ordinal % 2], state, spinNs, yields);
      return status === 'done' && state.doorbells.every((word) => word === 0) ? undefined : machineStatuses.indexOf(status);
    };
  }
}

/** One run. Methods that read operands return undefined when an operand is not valid; instructions then fault. */
class Run {
  readonly #code: Float64Array;
  readonly #segments: JsSegments;
  readonly #state: MachineRegisters;
  readonly #clock: Clock;
  readonly #scratch: Scratch;
  readonly #spinMs: number;
  #next = 0;
  /** True once a doorbell has been set in this run. */
  #rang = false;

  constructor(code: Float64Array, segments: JsSegments, state: MachineRegisters, spinNs: number, clock: Clock, scratch: Scratch) {
    this.#code = code;
    this.#segments = segments;
    this.#state = state;
    this.#clock = clock;
    this.#scratch = scratch;
    this.#spinMs = spinNs / 1e6;
  }

  run(): MachineStatus {
    let pc = asIndex(this.#state.pc);
    if (pc === undefined) return 'fault';
    for (;;) {
      this.#next = pc;
      const status = this.#step();
      if (status !== undefined) {
        this.#state.pc = status === 'call' ? this.#next : pc;
        return status;
      }
      pc = this.#next;
    }
  }

  /** Runs one instruction; undefined: go on. */
  #step(): MachineStatus | undefined {
    switch (this.#index()) {
      case Opcode.End:
        return 'done';
      case Opcode.Copy:
        return this.#copy();
      case Opcode.Reduce:
        return this.#reduce();
      case Opcode.Signal:
        return this.#raise('add');
      case Opcode.Wait:
        return this.#wait();
      case Opcode.Publish:
        return this.#raise('store');
      case Opcode.Match:
        return this.#match();
      case Opcode.Call:
        return this.#call();
      case Opcode.Shift:
        return this.#shift();
      default:
        return 'fault';
    }
  }

  #copy(): MachineStatus | undefined {
    const bytes = this.#peekIndex(4);
    const target = this.#location(bytes, 1);
    const source = this.#location(bytes, 1);
    if (this.#index() === undefined || target === undefined || source === undefined) return 'fault';
    if (overlap(target, source) && !same(target, source)) return 'fault';
    target.set(source);
    return undefined;
  }

  #shift(): MachineStatus | undefined {
    const bytes = this.#peekIndex(6);
    const result = this.#location(bytes, 1);
    const through = this.#location(bytes, 1);
    const next = this.#location(bytes, 1);
    if (this.#index() === undefined || result === undefined || through === undefined || next === undefined) return 'fault';
    if (overlap(result, through) || overlap(through, next) || overlap(result, next)) return 'fault';
    result.set(through);
    through.set(next);
    return undefined;
  }

  #reduce(): MachineStatus | undefined {
    const dtype = this.#dtype();
    const op = this.#index();
    const count = this.#count();
    const divisor = this.#operand();
    if (dtype === undefined || op === undefined || op >= combineOps.length || count === undefined || divisor === undefined) return 'fault';
    const { name, bytes, kind } = dtype;
    if (kind === 'float' ? op > 3 : !Number.isNaN(divisor)) return 'fault';
    const targets = this.#locations(count * bytes, bytes);
    if (targets === undefined || targets.length === 0) return 'fault';
    const sources = this.#locations(count * bytes, bytes);
    const treeCount = this.#index();
    if (sources === undefined || treeCount === undefined || treeCount > this.#code.length - this.#next) return 'fault';
    const tree = Array.from(this.#code.subarray(this.#next, this.#next + treeCount));
    this.#next += treeCount;
    if (treeDepth(tree, sources.length) === 0 || overlapFault(targets, sources) !== undefined) return 'fault';
    reduceJs(this.#scratch, name, combineOps[op], targets, sources, tree, Number.isNaN(divisor) ? undefined : divisor);
    return undefined;
  }

  #raise(how: 'add' | 'store'): MachineStatus | undefined {
    const word = this.#word();
    const value = asWord(this.#operand());
    const sleeper = this.#word();
    const peer = this.#index();
    const { doorbells } = this.#state;
    if (word === undefined || value === undefined || sleeper === undefined || peer === undefined || peer >= doorbells.length * 32)
      return 'fault';
    if (how === 'add') Atomics.add(word.words, word.index, value);
    else Atomics.store(word.words, word.index, value);
    if (Atomics.load(sleeper.words, sleeper.index) === 0) return undefined;
    doorbells[peer >> 5] |= 1 << (peer & 31);
    this.#rang = true;
    return undefined;
  }

  #wait(): MachineStatus | undefined {
    const word = this.#word();
    const value = asWord(this.#operand());
    if (word === undefined || value === undefined) return 'fault';
    if (this.#rang) return 'waiting';
    return this.#reached(word, value) ? undefined : 'waiting';
  }

  #reached(word: Word, value: number): boolean {
    if (look(word, value)) return true;
    if (!(this.#spinMs > 0)) return false;
    const startMs = this.#clock.now();
    for (;;) {
      for (let k = 0; k < looksPerClock; k++) {
        if (look(word, value)) return true;
      }
      if (this.#clock.now() - startMs >= this.#spinMs) return false;
    }
  }

  #match(): MachineStatus | undefined {
    const bytes = this.#peekIndex(4);
    const theirs = this.#location(bytes, 1);
    const own = this.#location(bytes, 1);
    this.#index();
    const tag = this.#operand();
    if (theirs === undefined || own === undefined || tag === undefined) return 'fault';
    if (Buffer.compare(theirs, own) === 0) return undefined;
    this.#state.argument = tag;
    return 'differs';
  }

  #call(): MachineStatus {
    const argument = this.#operand();
    if (argument === undefined) return 'fault';
    this.#state.argument = argument;
    return 'call';
  }

  #operand(): number | undefined {
    return this.#code[this.#next++];
  }

  #index(): number | undefined {
    return asIndex(this.#operand());
  }

  #peekIndex(ahead: number): number | undefined {
    return asIndex(this.#code[this.#next + ahead]);
  }

  #dtype(): DTypeInfo | undefined {
    const code = this.#index();
    return code === undefined ? undefined : dtypes[code];
  }

  #count(): number | undefined {
    const count = this.#index();
    return count === undefined || count > countMax ? undefined : count;
  }

  #location(bytes: number | undefined, alignment: number): Uint8Array | undefined {
    const segment = this.#index();
    const offset = this.#index();
    if (segment === undefined || offset === undefined || bytes === undefined || segment >= this.#segments.count) return undefined;
    const view = this.#segments.views[segment];
    if (offset + bytes > view.byteLength || (view.byteOffset + offset) % alignment !== 0) return undefined;
    return new Uint8Array(view.buffer, view.byteOffset + offset, bytes);
  }

  #locations(bytes: number, alignment: number): Uint8Array[] | undefined {
    const count = this.#index();
    if (count === undefined || count * 2 > this.#code.length - this.#next) return undefined;
    const found: Uint8Array[] = [];
    for (let k = 0; k < count; k++) {
      const location = this.#location(bytes, alignment);
      if (location === undefined) return undefined;
      found.push(location);
    }
    return found;
  }

  #word(): Word | undefined {
    const segment = this.#index();
    const offset = this.#index();
    if (segment === undefined || offset === undefined || segment >= this.#segments.count) return undefined;
    const { byteOffset, byteLength } = this.#segments.views[segment];
    if (offset + 4 > byteLength || (byteOffset + offset) % 4 !== 0) return undefined;
    return { words: this.#segments.words[segment], index: (byteOffset + offset) / 4 };
  }
}

function look({ words, index }: Word, value: number): boolean {
  return ((Atomics.load(words, index) - value) | 0) >= 0;
}

function asIndex(operand: number | undefined): number | undefined {
  return operand !== undefined && Number.isSafeInteger(operand) && operand >= 0 ? operand : undefined;
}

/** The operand modulo 2^32, as int32. */
function asWord(operand: number | undefined): number | undefined {
  return operand !== undefined && Number.isSafeInteger(operand) ? operand | 0 : undefined;
}
