/** Requests that other tasks may make of a task, and how it refuses the rest: requests that are cut off, of the wrong form, for graphs of others, for
 *  tensors that are not here; any bytes at all. Whatever was refused, the next step runs. */
import { beforeEach, describe, expect, it } from 'vitest';
import { systemClock } from '../../base/clock.ts';
import { ShoalError } from '../../base/errors.ts';
import { seededRandom } from '../../base/random.ts';
import { LoopbackNetwork } from '../../fabric/testing/loopback.ts';
import { Session } from '../execute/session.ts';
import type { DeviceValues } from '../execute/device-values.ts';
import { structuralKernels } from '../execute/structural-kernels.ts';
import { VariableStore } from '../execute/variable-store.ts';
import { placeholder } from '../ops/array.ts';
import { neg } from '../ops/math.ts';
import type { WorkerCore } from '../../rendezvous/carriers/worker-core.ts';
import { joinPieces } from '../rpc/rpc.ts';
import { GraphBuilder } from '../structure/builder.ts';
import type { Value } from '../structure/value.ts';
import { numbersOf, scalarOf, testKernels } from '../testing/kernels.ts';
import { graphData } from '../wire/graphs.ts';
import { encodeMessage } from '../wire/messages.ts';
import { TaskTrace } from './task-trace.ts';
import { TaskTensors } from './task-tensors.ts';
import { Method, WorkerService } from './worker-service.ts';

const [task, worker] = ['/job:ps/task:0', '/job:worker/task:0/device:CPU:0'];
const device = `${task}/device:CPU:0`;
const incarnation = 7n;
const key = (name: string, parts: { from?: string; of?: string; to?: string } = {}): string =>
  [parts.from ?? device, parts.of ?? '0000000000000007', parts.to ?? worker, name, '0:0'].join(';');

let service: WorkerService;
let core: WorkerCore<Value, Value>;
let devices: DeviceValues;

beforeEach(() => {
  ({ core, devices } = new TaskTensors({
    task,
    rank: 0,
    incarnation,
    fabric: new LoopbackNetwork().createFabric({
      identity: { world: 'w', rank: 0 },
      secret: new Uint8Array(16),
      clock: systemClock,
      random: seededRandom(1),
    }),
    world: 'w',
    clock: systemClock,
    random: seededRandom(2),
    recvSome: false,
    trace: new TaskTrace(),
    addressOf: (name) => Promise.reject(new ShoalError('usage', `${name} is not in the cluster`)),
  }));
  service = new WorkerService({
    core,
    devices,
    clock: systemClock,
    kernels: { ...structuralKernels(new VariableStore()), ...testKernels },
    graphsMax: 3,
  });
});

function ask(method: number, body: Uint8Array, { caller = 'a', signal = new AbortController().signal } = {}): Promise<Uint8Array> {
  return service.handle({ method, body, caller, signal }).then((pieces) => joinPieces(pieces));
}

const send = (method: number, fields: unknown, values: readonly Value[] = [], caller = 'a'): Promise<Uint8Array> =>
  ask(method, joinPieces(encodeMessage(fields, values)), { caller });

/** The ps's part of `z = −(−x)`, whose outer half is on the worker. */
function partition(): { nodes: unknown; values: Value[] } {
  const g = new GraphBuilder();
  const x = placeholder(g, 'float32', [], { name: 'x', device });
  const z = neg(g, neg(g, x, { name: 'y', device }), { name: 'z', device: worker });
  const devices = [{ name: device, incarnation }, worker];
  const { partitions } = new Session(g.finish(), { devices, kernels: testKernels }).partitions([x], [z]);
  const values: Value[] = [];
  const own = partitions.find((each) => each.device.name === device);
  return { nodes: graphData((own as (typeof partitions)[number]).graph, values), values };
}

async function register(handle = 'h', caller = 'a'): Promise<void> {
  const { nodes, values } = partition();
  await send(Method.register, { handle, interOpParallelism: 1, partitions: [{ device, nodes }] }, values, caller);
}

const run = (stepId: number, fields: object = {}, values: readonly Value[] = [scalarOf(3)], caller = 'a'): Promise<Uint8Array> =>
  send(Method.run, { handle: 'h', stepId, timeoutMs: 60_000, fetchCount: 0, feeds: [0], ...fields }, values, caller);

/** A tensor that another task asks for. */
const receive = (stepId: number, asked: string): Promise<Value | undefined> =>
  new Promise((resolve, reject) => {
    core.take(stepId, asked, { receive: resolve, fail: reject }, { worker: service, isOver: false });
  });

/** A whole step, as a session has it. */
async function step(stepId: number): Promise<readonly number[]> {
  const asked = receive(stepId, sentKey());
  await run(stepId);
  const value = await asked;
  await send(Method.endStep, { stepId });
  return numbersOf(value);
}

function sentKey(): string {
  const text = JSON.stringify(partition().nodes);
  return key((/"(edge_\d+_y)"/.exec(text) as RegExpExecArray)[1]);
}

describe('a task', () => {
  it('tells of its steps', async () => {
    await register();
    await step(1);
    expect(service.facts).toMatchObject({ calls: 1, pending: 0, oldest: undefined });
    await run(5);
    expect(service.facts).toMatchObject({ calls: 2, pending: 1, oldest: { text: 'step 5 of /job:ps/task:0' } });
  });

  it('runs partitions, and parks receives that come first', async () => {
    await register();
    expect(await step(1)).toEqual([-3]);
    expect(await step(2)).toEqual([-3]);
    expect(service.facts.pending).toBe(0);
  });

  const graphs = { handle: 'g', interOpParallelism: 1 };
  const fused = (attributes: object): unknown => ({
    name: 'f',
    op: 'FuseRecv',
    inputs: [],
    attributes: Object.fromEntries(
      Object.entries({
        tensor_type: ['float32', 'float32'],
        tensor_name: ['a', 'b'],
        send_device: [worker, worker],
        send_device_incarnation: [{ bigint: '1' }, { bigint: '1' }],
        recv_device: [device, device],
        shapes: [{ list: [] }, { list: [] }],
        ...attributes,
      }).map(([name, list]) => [name, { list }]),
    ),
  });
  const registerNodes = (...nodes: unknown[]): (() => Promise<unknown>) => {
    return () => send(Method.register, { ...graphs, partitions: [{ device, nodes }] });
  };

  it.each<[string, () => Promise<unknown>, string, RegExp]>([
    ['methods that do not exist', () => send(99, {}), 'protocol', /there is no method 99/],
    ['no bytes', () => ask(Method.run, new Uint8Array(0)), 'protocol', /cut off/],
    ['what is cut off', () => ask(Method.run, Uint8Array.of(255, 255, 255, 255, 0, 0, 0, 0)), 'protocol', /cut off/],
    ['what is no JSON', () => ask(Method.run, Uint8Array.of(1, 0, 0, 0, 0, 0, 0, 0, 123, 0, 0, 0, 0, 0, 0, 0)), 'protocol', /no JSON/],
    ['fields that are missing', () => send(Method.run, {}), 'protocol', /a request for a step is not well formed/],
    ['steps that are no numbers', () => send(Method.endStep, { stepId: -1 }), 'protocol', /the end of a step is not well formed/],
    ['graphs that are not there', () => run(5, { handle: 'none' }), 'usage', /has no such graph; has its process restarted/],
    ['graphs of another caller', () => run(5, {}, [scalarOf(3)], 'b'), 'usage', /has no such graph/],
    ['feeds that are missing', () => run(5, {}, []), 'protocol', /a feed is missing/],
    ['feeds beyond all bounds', () => run(5, { feeds: [2e6] }), 'protocol', /a feed is missing/],
    ['fetches beyond all bounds', () => run(5, { fetchCount: 2e6 }), 'protocol', /2000000 fetches/],
    ['graphs that are none', registerNodes(3), 'protocol', /a node is an object/],
    ['unknown operations', registerNodes({ name: 'x', op: 'Foo', inputs: [], attributes: {} }), 'unsupported', /not known: Foo/],
    ['graphs with circles', registerNodes({ name: 'x', op: 'Neg', inputs: ['x'], attributes: {} }), 'usage', /has a circle: x → x/],
    [
      'devices of other tasks',
      () => send(Method.register, { ...graphs, partitions: [{ device: worker, nodes: [] }] }),
      'usage',
      /is not a device of \/job:ps\/task:0/,
    ],
    [
      'fused receives of several senders',
      registerNodes(fused({ send_device: [worker, device] })),
      'usage',
      /FuseRecv 'f': all slots have one send_device/,
    ],
    [
      'fused receives for several receivers',
      registerNodes(fused({ recv_device: [device, worker] })),
      'usage',
      /all slots have one recv_device/,
    ],
    [
      'fused receives of several incarnations',
      registerNodes(fused({ send_device_incarnation: [{ bigint: '1' }, { bigint: '2' }] })),
      'usage',
      /all slots have one send_device_incarnation, not 1 and 2/,
    ],
    [
      'fused receives of nothing',
      registerNodes(fused({ tensor_type: [], tensor_name: [], send_device: [], send_device_incarnation: [], recv_device: [], shapes: [] })),
      'usage',
      /receives nothing/,
    ],
  ])('refuses %s, and goes on', async (_, request, code, message) => {
    await register();
    await expect(request()).rejects.toMatchObject({ code, message: expect.stringMatching(message) as string });
    expect(await step(9)).toEqual([-3]);
  });

  it.each<[string, string, string, RegExp]>([
    ['that are none', 'nothing', 'protocol', /'nothing' is no rendezvous key/],
    ['of other tasks', key('a', { from: worker }), 'usage', /\/job:worker/],
    ['of an earlier process of this task', key('a', { of: '0000000000000006' }), 'mismatch', /started again|incarnation/],
  ])('says of keys %s what is wrong', async (_, bad, code, message) => {
    await register();
    const asked = expect(receive(4, bad)).rejects.toMatchObject({ code, message: expect.stringMatching(message) as string });
    await run(4);
    await asked;
    await send(Method.endStep, { stepId: 4 });
  });

  it('ends receives of what is never sent with their step, and those of one who asks twice at once', async () => {
    await register();
    const never = expect(receive(6, key('never'))).rejects.toMatchObject({ code: 'aborted', message: 'step 6 has ended' });
    await run(6);
    await expect(receive(6, key('never'))).rejects.toMatchObject({
      code: 'usage',
      message: expect.stringMatching(/'never' from \/job:ps\S+ .*asked for twice/) as string,
    });
    await send(Method.endStep, { stepId: 6 });
    await never;
    // A step that has run cannot begin again.
    await expect(run(6)).rejects.toMatchObject({
      code: 'usage',
      message: expect.stringMatching(/step 6 cannot begin: step 6 has ended/) as string,
    });
  });

  it('holds no more graphs than it may, and forgets those of who is gone', async () => {
    for (const handle of ['1', '2', '3']) await register(handle, 'b');
    await expect(register()).rejects.toMatchObject({ code: 'out-of-memory', message: expect.stringMatching(/has 3 graphs/) as string });
    service.callerGone('b');
    await register();
    expect(await step(1)).toEqual([-3]);
  });

  it('takes no harm from any bytes', async () => {
    await register();
    const { nodes, values } = partition();
    const requests = [
      joinPieces(encodeMessage({ handle: 'g', interOpParallelism: 1, partitions: [{ device, nodes }] }, values)),
      joinPieces(encodeMessage({ handle: 'h', stepId: 3, timeoutMs: 50, fetchCount: 1, feeds: [0] }, [scalarOf(3)])),
      joinPieces(encodeMessage({ stepId: 3, code: 'aborted', message: 'no' })),
    ];
    const strange: unknown[] = [];
    const random = seededRandom(4);
    const some = (count: number): number => Math.floor(count * random.next());
    for (let round = 0; round < 1500; round++) {
      let body = requests[some(requests.length)].slice();
      for (let left = some(4); left > 0; left--) body[some(body.length)] = some(256);
      if (some(4) === 0) body = body.slice(0, some(body.length));
      const abort = new AbortController();
      const asked = ask(1 + some(6), body, { caller: 'evil', signal: abort.signal }).catch((thrown: unknown) => {
        if (!(thrown instanceof ShoalError)) strange.push(thrown);
      });
      if (round % 10 === 0) await new Promise(setImmediate);
      abort.abort();
      void asked;
    }
    await new Promise(setImmediate);
    expect(strange).toEqual([]);
    service.callerGone('evil');
    expect(service.facts.pending).toBe(0);
    expect(await step(2 ** 40)).toEqual([-3]);
  });
});
