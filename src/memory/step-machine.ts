/** The step machine: a flat interpreter for the memory steps of a communication program. One call runs many steps
 *  without returning to JavaScript: copies, reductions, signals to other threads or processes, and bounded waiting.
 *  Two implementations (addon, JS twin) with one contract. It must not know ranks, algorithms or fabrics.
 *
 *  Code is a Float64Array of variable-length instructions; operands are numbers. A *location* is two operands:
 *  segment index and byte offset. Segments are the memory the program may touch: every access is checked against the
 *  segment's length, and an access outside stops the machine with status `fault` before anything is touched.
 *  Signal words are aligned uint32; comparison is modular (`(int32)(word − value) ≥ 0`).
 *
 *   opcode   operands                                          meaning
 *   0 end                                                      stop with status `done`
 *   1 copy    target location, source location, bytes          memcpy; ranges must not overlap
 *   2 reduce  dtype, op, count, divisor, nTargets, target locations…, nSources, source locations…, nTree, tree…
 *                                                              Kernels.reduce; dtype and op by code; divisor NaN = none
 *   3 signal  location, add, sleeper location, peer            word += add (release); then, if the uint32 at the sleeper
 *                                                              location is not 0 (sequentially consistent with the add),
 *                                                              set bit `peer` in the doorbell set; add 0 only looks, after what
 *                                                              was announced before
 *   4 wait    location, value                                  until word ≥ value (acquire); else stop with `waiting`. So
 *                                                              too when this run has set a doorbell: it is rung first
 *   5 publish location, value, sleeper location, peer          word := value (release); then as signal
 *   6 match   location, own location, bytes, tag               compare bytes; if different stop with `differs`, argument tag
 *   7 call    argument                                         stop with status `call`; resume after the instruction
 *   8 shift   result location, through location, next location, bytes
 *                                                              result := through, through := next, line by line; three ranges
 *                                                              that do not overlap */
export const Opcode = {
  End: 0,
  Copy: 1,
  Reduce: 2,
  Signal: 3,
  Wait: 4,
  Publish: 5,
  Match: 6,
  Call: 7,
  Shift: 8,
} as const;

export type MachineStatus = 'done' | 'waiting' | 'call' | 'differs' | 'fault';

/** Statuses by the code that implementations return. */
export const machineStatuses: readonly MachineStatus[] = ['done', 'waiting', 'call', 'differs', 'fault'];

/** The memory of one program run. Segments may be replaced between runs (a peer's tensor differs per operation). */
export interface Segments {
  readonly count: number;
  /** Binds segment `index`. The view's length bounds every access; once its buffer has been detached or resized the segment is
   *  empty, until it is bound again. */
  set(index: number, view: Uint8Array): void;
}

/** Position and registers of a program; owned by the caller, reused for every run. */
export interface MachineState {
  /** Index into the code of the next instruction. Set to 0 to start. */
  pc: number;
  /** Argument of `call` and `differs`. */
  argument: number;
  /** Peers whose doorbell must be rung: bit `peer % 32` of word `peer >> 5`. The caller rings and clears. */
  readonly doorbells: Uint32Array;
}

/** Numbers that a repetition shares with its owner, who may change them between runs. */
export const RepetitionNumber = {
  /** Runs so far on the same pair of segments. */
  Ordinal: 0,
  /** Not 0: nothing is started. */
  Closed: 1,
} as const;

/** A program that runs again and again under ascending numbers, with what is written before each run. */
export interface RepetitionOptions {
  readonly code: Float64Array;
  /** The memory of runs of even ordinals, and that of odd ones. */
  readonly segments: readonly [Segments, Segments];
  readonly state: MachineState;
  /** Counts of the run, by `RepetitionNumber`. */
  readonly numbers: Float64Array;
  /** Places in the code that hold the run's ordinal, counted from 1. */
  readonly operands: Uint32Array;
  /** One number: the runs so far of whatever shares it; a run's own number is one more. */
  readonly runs: Float64Array;
  /** One word. Not 0: nothing is started. */
  readonly stop: Uint32Array;
  /** Its first word becomes the run's number; all of it is copied to the log, run s to place (s − 1) modulo the log's records. */
  readonly record: Uint32Array;
  readonly log: Uint32Array;
  readonly spinNs: number;
  readonly yields: boolean;
}

/** Runs the program once more. Undefined when it has come to its end and no doorbell is set; `notStarted` when nothing has been changed;
 *  else an index into `machineStatuses`: the run has its numbers, doorbells are to be rung, and it goes on by `StepMachine.run` from where
 *  the state says. */
export type Repetition = () => number | undefined;

export const notStarted = 5;

export interface StepMachine {
  readonly name: 'native' | 'js';
  createSegments(count: number): Segments;
  /** @param peers number of peers that the doorbell set must hold. */
  createState(peers: number): MachineState;
  /** Runs from `state.pc` until the program stops. While a `wait` is not satisfied it spins for at most `spinNs` nanoseconds (0:
   *  one look), yielding the CPU at once between looks when `yields` is true. Every wait has that much time: those before it were
   *  satisfied, so the others keep pace. On `waiting`, pc stays at the wait, so that calling again continues there. */
  run(code: Float64Array, segments: Segments, state: MachineState, spinNs: number, yields: boolean): MachineStatus;
  /** Makes a repetition. Native ones cost one call without arguments each time. They stop starting (`notStarted`) for good when
   *  memory of this process has been unmapped: make another one then. */
  repetition(options: RepetitionOptions): Repetition;
}
