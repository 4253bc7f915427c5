/** A store whose pushes and pulls are scheduled does what the store underneath does, in the order that is needed. */
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { describe, expect, it, vi } from 'vitest';
import { systemClock, VirtualClock, type Clock } from '../../base/clock.ts';
import { temporaryFolder } from '../../base/testing/temporary-folder.ts';
import { ShoalError } from '../../base/errors.ts';
import { seededRandom } from '../../base/random.ts';
import { DependencyEngine } from '../../engine/engine.ts';
import { PendingWork } from '../../comm/caller/work.ts';
import { Tensor } from '../../memory/tensor.ts';
import { parseChromeTrace } from '../../trace/trace-file.ts';
import type { Task } from '../../scheduler/task.ts';
import { CheckedStore } from '../calls/checked-store.ts';
import type { Backend } from '../calls/operation.ts';
import { create } from '../stores/create.ts';
import type { KVStore, KVWork } from '../calls/types.ts';
import { ScheduledKVStore } from './scheduled-kvstore.ts';
import type { ScheduledKVStoreOptions } from './scheduled-backend.ts';

interface Call {
  readonly operation: string;
  readonly key: string;
  end(error?: ShoalError): void;
}

/** Remembers calls, whose works end when the test says so. */
async function held(options: ConstructorParameters<typeof ScheduledKVStore>[1] = {}): Promise<{ store: ScheduledKVStore; calls: Call[] }> {
  const inner = CheckedStore.endOf(await create('local')) as Backend;
  const calls: Call[] = [];
  const outer: Backend = {
    place: inner.place,
    tensor: (dtype, shape) => inner.tensor(dtype, shape),
    ask: (question) => inner.ask(question),
    set: (setting) => inner.set(setting),
    close: () => inner.close(),
    start: (operation) => {
      const work = new PendingWork({ now: () => 0, drain: () => undefined, pump: () => false }, operation.type);
      const end = (error?: ShoalError): void => {
        if (!error) inner.start(operation);
        work.settle(error);
      };
      const key = 'lists' in operation ? operation.lists.keys[0] : operation.key;
      calls.push({ operation: operation.type, key, end });
      return work;
    },
  };
  return { store: new ScheduledKVStore(new CheckedStore(outer), { creditBytes: 16, partitionBytes: 8, ...options }), calls };
}

const turns = async (): Promise<void> => {
  for (let turn = 0; turn < 5; turn++) await new Promise(setImmediate);
};
const said = (calls: readonly Call[]): string[] => calls.map(({ operation, key }) => `${operation} ${key}`);

describe('a scheduled store', () => {
  it('merges a push with the pull that follows, in parts, the sooner first, within the credit', async () => {
    const { store, calls } = await held();
    await store.init(['late', 'soon'], [new Float32Array(6), new Float32Array(2)]);
    const outs = [new Float32Array(6), new Float32Array(2)];
    const late = store.push('late', new Float32Array([1, 2, 3, 4, 5, 6]), { priority: -2 });
    const pulled = store.pull('late', outs[0], { priority: -2 });
    await turns();
    expect(said(calls)).toEqual(['pushPull late/part-0', 'pushPull late/part-1']);
    const soon = store.pushPull('soon', new Float32Array([7, 8]), outs[1], { priority: -1 });
    await turns();
    calls[0].end();
    await turns();
    expect(said(calls).at(-1)).toBe('pushPull soon');
    for (let next = 1; next < 4; next++) {
      calls[next].end();
      await turns();
    }
    await Promise.all([late, pulled, soon]);
    expect(outs).toEqual([new Float32Array([1, 2, 3, 4, 5, 6]), new Float32Array([7, 8])]);
    expect(said(calls)).toHaveLength(4);
    await store.close();
  });

  it('waits at a barrier for what was called before it, also for what waits for others in the engine', async () => {
    const engine = new DependencyEngine({ clock: systemClock });
    const { store, calls } = await held({ engine });
    await store.init('w', new Float32Array(2));
    const value = new Float32Array([1, 2]);
    const events: string[] = [];
    let computed: (() => void) | undefined;
    engine.pushAsync((onComplete) => (computed = onComplete), [], [store.variableOf(value)]);
    void store.pushPull('w', value).then(() => events.push('pushPull'));
    const barrier = store.barrier().then(() => events.push('barrier'));
    await turns();
    computed?.();
    await turns();
    // Called later: it does not wait for this one.
    void store.pushPull('w', new Float32Array(2)).then(() => events.push('later'));
    await turns();
    calls[0].end();
    await barrier;
    expect(events).toEqual(['pushPull', 'barrier']);
    calls[1].end();
    await store.close();
  });

  it('sends pushes without a pull, and pulls without a push', async () => {
    const { store, calls } = await held();
    await store.init('w', new Float32Array(2));
    const gradient = new Float32Array([1, 2]);
    const push = store.push('w', gradient);
    gradient.fill(9);
    await turns();
    expect(said(calls)).toEqual(['push w']);
    calls[0].end();
    await push;
    const out = new Float32Array(2);
    const pull = store.pull('w', out);
    await turns();
    calls[1].end();
    await pull;
    expect(out).toEqual(new Float32Array([1, 2]));
    await store.close();
  });

  it('keeps the order of what is called for one parameter, whatever the priorities: a pull has the pushes before it', async () => {
    const { store, calls } = await held();
    await store.init(['other', 'w'], [new Float32Array(4), new Float32Array(2)]);
    const works = [store.pushPull('other', new Float32Array(4))];
    await turns();
    works.push(store.push('w', new Float32Array([1, 2]), { priority: -9 }));
    await turns();
    const out = new Float32Array(2);
    works.push(store.pull('w', out, { priority: 9 }), store.pushPull('w', new Float32Array([3, 4]), new Float32Array(2), { priority: 20 }));
    for (let next = 0; next < 5; next++) {
      await turns();
      calls[next].end();
    }
    await Promise.all(works);
    expect(said(calls).slice(2)).toEqual(['push w', 'pull w', 'pushPull w']);
    expect(out).toEqual(new Float32Array([1, 2]));
    await store.close();
  });

  it('schedules rows as it does whole parameters: within the credit, by priority, after what was called before', async () => {
    const { store, calls } = await held();
    await store.init('table', new Float32Array(8), { shape: [4, 2] });
    await store.init('soon', new Float32Array(2));
    const rows = { indices: new Uint32Array([0, 1, 3]), values: new Float32Array([1, 2, 3, 4, 5, 6]) };
    const out = new Float32Array(4);
    const works = [store.rowSparsePush('table', rows), store.rowSparsePull('table', out, { rowIds: new Uint32Array([3, 0]), priority: 9 })];
    rows.indices.fill(2);
    rows.values.fill(9);
    await turns();
    // A credit of two rows; a part without rows needs none.
    expect(said(calls)).toEqual([0, 1, 2].map((part) => `rowSparsePush table/part-${part}`));
    works.push(store.pushPull('soon', new Float32Array([7, 8]), undefined, { priority: 1 }));
    await turns();
    calls[0].end();
    await turns();
    expect(said(calls)[3]).toBe('pushPull soon');
    for (let next = 1; next < 7; next++) {
      calls[next].end();
      await turns();
    }
    await Promise.all(works);
    expect(said(calls).slice(4)).toEqual(['rowSparsePush table/part-3', 'rowSparsePull table/part-0', 'rowSparsePull table/part-3']);
    expect(out).toEqual(new Float32Array([5, 6, 1, 2]));
    await store.close();
  });

  it('starts what it may while the thread that calls computes: no event loop is needed', async () => {
    const { store, calls } = await held();
    await store.init(['w', 'v'], [new Float32Array(4), new Float32Array(4)]);
    void store.push('w', new Float32Array(4));
    const works = [store.pull('w', new Float32Array(4))];
    expect(said(calls)).toEqual(['pushPull w/part-0', 'pushPull w/part-1']);
    for (const call of calls) call.end();
    // A call that has ended gives its credit to the next, when something is called.
    works.push(store.pushPull('v', new Float32Array(4)));
    expect(said(calls).slice(2)).toEqual(['pushPull v/part-0', 'pushPull v/part-1']);
    for (const call of calls.slice(2)) call.end();
    await Promise.all(works);
    await store.close();
  });

  it('a call that is refused keeps no later one of its parameter waiting', async () => {
    const { store, calls } = await held();
    await store.init('w', new Float32Array(2));
    const { core } = store;
    const post = vi.spyOn(core, 'post').mockImplementationOnce(() => {
      throw new ShoalError('usage', 'no such task');
    });
    await expect(store.pushPull('w', new Float32Array(2))).rejects.toMatchObject({ code: 'usage', message: 'no such task' });
    post.mockRestore();
    const work = store.pull('w', new Float32Array(2));
    await turns();
    expect(said(calls)).toEqual(['pull w']);
    calls[0].end();
    await work;
    await store.close();
  });

  it('an operation that ends before its turn lets nobody pass the one before it', async () => {
    const { store, calls } = await held();
    await store.init(['other', 'w'], [new Float32Array(4), new Float32Array(6)]);
    const works: PromiseLike<void>[] = [store.pushPull('other', new Float32Array(4)), store.pushPull('w', new Float32Array(6).fill(1))];
    await turns();
    const wrong = store.pushPull('w', new Float32Array(5));
    await expect(wrong).rejects.toMatchObject({ code: 'mismatch' });
    const out = new Float32Array(6);
    works.push(store.pull('w', out, { priority: 9 }));
    for (let next = 0; next < 8; next++) {
      await turns();
      calls[next].end();
    }
    await Promise.all(works);
    expect(out).toEqual(new Float32Array(6).fill(1));
    await store.close();
  });

  it('tells what does not fit a parameter in parts by the work, also of a push that waited for its pull', async () => {
    const { store, calls } = await held();
    await store.init('w', new Float32Array(6));
    const six = new Float32Array(6);
    const five = new Float32Array(5);
    const wrong = { code: 'mismatch', message: "parameter 'w' has 6 elements, the value 5" };
    await expect(store.push('w', five)).rejects.toMatchObject(wrong);
    const works = [store.push('w', six), store.pull('w', five), store.pull('w', five), store.pushPull('w', five, six)];
    for (const work of works) await expect(work).rejects.toMatchObject(wrong);
    expect(calls).toEqual([]);
    await store.close();
  });

  it('keeps the order of what others do with its values through the engine', async () => {
    const clock = new VirtualClock();
    const engine = new DependencyEngine({ clock });
    const { store, calls } = await held({ clock, engine });
    await store.init('w', new Float32Array(6));
    const values = new Float32Array(6);
    const order: string[] = [];
    const backward: (() => void)[] = [];
    engine.pushAsync((done) => void backward.push(() => (values.fill(3), order.push('backward'), done())), [], [store.variableOf(values)]);
    const work = store.pushPull('w', values);
    engine.pushSync(() => void order.push(`forward ${values[5]}`), [store.variableOf(values)], []);
    await turns();
    // Its gradient is not there yet.
    expect(calls).toEqual([]);
    backward[0]();
    await turns();
    expect(said(calls)).toEqual(['pushPull w/part-0', 'pushPull w/part-1']);
    calls[1].end();
    await turns();
    calls[0].end();
    await turns();
    expect(order).toEqual(['backward']);
    calls[2].end();
    await work;
    await turns();
    expect(order).toEqual(['backward', 'forward 3']);
    await store.close();
  });

  it('poisons what depends on an operation that failed, and goes on with other values', async () => {
    const { store, calls } = await held();
    await store.init(['a', 'b'], [new Float32Array(4), new Float32Array(1)]);
    const values = new Float32Array(4);
    const variable = store.variableOf(values);
    const lost = new ShoalError('peer-lost', 'server 0 was lost');
    const failing = store.pushPull('a', values);
    const after = store.push('b', new Float32Array(1));
    await turns();
    calls[0].end(lost);
    await turns();
    for (const call of calls.slice(1)) call.end();
    await expect(failing).rejects.toMatchObject({ code: 'peer-lost' });
    await expect(store.engine.waitForVar(variable)).rejects.toMatchObject({ code: 'peer-lost' });
    await turns();
    for (const call of calls.slice(2)) call.end();
    await after;
    expect(store.core.statusOf('kvstore')).toMatchObject({ inFlight: 0, queued: 0 });
    // The values may be used again.
    const from = calls.length;
    const again = store.pushPull('a', values);
    await turns();
    for (let next = from; next < calls.length; next++) {
      calls[next].end();
      await turns();
    }
    await again;
    await store.close();
  });

  it('names an operation that never ends, and gives its credit back', async () => {
    const clock = new VirtualClock();
    const { store, calls } = await held({ clock, timeoutMs: 1000 });
    await store.init('w', new Float32Array(2));
    const work = store.pull('w', new Float32Array(2));
    await turns();
    // The store's own limit, which this one does not keep, comes 5 s earlier.
    clock.advance(5999);
    expect(store.core.statusOf('kvstore').inFlightBytes).toBeGreaterThan(0);
    clock.advance(1);
    await expect(work).rejects.toMatchObject({ code: 'timeout', message: expect.stringContaining("pull of 'w'") as string });
    expect(store.core.statusOf('kvstore').inFlightBytes).toBe(0);
    calls[0].end();
    await turns();
    await store.close();
  });

  it('tells those who depend on an operation that never ends', async () => {
    const clock = new VirtualClock();
    const { store, calls } = await held({ clock, timeoutMs: 1000 });
    await store.init('w', new Float32Array(4));
    const values = new Float32Array(4);
    const { engine } = store;
    const [variable, result] = [store.variableOf(values), engine.newVariable('result')];
    const work = store.pushPull('w', values);
    const ran = vi.fn();
    engine.pushSync(ran, [variable], [result]);
    await turns();
    const waits = Promise.allSettled([work, engine.waitForVar(variable), engine.waitForVar(result)]);
    clock.advance(6000);
    for (const each of await waits) expect(each).toMatchObject({ status: 'rejected', reason: { code: 'timeout' } });
    expect(ran).not.toHaveBeenCalled();
    // A late end has no effect.
    for (const call of calls) call.end();
    await turns();
    await store.close();
  });

  it('ends an operation that never ends also where the thread waits, or looks, without its event loop', async () => {
    let nowMs = 0;
    const clock: Clock = { now: () => (nowMs += 50), wallNow: () => 0, setTimer: () => ({ cancel: () => undefined }) };
    const { store } = await held({ clock, timeoutMs: 1000 });
    await store.init('w', new Float32Array(2));
    const late = expect.objectContaining({ code: 'timeout', message: expect.stringContaining("pull of 'w' did not finish") as string });
    expect(() => store.pull('w', new Float32Array(2)).waitSync()).toThrow(late);
    const looked = store.pull('w', new Float32Array(2));
    for (let looks = 0; looks < 1000 && !looked.done; looks++);
    expect(looked.error).toEqual(late);
    expect(store.core.statusOf('kvstore')).toMatchObject({ inFlight: 0, queued: 0 });
    await store.close();
  });

  it.each(['drain', 'abort'] as const)('closes with tasks that are queued: %s', async (mode) => {
    const { store, calls } = await held();
    await store.init('w', new Float32Array(12));
    const work = Promise.resolve(store.pull('w', new Float32Array(12))).then(
      () => 'done',
      (error: ShoalError) => error.code,
    );
    await turns();
    const closed = store.close({ mode });
    for (let next = 0; next < calls.length; next++) {
      calls[next].end();
      await turns();
    }
    await closed;
    expect(await work).toBe(mode === 'drain' ? 'done' : 'aborted');
    expect(calls).toHaveLength(mode === 'drain' ? 6 : 2);
    expect(() => store.push('w', new Float32Array(12))).toThrow(expect.objectContaining({ code: 'closed' }));
  });

  it('of a process that is a server can be waited for and closed, and is nothing else', async () => {
    const [served, close] = [vi.fn(async () => undefined), vi.fn(async () => undefined)];
    const numbers = { rank: 1, numWorkers: 2, numServers: 2, workerGroup: 0, workersPerGroup: 2, timeoutMs: 0 };
    const store = new ScheduledKVStore(new CheckedStore({ place: { type: 'dist_sync', role: 'server', ...numbers }, served, close }));
    expect(store).toMatchObject({ role: 'server', rank: 1 });
    await store.served();
    for (const call of [() => store.push('w', new Float32Array(1)), () => store.core, () => store.variableOf(new Float32Array(1))])
      expect(call).toThrow(expect.objectContaining({ code: 'usage', message: expect.stringContaining('is a server') as string }));
    await store.close();
    expect([served.mock.calls.length, close.mock.calls.length]).toEqual([1, 1]);
  });

  it('is waited for without the event loop', async () => {
    const store = new ScheduledKVStore(await create('local'), { creditBytes: 8, partitionBytes: 8 });
    await store.init('w', new Float32Array(10));
    const out = new Float32Array(10);
    store.push('w', new Float32Array(10).fill(2));
    store.pull('w', out).waitSync();
    expect(out).toEqual(new Float32Array(10).fill(2));
    const push = store.push('w', new Float32Array(10).fill(3));
    push.waitSync();
    store.pull('w', out).waitSync();
    expect(out[9]).toBe(3);
    await store.close();
  });

  it('tunes credit and partition: tasks are cut and admitted by each point, and the best is stayed at', async () => {
    const clock = new VirtualClock();
    const bytesOf = new Set<number>();
    const observer = { onStarted: ({ operation, bytes }: Task): void => void (operation === 'push_pull' && bytesOf.add(bytes)) };
    const space = { creditBytes: { least: 64, most: 1024 }, partitionBytes: { least: 32, most: 512 } };
    const store = new ScheduledKVStore(await create('local'), {
      creditBytes: 128,
      partitionBytes: 128,
      tuning: { space, stepsPerPoint: 6, stepsAhead: 2 },
      observer,
      clock,
      environment: { SHOAL_SCHEDULE_TUNING_DIR: '-' },
    });
    await store.init('w', new Float32Array(512));
    const best = { creditBytes: 700, partitionBytes: 200 };
    const stepMs = (): number => {
      const { creditBytes, partitionBytes } = store.scheduling;
      return 20 + 6 * ((creditBytes - best.creditBytes) / 500) ** 2 + 6 * ((partitionBytes - best.partitionBytes) / 250) ** 2;
    };
    const points = new Set<string>();
    const cuts = new Set<number>();
    for (let step = 0; step < 8 + (14 + 12) * 9 + 5; step++) {
      const values = new Float32Array(512).fill(1);
      await store.pushPull('w', values);
      const { creditBytes, partitionBytes } = store.scheduling;
      expect(store.core).toMatchObject({ creditBytes, partitionBytes });
      points.add(`${creditBytes} ${partitionBytes}`);
      // Whole parts of 32 bytes.
      cuts.add(partitionBytes - (partitionBytes % 32));
      clock.advance(stepMs());
    }
    expect(points.size).toBeGreaterThan(14);
    for (const bytes of cuts) expect(bytesOf).toContain(bytes);
    expect(store.scheduling.tuning).toBe('converged');
    expect(20 / stepMs()).toBeGreaterThan(0.95);
    await store.close();
  });

  it('leaves a timeline: of each worker, and of the first in a file of its own', async () => {
    const folder = temporaryFolder('timeline');
    const environment = { SHOAL_TRACE: folder, BYTESCHEDULER_TIMELINE: join(folder, 'own.json') };
    const { store, calls } = await held({ environment });
    await store.init('w', new Float32Array(6));
    const work = store.pull('w', new Float32Array(6));
    await turns();
    for (let next = 0; next < 3; next++) {
      calls[next].end();
      await turns();
    }
    await work;
    await store.close();
    for (const name of ['trace-worker-0.json', 'own.json']) {
      const { traceEvents } = parseChromeTrace(await readFile(join(folder, name), 'utf8'), name);
      const spans = traceEvents.filter(({ ph }) => ph === 'X').map((event) => `${event.name} ${event.args?.part}`);
      const each = (phase: string, parts = [0, 1, 2]): string[] => parts.map((part) => `${phase} ${part}`);
      expect(spans.toSorted()).toEqual([...each('init COMMUNICATION'), ...each('pull COMMUNICATION'), ...each('pull QUEUE')]);
      const counters = traceEvents.filter(({ ph }) => ph === 'C').map((event) => event.name);
      expect([...new Set(counters)].toSorted()).toEqual(['credit in flight (kvstore)', 'queue depth (kvstore)']);
    }
  });

  it.each<[string, (store: ScheduledKVStore) => unknown, string]>([
    ['a parameter twice', (store) => store.init('w', new Float32Array(4)), 'usage'],
    ['values of another size', (store) => store.push('w', new Float32Array(3)).waitSync(), 'mismatch'],
    ['rows of a vector in parts', (store) => store.rowSparsePull('w', new Float32Array(1), { rowIds: new Uint32Array(1) }), 'usage'],
    [
      'rows that are larger than a partition',
      async (store) => {
        await store.init('wide', new Float32Array(6), { shape: [2, 3] });
        await store.rowSparsePull('wide', new Float32Array(3), { rowIds: new Uint32Array(1) });
      },
      'unsupported',
    ],
    ['what is no store', () => new ScheduledKVStore(5 as unknown as KVStore), 'usage'],
  ])('refuses %s', async (_, run, code) => {
    const store = new ScheduledKVStore(await create('local'), { creditBytes: 8, partitionBytes: 8 });
    await store.init('w', new Float32Array(4));
    await expect(Promise.resolve().then(() => run(store))).rejects.toMatchObject({ code });
    await store.close();
  });

  it.each<[ScheduledKVStoreOptions, string]>([
    [{ creditBytes: 0 }, 'ScheduledKVStore: creditBytes must be a positive integer, not 0'],
    [{ partitionBytes: -1 }, 'ScheduledKVStore: partitionBytes must be a positive integer, not -1'],
    [{ partitionBytes: 2 ** 50 }, `ScheduledKVStore: partitionBytes: ${2 ** 50} bytes are more than this machine's memory`],
    [{ environment: { SHOAL_SCHEDULE_CREDIT_BYTES: '1024TiB' } }, `ScheduledKVStore: creditBytes: ${2 ** 50} bytes are more than`],
    [{ timeoutMs: 0 }, 'ScheduledKVStore: timeoutMs must be positive, not 0'],
    [{ timeoutMs: -3000 }, 'ScheduledKVStore: timeoutMs must be positive, not -3000'],
    [
      { tuning: { space: { creditBytes: { least: 9, most: 8 } } } },
      'creditBytes goes from a number of bytes to a larger one, not from 9 to 8',
    ],
  ])('refuses %j, and says who does not take what', async (options, message) => {
    const store = await create('local');
    expect(() => new ScheduledKVStore(store, options)).toThrow(
      expect.objectContaining({ code: 'usage', message: expect.stringContaining(message) as string }),
    );
    await using whole = new ScheduledKVStore(store, { timeoutMs: 0.5 });
    expect(whole.scheduling.tuning).toBe('fixed');
  });

  it('finds rows in parts: pushed in order, pulled in any, of arrays and of tensors', async () => {
    for (let seed = 1; seed <= 40; seed++) {
      const random = seededRandom(seed);
      const [rows, width] = [1 + random.integer(40), 1 + random.integer(5)];
      const plain = await create('local');
      // Parts have one row at least.
      await using scheduled = new ScheduledKVStore(await create('local'), { partitionBytes: 4 * (width + random.integer(8 * width)) });
      for (const store of [plain, scheduled]) await store.init('table', new Float32Array(rows * width), { shape: [rows, width] });
      for (let step = 0; step < 4; step++) {
        const indices = Uint32Array.from(Array.from({ length: rows }, (_, row) => row).filter(() => random.integer(3) === 0));
        const values = Float32Array.from({ length: indices.length * width }, () => random.integer(1000));
        const rowIds = Int32Array.from({ length: random.integer(12) }, () => random.integer(rows));
        const found: (readonly number[])[] = [];
        for (const store of [plain, scheduled]) {
          await store.rowSparsePush('table', { indices, values });
          const [out, tensor] = [new Float32Array(rowIds.length * width), store.tensor('float32', [rowIds.length, width])];
          await store.rowSparsePull('table', out, { rowIds });
          store.rowSparsePull('table', tensor, { rowIds }).waitSync();
          const all = new Float32Array(rows * width);
          await store.pull('table', all);
          found.push([...out, ...tensor.data, ...all]);
        }
        expect(found[1], `seed ${seed}`).toEqual(found[0]);
      }
    }
  });

  it('gives what the store underneath gives when nothing is waited for, whatever the priorities', async () => {
    for (let seed = 1; seed <= 40; seed++) {
      const random = seededRandom(seed);
      const plain = await create('local');
      const options = { creditBytes: 1 + random.integer(60), partitionBytes: 8 + random.integer(60) };
      await using scheduled = new ScheduledKVStore(await create('local'), options);
      const names = ['a', 'b', 'c'];
      for (const store of [plain, scheduled]) {
        for (const name of names) await store.init(name, new Float32Array(20), { shape: [10, 2] });
        await store.setOptimizer({ name: 'momentum', learningRate: 0.5, momentum: 0.9 });
      }
      const found: Float32Array[][] = [[], []];
      const works: KVWork[] = [];
      for (let step = 0; step < 25; step++) {
        const key = names[random.integer(3)];
        const kind = random.integer(5);
        const priority = random.integer(9) - 4;
        const value = Float32Array.from({ length: 20 }, () => random.next());
        const indices = Uint32Array.from(Array.from({ length: 10 }, (_, row) => row).filter(() => random.integer(2) === 0));
        for (const [at, store] of [plain, scheduled].entries()) {
          const out = new Float32Array(kind === 4 ? indices.length * 2 : 20);
          found[at].push(out);
          const rows = { indices, values: value.slice(0, indices.length * 2) };
          if (kind === 0) works.push(store.push(key, value, { priority }));
          if (kind === 1) works.push(store.pull(key, out, { priority }));
          if (kind === 2) works.push(store.pushPull(key, value.slice(), out, { priority }));
          if (kind === 3) works.push(store.rowSparsePush(key, rows, { priority }));
          if (kind === 4) works.push(store.rowSparsePull(key, out, { rowIds: indices, priority }));
        }
        if (random.integer(4) === 0) await new Promise(setImmediate);
      }
      await Promise.all(works);
      expect(found[1], `seed ${seed}`).toEqual(found[0]);
      await plain.close();
    }
  });

  it('gives what the store underneath gives, whatever is called', async () => {
    for (let seed = 1; seed <= 30; seed++) {
      const random = seededRandom(seed);
      const plain = await create('local');
      const scheduled = new ScheduledKVStore(await create('local'), {
        creditBytes: 1 + random.integer(100),
        partitionBytes: 4 + random.integer(60),
      });
      const counts = Array.from({ length: 1 + random.integer(4) }, () => 1 + random.integer(40));
      const keys = counts.map((__, index) => `k${index}`);
      for (const store of [plain, scheduled]) {
        await store.init(
          keys,
          counts.map((count) => new Float32Array(count)),
        );
        await store.setOptimizer({ name: 'sgd', learningRate: 0.1 });
      }
      for (let step = 0; step < 12; step++) {
        const key = random.integer(keys.length);
        const gradient = Float32Array.from({ length: counts[key] }, () => random.next());
        const isTensor = random.integer(2) === 0;
        const kind = random.integer(4);
        const results = await Promise.all(
          [plain, scheduled].map(async (store) => {
            const tensor = store.tensor('float32', [counts[key]]);
            tensor.data.set(gradient);
            const value = isTensor ? tensor : gradient.slice();
            const data = value instanceof Tensor ? value.data : value;
            if (kind === 0) await store.pushPull(keys[key], value, undefined, { priority: -key });
            if (kind === 1) await Promise.all([store.push(keys[key], value), store.pull(keys[key], value)]);
            if (kind === 2) await store.push(keys[key], value);
            if (kind !== 0) await store.pull(keys[key], value);
            return data.slice();
          }),
        );
        expect(results[1], `seed ${seed}`).toEqual(results[0]);
      }
      await Promise.all([plain.close(), scheduled.close()]);
    }
  });
});
