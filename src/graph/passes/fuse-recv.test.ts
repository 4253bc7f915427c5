/** The receives that are fused: the three graphs of the implementation's own tests, refusals, caps; and that no fused receive can wait for itself,
 *  on ten thousand random graphs, with a checker that finds those of weakened passes. */
import { describe, expect, it } from 'vitest';
import { seededRandom } from '../../base/random.ts';
import { identity, placeholder } from '../ops/array.ts';
import { noOp, whileLoop } from '../ops/control-flow.ts';
import { add, less, neg } from '../ops/math.ts';
import { gather, variable } from '../ops/state.ts';
import { deadlockProblems } from '../partition/deadlock.ts';
import { keysOf } from '../partition/keys.ts';
import { partitionGraph, type PartitionedGraph } from '../partition/partition-graph.ts';
import { DeviceSet } from '../placement/devices.ts';
import { place } from '../placement/place.ts';
import { prune } from '../partition/prune.ts';
import { GraphBuilder } from '../structure/builder.ts';
import type { Graph } from '../structure/graph.ts';
import type { Node, Output } from '../structure/graph-node.ts';
import { randomGraph } from '../testing/random-graph.ts';
import { destWave, fusePolicies, sourceWave, type FusePolicy } from './fuse-policy.ts';
import type { FuseOptions } from './fuse-recv.ts';

type Floats = Output<'float32'>;

const [a, b] = ['a', 'b'].map((job) => `/job:${job}/task:0/device:CPU:0`);
const devices = new DeviceSet([a, b]);

function compile(graph: Graph, fuse: FuseOptions, options: { check?: boolean; set?: DeviceSet } = {}): PartitionedGraph {
  const { set = devices, check } = options;
  return partitionGraph(feedAll(graph, set), { devices: set, doFuseRecv: true, fuse, check });
}

/** All of the graph as one step that is fed every placeholder. */
function feedAll(graph: Graph, set: DeviceSet): Graph {
  const feeds = graph.nodes.filter(({ op }) => op === 'Placeholder').map(({ outputs: [output] }) => output);
  const targets = graph.nodes.filter(({ op }) => op !== 'Placeholder');
  return prune(graph, place(graph, set), { feeds, fetches: [], targets });
}

function built(build: (g: GraphBuilder) => void): Graph {
  const g = new GraphBuilder();
  build(g);
  return g.finish();
}

/** `FuseRecv(x, y)` and `Recv(z)`, by the nodes whose values they receive. */
function receives({ partitions }: PartitionedGraph): string[] {
  const all = partitions.flatMap(({ graph }) => graph.nodes.filter(({ control }) => control === 'recv' || control === 'fuse-recv'));
  return all.map((node) => {
    const names = keysOf(node).map((key) => key.split(';')[3].replace(/^edge_\d+_/, ''));
    return `${node.op}(${names.join(', ')})`;
  });
}

const sources = (g: GraphBuilder, names: readonly string[]): Floats[] =>
  g.withDevice(a, () => names.map((name) => identity(g, placeholder(g, 'float32', [4]), { name })));

describe.each(fusePolicies)('FuseRecv by $name', (policy) => {
  it('receives three edges of one wave together', () => {
    const graph = built((g) => sources(g, ['a1', 'a2', 'a3']).forEach((x, index) => neg(g, x, { name: `b${index}`, device: b })));
    const result = compile(graph, { policy });
    expect(receives(result)).toEqual(['FuseRecv(a1, a2, a3)']);
    const fused = result.partitions[1].graph.nodes[0];
    expect(fused.attributes).toEqual({
      tensor_type: ['float32', 'float32', 'float32'],
      tensor_name: ['edge_0_a1', 'edge_1_a2', 'edge_2_a3'],
      send_device: [a, a, a],
      send_device_incarnation: [1n, 1n, 1n],
      recv_device: [b, b, b],
      client_terminated: false,
      shapes: [[4], [4], [4]],
    });
    expect(result.partitions[1].graph.node('b2').inputs[0].name).toBe(`${fused.name}:2`);
    expect(result.partitions[0].graph.nodes.filter(({ op }) => op === 'Send')).toHaveLength(3);
  });

  it('receives what is used again, in the same wave and later, once', () => {
    const graph = built((g) => {
      const [a1, a2, a3] = sources(g, ['a1', 'a2', 'a3']);
      g.withDevice(b, () => {
        const first = [neg(g, a1), neg(g, a2), neg(g, a3), neg(g, a1)];
        add(g, first[0], a2);
        add(g, neg(g, first[1]), a3);
      });
    });
    expect(receives(compile(graph, { policy }))).toEqual(['FuseRecv(a1, a2, a3)']);
  });

  it('receives variables together: their Sends read them', () => {
    const graph = built((g) => {
      const [v, w, x] = g.withDevice(a, () => ['v', 'w', 'x'].map((name) => variable(g, 'float32', [4], { name })));
      g.withDevice(b, () => [add(g, v, w), neg(g, x)]);
    });
    const result = compile(graph, { policy });
    expect([receives(result), result.unfused]).toEqual([['FuseRecv(v, w, x)'], []]);
  });

  it('says what it leaves alone, and why', () => {
    const graph = built((g) => {
      const v = variable(g, 'float32', [4], { name: 'v', device: a });
      const [a1, a2] = g.withDevice(a, () => [identity(g, v, { name: 'a1' }), identity(g, v, { name: 'a2' })]);
      const large = g.withDevice(a, () => variable(g, 'float32', [1000], { name: 'large' }));
      g.withDevice(b, () => [neg(g, a1), neg(g, v), neg(g, a2), neg(g, large)]);
    });
    const both = { sendDevice: a, recvDevice: b };
    const wave = policy.name === 'source-wave' ? 0 : 1;
    const result = compile(graph, { policy, bytesMax: 4000 });
    expect(receives(result)).toEqual(['FuseRecv(a1, a2)', 'Recv(v)', 'Recv(large)']);
    expect(result.unfused).toEqual([
      { ...both, tensor: 'large:0', why: 'its 4000 bytes reach the cap of a group, bytesMax 4000' },
      { ...both, tensor: 'v:0', why: `no other dense tensor of wave ${wave} (${policy.name}) goes the same way` },
    ]);
  });

  it('keeps waves apart, and a group of one plain', () => {
    const graph = built((g) => {
      const [a1, a2] = sources(g, ['a1', 'a2']);
      const b1 = neg(g, a1, { name: 'b1', device: b });
      const a3 = neg(g, b1, { name: 'a3', device: a });
      g.withDevice(b, () => [neg(g, a2), neg(g, a3)]);
    });
    expect(receives(compile(graph, { policy })).sort()).toEqual(['FuseRecv(a1, a2)', 'Recv(a3)', 'Recv(b1)']);
  });

  it('keeps embeddings apart from dense tensors', () => {
    const graph = built((g) => {
      const [a1, a2] = sources(g, ['a1', 'a2']);
      const tables = g.withDevice(a, () => ['t1', 't2'].map((name) => variable(g, 'float32', [9, 4], { name })));
      const ids = placeholder(g, 'int32', [3], { name: 'ids', device: a });
      const rows = tables.map((table, k) => gather(g, table, ids, { name: `rows${k}`, device: a }));
      g.withDevice(b, () => [...rows, a1, a2].map((x) => neg(g, x)));
    });
    expect(receives(compile(graph, { policy }))).toEqual(['FuseRecv(rows0, rows1)', 'FuseRecv(a1, a2)']);
  });

  it('fuses control edges with data, each behind an Identity of its own', () => {
    const graph = built((g) => {
      const [a0] = sources(g, ['a0']);
      const a1 = identity(g, a0, { name: 'a1', device: a });
      const before = noOp(g, { name: 'before', device: a, controlInputs: [a0] });
      neg(g, a1, { name: 'b1', device: b, controlInputs: [before] });
    });
    const result = compile(graph, { policy });
    expect(receives(result)).toEqual(['FuseRecv(a1, before)']);
    const b1 = result.partitions[1].graph.node('b1');
    expect(b1.controlInputs.map(({ op, inputs }) => `${op} of ${inputs[0].node.op}:${inputs[0].slot}`)).toEqual(['Identity of FuseRecv:1']);
  });

  it('cuts groups at the caps', () => {
    const graph = built((g) => sources(g, ['a1', 'a2', 'a3', 'a4', 'a5']).forEach((x) => neg(g, x, { device: b })));
    const cut = compile(graph, { policy, tensorsMax: 2 });
    expect(receives(cut)).toEqual(['FuseRecv(a1, a2)', 'FuseRecv(a3, a4)', 'Recv(a5)']);
    expect(cut.unfused.map(({ why }) => why)).toEqual(['the groups of its wave are full: tensorsMax 2, bytesMax 4194304']);
    expect(receives(compile(graph, { policy, bytesMax: 48 }))).toEqual(['FuseRecv(a1, a2, a3)', 'FuseRecv(a4, a5)']);
    expect(receives(compile(graph, { policy, bytesMax: 16 }))).toHaveLength(5);
  });
});

it('no fused receive waits for itself, on 10,000 random graphs under every policy', () => {
  const set = new DeviceSet(['/job:a/task:0/cpu:0', '/job:a/task:1/cpu:0', '/job:b/task:0/cpu:0']);
  const fused = fusePolicies.map(() => 0);
  for (let seed = 0; seed < 10_000; seed++) {
    const random = seededRandom(seed);
    const graph = feedAll(randomGraph(random, { nodes: 5 + random.integer(12), devices: set.names.slice(0, 2 + random.integer(2)) }), set);
    fusePolicies.forEach((policy, index) => {
      // Throws when the checker finds anything.
      const result = partitionGraph(graph, { devices: set, doFuseRecv: true, fuse: { policy } });
      fused[index] += result.groups.length;
      if (seed % 50 === 0) expect(reachesItself(result), `seed ${seed}`).toBe(false);
    });
  }
  for (const count of fused) expect(count).toBeGreaterThan(2000);
});

describe('the checker of deadlocks', () => {
  const set = new DeviceSet(['/job:a/task:0/cpu:0', '/job:a/task:1/cpu:0']);
  const anyWave: FusePolicy = { name: 'any wave', waveOf: () => 0 };

  it('finds every fused receive that a pass without waves makes wait for itself, and no other', () => {
    let wrong = 0;
    for (let seed = 0; seed < 400; seed++) {
      const random = seededRandom(seed);
      const graph = randomGraph(random, { nodes: 6 + random.integer(18), devices: set.names });
      const result = compile(graph, { policy: anyWave }, { set, check: false });
      const found = deadlockProblems(result).length > 0;
      expect(found, `seed ${seed}`).toBe(reachesItself(result));
      if (found) wrong++;
    }
    expect(wrong).toBeGreaterThan(50);
  });

  it('refuses what such a pass makes, by the circle', () => {
    const graph = built((g) => {
      const [a1] = sources(g, ['a1']);
      const b1 = neg(g, a1, { name: 'b1', device: b });
      const a2 = neg(g, b1, { name: 'a2', device: a });
      neg(g, a2, { name: 'b2', device: b });
    });
    expect(() => compile(graph, { policy: anyWave })).toThrow(
      /FuseRecv '_fuse_recv_0' on \S+ waits for itself: _fuse_recv_0 → b1 → b1\/_send_1 → b1\/_recv_1 → a2 → a2\/_send_2 → _fuse_recv_0/,
    );
    expect(compile(graph, { policy: sourceWave }).groups).toEqual([]);
    expect(compile(graph, { policy: destWave }).groups).toEqual([]);
  });

  it('finds what waves without the edges that go back make wait for itself', () => {
    // The first variable leaves the loop early by the edges that go forward, but depends on the second, which enters late.
    const graph = built((g) => {
      const start = identity(g, placeholder(g, 'float32', [], { device: a }), { device: a });
      let twin = start;
      for (let k = 0; k < 6; k++) twin = neg(g, twin, { device: a });
      const late = neg(g, twin, { device: b });
      const [left] = g.withDevice(a, () =>
        whileLoop(g, [start, identity(g, late)], {
          cond: ([i]) => less(g, i as Floats, i as Floats),
          body: ([i, x]) => [add(g, i as Floats, x as Floats), x],
        }),
      );
      neg(g, left as Floats, { device: b });
    });
    const forward = forwardLevels(graph);
    const document: FusePolicy = { name: 'forward', waveOf: ({ source }) => forward(source.name) };
    const broken = compile(graph, { policy: document }, { check: false });
    expect(deadlockProblems(broken).join()).toMatch(/FuseRecv \S+ on \S+ waits for itself/);
    for (const policy of fusePolicies) expect(compile(graph, { policy }).partitions).toHaveLength(2);
  });
});

/** Waves as in the document: one more than the last input, without edges from NextIteration. */
function forwardLevels(graph: Graph): (name: string) => number {
  const level = new Map<string, number>();
  for (const { name, inputs, controlInputs } of graph.nodes) {
    const before = [...inputs.map(({ node }) => node), ...controlInputs].map((node) => level.get(node.name) ?? -1);
    level.set(name, Math.max(-1, ...before) + 1);
  }
  return (name) => level.get(name) ?? 0;
}

/** Searches from every fused receive, along edges and from each Send to what receives its key. */
function reachesItself({ partitions }: PartitionedGraph): boolean {
  const nodes = partitions.flatMap(({ graph }) => graph.nodes);
  const after = new Map<Node, Node[]>(nodes.map((node) => [node, []]));
  const receiver = new Map<string, Node>();
  for (const node of nodes) {
    for (const source of [...node.inputs.map((input) => input.node), ...node.controlInputs]) after.get(source)?.push(node);
    if (node.control !== 'send') for (const key of keysOf(node)) receiver.set(key, node);
  }
  for (const node of nodes) if (node.control === 'send') for (const key of keysOf(node)) after.get(node)?.push(receiver.get(key) as Node);
  return nodes.some((start) => {
    if (start.control !== 'fuse-recv') return false;
    const reached = new Set<Node>();
    const queue = [start];
    for (let node = queue.pop(); node !== undefined; node = queue.pop()) {
      for (const next of after.get(node) ?? []) {
        if (next === start) return true;
        if (!reached.has(next)) queue.push(next);
        reached.add(next);
      }
    }
    return false;
  });
}
