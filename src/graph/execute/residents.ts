/** The values of one partition in one step that are in the memory of a library: when the last node has used one, it is disposed of. */
import type { Value } from '../structure/value.ts';
import { Resident } from './resident.ts';
import { inputAt, type Flow, type ReadyNode } from './step-state.ts';

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
