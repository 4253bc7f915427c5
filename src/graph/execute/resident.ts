/** Values in the memory of a library, such as TensorFlow.js, between the kernels of one partition. The library does not know when nothing
 *  needs them any more; the step does. */
import type { TypedArray } from '../../memory/dtype.ts';
import type { Value } from '../structure/value.ts';
import { inputAt, type Flow, type ReadyNode } from './step-state.ts';

/** A value whose memory is given back by `dispose`. */
export abstract class Resident implements Value {
  readonly dtype: string;
  readonly shape: readonly number[];
  /** Consumers in the step that have not used it. */
  uses = 0;
  /** Place among the step's values; −1: it is none of them. */
  place = -1;
  #elements: TypedArray | readonly string[] | undefined;

  constructor(dtype: string, shape: readonly number[]) {
    this.dtype = dtype;
    this.shape = shape;
  }

  /** The elements, copied out once. */
  get data(): TypedArray | readonly string[] {
    return (this.#elements ??= this.read());
  }

  abstract dispose(): void;
  protected abstract read(): TypedArray | readonly string[];
}

/** A value that outlives the library's memory. */
export function plainOf(value: Value): Value {
  if (!(value instanceof Resident)) return value;
  const { dtype, shape, data } = value;
  return { dtype, shape: [...shape], data };
}

/** The resident values of one partition in one step. */
export class Residents {
  readonly #alive: Resident[] = [];
  readonly #brought = new Map<Value, Resident>();
  #isClosed = false;

  /** The value in the library's memory, until the step ends. */
  brought(value: Value, bring: (value: Value) => Resident): Value {
    if (value instanceof Resident) return value;
    const made = this.#brought.get(value) ?? bring(value);
    made.uses = Infinity;
    this.#brought.set(value, made);
    this.#keep(made);
    return made;
  }

  /** Outputs that go nowhere. */
  adopt(outputs: readonly Flow[]): void {
    if (!Array.isArray(outputs)) return;
    for (const each of outputs as readonly Flow[]) if (each instanceof Resident) this.#keep(each);
    if (this.#isClosed) this.close();
  }

  /** The node has used its inputs, and its outputs are with all that take them. */
  pass(ready: ReadyNode, outputs: readonly Flow[]): void {
    const { program } = ready;
    for (let slot = 0; slot < outputs.length; slot++) {
      const output = outputs[slot];
      if (!(output instanceof Resident)) continue;
      this.#keep(output);
      // A constant of a loop is used by every iteration.
      output.uses += program.node.attributes.is_constant === true ? Infinity : program.consumers[slot].length;
    }
    for (let input = 0; input < program.node.inputs.length; input++) {
      const each = inputAt(ready, input);
      if (each instanceof Resident && --each.uses === 0) this.#dispose(each);
    }
    for (const each of outputs) if (each instanceof Resident && each.uses === 0) this.#dispose(each);
  }

  /** Disposes of what is left, and of what comes later. */
  close(): void {
    this.#isClosed = true;
    for (const each of this.#alive.splice(0)) {
      each.place = -1;
      each.dispose();
    }
  }

  #keep(value: Resident): void {
    if (value.place < 0) value.place = this.#alive.push(value) - 1;
  }

  #dispose(value: Resident): void {
    // The step has been closed meanwhile.
    if (value.place < 0) return;
    const last = this.#alive.pop()!;
    if (last !== value) {
      this.#alive[value.place] = last;
      last.place = value.place;
    }
    value.place = -1;
    value.dispose();
  }
}
