/** Values of graphs in the memory of WebGPU devices, on devices of this thread. Drivers are tested in test/group/device-processes.test.ts. */
import { describe, expect, it } from 'vitest';
import { silentLogger } from '../../base/log.ts';
import { createParameterKernels } from '../../memory/parameter-kernels/create-parameter-kernels.ts';
import { DeviceTensor, isOnDevice } from '../../memory/device/device-tensor.ts';
import { bufferOf, FakeDevice } from '../../memory/device/testing/fake-device.ts';
import { stagedPieceBytes } from '../../rendezvous/value/staged-tensor.ts';
import { constant, identity, placeholder } from '../ops/array.ts';
import { call } from '../ops/call.ts';
import { cond } from '../ops/control-flow.ts';
import { add, neg } from '../ops/math.ts';
import { assign, gather, scatterAdd, variable } from '../ops/state.ts';
import { tableKernels } from '../kernels/table-kernels.ts';
import { GraphBuilder } from '../structure/builder.ts';
import type { CallFunction } from '../structure/definition.ts';
import type { GraphDType } from '../structure/graph-dtype.ts';
import type { Output } from '../structure/graph-node.ts';
import type { Shape } from '../structure/shape.ts';
import type { DenseValue, Value } from '../structure/value.ts';
import { dense, testKernels } from '../testing/kernels.ts';
import { startLocalCluster } from '../testing/local-cluster.ts';
import { fitsDevice } from './device-values.ts';
import type { Kernel, KernelTable } from './kernel.ts';
import { Resident } from './resident.ts';
import { Session, type Feeds } from './session.ts';

const [first, second] = [0, 1].map((k) => `/job:local/task:0/device:CPU:${k}`);
const floats = (shape: Shape): { dtype: GraphDType; shape: Shape }[] => [{ dtype: 'float32', shape }];

/** The memory of a buffer of a `FakeDevice`. */
const memoryOf = ({ buffer, count }: DeviceTensor): Float32Array =>
  new Float32Array((buffer as unknown as { memory: Uint8Array }).memory.buffer, 0, count);
const isDestroyed = ({ buffer }: DeviceTensor): boolean => (buffer as unknown as { destroyed: boolean }).destroyed;
const numbers = (value: Value): number[] => [...((value as DenseValue).data as Float32Array)];

/** Adds 1 to every element, in the memory of a device. */
function increments(device = new FakeDevice()) {
  const inputs: Value[] = [];
  const outputs: DeviceTensor[] = [];
  let ended = 0;
  const compute: CallFunction = async ([x], { atEnd }) => {
    inputs.push(x);
    const values = memoryOf(x as DeviceTensor).map((each) => each + 1);
    const buffer = bufferOf(device, new Uint8Array(values.buffer));
    outputs.push(new DeviceTensor({ device, buffer, dtype: 'float32', shape: x.shape }));
    atEnd(() => {
      ended++;
      buffer.destroy();
    });
    return outputs.slice(-1);
  };
  return { device, inputs, outputs, ended: () => ended, function: Object.assign(compute, { device }) };
}

function localSession(g: GraphBuilder, kernels: KernelTable = {}): Session {
  return new Session(g.finish(), { devices: [first, second], kernels: { ...testKernels, ...kernels } });
}

const onDevice = (device: FakeDevice, values: readonly number[]): DeviceTensor<'float32'> =>
  new DeviceTensor({ device, buffer: bufferOf(device, new Uint8Array(Float32Array.from(values).buffer)), dtype: 'float32' });

describe('values in the memory of devices', () => {
  it.each([first, second])('go there for a call, and come back for other kernels and for fetches, on %s', async (place) => {
    const g = new GraphBuilder();
    const [one, two] = [increments(), increments()];
    const x = placeholder(g, 'float32', [null], { device: first });
    const [a] = call(g, one.function, [neg(g, x, { device: first })], floats([null]), { device: place });
    const b = identity(g, a as Output<'float32'>, { device: place });
    const [c] = call(g, one.function, [b], floats([null]), { device: place });
    const [d] = call(g, two.function, [c], floats([null]), { device: first });
    const sum = add(g, d as Output<'float32'>, c as Output<'float32'>, { device: second });
    const session = localSession(g);
    for (let step = 1; step < 4; step++) {
      const [values, fetched] = await session.run([[x, dense([2], [step, 10])]], [sum, c]);
      expect(numbers(values)).toEqual([5 - 2 * step, -15]);
      expect(isOnDevice(fetched)).toBe(false);
      expect(numbers(fetched)).toEqual([2 - step, -8]);
      // Within a partition the next call takes the tensor of the call before as it is.
      expect(one.inputs.at(-1)).toBe(one.outputs.at(-2));
      expect((two.inputs.at(-1) as DeviceTensor).device).toBe(two.device);
      expect([one.ended(), two.ended()]).toEqual([2 * step, step]);
      for (const each of [...one.inputs, ...two.inputs]) expect(isDestroyed(each as DeviceTensor)).toBe(true);
    }
  });

  it('are fed and fetched', async () => {
    const g = new GraphBuilder();
    const { device, inputs, function: increment } = increments();
    const x = placeholder(g, 'float32', [2], { device: first });
    const [y] = call(g, increment, [x], floats([2]), { device: first });
    const z = neg(g, x, { device: second });
    const fed = onDevice(device, [3, 4]);
    const results = await localSession(g).run([[x, fed]], [y, z, x]);
    expect(results.map(numbers)).toEqual([
      [4, 5],
      [-3, -4],
      [3, 4],
    ]);
    expect(inputs).toEqual([fed]);
    expect(isDestroyed(fed)).toBe(false);
  });

  it('are constants, and go to kernels of libraries, beside others', async () => {
    class Borrowed extends Resident {
      readonly #from: Value;
      constructor(from: Value) {
        super(from.dtype, from.shape);
        this.#from = from;
      }
      protected read = (): Float32Array => Float32Array.from(numbers(this.#from), (each) => -each);
      dispose = (): void => undefined;
    }
    const library: Kernel = Object.assign(({ inputs: [x] }: Parameters<Kernel>[0]) => [new Borrowed(x)], {
      takesResidents: true,
      bring: (value: Value) => new Borrowed(value),
    });
    for (const hasOther of [false, true]) {
      const g = new GraphBuilder();
      const { device, function: increment } = increments();
      const x = placeholder(g, 'float32', [2]);
      const kept = constant(g, onDevice(device, [5, 6]));
      const [y, z] = [neg(g, x), neg(g, kept)];
      const others = hasOther ? call(g, increment, [y], floats([2])) : [];
      const fetched = await localSession(g, { Neg: library }).run([[x, onDevice(device, [3, 4])]], [y, z, kept, ...others]);
      expect(fetched.map(numbers)).toEqual([[-3, -4], [-5, -6], [5, 6], ...(hasOther ? [[-2, -3]] : [])]);
    }
  });

  it('come from no kernel that names no device; what does so is named', async () => {
    const device = new FakeDevice();
    for (const isAsynchronous of [false, true]) {
      for (const isFetched of [false, true]) {
        const g = new GraphBuilder();
        const made = [onDevice(device, [1, 2])];
        const [y] = call(g, () => (isAsynchronous ? Promise.resolve(made) : made), [], floats([2]), { name: 'relu', device: first });
        const fetch = isFetched ? y : neg(g, y as Output<'float32'>);
        await expect(localSession(g).run([], [fetch])).rejects.toMatchObject({
          code: 'usage',
          message: `step 1 failed: Call 'relu' on ${first}: output 0 is in the memory of a device, which its kernel must name: a function as its \`device\`, a kernel by \`deviceOf\``,
        });
      }
    }
  });

  it('are copied once for all nodes of a device, of a variable as it is then', async () => {
    const device = new FakeDevice();
    const tables: Value[] = [];
    const onIt: Kernel = Object.assign(
      ({ inputs: [table, indices] }: Parameters<Kernel>[0]) => {
        tables.push(table);
        const rows = Int32Array.from(new Int32Array(memoryOf(indices as DeviceTensor).buffer));
        return [
          onDevice(
            device,
            Array.from(rows, (row) => memoryOf(table as DeviceTensor)[row]),
          ),
        ];
      },
      { deviceOf: () => device },
    );
    const g = new GraphBuilder();
    const table = variable(g, 'float32', [2], { device: first });
    const init = assign(g, table, constant(g, { dtype: 'float32', shape: [2], data: Float32Array.of(1, 2) }));
    const ids = placeholder(g, 'int32', [null]);
    const added = (...controlInputs: readonly Output[]): Output =>
      scatterAdd(g, table, ids, constant(g, { dtype: 'float32', shape: [1], data: Float32Array.of(10) }), { controlInputs });
    const before = [0, 1].map(() => gather(g, table, ids, { device: first }));
    const change = added(...before);
    const after = gather(g, table, ids, { device: first, controlInputs: [change] });
    const session = localSession(g, { ...tableKernels(createParameterKernels()), GatherV2: onIt });
    await session.run([], [init]);
    // The first change copies what others may have; the next ones are in place.
    for (const value of [1, 11, 21]) {
      const fetched = await session.run([[ids, { dtype: 'int32', shape: [1], data: Int32Array.of(0) }]], [...before, after]);
      expect(fetched.map(numbers)).toEqual([[value], [value], [value + 10]]);
    }
    expect(tables).toHaveLength(9);
    expect(new Set(tables).size).toBe(6);
  });

  it('stay in host memory when they have no elements, wherever they come from', async () => {
    const device = new FakeDevice();
    const inputs: Value[] = [];
    const empty: CallFunction = Object.assign(
      ([x]: readonly Value[]) => {
        inputs.push(x);
        return [
          inputs.length % 2 === 0
            ? x
            : new DeviceTensor({ device, buffer: bufferOf(device, new Uint8Array(4)), dtype: 'float32', shape: [0] }),
        ];
      },
      { device },
    );
    await using cluster = await startLocalCluster({ worker: 2 }, { functions: { empty } });
    for (const shape of [[null], 'unknown'] as const) {
      const g = new GraphBuilder();
      const x = placeholder(g, 'float32', shape);
      const y = [0, 0, 1, 1, 0].reduce<Output>(
        (value, task) => call(g, 'empty', [value], floats(shape), { device: `/job:worker/task:${task}` })[0],
        x,
      );
      const session = await cluster.tasks.worker0.session(g.finish());
      const [value] = await session.run([[x, { dtype: 'float32', shape: [0], data: new Float32Array(0) }]], [y]);
      expect(numbers(value)).toEqual([]);
    }
    expect(inputs).toHaveLength(10);
    expect(inputs.filter(isOnDevice)).toEqual([]);
  });

  it('are given up by all callbacks of the end; the first that fails is told, unless the step has failed by itself', async () => {
    const ends: string[] = [];
    const ending =
      (name: string, fails = true): CallFunction =>
      ([x], { atEnd }) => {
        for (const each of [1, 2])
          atEnd(() => {
            ends.push(`${name} ${each}`);
            if (fails) throw new Error(`${name} ${each} cannot end`);
          });
        return [x];
      };
    const g = new GraphBuilder();
    const x = placeholder(g, 'float32', []);
    const [y] = call(g, ending('a'), [x], floats([]), { device: first });
    const [z] = call(g, ending('b', false), [y], floats([]), { device: second });
    const [failed] = call(
      g,
      () => {
        throw new Error('itself');
      },
      [z],
      floats([]),
    );
    const session = localSession(g);
    const all = ['a 1', 'a 2', 'b 1', 'b 2'];
    for (const [fetch, message] of [
      [z, 'a callback at the end of step 1 (atEnd) failed: a 1 cannot end'],
      [failed, /^step 2 failed: .*: itself$/],
    ] as const) {
      await expect(session.run([[x, dense([], [1])]], [fetch])).rejects.toMatchObject({
        code: 'aborted',
        message: typeof message === 'string' ? message : expect.stringMatching(message),
      });
      expect(ends.splice(0)).toEqual(all);
    }
    expect(session.stats.steps).toBe(0);
  });

  it('of other tasks, too: the session hears of its own task, and others tell their log', async () => {
    const [ends, told]: string[][] = [[], []];
    const ending: CallFunction = ([x], { atEnd }) => {
      const which = numbers(x)[0];
      atEnd(() => {
        ends.push(String(which));
        throw new Error(`${which} cannot end`);
      });
      return [x];
    };
    const log = { ...silentLogger, warn: (message: string) => void told.push(message) };
    await using cluster = await startLocalCluster({ worker: 2 }, { functions: { ending }, log });
    const g = new GraphBuilder();
    const x = placeholder(g, 'float32', []);
    const [here, there] = [0, 1].map((task) => call(g, 'ending', [x], floats([]), { device: `/job:worker/task:${task}` })[0]);
    const session = await cluster.tasks.worker0.session(g.finish());
    const feeds = (value: number): Feeds => [[x, { dtype: 'float32', shape: [], data: Float32Array.of(value) }]];
    expect((await session.run(feeds(1), [there])).map(numbers)).toEqual([[1]]);
    await expect
      .poll(() => told)
      .toEqual([expect.stringMatching(/^\/job:worker\/task:1: a callback at the end of step \d+ \(atEnd\) failed: 1 cannot end$/)]);
    await expect(session.run(feeds(2), [there, here])).rejects.toThrow(/a callback at the end of step \d+ \(atEnd\) failed: 2 cannot end/);
    await expect.poll(() => ends).toEqual(['1', '2', '2']);
  });

  it('have the bits of their dtype, whatever array they are fed as; what is no device is refused by the name of the node', async () => {
    const g = new GraphBuilder();
    const x = placeholder(g, 'float32', [2]);
    const [y] = call(g, increments().function, [x], floats([2]));
    const fed = { dtype: 'float32', shape: [2], data: Float64Array.of(3, 4) };
    expect(numbers((await localSession(g).run([[x, fed]], [y]))[0])).toEqual([4, 5]);
    const wrong = new GraphBuilder();
    const compute: CallFunction = Object.assign((inputs: readonly Value[]) => inputs, { device: 5 as unknown as FakeDevice });
    const [z] = call(wrong, compute, [placeholder(wrong, 'float32', [2], { name: 'x' })], floats([2]), { name: 'wrong' });
    const run = localSession(wrong).run([['x:0', fed]], [z]);
    await expect(run).rejects.toMatchObject({
      code: 'usage',
      message: expect.stringMatching(/'wrong' on \/job:local\/task:0\S*: device must be a GPUDevice, not/),
    });
  });

  it('choose a branch, pass it, and are kept in variables beyond their step', async () => {
    const g = new GraphBuilder();
    const { function: increment } = increments();
    const isTwo: CallFunction = ([value]) => [{ dtype: 'bool', shape: [], data: Uint8Array.of(Number(numbers(value)[0] === 2)) }];
    const x = placeholder(g, 'float32', [], { device: first });
    const [y] = call(g, increment, [x], floats([]));
    const [condition] = call(g, isTwo, [y], [{ dtype: 'bool', shape: [] }]);
    const [chosen] = cond(g, condition as Output<'bool'>, [y], {
      then: ([taken]) => [identity(g, taken)],
      else: ([taken]) => [neg(g, taken as Output<'float32'>)],
    });
    const kept = variable(g, 'float32', [], { name: 'kept', device: first });
    const save = assign(g, kept, y as Output<'float32'>);
    const read = identity(g, kept);
    const session = localSession(g);
    for (const [given, expected] of [
      [1, 2],
      [2, -3],
    ]) {
      const [value] = await session.run([[x, dense([], [given])]], [chosen, save.node]);
      expect(numbers(value)).toEqual([expected]);
      expect(numbers((await session.run([], [read]))[0])).toEqual([given + 1]);
    }
  });

  it('travel between tasks in pieces, singly and fused', async () => {
    const count = (2 * stagedPieceBytes) / 4 + 3;
    for (const [doFuseRecv, recvSome] of [
      [false, false],
      [true, false],
      [false, true],
    ]) {
      const [one, two] = [increments(), increments()];
      await using cluster = await startLocalCluster({ worker: 2 }, { recvSome, functions: { one: one.function, two: two.function } });
      const g = new GraphBuilder();
      const [here, there] = [0, 1].map((task) => ({ device: `/job:worker/task:${task}` }));
      const x = placeholder(g, 'float32', [null], here);
      const small = placeholder(g, 'float32', [3], here);
      const [a, s] = [x, small].map((each) => call(g, 'one', [each], floats(each.shape), here)[0] as Output<'float32'>);
      const [b, t] = [a, s].map((each) => call(g, 'two', [each], floats(each.shape), there)[0] as Output<'float32'>);
      const back = neg(g, b, here);
      const session = await cluster.tasks.worker0.session(g.finish(), { doFuseRecv });
      for (let step = 0; step < 3; step++) {
        const values = Float32Array.from({ length: count }, (_, k) => (k % 1000) + step);
        const feeds = [[x, { dtype: 'float32', shape: [count], data: values }] as const, [small, dense([3], [step, 2, 3])] as const];
        const [whole, , three] = await session.run(feeds, [back, b, t]);
        expect(numbers(three)).toEqual([step + 2, 4, 5]);
        const data = (whole as DenseValue).data as Float32Array;
        expect(data.every((each, k) => each === -(values[k] + 2))).toBe(true);
      }
      await expect.poll(() => [one.ended(), two.ended()]).toEqual([6, 6]);
      for (const each of [...one.inputs, ...two.inputs]) expect((each as DeviceTensor).dtype).toBe('float32');
      await expect.poll(() => two.inputs.every((each) => isDestroyed(each as DeviceTensor))).toBe(true);
    }
  });

  it('fail their step, by the name of the node, when the device is lost; the next step runs on another one', async () => {
    const g = new GraphBuilder();
    const lost = increments();
    const x = placeholder(g, 'float32', [2], { device: first });
    const [y] = call(g, lost.function, [x], floats([2]), { name: 'on_device', device: first });
    const session = localSession(g);
    lost.device.lose('unknown', 'the driver has crashed');
    const run = session.run([[x, dense([2], [1, 2])]], [y]);
    await expect(run).rejects.toMatchObject({ code: 'system', message: expect.stringMatching(/'on_device'.*the driver has crashed/s) });
    const whole = new GraphBuilder();
    const given = placeholder(whole, 'float32', [2]);
    const [z] = call(whole, increments().function, [given], floats([2]));
    const [value] = await localSession(whole).run([[given, dense([2], [1, 2])]], [z]);
    expect(numbers(value)).toEqual([2, 3]);
  });

  it('are given up at the end of a step that fails elsewhere', async () => {
    const g = new GraphBuilder();
    const { ended, inputs, function: increment } = increments();
    const x = placeholder(g, 'float32', [2], { device: first });
    const [y] = call(g, increment, [x], floats([2]), { device: first });
    const fails: CallFunction = async () => {
      await expect.poll(() => inputs.length).toBe(1);
      throw new Error('elsewhere');
    };
    const [z] = call(g, fails, [x], floats([2]), { device: second });
    await expect(localSession(g).run([[x, dense([2], [1, 2])]], [y, z])).rejects.toThrow(/elsewhere/);
    await expect.poll(ended).toBe(1);
    expect(isDestroyed(inputs[0] as DeviceTensor)).toBe(true);
  });

  it.each<[string, Shape, boolean]>([
    ['float32', [null, 3], true],
    ['float16', [null, 2], true],
    ['float16', [null], false],
    ['bool', [3], false],
    ['bool', [4], true],
    ['float32', [0, 3], false],
    ['float64', 'unknown', true],
    ['string', [4], false],
  ])('%s%j: %s', (dtype, shape, fits) => expect(fitsDevice(dtype, shape)).toBe(fits));
});
