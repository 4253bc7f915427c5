/** Directed graphs of numbered nodes, in arrays: 50,000 nodes must cost milliseconds. */
import { assert } from '../../base/assert.ts';

/** Successors of node `n`: `targets[starts[n] … starts[n + 1])`. */
export interface Digraph {
  readonly count: number;
  readonly starts: Int32Array;
  readonly targets: Int32Array;
}

/** @param edges source and target of each edge, alternating. */
export function digraph(count: number, edges: readonly number[]): Digraph {
  assert(edges.length % 2 === 0, () => 'edges are pairs');
  const starts = new Int32Array(count + 1);
  for (let k = 0; k < edges.length; k += 2) starts[edges[k] + 1]++;
  for (let n = 0; n < count; n++) starts[n + 1] += starts[n];
  const targets = new Int32Array(edges.length / 2);
  const next = starts.slice();
  for (let k = 0; k < edges.length; k += 2) targets[next[edges[k]]++] = edges[k + 1];
  return { count, starts, targets };
}

/** Strongly connected components, numbered so that edges between components go to smaller numbers (Tarjan 1972, without recursion). */
export function components({ count, starts, targets }: Digraph): { readonly of: Int32Array; readonly count: number } {
  const of = new Int32Array(count).fill(-1);
  const index = new Int32Array(count).fill(-1);
  const low = new Int32Array(count);
  const position = starts.slice(0, count);
  const open: number[] = [];
  const path: number[] = [];
  let visited = 0;
  let found = 0;
  for (let root = 0; root < count; root++) {
    if (index[root] >= 0) continue;
    path.push(root);
    while (path.length > 0) {
      const node = path[path.length - 1];
      if (index[node] < 0) {
        index[node] = low[node] = visited++;
        open.push(node);
      }
      if (position[node] < starts[node + 1]) {
        const next = targets[position[node]++];
        if (index[next] < 0) path.push(next);
        else if (of[next] < 0) low[node] = Math.min(low[node], index[next]);
        continue;
      }
      path.pop();
      if (path.length > 0) low[path[path.length - 1]] = Math.min(low[path[path.length - 1]], low[node]);
      if (low[node] !== index[node]) continue;
      for (let member = -1; member !== node;) {
        member = open.pop() ?? node;
        of[member] = found;
      }
      found++;
    }
  }
  return { of, count: found };
}

/** Longest way from a node without predecessors, counted over components: along every edge that is in no circle it grows. */
export function levels(graph: Digraph): Int32Array {
  const { of, count } = components(graph);
  const ofComponent = new Int32Array(count);
  const byComponent = membersByComponent(of, count);
  for (let component = count - 1; component >= 0; component--) {
    for (let k = byComponent.starts[component]; k < byComponent.starts[component + 1]; k++) {
      const node = byComponent.members[k];
      for (let edge = graph.starts[node]; edge < graph.starts[node + 1]; edge++) {
        const target = of[graph.targets[edge]];
        if (target !== component) ofComponent[target] = Math.max(ofComponent[target], ofComponent[component] + 1);
      }
    }
  }
  return of.map((component) => ofComponent[component]);
}

/** A shortest circle through `node`, beginning and ending with it; undefined when there is none. */
export function circleThrough(graph: Digraph, node: number): number[] | undefined {
  const from = new Int32Array(graph.count).fill(-1);
  const queue = [node];
  for (let head = 0; head < queue.length; head++) {
    const at = queue[head];
    for (let edge = graph.starts[at]; edge < graph.starts[at + 1]; edge++) {
      const next = graph.targets[edge];
      if (next === node) return wayBack(from, at, node);
      if (from[next] >= 0) continue;
      from[next] = at;
      queue.push(next);
    }
  }
  return undefined;
}

function wayBack(from: Int32Array, last: number, node: number): number[] {
  const way = [node];
  for (let at = last; at !== node; at = from[at]) way.push(at);
  way.push(node);
  return way.reverse();
}

function membersByComponent(of: Int32Array, count: number): { readonly starts: Int32Array; readonly members: Int32Array } {
  const pairs: number[] = [];
  of.forEach((component, node) => pairs.push(component, node));
  const { starts, targets } = digraph(count, pairs);
  return { starts, members: targets };
}
