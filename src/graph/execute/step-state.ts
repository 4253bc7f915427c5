/** One step of one device as a pure state machine: which nodes are ready, with what inputs. Values in, ready nodes out; no clock, no
 *  promises, and the same order for the same order of completions.
 *
 *      waiting ── last input ──▶ ready ── next() ──▶ running ── complete() ──▶ its consumers, one input less to wait for
 *
 *  A value that is undefined is dead. A node with a dead input, or with a control input that is dead, is dead: it does not run, and all it
 *  gives is dead. A Merge takes the first value that is alive, and is dead when all are. Every iteration of a loop has state of its
 *  own; an iteration is given back when nothing in it runs and the one before is gone. The rules are those of TensorFlow's executor
 *  (Yu et al., "Dynamic control flow in large-scale machine learning", 2018). */
import { assert, must } from '../../base/assert.ts';
import { Fifo } from '../../base/collections/fifo.ts';
import { ShoalError } from '../../base/errors.ts';
import type { Value } from '../structure/value.ts';
import type { FrameMemory, FrameProgram, Program, ProgramNode } from './program.ts';

/** A value on an edge; undefined: a dead one. */
export type Flow = Value | undefined;

export interface ReadyNode {
  readonly program: ProgramNode;
  readonly isDead: boolean;
  readonly iteration: Iteration;
}

/** The value of an input; of a Merge only the one that is alive. */
export function inputAt({ program, iteration }: ReadyNode, input: number): Flow {
  return iteration.values[program.firstInput + input];
}

/** State of a frame in one of its iterations. */
export interface Iteration extends FrameMemory {
  readonly number: number;
  readonly frame: FrameState;
  readonly values: Flow[];
  readonly children: Map<FrameProgram, FrameState>;
  /** Nodes that are ready or running, and frames below that are not done. */
  outstanding: number;
}

interface FrameState {
  readonly program: FrameProgram;
  /** The iteration it was entered from; undefined for the root. */
  readonly parent: Iteration | undefined;
  /** Stands for the numbers of the iterations around it; 0 outside loops. */
  readonly number: number;
  /** Iterations that have not been given back, in order. */
  readonly iterations: Iteration[];
  /** Number of the iteration that was begun last. */
  newest: number;
  pendingEnters: number;
  readonly invariants: { readonly node: ProgramNode; readonly value: Flow }[];
  /** Exits that were dead in the newest iteration: dead for good if it stays the last. */
  deadExits: ProgramNode[];
  /** Values for an iteration that may not begin yet. */
  deferred: { readonly node: ProgramNode; readonly value: Flow }[];
}

const nothing: readonly Flow[] = [];

export class StepState {
  readonly #program: Program;
  readonly #ready = new Fifo<ReadyNode>();
  readonly #root: FrameState;

  constructor(program: Program) {
    this.#program = program;
    this.#root = this.#openFrame(program.root, undefined);
    const [first] = this.#root.iterations;
    for (const node of program.root.nodes) {
      if (node.node.control !== 'merge' && program.root.pending[node.position] === 0) this.#makeReady(first, node, false);
    }
    this.#settle(this.#root);
  }

  /** Every node has run, or was found dead. */
  get done(): boolean {
    return this.#root.iterations.length === 0;
  }

  /** The node that has been ready for longest; undefined when all that could run is running. */
  next(): ReadyNode | undefined {
    return this.#ready.shift();
  }

  /** @param outputs by slot, undefined where dead; of a dead node none are looked at. */
  complete(ready: ReadyNode, outputs: readonly Flow[] = nothing): void {
    const { program, iteration, isDead } = ready;
    const { frame } = iteration;
    switch (program.node.control) {
      case 'enter':
        this.#enter(ready, isDead ? undefined : outputs[0]);
        break;
      case 'exit':
        if (!isDead) this.#activate(around(frame), program, outputs, false);
        else if (iteration.number === frame.newest) frame.deadExits.push(program);
        break;
      case 'next-iteration':
        if (!isDead) this.#nextIteration(iteration, program, outputs[0]);
        break;
      default:
        this.#activate(iteration, program, isDead ? nothing : outputs, isDead);
    }
    iteration.outstanding--;
    if (iteration.outstanding === 0) this.#settle(frame);
  }

  #enter({ program, iteration }: ReadyNode, value: Flow): void {
    const frameProgram = must(this.#program.entered.get(program), () => `'${program.node.name}' enters a frame`);
    let frame = iteration.children.get(frameProgram);
    if (frame === undefined) {
      frame = this.#openFrame(frameProgram, iteration);
      iteration.children.set(frameProgram, frame);
      iteration.outstanding++;
    }
    frame.pendingEnters--;
    if (program.node.attributes.is_constant === true) {
      frame.invariants.push({ node: program, value });
      for (const each of frame.iterations) this.#activate(each, program, [value], value === undefined);
    } else this.#activate(frame.iterations[0], program, [value], value === undefined);
    this.#settle(frame);
  }

  #nextIteration({ number, frame }: Iteration, node: ProgramNode, value: Flow): void {
    if (number < frame.newest) {
      const next = frame.iterations.find((each) => each.number === number + 1);
      assert(next !== undefined, () => `iteration ${number + 1} is open`);
      return this.#activate(next, node, [value], value === undefined);
    }
    frame.deferred.push({ node, value });
    if (frame.iterations.length < frame.program.frame.parallelIterations) this.#beginIteration(frame);
  }

  #beginIteration(frame: FrameState): void {
    const iteration = openIteration(frame, ++frame.newest);
    frame.iterations.push(iteration);
    frame.deadExits = [];
    const { deferred } = frame;
    frame.deferred = [];
    for (const { node, value } of deferred) this.#activate(iteration, node, [value], value === undefined);
    for (const { node, value } of frame.invariants) this.#activate(iteration, node, [value], value === undefined);
  }

  /** Gives back what nothing runs in any more, and goes on in the frame above when that was the last. */
  #settle(start: FrameState): void {
    for (let frame: FrameState | undefined = start; frame !== undefined;) {
      while (frame.iterations.length > 0 && frame.iterations[0].outstanding === 0 && frame.pendingEnters === 0) {
        giveBack(frame.iterations.shift()!);
        if (frame.deferred.length > 0) this.#beginIteration(frame);
      }
      const { parent }: FrameState = frame;
      if (frame.iterations.length > 0 || parent === undefined || !parent.children.delete(frame.program)) return;
      for (const node of frame.deadExits) this.#activate(parent, node, nothing, true);
      parent.outstanding--;
      frame = parent.outstanding === 0 ? parent.frame : undefined;
    }
  }

  /** The outputs of `source` reach those who take them, in `iteration`. */
  #activate(iteration: Iteration, source: ProgramNode, outputs: readonly Flow[], isDead: boolean): void {
    for (let slot = 0; slot < source.consumers.length; slot++) {
      const value = outputs[slot];
      for (const { target, place } of source.consumers[slot]) {
        if (target.isMerge) this.#arriveAtMerge(iteration, source, target, place, value);
        else this.#arrive(iteration, target, place, value);
      }
    }
    for (const target of source.controlConsumers) {
      iteration.pending[target.position]--;
      if (target.isMerge) this.#tryMerge(iteration, target);
      else {
        if (isDead) iteration.dead[target.position]++;
        this.#tryReady(iteration, target);
      }
    }
  }

  #arrive(iteration: Iteration, target: ProgramNode, place: number, value: Flow): void {
    if (value === undefined) iteration.dead[target.position]++;
    else iteration.values[place] = value;
    iteration.pending[target.position]--;
    this.#tryReady(iteration, target);
  }

  #tryReady(iteration: Iteration, target: ProgramNode): void {
    const pending = iteration.pending[target.position];
    if (pending > 0) return;
    assert(pending === 0, () => `'${target.node.name}' got an input twice`);
    this.#makeReady(iteration, target, iteration.dead[target.position] > 0 && target.node.control !== 'control-trigger');
  }

  #arriveAtMerge(iteration: Iteration, source: ProgramNode, target: ProgramNode, place: number, value: Flow): void {
    const { position, node } = target;
    // A loop that is not entered has only dead Enters: its Merges must not wait for what would come back.
    if (value === undefined) iteration.dead[position] += source.node.control === 'enter' ? node.inputs.length : 1;
    else if (iteration.merged[position] === waiting) {
      iteration.merged[position] = hasValue;
      iteration.values[place] = value;
    }
    this.#tryMerge(iteration, target);
  }

  #tryMerge(iteration: Iteration, target: ProgramNode): void {
    const { position, node } = target;
    if (iteration.pending[position] > 0 || iteration.merged[position] === fired) return;
    const isDead = iteration.merged[position] !== hasValue;
    if (isDead && iteration.dead[position] < node.inputs.length) return;
    iteration.merged[position] = fired;
    this.#makeReady(iteration, target, isDead);
  }

  #makeReady(iteration: Iteration, program: ProgramNode, isDead: boolean): void {
    iteration.outstanding++;
    this.#ready.push({ program, isDead, iteration });
  }

  #openFrame(program: FrameProgram, parent: Iteration | undefined): FrameState {
    const frame: FrameState = {
      program,
      parent,
      number: parent === undefined ? 0 : pairNumber(parent.frame.number, parent.number),
      iterations: [],
      newest: 0,
      pendingEnters: program.frame.enters.length,
      invariants: [],
      deadExits: [],
      deferred: [],
    };
    frame.iterations.push(openIteration(frame, 0));
    return frame;
  }
}

/** A number that differs for every pair (Cantor). @throws ShoalError `unsupported` for one that keys cannot hold. */
function pairNumber(a: number, b: number): number {
  const number = ((a + b) * (a + b + 1)) / 2 + b;
  if (number < 1e15) return number;
  const message = `iteration ${b} is too many for so many loops in each other; begin fewer iterations of the outer ones`;
  throw new ShoalError('unsupported', message);
}

function around({ parent }: FrameState): Iteration {
  return must(parent, () => 'an Exit is in a loop');
}

/** States of a Merge. */
const [waiting, hasValue, fired] = [0, 1, 2];

function openIteration(frame: FrameState, number: number): Iteration {
  const { pending, nodes, inputCount, spare } = frame.program;
  const memory = spare.pop() ?? { pending: pending.slice(), dead: new Int32Array(nodes.length), merged: new Uint8Array(nodes.length) };
  return { number, frame, ...memory, values: new Array<Flow>(inputCount), children: new Map(), outstanding: 0 };
}

/** Nothing runs in the iteration any more, nor will. */
function giveBack({ pending, dead, merged, frame: { program } }: Iteration): void {
  pending.set(program.pending);
  dead.fill(0);
  merged.fill(0);
  program.spare.push({ pending, dead, merged });
}
