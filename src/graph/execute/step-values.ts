/** The values of one partition in one step, each in some memory. A node gets its inputs in the memory that it takes them from:
 *
 *      memory of    value           taken as it is by                   all others get               given back
 *      the host     any             every node                                                       never
 *      a library    Resident        kernels with `takesResidents`       its elements, read once      after its last use
 *      a device     DeviceTensor    kernels of this device, and sends   its elements, copied once    when the step has ended on the task
 *      a variable   Reference       operations that change it           its value at that time       never: it outlives the step
 *
 *  A kernel of a device gets copies there of what is elsewhere. Control flow, and kernels that pass their inputs on, take anything. */
import { getOrMake } from '../../base/collections/lists.ts';
import { must } from '../../base/assert.ts';
import { isOnDevice } from '../../memory/device/device-tensor.ts';
import type { GpuDevice } from '../../memory/device/gpu.ts';
import type { Value } from '../structure/value.ts';
import { fitsDevice, type DeviceValues } from './device-values.ts';
import { plainOf, Resident } from './resident.ts';
import { inputAt, type Flow, type ReadyNode } from './step-state.ts';
import { Reference } from './variable-store.ts';

/** The step that the values are of. */
export interface ValueContext {
  readonly stepId: number;
  readonly signal: AbortSignal;
  /** The memory of devices; the step has begun there. */
  readonly devices: DeviceValues;
}

/** An input wherever it is; a variable as its value, unless the operation changes it. */
export function inputOf(ready: ReadyNode, index: number): Value {
  const { node, device } = ready.program;
  const value = must(inputAt(ready, index), () => `input ${index} of '${node.name}' has come`);
  if (!(value instanceof Reference)) return value;
  const specs = node.definition.inputs;
  const { isRef, isCopied } = specs[Math.min(index, specs.length - 1)];
  if (isRef === true) return value;
  // A copy to a device takes time, and is there for other nodes.
  return isCopied === true && device === undefined ? value.peek() : value.read();
}

export class StepValues {
  readonly #context: ValueContext;
  /** Copies of values, by the device that they are on; undefined: in host memory. */
  readonly #copies = new Map<GpuDevice | undefined, Map<Value, Promise<Value>>>();
  /** Residents that are not disposed of. */
  readonly #alive = new Set<Resident>();
  /** Values that were brought to a library's memory, until the step ends. */
  readonly #brought = new Map<Value, Resident>();
  #isClosed = false;

  constructor(context: ValueContext) {
    this.#context = context;
  }

  /** An input in the memory that the node takes it from; a promise if it has to be copied. */
  taken(ready: ReadyNode, index: number): Value | Promise<Value> {
    const { node, kernel, device } = ready.program;
    const value = inputOf(ready, index);
    if (kernel?.passes === true || value instanceof Reference) return value;
    const memory = device !== undefined && fitsDevice(value.dtype, value.shape) ? device : undefined;
    if (memory !== (isOnDevice(value) ? value.device : undefined)) return this.#copied(value, memory);
    if (kernel?.takesResidents !== true) return plainOf(value);
    // A node without inputs gives the same whenever it is used in a step.
    const isLasting = node.inputs[index].node.inputs.length === 0 && memory === undefined;
    const { bring } = kernel;
    if (!isLasting || bring === undefined || value instanceof Resident) return value;
    const made = getOrMake(this.#brought, value, () => bring(value));
    made.uses = Infinity;
    this.#alive.add(made);
    return made;
  }

  /** Outputs that go nowhere. */
  adopt(outputs: readonly Flow[]): void {
    if (!Array.isArray(outputs)) return;
    for (const each of outputs as readonly Flow[]) if (each instanceof Resident) this.#alive.add(each);
    if (this.#isClosed) this.close();
  }

  /** The node has used its inputs, and its outputs are with all that take them. */
  pass(ready: ReadyNode, outputs: readonly Flow[]): void {
    const { program } = ready;
    for (let slot = 0; slot < outputs.length; slot++) {
      const output = outputs[slot];
      if (!(output instanceof Resident)) continue;
      this.#alive.add(output);
      // A constant of a loop is used by every iteration.
      output.uses += program.node.attributes.is_constant === true ? Infinity : program.consumers[slot].length;
    }
    for (let input = 0; input < program.node.inputs.length; input++) {
      const each = inputAt(ready, input);
      if (each instanceof Resident && --each.uses === 0) this.#dispose(each);
    }
    for (const each of outputs) if (each instanceof Resident && each.uses === 0) this.#dispose(each);
  }

  /** Disposes of residents that are left, and of those that come later. */
  close(): void {
    this.#isClosed = true;
    for (const each of this.#alive) this.#dispose(each);
  }

  #copied(value: Value, memory: GpuDevice | undefined): Promise<Value> {
    const copies = getOrMake(this.#copies, memory, () => new Map<Value, Promise<Value>>());
    return getOrMake(copies, value, () => {
      const { stepId, signal, devices } = this.#context;
      const plain = plainOf(value);
      const copy = memory === undefined ? devices.toHost(plain) : devices.toDevice(stepId, memory, signal, async () => plain);
      // The node that asked for it may have failed by another input.
      copy.catch(() => undefined);
      return copy as Promise<Value>;
    });
  }

  #dispose(value: Resident): void {
    // The step may have been closed meanwhile.
    if (this.#alive.delete(value)) value.dispose();
  }
}
