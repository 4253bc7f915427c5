/** Symbolic values of elements: the contributions that an element is made of, as a hash-consed expression. Equal expressions have
 *  equal numbers, so comparing two values is comparing two integers.
 *
 *  A value describes a whole interval of a buffer at once. A leaf stands for "the element of rank r's buffer whose index is my
 *  own position + delta", so that copying an interval elsewhere changes only the delta:
 *
 *      rank 1 input     position  0 1 2 3         value (input of 1, delta 0)
 *      rank 0 output    position  4 5 6 7         value (input of 1, delta −4)
 *
 *  A reduction stores its right operand's delta relative to its left operand's, hence shifting never rebuilds a node. */
import { getOrMake } from '../base/collections/lists.ts';
import type { BufferName } from './ir.ts';

/** A node, and the number to add to a position to get the node's index. */
export interface Value {
  readonly node: number;
  readonly delta: number;
}

/** An initial element: `index` = position + delta in `rank`'s buffer. */
export interface Leaf {
  readonly rank: number;
  readonly buffer: BufferName;
  readonly delta: number;
}

type Node =
  | { readonly kind: 'garbage' }
  | { readonly kind: 'leaf'; readonly rank: number; readonly buffer: BufferName }
  | { readonly kind: 'reduce'; readonly left: number; readonly right: number; readonly rightDelta: number }
  | { readonly kind: 'final'; readonly of: number };

export const garbage: Value = { node: 0, delta: 0 };

export class Expressions {
  readonly #nodes: Node[] = [{ kind: 'garbage' }];
  readonly #index = new Map<string, number>();
  readonly #leaves = new Map<number, readonly Leaf[] | undefined>();

  leaf({ rank, buffer, delta }: Leaf): Value {
    return { node: this.#intern(`${buffer}${rank}`, { kind: 'leaf', rank, buffer }), delta };
  }

  /** The value left ⊕ right. */
  reduce(left: Value, right: Value): Value {
    const rightDelta = right.delta - left.delta;
    const node: Node = { kind: 'reduce', left: left.node, right: right.node, rightDelta };
    return { node: this.#intern(`${left.node}+${right.node}@${rightDelta}`, node), delta: left.delta };
  }

  /** The value with the last touch of a complete reduction (Avg's division) applied. */
  final(value: Value): Value {
    return { node: this.#intern(`!${value.node}`, { kind: 'final', of: value.node }), delta: value.delta };
  }

  /** The value under a `final`, if this is one. */
  underFinal({ node, delta }: Value): Value | undefined {
    const entry = this.#nodes[node];
    return entry.kind === 'final' ? { node: entry.of, delta } : undefined;
  }

  isLeaf(value: Value): boolean {
    return this.#nodes[value.node].kind === 'leaf';
  }

  /** The operands of a reduction, left to right; undefined when garbage or an already finished value is among them. */
  leavesOf(value: Value): readonly Leaf[] | undefined {
    return this.#relativeLeaves(value.node)?.map((leaf) => ({ ...leaf, delta: leaf.delta + value.delta }));
  }

  /** Readable text: `final((data[0] of 0 ⊕ data[0] of 1))`, for the element at `position`. */
  format(value: Value, position: number): string {
    const visit = (node: number, index: number): string => {
      const entry = this.#nodes[node];
      switch (entry.kind) {
        case 'garbage':
          return 'garbage';
        case 'leaf':
          return `${entry.buffer}[${index}] of ${entry.rank}`;
        case 'reduce':
          return `(${visit(entry.left, index)} ⊕ ${visit(entry.right, index + entry.rightDelta)})`;
        case 'final':
          return `final(${visit(entry.of, index)})`;
      }
    };
    const text = visit(value.node, position + value.delta);
    return text.length <= 160 ? text : `${text.slice(0, 157)}…`;
  }

  #intern(key: string, node: Node): number {
    return getOrMake(this.#index, key, () => this.#nodes.push(node) - 1);
  }

  #relativeLeaves(node: number): readonly Leaf[] | undefined {
    if (this.#leaves.has(node)) return this.#leaves.get(node);
    const entry = this.#nodes[node];
    let leaves: readonly Leaf[] | undefined;
    if (entry.kind === 'leaf') leaves = [{ rank: entry.rank, buffer: entry.buffer, delta: 0 }];
    if (entry.kind === 'reduce') {
      const left = this.#relativeLeaves(entry.left);
      const right = this.#relativeLeaves(entry.right)?.map((leaf) => ({ ...leaf, delta: leaf.delta + entry.rightDelta }));
      leaves = left && right && [...left, ...right];
    }
    this.#leaves.set(node, leaves);
    return leaves;
  }
}
