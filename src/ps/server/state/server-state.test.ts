import { describe, expect, it } from 'vitest';
import { ShoalError } from '../../../base/errors.ts';
import { elementsOf } from '../../protocol/placement.ts';
import type { CheckpointEvent } from './server-options.ts';
import type { SimulatedCluster } from '../../testing/simulated-cluster.ts';
import { Bench, sandblaster, small, type Outcome, type Parameter } from '../../testing/server-bench.ts';

describe('checkpoints that cannot be written', () => {
  it('are reported once per reason, tried again, and named by what waits for them', async () => {
    const events: CheckpointEvent[] = [];
    const bench = await Bench.of({
      topology: { ...sandblaster, workersPerGroup: 1, serversPerGroup: 1 },
      disks: true,
      server: { checkpointEveryMs: 1000, onCheckpoint: (event) => events.push(event) },
      client: { replayBytes: 40_000, timeoutMs: 5000 },
    });
    await bench.init([{ key: 'w', dtype: 'float32', shape: [4000] }]);
    await bench.setOptimizer();
    const [{ disk }] = bench.cluster.servers;
    const period = async (): Promise<void> => {
      bench.cluster.clock.advance(1000);
      await bench.cluster.settle();
    };
    const push = (): Outcome => bench.push(0, 'w', new Float32Array(4000).fill(1));
    const full = new ShoalError('system', 'no space left');
    disk!.failure = full;
    push();
    await bench.cluster.settle();
    for (let k = 0; k < 3; k++) await period();
    expect(events).toEqual([{ state: 'failed', error: full, againMs: 1000 }]);
    disk!.failure = new ShoalError('system', 'read-only');
    await period();
    disk!.failure = full;
    await period();
    expect(events.map((event) => event.state === 'failed' && event.error.message)).toEqual(['no space left', 'read-only']);
    // The second push fills what the worker may keep; the third waits.
    push();
    const held = push();
    for (let k = 0; k < 5; k++) await period();
    expect(held.error).toMatchObject({ code: 'timeout' });
    expect(held.error!.message).toMatch(
      /server 0 must save a checkpoint first, the 40000 bytes .* full; server 0 cannot save a checkpoint: no space left/,
    );
    disk!.failure = undefined;
    await period();
    expect(events.at(-1)).toEqual({ state: 'recovered' });
    expect(disk!.written).toBe(1);
    expect(bench.cluster.faults).toEqual([]);
  });
});

describe('state', () => {
  it('is saved and loaded, with versions and the state of the optimiser', async () => {
    const bench = await Bench.of({ topology: sandblaster });
    const parameters: Parameter[] = [small, { key: 'big', dtype: 'float32', shape: [300_000] }];
    await bench.init(parameters);
    await bench.setOptimizer();
    const round = async (): Promise<void> => {
      for (const worker of [0, 1]) for (const { key, shape } of parameters) bench.push(worker, key, new Float32Array(shape[0]).fill(1));
      await bench.cluster.settle();
    };
    await round();
    await bench.cluster.run<void>((done) => bench.cluster.clients[0].core.state(0, 'save', 'f', done));
    await round();
    await round();
    expect(await bench.info(1, 'big')).toMatchObject({ version: 3 });
    await bench.cluster.run<void>((done) => bench.cluster.clients[0].core.state(0, 'load', 'f', done));
    expect(await bench.info(1, 'big')).toMatchObject({ version: 1, ahead: 0 });
    expect(await bench.pulled(1, 'w', 4)).toEqual([2, 2, 2, 2]);
    await round();
    expect(await bench.pulled(1, 'w', 4)).toEqual([4, 4, 4, 4]);
    const missing = bench.cluster.run<void>((done) => bench.cluster.clients[0].core.state(0, 'load', 'nowhere', done));
    await expect(missing).rejects.toThrow(/no saved state in nowhere/);
  });

  it.each([
    { from: 2, to: 1 },
    { from: 1, to: 3 },
    { from: 3, to: 2 },
    { from: 2, to: 2 },
  ])('saved by $from servers is loaded by $to, cut otherwise', async ({ from, to }) => {
    const [parameters, count]: [Parameter[], number] = [
      [
        small,
        { key: 'big', dtype: 'float32', shape: [3000, 7] },
        { key: 'x@3', dtype: 'float32', shape: [2] },
        { key: 'table', dtype: 'float32', shape: [5000] },
      ],
      3000 * 7,
    ];
    const clusterOf = async (serversPerGroup: number, sliceBytes: number, folders?: SimulatedCluster['folders']): Promise<Bench> =>
      Bench.of({ topology: { ...sandblaster, serversPerGroup }, client: { sliceBytes }, ...(folders === undefined ? {} : { folders }) });
    const push = async (bench: Bench, at: (k: number) => number): Promise<void> => {
      for (const worker of [0, 1])
        for (const { key, shape } of parameters)
          bench.push(
            worker,
            key,
            Float32Array.from({ length: elementsOf(shape) }, (_, k) => at(k)),
          );
      await bench.cluster.settle();
    };
    const saved = await clusterOf(from, 4096);
    await saved.init(parameters, (k) => k);
    await saved.setOptimizer();
    await push(saved, (k) => k);
    await saved.cluster.run<void>((done) => saved.cluster.clients[0].core.state(0, 'save', 'f', done));
    const loaded = await clusterOf(to, 6000, saved.cluster.folders);
    // In another order, so that they lie elsewhere.
    await loaded.init(parameters.toReversed());
    await loaded.cluster.run<void>((done) => loaded.cluster.clients[0].core.state(0, 'load', 'f', done));
    expect(await loaded.pulled(1, 'big', count)).toEqual(Array.from({ length: count }, (_, k) => 3 * k));
    expect(await loaded.info(0, 'big')).toMatchObject({ version: 1 });
    // The state of the optimiser has come along: saved again by as many servers as at first, the tensors are the same.
    await push(loaded, () => 1);
    expect(await loaded.pulled(0, 'x@3', 2)).toEqual([2, 5]);
    await loaded.cluster.run<void>((done) => loaded.cluster.clients[0].core.state(0, 'save', 'g', done));
    const totals = new Map<string, number[]>();
    for (const [name, disk] of loaded.cluster.folders) {
      if (!name.startsWith('g/')) continue;
      for (const [tensor, { data }] of (await disk.load())!.tensors)
        if (tensor.startsWith('state/total/table')) totals.set(tensor, [...new Float32Array(Uint8Array.from(data).buffer)]);
    }
    const byOffset = [...totals].toSorted(([a], [b]) => Number(a.split('@')[1]) - Number(b.split('@')[1])).flatMap(([, values]) => values);
    expect(byOffset).toEqual(Array.from({ length: 5000 }, (_, k) => 2 * k + 2));
    expect(loaded.cluster.faults).toEqual([]);
  });

  it('of other parameters, or not all of it, is refused; nothing has changed', async () => {
    const saved = await Bench.of({ topology: sandblaster });
    await saved.init([small, { key: 'v', dtype: 'float32', shape: [8] }], (k) => k);
    await saved.cluster.run<void>((done) => saved.cluster.clients[0].core.state(0, 'save', 'f', done));
    const load = (bench: Bench): Promise<void> =>
      bench.cluster.run<void>((done) => bench.cluster.clients[0].core.state(0, 'load', 'f', done));
    const cases: [Parameter[], RegExp][] = [
      [[small], /'v' is in the files and not in the store/],
      [
        [small, { key: 'v', dtype: 'float32', shape: [8] }, { key: 'u', dtype: 'float32', shape: [1] }],
        /'u' is not in the files; init the same/,
      ],
      [[small, { key: 'v', dtype: 'float32', shape: [2, 4] }], /'v' is float32 \[2, 4\] here and float32 \[8\] in the files/],
    ];
    for (const [parameters, message] of cases) {
      const bench = await Bench.of({ topology: { ...sandblaster, serversPerGroup: 1 }, folders: new Map(saved.cluster.folders) });
      await bench.init(parameters, () => 5);
      await expect(load(bench)).rejects.toThrow(message);
      expect(await bench.pulled(0, 'w', 4)).toEqual([5, 5, 5, 5]);
    }
    const folders = new Map(saved.cluster.folders);
    folders.delete('f/0-1');
    const bench = await Bench.of({ topology: { ...sandblaster, serversPerGroup: 1 }, folders });
    await bench.init([small, { key: 'v', dtype: 'float32', shape: [8] }]);
    await expect(load(bench)).rejects.toThrow(/no state of server 1 of the 2 that saved in f; every server must see/);
    // Nor on the server that has its part.
    const two = await Bench.of({ topology: sandblaster, folders });
    await two.init([small, { key: 'v', dtype: 'float32', shape: [8] }], () => 5);
    await expect(load(two)).rejects.toThrow(/no state of server 1 of the 2 that saved/);
    for (const [key, count] of [
      ['w', 4],
      ['v', 8],
    ] as const) {
      expect(await two.pulled(0, key, count)).toEqual(Array.from({ length: count }, () => 5));
    }
  });
});
