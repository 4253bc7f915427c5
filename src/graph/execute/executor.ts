/** Runs one partition of one step: takes what is ready from the step machine, starts its kernel, gives the results back. Kernels start in
 *  the order in which their nodes became ready; with one kernel at a time (`interOpParallelism: 1`) a step runs the same way every
 *  time. Receives do not count: they wait for others. */
import { must } from '../../base/assert.ts';
import { ShoalError } from '../../base/errors.ts';
import { getOrMake } from '../../base/collections/lists.ts';
import { isOnDevice } from '../../memory/device/device-tensor.ts';
import type { GpuDevice } from '../../memory/device/gpu.ts';
import type { StepRendezvous } from '../../rendezvous/carriers/step-rendezvous.ts';
import type { Graph } from '../structure/graph.ts';
import { describeNode, type Node } from '../structure/graph-node.ts';
import { formatShape } from '../structure/shape.ts';
import { fits, formatValue, isValue, type Value } from '../structure/value.ts';
import { keysIn, keysOf } from '../partition/keys.ts';
import { fitsDevice, type DeviceValues } from './device-values.ts';
import type { Kernel, KernelTable } from './kernel.ts';
import { createProgram, type Program } from './program.ts';
import { plainOf } from './resident.ts';
import { Residents } from './residents.ts';
import { inputAt, StepState, type Flow, type ReadyNode } from './step-state.ts';
import { readScalar } from './structural-kernels.ts';
import { Reference } from './variable-store.ts';

export interface StepContext {
  readonly stepId: number;
  readonly rendezvous: StepRendezvous<Value>;
  /** The memory of devices; the step has begun there. */
  readonly devices: DeviceValues;
  readonly signal: AbortSignal;
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
  readonly #keys: ReadonlyMap<Node, readonly string[]>;
  readonly #interOpParallelism: number;

  /** @throws ShoalError `unsupported` that names every operation without a kernel. */
  constructor(graph: Graph, options: { readonly kernels: KernelTable; readonly interOpParallelism: number }) {
    this.#interOpParallelism = options.interOpParallelism;
    const ordinary = graph.nodes.filter(({ control }) => control === 'kernel');
    const missing = new Set(ordinary.map(({ op }) => op).filter((op) => !Object.hasOwn(options.kernels, op)));
    if (missing.size > 0) throw new ShoalError('unsupported', `no kernel for ${[...missing].sort().join(', ')}; pass them as kernels`);
    this.#program = createProgram(graph, options.kernels);
    this.#keys = new Map(graph.nodes.map((node) => [node, keysOf(node)] as const).filter(([, keys]) => keys.length > 0));
  }

  /** Starts a step. */
  start(context: StepContext): PartitionRun {
    return new PartitionRun(this.#program, context, {
      keysOf: (node) => must(this.#keys.get(node), () => `${node.op} has keys`),
      interOpParallelism: this.#interOpParallelism,
    });
  }
}

interface Surroundings {
  readonly keysOf: (node: Node) => readonly string[];
  readonly interOpParallelism: number;
}

/** Nodes between two looks at the time. */
const nodesPerCheck = 256;

class PartitionRun {
  /** Settles when every node has run, or one has failed. */
  readonly finished: Promise<void>;
  readonly #machine: StepState;
  readonly #context: StepContext;
  readonly #around: Surroundings;
  readonly #running = new Set<ReadyNode>();
  readonly #residents = new Residents();
  readonly #usesDevices: boolean;
  /** Values that were moved, by the device that they are on then; undefined: host memory. */
  readonly #moved = new Map<GpuDevice | undefined, Map<Value, Promise<Value>>>();
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
    this.#usesDevices = program.usesDevices;
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
    this.#residents.close();
  }

  #pump(): void {
    if (this.#isPumping) return;
    this.#isPumping = true;
    let current: Node | undefined;
    try {
      for (let count = 1; !this.#isOver && this.#busy < this.#around.interOpParallelism; count++) {
        const ready = this.#machine.next();
        if (ready === undefined) break;
        current = ready.program.node;
        if (count % nodesPerCheck === 0) this.#context.checkTime();
        if (this.#context.signal.aborted) this.#isOver = true;
        else this.#run(ready);
      }
    } catch (thrown) {
      this.#fail(
        thrown,
        must(current, () => 'a node was running'),
      );
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
        const result = isDead ? undefined : plainOf(inputOf(ready, 0));
        results[node.attributes.index as number] = result;
        if (!isOnDevice(result)) return this.#complete(ready);
        const read = this.#move(result, undefined).then((value) => {
          results[node.attributes.index as number] = value;
          return [];
        });
        return void this.#wait(ready, read);
      }
      default:
    }
    if (isDead) return this.#complete(ready);
    switch (node.control) {
      case 'recv':
        return void this.#wait(ready, this.#receive(ready));
      case 'fuse-recv':
        return void this.#wait(
          ready,
          rendezvous.recvFused(this.#keysOf(ready)).then((values) => this.#accessible(values)),
        );
      case 'argument': {
        const fed = [feeds[node.attributes.index as number]];
        const values = this.#accessible(fed);
        return values instanceof Promise ? void this.#wait(ready, values) : this.#complete(ready, values);
      }
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
    const keys = this.#around.keysOf(program.node);
    return frame.parent === undefined ? keys : keysIn(keys, frame.number, number);
  }

  #compute(ready: ReadyNode): void {
    const { node, kernel: own } = ready.program;
    const { stepId, signal } = this.#context;
    const kernel = must(own, () => `${node.op} has a kernel`);
    const inputs: Value[] = [];
    for (let index = 0; index < node.inputs.length; index++) inputs.push(this.#given(kernel, node, index, inputOf(ready, index)));
    const atEnd = this.#atEnd;
    const placed = this.#usesDevices ? this.#placed(ready, inputs) : undefined;
    const outputs =
      placed === undefined
        ? kernel({ node, inputs, stepId, signal, atEnd })
        : placed.then((given) => kernel({ node, inputs: given, stepId, signal, atEnd }));
    if (!(outputs instanceof Promise)) return this.#finish(ready, outputs);
    this.#busy++;
    const settled = outputs.finally(() => this.#busy--);
    void this.#wait(ready, settled);
  }

  /** The inputs where the kernel takes them; undefined: they are there. */
  #placed({ program: { device, kernel } }: ReadyNode, inputs: readonly Value[]): Promise<Value[]> | undefined {
    if (kernel?.passes === true) return undefined;
    const isThere = (value: Value): boolean => {
      if (isOnDevice(value)) return value.device === device;
      return device === undefined || value instanceof Reference || !fitsDevice(value.dtype, value.shape);
    };
    if (inputs.every(isThere)) return undefined;
    return Promise.all(inputs.map(async (value) => (isThere(value) ? value : this.#move(plainOf(value), device))));
  }

  /** @param device undefined: to host memory. */
  #move(value: Value, device: GpuDevice | undefined): Promise<Value> {
    const { stepId, signal, devices } = this.#context;
    const moved = getOrMake(this.#moved, device, () => new Map<Value, Promise<Value>>());
    return getOrMake(moved, value, async () => {
      if (device === undefined) return devices.toHost(value);
      return must(await devices.toDevice(stepId, device, signal, async () => value), () => 'a value is not dead');
    });
  }

  /** Values that come from elsewhere: no tensor of a device where no kernel knows any. */
  #accessible(values: readonly Flow[]): readonly Flow[] | Promise<readonly Flow[]> {
    if (this.#usesDevices || !values.some(isOnDevice)) return values;
    return Promise.all(values.map(async (value) => (isOnDevice(value) ? this.#move(value, undefined) : value)));
  }

  async #receive(ready: ReadyNode): Promise<readonly Flow[]> {
    const { stepId, rendezvous, devices, signal: step } = this.#context;
    const [key] = this.#keysOf(ready);
    const { device } = ready.program;
    if (device === undefined) return this.#accessible([await rendezvous.recvAsync(key)]);
    return [await devices.toDevice(stepId, device, step, (sink, signal) => rendezvous.recvAsync(key, signal && { signal }, sink))];
  }

  #given({ takesResidents = false, bring }: Kernel, node: Node, index: number, input: Value): Value {
    if (!takesResidents) return plainOf(input);
    // A node without inputs gives the same whenever it is used in a step.
    if (bring === undefined || input instanceof Reference || node.inputs[index].node.inputs.length > 0) return input;
    return this.#residents.brought(input, bring);
  }

  #finish(ready: ReadyNode, outputs: readonly Flow[]): void {
    try {
      checked(ready.program.node, outputs);
    } catch (thrown) {
      this.#residents.adopt(outputs);
      throw thrown;
    }
    this.#complete(ready, outputs);
  }

  #complete(ready: ReadyNode, outputs: readonly Flow[] = []): void {
    this.#machine.complete(ready, outputs);
    this.#residents.pass(ready, outputs);
  }

  async #wait(ready: ReadyNode, outputs: Promise<readonly Flow[]>): Promise<void> {
    this.#running.add(ready);
    try {
      const values = await outputs;
      if (this.#isOver) this.#residents.adopt(values);
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
    this.#isOver = true;
    const cause = ShoalError.from(thrown, 'aborted');
    const message = `${describeNode(node)} on ${node.device}: ${cause.message}`;
    this.#reject(new ShoalError(cause.code, message, { cause: thrown }));
  }
}

/** A variable as its value, unless the operation changes it. */
function inputOf(ready: ReadyNode, index: number): Value {
  const { node } = ready.program;
  const value = must(inputAt(ready, index), () => `input ${index} of '${node.name}' has come`);
  if (!(value instanceof Reference)) return value;
  const specs = node.definition.inputs;
  const { isRef, isCopied } = specs[Math.min(index, specs.length - 1)];
  if (isRef === true) return value;
  return isCopied === true ? value.peek() : value.read();
}

/** @throws ShoalError `usage` when a kernel, or a sender, gives what the graph does not say. */
function checked(node: Node, outputs: readonly Flow[]): void {
  if (!Array.isArray(outputs) || outputs.length !== node.outputs.length) {
    throw new ShoalError(
      'usage',
      `its kernel must give ${node.outputs.length} outputs, not ${Array.isArray(outputs) ? outputs.length : typeof outputs}`,
    );
  }
  const mayBeDead = node.control !== 'kernel';
  for (const { slot, dtype, shape } of node.outputs) {
    const value = (outputs as readonly Flow[])[slot];
    if ((value === undefined && mayBeDead) || value instanceof Reference) continue;
    if (!isValue(value)) throw new ShoalError('usage', `its kernel gave no value with dtype and shape as output ${slot}`);
    if (!fits(value, dtype, shape))
      throw new ShoalError('usage', `output ${slot} must be ${dtype}${formatShape(shape)}, but is ${formatValue(value)}`);
  }
}
