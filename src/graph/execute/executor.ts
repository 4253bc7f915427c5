/** Runs one partition of one step: takes what is ready from the step machine, starts its kernel, gives the results back. Kernels start in
 *  the order in which their nodes became ready; with one kernel at a time (`interOpParallelism: 1`) a step runs the same way every
 *  time. Receives do not count: they wait for others. */
import { must } from '../../base/assert.ts';
import { ShoalError } from '../../base/errors.ts';
import type { StepRendezvous } from '../../rendezvous/carriers/step-rendezvous.ts';
import type { Graph } from '../structure/graph.ts';
import { describeNode, type Node } from '../structure/graph-node.ts';
import type { Value } from '../structure/value.ts';
import { keysIn, keysOf } from '../partition/keys.ts';
import { NodeFailure } from './composed-kernels.ts';
import { checkOutputs, type KernelTable } from './kernel.ts';
import { createProgram, type Program, type ProgramNode } from './program.ts';
import { plainOf } from './resident.ts';
import { inputAt, StepState, type Flow, type ReadyNode } from './step-state.ts';
import { inputOf, StepValues, type ValueContext } from './step-values.ts';
import { readScalar } from './structural-kernels.ts';

export interface StepContext extends ValueContext {
  readonly rendezvous: StepRendezvous<Value>;
  /** The values that the step is fed; `_Arg` k gives value k. */
  readonly feeds: readonly Value[];
  /** `_Retval` k stores at k; what stays undefined is dead. */
  readonly results: Flow[];
  /** Called now and then while kernels do not wait: aborts the signal when the step's time is over. */
  readonly checkTime: () => void;
}

/** A partition, ready for any number of steps at a time. */
export class Executor {
  readonly #program: Program;
  readonly #around: Surroundings;

  /** @throws ShoalError `unsupported` that names every operation without a kernel. */
  constructor(graph: Graph, { kernels, interOpParallelism }: { readonly kernels: KernelTable; readonly interOpParallelism: number }) {
    const ordinary = graph.nodes.filter(({ control }) => control === 'kernel');
    const missing = new Set(ordinary.map(({ op }) => op).filter((op) => !Object.hasOwn(kernels, op)));
    if (missing.size > 0) throw new ShoalError('unsupported', `no kernel for ${[...missing].sort().join(', ')}; pass them as kernels`);
    this.#program = createProgram(graph, kernels);
    const keys = new Map(graph.nodes.map((node) => [node, keysOf(node)] as const).filter(([, own]) => own.length > 0));
    this.#around = { keys, interOpParallelism };
  }

  /** Starts a step. */
  start(context: StepContext): PartitionRun {
    return new PartitionRun(this.#program, context, this.#around);
  }
}

interface Surroundings {
  readonly keys: ReadonlyMap<Node, readonly string[]>;
  readonly interOpParallelism: number;
}

/** Nodes between two looks at the time. */
const nodesPerCheck = 64;

class PartitionRun {
  /** Settles when every node has run, or one has failed. */
  readonly finished: Promise<void>;
  readonly #machine: StepState;
  readonly #context: StepContext;
  readonly #around: Surroundings;
  readonly #running = new Set<ReadyNode>();
  readonly #values: StepValues;
  readonly #atEnd: (callback: () => void) => void;
  #busy = 0;
  #isPumping = false;
  #isOver = false;
  #resolve: () => void = () => {};
  #reject: (cause: ShoalError) => void = () => {};

  constructor(program: Program, context: StepContext, around: Surroundings) {
    this.#machine = new StepState(program);
    this.#context = context;
    this.#around = around;
    this.#values = new StepValues(context);
    this.#atEnd = (callback) => context.devices.atEnd(context.stepId, callback);
    this.finished = new Promise((resolve, reject) => {
      this.#resolve = resolve;
      this.#reject = reject;
    });
    this.#pump();
  }

  /** Nodes whose kernels have not answered, receives among them. */
  get running(): readonly Node[] {
    return [...this.#running].map(({ program }) => program.node);
  }

  /** The step is over: what kernels give later is dropped. */
  close(): void {
    this.#isOver = true;
    this.#values.close();
  }

  #pump(): void {
    if (this.#isPumping) return;
    this.#isPumping = true;
    for (let count = 1; !this.#isOver && this.#busy < this.#around.interOpParallelism; count++) {
      const ready = this.#machine.next();
      if (ready === undefined) break;
      try {
        if (count % nodesPerCheck === 0) this.#context.checkTime();
        if (this.#context.signal.aborted) this.#isOver = true;
        else this.#run(ready);
      } catch (thrown) {
        this.#fail(thrown, ready.program.node);
      }
    }
    this.#isPumping = false;
    if (!this.#isOver && this.#machine.done) {
      this.#isOver = true;
      this.#resolve();
    }
  }

  #run(ready: ReadyNode): void {
    const { node } = ready.program;
    const { isDead } = ready;
    const { rendezvous, feeds, results } = this.#context;
    switch (node.control) {
      case 'send':
        rendezvous.send(this.#keysOf(ready)[0], isDead ? undefined : plainOf(inputOf(ready, 0)));
        return this.#complete(ready);
      case 'return': {
        const give = (result: Flow): readonly Flow[] => {
          results[node.attributes.index as number] = result;
          return [];
        };
        const result = isDead ? undefined : this.#values.taken(ready, 0);
        return result instanceof Promise ? void this.#wait(ready, result.then(give)) : this.#complete(ready, give(result));
      }
      default:
    }
    if (isDead) return this.#complete(ready);
    switch (node.control) {
      case 'recv':
        return void this.#wait(ready, this.#receive(ready));
      case 'fuse-recv':
        return void this.#wait(ready, rendezvous.recvFused(this.#keysOf(ready)));
      case 'argument':
        return this.#complete(ready, [feeds[node.attributes.index as number]]);
      case 'switch': {
        // The condition is one byte, which no device can hold.
        const value = inputOf(ready, 0);
        const isTrue = Boolean(readScalar(inputOf(ready, 1)));
        return this.#complete(ready, isTrue ? [undefined, value] : [value, undefined]);
      }
      case 'merge': {
        const index = node.inputs.findIndex((_, input) => inputAt(ready, input) !== undefined);
        return this.#complete(ready, [inputOf(ready, index), { dtype: 'int32', shape: [], data: Int32Array.of(index) }]);
      }
      case 'enter':
      case 'exit':
      case 'next-iteration':
        return this.#complete(ready, [inputOf(ready, 0)]);
      case 'control-trigger':
        return this.#complete(ready);
      default:
        return this.#compute(ready);
    }
  }

  #keysOf({ program, iteration: { frame, number } }: ReadyNode): readonly string[] {
    const keys = must(this.#around.keys.get(program.node), () => `${program.node.op} has keys`);
    return frame.parent === undefined ? keys : keysIn(keys, frame.number, number);
  }

  #compute(ready: ReadyNode): void {
    const { program } = ready;
    const inputs: (Value | Promise<Value>)[] = [];
    let areThere = true;
    for (let index = 0; index < program.node.inputs.length; index++) {
      const input = this.#values.taken(ready, index);
      areThere &&= !(input instanceof Promise);
      inputs.push(input);
    }
    const outputs = areThere
      ? this.#call(program, inputs as Value[])
      : Promise.all(inputs.map(async (each) => each)).then((taken) => this.#call(program, taken));
    if (!(outputs instanceof Promise)) return this.#finish(ready, outputs);
    this.#busy++;
    const settled = outputs.finally(() => this.#busy--);
    void this.#wait(ready, settled);
  }

  #call({ node, kernel }: ProgramNode, inputs: readonly Value[]): readonly Value[] | Promise<readonly Value[]> {
    const { stepId, signal } = this.#context;
    return must(kernel, () => `${node.op} has a kernel`)({ node, inputs, stepId, signal, atEnd: this.#atEnd });
  }

  async #receive(ready: ReadyNode): Promise<readonly Flow[]> {
    const { stepId, rendezvous, devices, signal: step } = this.#context;
    const [key] = this.#keysOf(ready);
    const { device } = ready.program;
    if (device === undefined) return [await rendezvous.recvAsync(key)];
    return [await devices.toDevice(stepId, device, step, (sink, signal) => rendezvous.recvAsync(key, signal && { signal }, sink))];
  }

  #finish(ready: ReadyNode, outputs: readonly Flow[]): void {
    try {
      const { node, kernel, device } = ready.program;
      checkOutputs(node, outputs, kernel !== undefined && kernel.passes !== true && device === undefined);
    } catch (thrown) {
      this.#values.adopt(outputs);
      throw thrown;
    }
    this.#complete(ready, outputs);
  }

  #complete(ready: ReadyNode, outputs: readonly Flow[] = []): void {
    this.#machine.complete(ready, outputs);
    this.#values.pass(ready, outputs);
  }

  async #wait(ready: ReadyNode, outputs: Promise<readonly Flow[]>): Promise<void> {
    this.#running.add(ready);
    try {
      const values = await outputs;
      if (this.#isOver) this.#values.adopt(values);
      else this.#finish(ready, values);
    } catch (thrown) {
      this.#fail(thrown, ready.program.node);
    } finally {
      this.#running.delete(ready);
    }
    this.#pump();
  }

  #fail(thrown: unknown, node: Node): void {
    if (this.#isOver) return;
    if (thrown instanceof NodeFailure) return this.#fail(thrown.cause, thrown.node);
    this.#isOver = true;
    const cause = ShoalError.from(thrown, 'aborted');
    const message = `${describeNode(node)} on ${node.device}: ${cause.message}`;
    this.#reject(new ShoalError(cause.code, message, { cause: thrown }));
  }
}
