/** Nodes and the tensors between them. A node never changes once the graph is finished. */
import type { Attributes, ControlKind, OpDefinition, OutputSpec } from './definition.ts';
import type { GraphDType } from './graph-dtype.ts';
import type { Shape } from './shape.ts';

/** Output `slot` of a node. */
export class Output<D extends GraphDType = GraphDType> {
  readonly node: Node;
  readonly slot: number;
  readonly dtype: D;
  readonly shape: Shape;
  /** A reference to a variable: see `OutputSpec`. */
  readonly isRef: boolean;

  constructor(node: Node, slot: number, spec: OutputSpec) {
    this.node = node;
    this.slot = slot;
    this.dtype = spec.dtype as D;
    this.shape = spec.shape;
    this.isRef = spec.isRef ?? false;
  }

  /** `tower/h1:0`. */
  get name(): string {
    return `${this.node.name}:${this.slot}`;
  }
}

export interface NodeParts {
  readonly name: string;
  readonly definition: OpDefinition;
  readonly inputs: readonly Output[];
  readonly controlInputs: readonly Node[];
  readonly attributes: Attributes;
  /** A full or partial device name, canonical; '' for any. */
  readonly device: string;
  readonly colocateWith?: Node;
}

export class Node {
  readonly name: string;
  readonly definition: OpDefinition;
  readonly inputs: readonly Output[];
  readonly controlInputs: readonly Node[];
  readonly attributes: Attributes;
  readonly device: string;
  readonly colocateWith: Node | undefined;
  readonly outputs: readonly Output[];

  constructor(parts: NodeParts, outputs: readonly OutputSpec[]) {
    this.name = parts.name;
    this.definition = parts.definition;
    this.inputs = parts.inputs;
    this.controlInputs = parts.controlInputs;
    this.attributes = parts.attributes;
    this.device = parts.device;
    this.colocateWith = parts.colocateWith;
    this.outputs = outputs.map((spec, slot) => new Output(this, slot, spec));
  }

  get op(): string {
    return this.definition.name;
  }

  get control(): ControlKind {
    return this.definition.control ?? 'kernel';
  }
}

/** `MatMul 'tower/h1'`, for messages. */
export function describeNode(op: string, name: string): string {
  return `${op} '${name}'`;
}
