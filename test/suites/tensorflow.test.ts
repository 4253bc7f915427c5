/** TensorFlow's and DeepRec's tests of rendezvous and of partitioned graphs, told from their descriptions. */
import { afterEach, describe, expect } from 'vitest';
import { seededRandom } from '../../src/base/random.ts';
import {
  add,
  addN,
  constant,
  GraphBuilder,
  identity,
  importNodes,
  less,
  merge,
  neg,
  noOp,
  operations,
  placeholder,
  variable,
  whileLoop,
  type Output,
} from '../../src/graph/index.ts';
import { enter, loopCond, nextIteration } from '../../src/graph/ops/control-flow.ts';
import { deadlockProblems } from '../../src/graph/partition/deadlock.ts';
import { keysOf } from '../../src/graph/partition/keys.ts';
import { partitionGraph, type PartitionedGraph } from '../../src/graph/partition/partition-graph.ts';
import { prune } from '../../src/graph/partition/prune.ts';
import { DeviceSet } from '../../src/graph/placement/devices.ts';
import { place } from '../../src/graph/placement/place.ts';
import { RendezvousWorker, type WorkerIdentity, type WorkerStep } from '../../src/rendezvous/index.ts';
import { formatRendezvousKey, parseRendezvousKey } from '../../src/rendezvous/table/rendezvous-key.ts';
import { tensorflowPartition, tensorflowRendezvous } from './foreign-suites.ts';
import { ranksOf } from './support/shared-worlds.ts';
import { SuiteCases } from './support/suite-cases.ts';

const workers: RendezvousWorker[] = [];
afterEach(async () => {
  for (const worker of workers.splice(0)) await worker.close();
});

async function started(rank: number): Promise<RendezvousWorker> {
  const worker = await RendezvousWorker.start({ rank, secret: 's', carriers: ['tcp'] });
  workers.push(worker);
  return worker;
}

/** The workers between which a Send meets its receive. */
interface Meeting {
  readonly sender: RendezvousWorker;
  readonly receiver: RendezvousWorker;
  /** The receiver, as the sender knows it, and the other way round. */
  readonly to: WorkerIdentity;
  readonly from: WorkerIdentity;
}

const places: readonly (readonly [string, () => Promise<Meeting>])[] = [
  [
    'within a worker',
    async () => {
      const worker = await started(0);
      return { sender: worker, receiver: worker, to: worker.self, from: worker.self };
    },
  ],
  [
    'between two workers',
    async () => {
      const [sender, receiver] = [await started(0), await started(1)];
      const from = await receiver.connect(sender.address);
      return { sender, receiver, to: await sender.peer(1), from };
    },
  ],
];

/** A step of both workers. */
function begun({ sender, receiver }: Meeting, step: number): { sends: WorkerStep; receives: WorkerStep } {
  const sends = sender.beginStep(step);
  return { sends, receives: sender === receiver ? sends : receiver.beginStep(step) };
}

const turn = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));
/** A send of a step that is aborted: nobody waits for its fate. */
const unheeded = (work: Promise<unknown>): void => void work.catch(() => undefined);

describe(tensorflowRendezvous.name, () => {
  const cases = new SuiteCases(tensorflowRendezvous);
  const everywhere = (test: string, what: string, run: (meeting: Meeting) => Promise<void>): void =>
    cases.each(
      test,
      places,
      ([where]) => `${what}, ${where}`,
      async ([, meet]) => run(await meet()),
    );

  const [source, target] = ['/job:mnist/replica:1/task:2/CPU:0', '/job:mnist/replica:1/task:2/device:GPU:0'];
  const text = `${source};0000000000001ed2;${target};var0;0:0`;
  cases.add('Rendezvous.Key', 'a key has five parts', () => {
    const key = { sendDevice: source, incarnation: 7890n, recvDevice: target, name: 'var0', frame: 0, iteration: 0 };
    expect(formatRendezvousKey(key)).toBe(text);
    expect(parseRendezvousKey(text)).toEqual(key);
  });
  cases.each(
    'Rendezvous.Key',
    ['foo;bar;baz', `${source};${target};`, `${text};${text}`],
    (wrong) => `'${wrong.slice(0, 30)}' is none`,
    (wrong) => expect(() => parseRendezvousKey(wrong)).toThrow(expect.objectContaining({ code: 'protocol' })),
  );
  everywhere('LocalRendezvous.SendRecv', 'sent, then received', async (meeting) => {
    const { sends, receives } = begun(meeting, 1);
    unheeded(sends.send(meeting.to, 'foo', 'hello'));
    await turn();
    expect((await receives.recv(meeting.from, 'foo'))!.data).toEqual(['hello']);
  });
  everywhere('LocalRendezvous.RecvSend', 'received before it is sent', async (meeting) => {
    const { sends, receives } = begun(meeting, 1);
    const receiving = receives.recv(meeting.from, 'foo');
    await turn();
    const sent = sends.send(meeting.to, 'foo', 'hello');
    const value = await receiving;
    expect(value!.data).toEqual(['hello']);
    // The value is the sender's again once it is given back.
    value!.release();
    await sent;
  });
  everywhere('LocalRendezvous.PingPong', 'a message there and back', async (meeting) => {
    const { sends, receives } = begun(meeting, 1);
    const ponging = (async () => {
      const got = await receives.recv(meeting.from, 'foo');
      unheeded(receives.send(meeting.from, 'bar', [...(got!.data as readonly string[])]));
    })();
    unheeded(sends.send(meeting.to, 'foo', 'secret msg'));
    expect((await sends.recv(meeting.to, 'bar'))!.data).toEqual(['secret msg']);
    await ponging;
  });
  everywhere('LocalRendezvous.CancelBeforeRecv', 'a receive that is cancelled from the start', async (meeting) => {
    const { receives } = begun(meeting, 1);
    await expect(receives.recv(meeting.from, 'foo', { signal: AbortSignal.abort() })).rejects.toMatchObject({ code: 'aborted' });
  });
  everywhere('LocalRendezvous.CancelAfterRecv', 'a receive that is cancelled while it waits', async (meeting) => {
    const { receives } = begun(meeting, 1);
    const cancel = new AbortController();
    const receiving = receives.recv(meeting.from, 'foo', { signal: cancel.signal });
    const outcome = expect(receiving).rejects.toMatchObject({ code: 'aborted' });
    await turn();
    cancel.abort();
    await outcome;
  });
  everywhere('LocalRendezvous.CancelEmptyQueue', 'a cancellation after the value changes nothing', async (meeting) => {
    const { sends, receives } = begun(meeting, 1);
    const cancel = new AbortController();
    const receiving = receives.recv(meeting.from, 'foo', { signal: cancel.signal });
    unheeded(sends.send(meeting.to, 'foo', 'hello'));
    const value = await receiving;
    cancel.abort();
    expect(value!.data).toEqual(['hello']);
  });
  everywhere('LocalRendezvous.RandomSendRecv', 'a hundred names, in any order', async (meeting) => {
    const { sends, receives } = begun(meeting, 1);
    const random = seededRandom(17);
    const events = ranksOf(200).sort(() => random.next() - 0.5);
    const received: Promise<void>[] = [];
    for (const event of events) {
      const name = String(event >> 1);
      if (event % 2 === 0) unheeded(sends.send(meeting.to, name, `value ${name}`));
      else received.push(receives.recv(meeting.from, name).then((value) => expect(value!.data).toEqual([`value ${name}`])));
      if (event % 7 === 0) await turn();
    }
    await Promise.all(received);
    expect(received).toHaveLength(100);
  });
  everywhere('LocalRendezvous.MultiSends', 'a name again and again, once in each step', async (meeting) => {
    for (const step of ranksOf(100)) {
      const { sends, receives } = begun(meeting, step + 1);
      unheeded(sends.send(meeting.to, 'foo', Float32Array.of(step)));
      using value = await receives.recv(meeting.from, 'foo');
      expect([...(value!.data as Float32Array)]).toEqual([step]);
      sends.end();
      if (receives !== sends) receives.end();
    }
  });
  for (const [test, late] of [
    ['LocalRendezvous.RecvAbort', false],
    ['LocalRendezvous.RecvSleepAbort', true],
  ] as const) {
    everywhere(test, `an abort ${late ? 'some time after' : 'beside'} a receive`, async (meeting) => {
      const { receives } = begun(meeting, 1);
      const outcome = expect(receives.recv(meeting.from, 'foo')).rejects.toMatchObject({
        code: 'aborted',
        message: expect.stringMatching(/enough/),
      });
      if (late) for (let k = 0; k < 5; k++) await turn();
      receives.abort(new Error('enough'));
      await outcome;
    });
  }
  everywhere('LocalRendezvous.AbortThenRecvOrSend', 'nothing is sent or received after an abort', async (meeting) => {
    const { sends, receives } = begun(meeting, 1);
    for (const step of new Set([sends, receives])) step.abort(new Error('enough'));
    await expect(receives.recv(meeting.from, 'foo')).rejects.toMatchObject({ code: 'aborted' });
    await expect((async () => sends.send(meeting.to, 'foo', 'hello'))()).rejects.toMatchObject({ code: 'aborted' });
  });

  everywhere('RpcRendezvousMgr.LocalSendRecv', 'steps of other numbers keep theirs', async (meeting) => {
    const [one, other] = [begun(meeting, 123), begun(meeting, 321)];
    unheeded(one.sends.send(meeting.to, 'foo', 'peach'));
    unheeded(other.sends.send(meeting.to, 'foo', 'plum'));
    expect((await other.receives.recv(meeting.from, 'foo'))!.data).toEqual(['plum']);
    expect((await one.receives.recv(meeting.from, 'foo'))!.data).toEqual(['peach']);
  });
  everywhere('RpcRendezvousMgr.LocalAbort', 'a step that ends fails those who wait', async (meeting) => {
    const { receives } = begun(meeting, 321);
    const outcome = expect(receives.recv(meeting.from, 'foo')).rejects.toMatchObject({ name: 'ShoalError' });
    await turn();
    receives.end();
    await outcome;
  });
  everywhere('RpcRendezvousMgr.LocalCancel', 'other receives of the step go on', async (meeting) => {
    const { sends, receives } = begun(meeting, 123);
    const cancel = new AbortController();
    const [given, kept] = [receives.recv(meeting.from, 'foo', { signal: cancel.signal }), receives.recv(meeting.from, 'bar')];
    const outcome = expect(given).rejects.toMatchObject({ code: 'aborted' });
    cancel.abort();
    await outcome;
    unheeded(sends.send(meeting.to, 'bar', 'peach'));
    expect((await kept)!.data).toEqual(['peach']);
  });
  everywhere('RpcRendezvousMgr.CancelAfterReceived', 'what was received stays', async (meeting) => {
    const { sends, receives } = begun(meeting, 123);
    const cancel = new AbortController();
    const receiving = receives.recv(meeting.from, 'foo', { signal: cancel.signal });
    unheeded(sends.send(meeting.to, 'foo', Float32Array.of(1, 2)));
    using value = await receiving;
    cancel.abort();
    expect([...(value!.data as Float32Array)]).toEqual([1, 2]);
  });
  everywhere('RpcRendezvousMgr.CleanupAll', 'a worker that is closed fails those who wait', async (meeting) => {
    const { receives } = begun(meeting, 123);
    const outcome = expect(receives.recv(meeting.from, 'foo')).rejects.toMatchObject({ name: 'ShoalError' });
    await turn();
    await meeting.receiver.close();
    await outcome;
  });
  cases.complete();
});

describe(tensorflowPartition.name, () => {
  const cases = new SuiteCases(tensorflowPartition);
  const [a, b] = ['/job:worker/task:0/device:CPU:0', '/job:ps/task:0/device:CPU:0'];
  const devices = new DeviceSet([
    { name: a, incarnation: 82n },
    { name: b, incarnation: 83n },
  ]);
  type Floats = Output<'float32'>;
  const partitioned = (build: (g: GraphBuilder) => void, doFuseRecv = false): PartitionedGraph => {
    const g = new GraphBuilder();
    build(g);
    const graph = g.finish();
    const feeds = graph.nodes.filter(({ op }) => op === 'Placeholder').map(({ outputs: [output] }) => output);
    const targets = graph.nodes.filter(({ op }) => op !== 'Placeholder');
    return partitionGraph(prune(graph, place(graph, devices), { feeds, fetches: [], targets }), { devices, doFuseRecv });
  };
  /** The nodes of a device by operation, in order; every partition is also proved to have no deadlock. */
  const opsOf = (result: PartitionedGraph, device: string): string[] => {
    expect(deadlockProblems(result)).toEqual([]);
    const found = result.partitions.find((each) => each.device.name === device);
    return found ? found.graph.nodes.map(({ op }) => op).sort() : [];
  };
  const float = (g: GraphBuilder, name: string, device: string): Floats =>
    identity(g, placeholder(g, 'float32', [4], { device }), { name, device });

  cases.add('GraphPartitionTest.SingleDevice', 'one device has all of it', () => {
    const result = partitioned((g) => {
      const a1 = float(g, 'A1', a);
      add(g, a1, a1, { name: 'A2', device: a });
    });
    expect(result.partitions.length).toBe(1);
    expect(opsOf(result, a)).toEqual(['AddV2', 'Identity', '_Arg']);
    expect(result.transfers).toEqual([]);
  });
  cases.add('GraphPartitionTest.CrossDeviceData', 'a Send and its receive, of the same key', () => {
    const result = partitioned((g) => add(g, float(g, 'A1', a), float(g, 'B1', b), { name: 'B2', device: b }));
    expect(result.partitions.length).toBe(2);
    expect(opsOf(result, a)).toEqual(['Identity', 'Send', '_Arg']);
    expect(opsOf(result, b)).toEqual(['AddV2', 'Identity', 'Recv', '_Arg']);
    const [send, recv] = [a, b].map((device) =>
      result.partitions.find((each) => each.device.name === device)!.graph.nodes.find(({ op }) => op === 'Send' || op === 'Recv')!,
    );
    expect(keysOf(send)).toEqual(keysOf(recv));
    expect(keysOf(send)[0]).toBe(`${a};0000000000000052;${b};edge_0_A1;0:0`);
  });
  cases.add('GraphPartitionTest.CrossDeviceControl', 'an empty tensor for a control edge', () => {
    const result = partitioned((g) => {
      const before = noOp(g, { name: 'A1', device: a });
      noOp(g, { name: 'B2', device: b, controlInputs: [before] });
    });
    expect(opsOf(result, a)).toEqual(['Const', 'NoOp', 'Send']);
    expect(opsOf(result, b)).toEqual(['Identity', 'NoOp', 'Recv']);
  });
  cases.add('GraphPartitionTest.CrossDeviceData_MultiUse', 'one transfer for several users', () => {
    const result = partitioned((g) => {
      const a1 = float(g, 'A1', a);
      add(g, a1, float(g, 'B1', b), { name: 'B2', device: b });
      add(g, a1, a1, { name: 'B3', device: b });
    });
    expect(result.transfers.length).toBe(1);
    expect(opsOf(result, b)).toEqual(['AddV2', 'AddV2', 'Identity', 'Recv', '_Arg']);
  });
  cases.add('GraphPartitionTest.CrossDeviceControl_MultiUse', 'one transfer for several nodes that run after', () => {
    const result = partitioned((g) => {
      const before = noOp(g, { name: 'A1', device: a });
      for (const name of ['B2', 'B3']) noOp(g, { name, device: b, controlInputs: [before] });
    });
    expect(result.transfers.length).toBe(1);
    expect(opsOf(result, b)).toEqual(['Identity', 'NoOp', 'NoOp', 'Recv']);
  });
  cases.add('GraphPartitionTest.CrossDevice_DataControl', 'a value and a control edge of one node', () => {
    const result = partitioned((g) => {
      const a1 = float(g, 'A1', a);
      add(g, a1, float(g, 'B1', b), { name: 'B2', device: b });
      noOp(g, { name: 'B3', device: b, controlInputs: [a1] });
    });
    expect(opsOf(result, b)).toContain('NoOp');
    expect(opsOf(result, a).filter((op) => op === 'Send').length).toBe(result.transfers.length);
    expect(opsOf(result, b).filter((op) => op === 'Recv').length).toBe(result.transfers.length);
  });
  /** On every device a control loop, after whose Merge all receives of the loop run. */
  const checkLoops = ({ partitions }: PartitionedGraph): void => {
    expect(partitions.length).toBe(2);
    for (const { nodes } of partitions.map(({ graph }) => graph)) {
      const control = nodes.filter(({ name }) => name.startsWith('_loop_'));
      expect(control.map(({ op }) => op).sort()).toEqual(['Const', 'Enter', 'Merge', 'NextIteration', 'Switch']);
      for (const { op, controlInputs } of nodes) if (op === 'Recv') expect(controlInputs.map((each) => each.op)).toEqual(['Merge']);
    }
  };
  const simpleLoop = (gates: string): PartitionedGraph =>
    partitioned((g) => {
      const a1 = placeholder(g, 'bool', [], { device: a });
      const [a3] = merge(g, [enter(g, a1, { frame_name: 'foo', device: gates })], { device: a });
      loopCond(g, a3, { device: a });
      g.connect(a3, nextIteration(g, identity(g, a3, { device: b }), { device: gates }));
    });
  cases.add('GraphPartitionTest.CrossDeviceLoopSimple', 'a loop with a node on another device', () => checkLoops(simpleLoop(a)));
  cases.add('GraphPartitionTest.CrossDeviceLoopSimple1', 'Enter and NextIteration run where their Merge does', () => {
    const [at] = simpleLoop(b).partitions.flatMap(({ graph }) => graph.nodes.filter(({ name }) => name === 'Merge'));
    expect(at.inputs.map(({ node }) => [node.op, node.device])).toEqual([
      ['Enter', a],
      ['NextIteration', a],
    ]);
  });
  cases.add('GraphPartitionTest.CrossDeviceLoopFull', 'a whole loop with a sum on another device', () => {
    const result = partitioned((g) => {
      const given = [1, 2].map(() => placeholder(g, 'int32', [], { device: a }));
      type Ints = Output<'int32'>;
      g.withDevice(a, () =>
        whileLoop(g, given, {
          cond: ([i]) => less(g, i as Ints, constant(g, { dtype: 'int32', shape: [], data: [10] })),
          body: ([i, j]) => [addN(g, [i, j] as Ints[], { device: b }), j],
        }),
      );
    });
    checkLoops(result);
  });
  cases.add('GraphPartitionTest.PartitionIncompleteGraph', 'a node without its inputs is refused by name', () => {
    const incomplete = { name: 'N', op: 'AddV2', inputs: [], attributes: {} };
    expect(() => importNodes([incomplete], operations)).toThrow(
      expect.objectContaining({ code: 'usage', message: expect.stringMatching(/'N'/) }),
    );
  });
  cases.add('GraphPartitionTest.SetIncarnation', 'both ends have the incarnation of the sending device', () => {
    const result = partitioned((g) => neg(g, float(g, 'A1', a), { name: 'B1', device: b }));
    const both = result.partitions.flatMap(({ graph }) => graph.nodes.filter(({ op }) => op === 'Send' || op === 'Recv'));
    expect(both.map(({ attributes }) => attributes.send_device_incarnation)).toEqual([82n, 82n]);
  });
  /** Two sources with two outputs each, as three receives on the other device. */
  const fused = (
    build: (g: GraphBuilder, sources: readonly Floats[]) => void,
    third: (g: GraphBuilder, from: Floats) => Output = (g, from) => identity(g, from),
  ) => {
    const result = partitioned((g) => {
      const w1 = float(g, 'W1', a);
      const sources = g.withDevice(a, () => [identity(g, w1), identity(g, w1), third(g, w1) as Floats]);
      neg(g, w1, { name: 'W4', device: a });
      g.withDevice(b, () => build(g, sources));
    }, true);
    return [a, b].map((device) => ({
      fused: opsOf(result, device).filter((op) => op === 'FuseRecv').length,
      single: opsOf(result, device).filter((op) => op === 'Recv').length,
    }));
  };
  const none = { fused: 0, single: 0 };
  cases.add('FuseRecvTest.FuseRecvNormal', 'three receives of one wave are one', () => {
    expect(fused((g, sources) => sources.forEach((each) => neg(g, each)))).toEqual([none, { fused: 1, single: 0 }]);
  });
  cases.add('FuseRecvTest.FuseRecvNormal2', 'and are used again, then and later', () => {
    const users = (g: GraphBuilder, [x, y, z]: readonly Floats[]): void => {
      const first = [neg(g, x), neg(g, y), neg(g, z)];
      add(g, first[0], x);
      neg(g, y);
    };
    expect(fused(users)).toEqual([none, { fused: 1, single: 0 }]);
  });
  cases.add('FuseRecvTest.FuseRecvRefType', 'a variable among them: its Send reads it, so that it needs no receive of its own', () => {
    const weights = (g: GraphBuilder): Output => variable(g, 'float32', [4], { name: 'weights' });
    const [worker, ps] = fused((g, sources) => sources.forEach((each) => neg(g, each)), weights);
    expect(worker).toEqual(none);
    expect(ps.fused).toBe(1);
  });
  cases.complete();
});
