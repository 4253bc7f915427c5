/** The canonical association: the order in which contributions are combined, as one binary tree over global ranks. It is the
 *  balanced tree over hosts whose leaves are the balanced trees over each host's ranks, so a host reduces its own ranks first and
 *  every canonical algorithm, flat or hierarchical, gives the same bits.
 *
 *      hosts [0 1 2] [3 4] [5]          ((((0 1) 2) (3 4)) 5)
 *
 *  It must not know algorithms or buffers. */
import { assert } from '../base/assert.ts';
import { balancedTree, type ReduceTree } from '../memory/kernels.ts';
import type { Topology } from './topology.ts';

/** A subtree: one rank, or the results of a left and a right subtree, combined in that order. */
export type AssociationTree = AssociationLeaf | AssociationNode;

export interface AssociationLeaf {
  readonly kind: 'leaf';
  readonly rank: number;
  /** The ranks below, in tree order. */
  readonly ranks: readonly number[];
}

export interface AssociationNode {
  readonly kind: 'node';
  readonly left: AssociationTree;
  readonly right: AssociationTree;
  /** The ranks below, in tree order. */
  readonly ranks: readonly number[];
}

/** The tree that all canonical plans of a topology reduce along. */
export function canonicalTree(topology: Topology): AssociationTree {
  return balanced(topology.hosts.map((host) => balanced(host.map(leaf))));
}

/** Postfix of a subtree over a step's sources; `sourceOf` gives the index of the source that holds a rank's contribution. */
export function postfix(tree: AssociationTree, sourceOf: (rank: number) => number): ReduceTree {
  const result: number[] = [];
  const visit = (node: AssociationTree): void => {
    if (node.kind === 'leaf') {
      result.push(sourceOf(node.rank));
      return;
    }
    visit(node.left);
    visit(node.right);
    result.push(-1);
  };
  visit(tree);
  return result;
}

/** Readable text of a tree: `((0 1) 2)`. */
export function formatAssociation(tree: AssociationTree): string {
  return tree.kind === 'leaf' ? String(tree.rank) : `(${formatAssociation(tree.left)} ${formatAssociation(tree.right)})`;
}

function leaf(rank: number): AssociationLeaf {
  return { kind: 'leaf', rank, ranks: [rank] };
}

/** `parts` combined along `balancedTree`: its postfix run on a stack of subtrees. */
function balanced(parts: readonly AssociationTree[]): AssociationTree {
  const stack: AssociationTree[] = [];
  for (const entry of balancedTree(parts.length)) {
    if (entry >= 0) {
      stack.push(parts[entry]);
      continue;
    }
    const [left, right] = stack.splice(-2);
    stack.push({ kind: 'node', left, right, ranks: [...left.ranks, ...right.ranks] });
  }
  assert(stack.length === 1, () => 'a topology has at least one host and every host at least one rank');
  return stack[0];
}
