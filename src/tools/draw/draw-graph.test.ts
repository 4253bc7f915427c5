/** Pictures of partitioned graphs: all nodes and edges are there, names are escaped, large graphs are collapsed. */
import { expect, it } from 'vitest';
import { seededRandom } from '../../base/random.ts';
import { drawGraph } from './draw-graph.ts';
import { layoutOf } from './graph-layout.ts';
import { identity, placeholder } from '../../graph/ops/array.ts';
import { neg } from '../../graph/ops/math.ts';
import { partitionGraph, type PartitionedGraph } from '../../graph/partition/partition-graph.ts';
import { prune } from '../../graph/partition/prune.ts';
import { DeviceSet } from '../../graph/placement/devices.ts';
import { place } from '../../graph/placement/place.ts';
import { GraphBuilder } from '../../graph/structure/builder.ts';
import type { Graph } from '../../graph/structure/graph.ts';
import { randomGraph } from '../../graph/testing/random-graph.ts';

const devices = new DeviceSet(['/job:ps/task:0/cpu:0', '/job:worker/task:0/cpu:0']);
const [ps, worker] = devices.names;

function partitioned(graph: Graph, doFuseRecv: boolean): PartitionedGraph {
  const feeds = graph.nodes.filter(({ op }) => op === 'Placeholder').map(({ outputs: [output] }) => output);
  const targets = graph.nodes.filter(({ op }) => op !== 'Placeholder');
  return partitionGraph(prune(graph, place(graph, devices), { feeds, fetches: [], targets }), { devices, doFuseRecv });
}

it('draws the graph before and after the pass', () => {
  const g = new GraphBuilder();
  for (const name of ['a', 'b', 'c']) {
    const value = identity(g, placeholder(g, 'float32', [], { device: ps }), { name, device: ps });
    neg(g, value, { name: `use_${name}`, device: worker });
  }
  const graph = g.finish();
  const [before, after] = [false, true].map((doFuseRecv) => partitioned(graph, doFuseRecv));
  expect(drawGraph(before)).toContain('15 nodes on 2 devices; 3 transfers by 3 requests, 0 of them fused');
  const svg = drawGraph(after, { title: 'x < y & "z"' });
  expect(svg).toContain('13 nodes on 2 devices; 3 transfers by 1 requests, 1 of them fused');
  expect(svg).toContain('x &lt; y &amp; &quot;z&quot;');
  expect(svg).toContain("FuseRecv '_fuse_recv_0': edge_0_a, edge_1_b, edge_2_c");
  expect(svg.match(/rx="4"/g)).toHaveLength(13);
  expect(svg.match(/class="edge transfer"/g)).toHaveLength(3);
  for (const name of ['use_a', 'use_b', 'use_c', ps, worker]) expect(svg).toContain(`>${name}</text>`);
});

it('puts no box on another', () => {
  for (let seed = 0; seed < 20; seed++) {
    const { boxes } = layoutOf(partitioned(randomGraph(seededRandom(seed), { nodes: 40, devices: devices.names }), true), 1000);
    const places = boxes.map(({ device, wave, row }) => `${device} ${wave} ${row}`);
    expect(new Set(places).size).toBe(boxes.length);
  }
});

it('collapses large graphs by scope', () => {
  const g = new GraphBuilder();
  for (let tower = 0; tower < 5; tower++) {
    g.withScope(`tower${tower}`, () => {
      let x = identity(g, placeholder(g, 'float32', [], { device: ps }), { device: ps });
      for (let layer = 0; layer < 20; layer++) x = neg(g, x, { device: layer % 2 === 0 ? ps : worker });
    });
  }
  const graph = partitioned(g.finish(), true);
  const { boxes, nodes } = layoutOf(graph, 50);
  expect(boxes.length).toBeLessThanOrEqual(50);
  expect(nodes).toBeGreaterThan(200);
  expect(drawGraph(graph, { boxesMax: 50 })).toMatch(/>tower3 \(\d+\)<\/text>/);
});
