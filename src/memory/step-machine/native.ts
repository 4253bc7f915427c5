/** The step machine of the addon: one call into native code per run. */
import { assert } from '../../base/assert.ts';
import type { Native, ProgramHandle, RegistersHandle, SegmentsHandle } from '../native.ts';
import {
  machineStatuses,
  type MachineState,
  type MachineStatus,
  type Repetition,
  type RepetitionOptions,
  type Segments,
  type StepMachine,
} from '../step-machine.ts';
import { BoundSegments } from './bound-segments.ts';
import { MachineRegisters } from './machine-registers.ts';

const programsMax = 64;

/** Keeps the views, and with them the memory, alive while their addresses are known natively. */
class NativeSegments extends BoundSegments {
  readonly handle: SegmentsHandle;
  readonly #native: Native;
  /** Programs that have run on this memory lately: the channels of one plan. */
  readonly #programs = new Map<Float64Array, ProgramHandle>();
  #lastCode: Float64Array | undefined;
  #lastProgram: ProgramHandle | undefined;

  constructor(native: Native, count: number) {
    super(count);
    this.#native = native;
    this.handle = native.createSegments(count);
  }

  override set(index: number, view: Uint8Array): void {
    super.set(index, view);
    this.#native.setSegment(this.handle, index, view);
  }

  program(code: Float64Array): ProgramHandle {
    if (code === this.#lastCode && this.#lastProgram !== undefined) return this.#lastProgram;
    let program = this.#programs.get(code);
    if (program === undefined) {
      if (this.#programs.size >= programsMax) this.#programs.clear();
      program = this.#native.createProgram(code, this.handle);
      this.#programs.set(code, program);
    }
    this.#lastCode = code;
    this.#lastProgram = program;
    return program;
  }
}

class NativeRegisters extends MachineRegisters {
  readonly handle: RegistersHandle;

  constructor(native: Native, peers: number) {
    super(peers);
    this.handle = native.bindRegisters(this.words);
  }
}

export class NativeStepMachine implements StepMachine {
  readonly name = 'native';
  readonly #native: Native;

  constructor(native: Native) {
    this.#native = native;
  }

  createSegments(count: number): Segments {
    return new NativeSegments(this.#native, count);
  }

  createState(peers: number): MachineState {
    return new NativeRegisters(this.#native, peers);
  }

  run(code: Float64Array, segments: Segments, state: MachineState, spinNs: number, yields: boolean): MachineStatus {
    assert(
      segments instanceof NativeSegments && state instanceof NativeRegisters,
      () => 'segments and state come from another step machine',
    );
    segments.dropLost();
    state.setWaiting(spinNs, yields);
    return machineStatuses[this.#native.runSteps(segments.program(code), state.handle)];
  }

  repetition(options: RepetitionOptions): Repetition {
    const { code, segments, state, operands, numbers, runs, stop, record, log, spinNs, yields } = options;
    const [even, odd] = segments;
    assert(
      even instanceof NativeSegments && odd instanceof NativeSegments && state instanceof NativeRegisters,
      () => 'segments and state come from another step machine',
    );
    for (const each of [even, odd]) each.dropLost();
    const memory = [operands, numbers, runs, stop, record, log] as const;
    const programs = [even.program(code), odd.program(code)] as const;
    return this.#native.createRepetition(...programs, state.handle, code, ...memory, spinNs, yields, [options, programs]);
  }
}
