/** Worlds and stores of a process share its comm thread: neither keeps the other waiting, nor falls with it. */
import { once } from 'node:events';
import { pathToFileURL } from 'node:url';
import { Worker } from 'node:worker_threads';
import { describe, expect, it } from 'vitest';
import { temporaryFolder } from '../../src/base/testing/temporary-folder.ts';
import { ShoalError } from '../../src/base/errors.ts';
import { builtEntry } from '../../src/base/packages/package-root.ts';
import { CommChannel } from '../../src/comm/caller/comm-channel.ts';
import { hostGuest } from '../../src/comm/caller/comm-thread.ts';
import { initProcessGroup } from '../../src/group/init.ts';
import type { ProcessGroup } from '../../src/group/caller/types.ts';
import { create, createShared } from '../../src/kvstore/stores/create.ts';
import type { Asked } from '../fixtures/comm-guest.ts';
import { KVJob } from '../support/kv-job.ts';
import { RankProcess } from '../support/ranks.ts';

const workers = (): number => (process.report.getReport() as unknown as { workers: unknown[] }).workers.length;

/** A world whose two ranks are this process. */
async function worldOfTwo(folder: string): Promise<ProcessGroup[]> {
  const initMethod = `file://${folder}`;
  return Promise.all([0, 1].map((rank) => initProcessGroup({ initMethod, rank, worldSize: 2, environment: {} })));
}

/** A guest that ends the thread on request. */
async function fatalGuest(): Promise<CommChannel<Asked, string>> {
  const options = { entry: '../.built/comm-guest.mjs', plan: { name: 'fatal' }, who: 'it' };
  const guest = new CommChannel<Asked, string>((handlers) => hostGuest(options, handlers));
  await guest.ready();
  return guest;
}

/** Another worker of the process, which waits for a key that never comes. */
const waitingWorker = `
  const { workerData, parentPort } = require('node:worker_threads');
  const { index, ticket, environment } = workerData;
  import(index).then(async ({ create }) => {
    const kv = await create('dist_async', { ticket, environment });
    const blob = kv.receiveBlob(0, 'nothing');
    parentPort.postMessage('waits');
    await blob.catch(({ code }) => parentPort.postMessage(code));
    // The other thread should be waiting for its end by then.
    parentPort.once('message', () => process.exit());
  });`;

describe('initProcessGroup', () => {
  it.each(['tcp://10.0.0.1:29500', 'file:///shared', 'nonsense'])('%s without a rank and a launcher is refused', async (initMethod) => {
    const message = `initProcessGroup: initMethod '${initMethod}' needs rank and worldSize, or a launcher`;
    await expect(initProcessGroup({ initMethod, environment: {} })).rejects.toMatchObject({ code: 'usage', message });
  });
});

describe('in one process', () => {
  it.each([
    { first: 'group', last: 'store' },
    { first: 'store', last: 'group' },
  ] as const)('$first before $last: one thread, until both are closed, in either order', async ({ first }) => {
    await using job = await KVJob.start({ workers: 1, servers: 1 });
    const open = {
      group: () => initProcessGroup({ environment: {} }),
      store: () => create('dist_async', { environment: job.environment('worker', 0) }),
    };
    // Worker 0 leaves once: then its servers end.
    const { group, store } =
      first === 'group'
        ? { group: await open.group(), store: await open.store() }
        : await (async () => {
            const store = await open.store();
            return { store, group: await open.group() };
          })();
    expect(workers()).toBe(1);
    const x = Float32Array.of(1, 2);
    const use = {
      group: () => group.allReduce(x),
      store: async () => {
        await store.init('w', x);
        await store.pull('w', x);
      },
    };
    await use.group();
    await use.store();
    if (first === 'group') {
      await group.destroy();
      expect(workers()).toBe(1);
      await store.pull('w', x);
      // A world that is joined again finds the thread there.
      const again = await initProcessGroup({ environment: {} });
      expect(workers()).toBe(1);
      await again.destroy();
      await store.close();
    } else {
      await store.close();
      expect(workers()).toBe(1);
      await use.group();
      await group.destroy();
    }
    expect(workers()).toBe(0);
  });

  it('two worlds and two stores: one thread', async () => {
    const folder = temporaryFolder('comm');
    await using job = await KVJob.start({ workers: 2, servers: 1 });
    const [groups, stores] = await Promise.all([worldOfTwo(folder), job.stores('dist_sync')]);
    expect(workers()).toBe(1);
    const sums = groups.map(({ rank }) => Float64Array.of(rank + 1));
    const values = stores.map(({ rank }) => Float64Array.of(rank + 1));
    await Promise.all(stores.map((store) => store.init('w', new Float64Array(1))));
    await Promise.all([
      ...groups.map((group, rank) => group.allReduce(sums[rank])),
      ...stores.map((store, rank) => store.pushPull('w', values[rank])),
    ]);
    expect([...sums, ...values].map(([value]) => value)).toEqual([3, 3, 3, 3]);
    await Promise.all([groups[0].destroy(), groups[1].destroy(), stores[0].close(), stores[1].close()]);
    expect(workers()).toBe(0);
  });

  it('all fail when the thread is lost, and later ones have another', async () => {
    const folder = temporaryFolder('comm');
    await using job = await KVJob.start({ workers: 1, servers: 1 });
    const groups = await worldOfTwo(folder);
    const store = await create('dist_async', { environment: job.environment('worker', 0) });
    const guest = await fatalGuest();
    const pending = [groups[0].recv(new Float32Array(1), 1), store.receiveBlob(0, 'nothing')];
    guest.start({ type: 'ask', what: 'exit' }, 'its end');
    for (const work of pending) await expect(work).rejects.toMatchObject({ code: 'system', message: /the comm thread ended with code 7/ });
    await expect(store.init('w', new Float32Array(1))).rejects.toMatchObject({ code: 'system' });
    await Promise.all([...groups.map((group) => group.destroy()), store.close().catch(() => undefined)]);
    await guest.leave(new ShoalError('closed', 'it is over'));
    const next = await initProcessGroup({ environment: {} });
    await next.allReduce(new Float32Array(4));
    await next.destroy();
    expect(workers()).toBe(0);
  });

  it('other threads hear, too, that the thread is lost', async () => {
    await using job = await KVJob.start({ workers: 1, servers: 1 });
    const environment = job.environment('worker', 0);
    const {
      store,
      tickets: [ticket],
    } = await createShared('dist_async', { workers: 2, environment });
    const index = pathToFileURL(builtEntry('kvstore/index.js')).href;
    const thread = new Worker(waitingWorker, { eval: true, workerData: { index, ticket, environment }, transferList: [ticket.port] });
    expect(await once(thread, 'message')).toEqual(['waits']);
    const guest = await fatalGuest();
    guest.start({ type: 'ask', what: 'exit' }, 'its end');
    expect(await once(thread, 'message')).toEqual(['system']);
    thread.postMessage('heard');
    await once(thread, 'exit');
    await expect(store.barrier()).rejects.toMatchObject({ code: 'system' });
    await store.close().catch(() => undefined);
    await guest.leave(new ShoalError('closed', 'it is over'));
    expect(workers()).toBe(0);
  });
});

interface Said {
  readonly threads?: number;
  readonly ended?: string;
  readonly reduced?: number;
  readonly pushed?: number;
}

function startRanks(job: KVJob, what: string, env: Readonly<Record<string, string>> = {}): RankProcess[] {
  const ranks = { WHAT: what, SHOAL_SLOW_MS: '600000', ...env };
  return [0, 1].map((index) => new RankProcess(index, job.startWorker(index, 'group-and-store', ranks)));
}

/** Waits until both counters, or one, have risen by this much. */
async function more(rank: RankProcess, name: 'reduced' | 'pushed', by = 20): Promise<void> {
  const last = (rank.lines as Said[]).findLast((each) => each[name] !== undefined)?.[name] ?? 0;
  await rank.line<Said>((each) => each[name] === last + by);
}

describe('ranks that are workers, too', () => {
  it('both go on while the main thread computes', async () => {
    await using job = await KVJob.start({ workers: 2, servers: 1 });
    for (const { exited } of startRanks(job, 'overlap')) {
      const { code, lines, stderr } = await exited;
      expect(stderr).toBe('');
      const rounds = [1, 2, 3].map((round) => ({ round, sums: [true, true] }));
      expect(lines).toEqual([{ threads: 1 }, ...rounds, { threads: 0 }]);
      expect(code).toBe(0);
    }
  });

  it.each(['', 'tcp'])('a scheduled group and a store share the credit, in other orders on other ranks, fabrics "%s"', async (fabrics) => {
    await using job = await KVJob.start({ workers: 2, servers: 2 });
    const env = { SHOAL_KV_CREDIT_BYTES: '400000', SHOAL_FABRICS: fabrics };
    for (const { exited } of startRanks(job, 'credit', env)) {
      const { code, lines, stderr } = await exited;
      expect(stderr).toBe('');
      const rounds = [0, 1, 2, 3, 4, 5].map((round) => ({ round, sums: [true, true] }));
      expect(lines).toEqual([{ threads: 1 }, ...rounds, { threads: 0 }]);
      expect(code).toBe(0);
    }
  });

  it.each(['group', 'store'])('a process waits for the ends of both, %s first', async (first) => {
    await using job = await KVJob.start({ workers: 2, servers: 1 });
    for (const { exited } of startRanks(job, 'nothing', { FIRST: first })) {
      expect(await exited).toMatchObject({ code: 0, lines: [{ threads: 1 }, { threads: 0 }], stderr: '' });
    }
  });

  it('each goes on while the other has much to do', async () => {
    await using job = await KVJob.start({ workers: 2, servers: 1 });
    for (const { exited } of startRanks(job, 'load', { STORE: 'dist_async' })) {
      const { code, lines, stderr } = await exited;
      expect(stderr).toBe('');
      expect(code).toBe(0);
      expect(lines).toEqual([{ threads: 1 }, { threads: 0 }]);
    }
  });

  it('a server that is stopped, then killed: the group goes on, and the store when the standby does', async () => {
    await using job = await KVJob.start({ workers: 2, servers: 1, replicas: 2 });
    const ranks = startRanks(job, 'goOn', { STORE: 'dist_async' });
    await Promise.all(ranks.flatMap((rank) => [more(rank, 'reduced'), more(rank, 'pushed')]));
    process.kill(job.pidOf(0), 'SIGSTOP');
    await Promise.all(ranks.map((rank) => more(rank, 'reduced', 100)));
    await job.kill(0);
    await Promise.all(ranks.flatMap((rank) => [more(rank, 'reduced', 100), more(rank, 'pushed')]));
    for (const rank of ranks) rank.tell();
    for (const { exited } of ranks) {
      const { code, lines } = await exited;
      expect(lines).toContainEqual({ ended: 'group' });
      expect(lines).toContainEqual({ ended: 'store' });
      expect(code).toBe(0);
    }
  });

  it('a rank that is killed: the group fails and names it, the store goes on', async () => {
    await using job = await KVJob.start({ workers: 2, servers: 1 });
    const [rank, victim] = startRanks(job, 'goOn', { STORE: 'dist_async' });
    await Promise.all([rank, victim].flatMap((each) => [more(each, 'reduced'), more(each, 'pushed')]));
    victim.kill();
    expect(await rank.line<Said>(({ ended }) => ended === 'group')).toMatchObject({ code: 'peer-lost', peer: 1 });
    await more(rank, 'pushed', 100);
    rank.tell();
    const { code, lines } = await rank.exited;
    expect(lines).toContainEqual({ ended: 'store' });
    expect(code).toBe(0);
  });
});
