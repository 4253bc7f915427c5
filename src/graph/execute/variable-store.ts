/** The values of variables, from step to step. One store per session in a process, or per server: sessions of other processes share it. */
import { getOrMake } from '../../base/collections/lists.ts';
import { ShoalError } from '../../base/errors.ts';
import type { OutputSpec } from '../structure/definition.ts';
import { describeNode, type Node } from '../structure/graph-node.ts';
import { formatShape } from '../structure/shape.ts';
import { fits, formatValue, type Value } from '../structure/value.ts';

/** A variable as an operation that changes it sees it. Writing replaces the value: whoever has the old one keeps it. What changes in
 *  place goes through `change`, which copies first when somebody may have the value. */
export class Reference implements Value {
  readonly dtype: string;
  readonly #label: string;
  readonly #spec: OutputSpec;
  readonly #keep: (value: Value) => Value;
  #value: Value | undefined;
  /** Somebody else may have the value. */
  #isShared = true;

  constructor(node: Node, keep: (value: Value) => Value) {
    this.#keep = keep;
    [this.#spec] = node.outputs;
    this.dtype = this.#spec.dtype;
    this.#label = `${describeNode(node)} on ${node.device}`;
  }

  get shape(): readonly number[] {
    return this.peek().shape;
  }

  /** @throws ShoalError `usage` before the first write. */
  read(): Value {
    this.#isShared = true;
    return this.peek();
  }

  /** @throws ShoalError `mismatch` for a node of another dtype or shape. */
  checkSame({ outputs: [{ dtype, shape }] }: Node): this {
    const [own, other] = [this.#spec, { dtype, shape }].map((spec) => `${spec.dtype}${formatShape(spec.shape)}`);
    if (own !== other) throw new ShoalError('mismatch', `${this.#label} holds ${own}, and is ${other} in another graph`);
    return this;
  }

  /** The value for whoever does not keep it: valid until the next change. @throws ShoalError `usage` before the first write. */
  peek(): Value {
    if (this.#value !== undefined) return this.#value;
    throw new ShoalError('usage', `${this.#label} has no value yet; run an Assign to it first`);
  }

  /** @throws ShoalError `usage` for a value of another dtype or shape. */
  write(value: Value): void {
    const { dtype, shape } = this.#spec;
    if (!fits(value, dtype, shape))
      throw new ShoalError('usage', `${this.#label} holds ${dtype}${formatShape(shape)}, not ${formatValue(value)}`);
    this.#value = this.#keep(value);
    this.#isShared = true;
  }

  /** The value, to be changed in place before anything else happens; `copy` is called when somebody may have what is there.
   *  @throws ShoalError `usage` before the first write. */
  change<V extends Value>(copy: (value: Value) => V): V {
    const value = this.peek();
    if (!this.#isShared) return value as V;
    const own = copy(value);
    this.write(own);
    this.#isShared = false;
    return own;
  }
}

export class VariableStore {
  readonly #references = new Map<string, Reference>();
  /** The same, by nodes that have asked. */
  readonly #asked = new WeakMap<Node, Reference>();
  readonly #keep: (value: Value) => Value;

  /** @param keep makes of a value one that may outlive its step. Default: values are such as they are. */
  constructor(keep: (value: Value) => Value = (value) => value) {
    this.#keep = keep;
  }

  /** The same for the same device and name. As many as graphs have variables.
   *  @throws ShoalError `mismatch` when another graph has a variable of that name with another dtype or shape. */
  reference(node: Node): Reference {
    return getOrMake(this.#asked, node, () =>
      getOrMake(this.#references, `${node.device};${node.name}`, () => new Reference(node, this.#keep)).checkSame(node),
    );
  }
}
