/** The values of variables, from step to step. One store per session and process. */
import { ShoalError } from '../../base/errors.ts';
import type { OutputSpec } from '../structure/definition.ts';
import { describeNode, type Node } from '../structure/node.ts';
import { formatShape } from '../structure/shape.ts';
import { fits, formatValue, type Value } from '../structure/value.ts';

/** A variable as an operation that changes it sees it. Writing replaces the value: whoever has the old one keeps it. */
export class Reference implements Value {
  readonly dtype: string;
  readonly #label: string;
  readonly #spec: OutputSpec;
  #value: Value | undefined;

  constructor(node: Node) {
    [this.#spec] = node.outputs;
    this.dtype = this.#spec.dtype;
    this.#label = `${describeNode(node.op, node.name)} on ${node.device}`;
  }

  get shape(): readonly number[] {
    return this.read().shape;
  }

  get isInitialized(): boolean {
    return this.#value !== undefined;
  }

  /** @throws ShoalError `usage` before the first write. */
  read(): Value {
    if (this.#value !== undefined) return this.#value;
    throw new ShoalError('usage', `${this.#label} has no value yet; run an Assign to it first`);
  }

  /** @throws ShoalError `usage` for a value of another dtype or shape. */
  write(value: Value): void {
    const { dtype, shape } = this.#spec;
    if (!fits(value, dtype, shape))
      throw new ShoalError('usage', `${this.#label} holds ${dtype}${formatShape(shape)}, not ${formatValue(value)}`);
    this.#value = value;
  }
}

export class VariableStore {
  readonly #references = new Map<string, Reference>();

  /** The same for the same device and name. As many as the graph has variables. */
  reference(node: Node): Reference {
    const key = `${node.device};${node.name}`;
    const reference = this.#references.get(key) ?? new Reference(node);
    this.#references.set(key, reference);
    return reference;
  }
}
