/** Partitions: Send and Recv where edges cross, one pair per tensor and destination, also in loops on several devices. */
import { describe, expect, it } from 'vitest';
import { identity, placeholder } from '../ops/array.ts';
import { noOp, whileLoop } from '../ops/control-flow.ts';
import { add, less, neg } from '../ops/math.ts';
import { DeviceSet } from '../placement/devices.ts';
import { place } from '../placement/place.ts';
import { GraphBuilder } from '../structure/builder.ts';
import { Node, type Output } from '../structure/graph-node.ts';
import { deadlockProblems } from './deadlock.ts';
import { keysOf } from './keys.ts';
import { partitionGraph, type PartitionedGraph, type PartitionOptions } from './partition-graph.ts';
import { prune } from './prune.ts';

const [a, b, c] = ['a', 'b', 'c'].map((job) => `/job:${job}/task:0/device:CPU:0`);
const devices = new DeviceSet([{ name: a, incarnation: 0x52n }, { name: b, incarnation: 2n }, c]);

type Floats = Output<'float32'>;

/** The whole graph, fed at its placeholders. */
function partitioned(build: (g: GraphBuilder) => void, options: Partial<PartitionOptions> = {}): PartitionedGraph {
  const g = new GraphBuilder();
  build(g);
  const graph = g.finish();
  const feeds = graph.nodes.filter(({ op }) => op === 'Placeholder').map(({ outputs: [output] }) => output);
  return partitionGraph(
    prune(graph, place(graph, devices), { feeds, fetches: [], targets: graph.nodes.filter(({ op }) => op !== 'Placeholder') }),
    {
      devices,
      ...options,
    },
  );
}

/** `a: x = Neg(y:0, ^z)`, in order. */
function format({ partitions }: PartitionedGraph): string[] {
  return partitions.flatMap(({ device, graph }) =>
    graph.nodes.map(({ name, op, inputs, controlInputs }) => {
      const from = [...inputs.map((input) => input.name), ...controlInputs.map((node) => `^${node.name}`)];
      return `${device.name[5]}: ${name} = ${op}(${from.join(', ')})`;
    }),
  );
}

describe('a partitioned graph', () => {
  it('has one pair per tensor and destination device, for all consumers', () => {
    const result = partitioned((g) => {
      const x = placeholder(g, 'float32', [4], { name: 'x', device: a });
      add(g, x, x, { name: 'y', device: b });
      neg(g, x, { name: 'z', device: b });
      neg(g, x, { name: 'w', device: c });
    });
    expect(format(result)).toEqual([
      'a: _arg_0 = _Arg()',
      'a: _arg_0/_send_0 = Send(_arg_0:0)',
      'a: _arg_0/_send_1 = Send(_arg_0:0)',
      'b: _arg_0/_recv_0 = Recv()',
      'b: y = AddV2(_arg_0/_recv_0:0, _arg_0/_recv_0:0)',
      'b: z = Neg(_arg_0/_recv_0:0)',
      'c: _arg_0/_recv_1 = Recv()',
      'c: w = Neg(_arg_0/_recv_1:0)',
    ]);
    const [, recv] = result.partitions.map(({ graph }) => graph.nodes[0]);
    expect(recv.attributes).toMatchObject({
      tensor_type: 'float32',
      shape: [4],
      tensor_name: 'edge_0__arg_0',
      send_device: a,
      send_device_incarnation: 0x52n,
      recv_device: b,
      client_terminated: false,
    });
    expect(keysOf(recv)).toEqual([`${a};0000000000000052;${b};edge_0__arg_0;0:0`]);
  });

  it('sends an empty tensor for a control edge, once', () => {
    const result = partitioned((g) => {
      const before = noOp(g, { name: 'before', device: a });
      noOp(g, { name: 'after', device: b, controlInputs: [before] });
      noOp(g, { name: 'too', device: b, controlInputs: [before] });
    });
    expect(format(result)).toEqual([
      'a: before = NoOp()',
      'a: before/_const_0 = Const(^before)',
      'a: before/_send_0 = Send(before/_const_0:0)',
      'b: before/_recv_0 = Recv()',
      'b: before/_control_0 = Identity(before/_recv_0:0)',
      'b: after = NoOp(^before/_control_0)',
      'b: too = NoOp(^before/_control_0)',
    ]);
  });

  const count = (g: GraphBuilder, from: Output, step: (i: Floats) => Output): readonly Output[] =>
    whileLoop(g, [from], { cond: ([i]) => less(g, i as Floats, i as Floats), body: ([i]) => [step(i as Floats)] }, { name: 'loop' });

  it('takes values into and out of a loop on one device', () => {
    const result = partitioned((g) => {
      const x = placeholder(g, 'float32', [], { name: 'x', device: a });
      const [after] = g.withDevice(b, () => count(g, x, (i) => neg(g, i)));
      identity(g, after, { name: 'after', device: a });
    });
    expect(result.transfers.map(({ tensorName }) => tensorName)).toEqual(['edge_0__arg_0', 'edge_1_loop/Exit']);
  });

  it('has a loop of its own on each device of a loop, which begins the iterations there', () => {
    const result = partitioned((g) => {
      const x = placeholder(g, 'float32', [], { name: 'x', device: a });
      g.withDevice(a, () => count(g, x, (i) => neg(g, i, { name: 'far', device: b })));
    });
    expect(format(result).filter((line) => line.startsWith('b:'))).toEqual([
      'b: _loop_0/Const = Const()',
      'b: _loop_0/Enter = Enter(_loop_0/Const:0)',
      'b: _loop_0/Merge = Merge(_loop_0/Enter:0, _loop_0/NextIteration:0)',
      'b: loop/Identity/_recv_0 = Recv(^_loop_0/Merge)',
      'b: loop/far = Neg(loop/Identity/_recv_0:0)',
      'b: loop/far/_send_1 = Send(loop/far:0)',
      'b: loop/LoopCond/_recv_2 = Recv(^_loop_0/Merge)',
      'b: _loop_0/Switch = Switch(_loop_0/Merge:0, loop/LoopCond/_recv_2:0)',
      'b: _loop_0/NextIteration = NextIteration(_loop_0/Switch:1)',
    ]);
    expect(format(result)).toContain('a: loop/far/_recv_1 = Recv(^_loop_0/Merge)');
    expect(result.transfers.map(({ frame }) => frame.name)).toEqual(['loop', 'loop', 'loop']);
  });

  it('refuses devices that are not there', () => {
    const g = new GraphBuilder();
    noOp(g, { name: 'x', device: '/job:a/task:1/device:CPU:0' });
    expect(() => partitionGraph(g.finish(), { devices })).toThrow(/NoOp 'x': device '\/job:a\/task:1\/device:CPU:0' does not exist/);
  });
});

describe('pruning', () => {
  const g = new GraphBuilder();
  const x = placeholder(g, 'float32', [], { name: 'x' });
  const y = neg(g, x, { name: 'y' });
  const z = neg(g, y, { name: 'z' });
  neg(g, y, { name: 'unused' });
  const graph = g.finish();
  const namesOf = (feeds: readonly Output[], fetches: readonly Output[]): string[] =>
    prune(graph, place(graph, devices), { feeds, fetches, targets: [] }).nodes.map(({ name }) => name);

  it('keeps what fetches need, up to what is fed', () => {
    expect(namesOf([x], [z])).toEqual(['_arg_0', 'y', 'z', '_retval_0']);
    expect(namesOf([y], [z])).toEqual(['_arg_0', 'z', '_retval_0']);
    expect(namesOf([z], [z])).toEqual(['_arg_0', '_retval_0']);
  });

  it('asks for placeholders that are needed', () => {
    expect(() => namesOf([], [z])).toThrow(/Placeholder 'x' must be fed/);
  });
});

describe('the deadlock checker', () => {
  const broken = (change: (received: Node[], sent: Node[]) => void): string => {
    const { partitions } = partitioned((g) => {
      const x = placeholder(g, 'float32', [4], { name: 'x', device: a });
      neg(g, x, { name: 'y', device: b });
    });
    const nodes = partitions.map(({ graph }) => [...graph.nodes]);
    change(nodes[1], nodes[0]);
    return deadlockProblems({ partitions: nodes.map((each) => ({ graph: { nodes: each } as never })) }).join('\n');
  };

  it('finds keys that are not sent once and received once', () => {
    expect(broken((nodes) => nodes.splice(0))).toMatch(/Send '_arg_0\/_send_0' on \S+ sends \S+ to nobody/);
    expect(broken((nodes) => nodes.push(nodes[0]))).toMatch(/both receive/);
    expect(broken((_, sent) => sent.push(...sent.filter(({ control }) => control === 'send')))).toMatch(
      /Send '\S+' on \S+ sends \S+;0:0, which another node sends/,
    );
    const other = ({ name, definition, device, attributes }: Node, dtype: 'int32' | 'float32'): Node =>
      new Node(
        {
          name,
          definition,
          device,
          inputs: [],
          controlInputs: [],
          attributes: { ...attributes, tensor_name: dtype === 'int32' ? attributes.tensor_name : 'x' },
        },
        [{ dtype, shape: [4] }],
      );
    expect(broken((nodes) => nodes.splice(0, 1, other(nodes[0], 'float32')))).toMatch(/waits for \S+;x;0:0, which nobody sends/);
    expect(broken((nodes) => nodes.splice(0, 1, other(nodes[0], 'int32')))).toMatch(/expects int32 as \S+, but float32 is sent/);
  });
});
