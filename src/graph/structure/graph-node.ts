/** Nodes and the tensors between them. A node never changes once the graph is finished. */
import { ShoalError } from '../../base/errors.ts';
import type { Attributes, ControlKind, OpDefinition, OutputSpec } from './definition.ts';
import type { GraphDType } from './graph-dtype.ts';
import type { Shape } from './shape.ts';

/** Output `slot` of a node. */
export class Output<D extends GraphDType = GraphDType> {
  /** The node that it is an output of. */
  readonly node: Node;
  /** Its number among the outputs, from 0. */
  readonly slot: number;
  /** The dtype of the elements. */
  readonly dtype: D;
  /** The shape, as far as it is known when the graph is built. */
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

export type NodeParts = Pick<Node, 'name' | 'definition' | 'inputs' | 'controlInputs' | 'attributes' | 'device'> &
  Partial<Pick<Node, 'colocateWith'>>;

/** An operation with its inputs, at a place. */
export class Node {
  /** Differs between all nodes of the graph: `tower/h1`. */
  readonly name: string;
  /** The definition of its operation. */
  readonly definition: OpDefinition;
  /** Tensors that it reads, in the operation's order. */
  readonly inputs: readonly Output[];
  /** Nodes that must have run before. */
  readonly controlInputs: readonly Node[];
  /** Attributes, as the operation declares them, defaults included. */
  readonly attributes: Attributes;
  /** A full or partial device name, canonical; '' for any. */
  readonly device: string;
  /** The node whose device it shares. */
  readonly colocateWith: Node | undefined;
  /** Tensors that it gives. */
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

  /** Name of its operation: `MatMul`. */
  get op(): string {
    return this.definition.name;
  }

  /** The executor's treatment of it; `kernel`: it runs one. */
  get control(): ControlKind {
    return this.definition.control ?? 'kernel';
  }
}

/** The device that a node asks for, or the node that it is colocated with. */
export function requestedDevice({ device, colocateWith }: Node): string {
  return device === '' && colocateWith !== undefined ? requestedDevice(colocateWith) : device;
}

type NamedNode = Pick<Node, 'op' | 'name'>;

/** `MatMul 'tower/h1'`, for messages. */
export function describeNode({ op, name }: NamedNode): string {
  return `${op} '${name}'`;
}

/** The error of a node. */
export function nodeError(node: NamedNode, why: string): ShoalError {
  return new ShoalError('usage', `${describeNode(node)}: ${why}`);
}
