/** ps-lite's test programs, told from their descriptions, over real server processes. */
import { once } from 'node:events';
import { pathToFileURL } from 'node:url';
import { Worker } from 'node:worker_threads';
import { describe, expect } from 'vitest';
import { builtEntry } from '../../src/base/packages/package-root.ts';
import { seededRandom } from '../../src/base/random.ts';
import type { KVStore, KVWork } from '../../src/kvstore/calls/types.ts';
import { createShared } from '../../src/kvstore/index.ts';
import { KVJob } from '../support/kv-job.ts';
import { psLite } from './foreign-suites.ts';
import { ranksOf } from './support/shared-worlds.ts';
import { SuiteCases } from './support/suite-cases.ts';

const env = { SHOAL_TIMEOUT_MS: '60000' };
/** Servers take every push from the value at once. */
const subtracting = { name: 'sgd', learningRate: 1 } as const;
const repeats = 50;

/** A worker's own values, the same in each push. */
function valuesOf(worker: number, count: number): Float32Array {
  const random = seededRandom(worker + 7);
  return Float32Array.from({ length: count }, () => 1 + random.integer(999));
}

/** Pushes again and again, with few in flight, pulls, and pushes and pulls at once: what ps-lite's programs do. */
async function pushedAndPulled(kv: KVStore, keys: readonly string[], values: readonly Float32Array[]): Promise<void> {
  const works: KVWork[] = [];
  for (let k = 0; k < repeats; k++) {
    works.push(kv.push(keys, values));
    if (k > 10) await works.at(-10);
  }
  await Promise.all(works);
  const outs = values.map((value) => new Float32Array(value.length));
  await kv.pull(keys, outs);
  outs.forEach((out, k) => expect(out).toEqual(values[k].map((value) => -repeats * value)));
  for (let k = 0; k < repeats; k++) await kv.pushPull(keys, values, outs);
  outs.forEach((out, k) => expect(out).toEqual(values[k].map((value) => -2 * repeats * value)));
}

describe(psLite.name, () => {
  const cases = new SuiteCases(psLite);

  cases.each(
    'test_connection',
    [
      [1, 1],
      [2, 2],
    ],
    ([workers, servers]) => `${workers} workers and ${servers} servers meet and leave`,
    async ([workers, servers]) => {
      await using job = await KVJob.start({ workers, servers, env });
      const stores = await job.stores('dist_sync');
      expect(stores.map((kv) => [kv.rank, kv.numWorkers, kv.numServers])).toEqual(ranksOf(workers).map((rank) => [rank, workers, servers]));
      await Promise.all(stores.map((kv) => kv.close()));
      expect(await job.served()).toEqual(Array(servers).fill(0));
    },
  );

  const layouts = [
    { name: 'one vector for each worker', keys: 1, count: 10_000 },
    { name: 'many keys for each worker', keys: 200, count: 1 },
  ];
  cases.each(
    'test_kv_app',
    layouts,
    ({ name }) => `fifty pushes, a pull, fifty of both: ${name}`,
    async ({ keys, count }) => {
      const workers = 2;
      await using job = await KVJob.start({ workers, servers: 2, env });
      const stores = await job.stores('dist_async');
      await stores[0].setOptimizer(subtracting);
      await Promise.all(
        stores.map(async (kv) => {
          const namesOf = (worker: number): string[] => ranksOf(keys).map((k) => `${worker}/${k}`);
          const all = ranksOf(workers).flatMap(namesOf);
          await kv.init(
            all,
            all.map(() => new Float32Array(count)),
          );
          await pushedAndPulled(
            kv,
            namesOf(kv.rank),
            ranksOf(keys).map((k) => valuesOf(kv.rank * keys + k, count)),
          );
        }),
      );
    },
  );

  /** The program of the other thread of a process: it pushes threes where the first one pushes twos. */
  const program = `
    const { workerData, parentPort } = require('node:worker_threads');
    const { index, ticket, environment, repeats } = workerData;
    import(index).then(async ({ create }) => {
      const kv = await create('dist_async', { ticket, environment });
      await kv.init('w', new Float32Array(1000));
      await kv.barrier();
      for (let k = 0; k < repeats; k++) await kv.push('w', new Float32Array(1000).fill(3));
      await kv.barrier();
      const out = new Float32Array(1000);
      await kv.pull('w', out);
      parentPort.postMessage([...new Set(out)]);
      await kv.close();
    });`;
  cases.add('test_kv_app_multi_workers', 'two workers in the threads of one process, whose pushes are summed', async () => {
    await using job = await KVJob.start({ workers: 1, servers: 1, env });
    const environment = job.environment('worker', 0);
    const { store, tickets } = await createShared('dist_async', { workers: 2, environment });
    expect([store.rank, store.numWorkers, tickets.length]).toEqual([0, 2, 1]);
    const index = pathToFileURL(builtEntry('kvstore/index.js')).href;
    const [ticket] = tickets;
    const thread = new Worker(program, { eval: true, workerData: { index, ticket, environment, repeats }, transferList: [ticket.port] });
    const [pulled, ended] = [once(thread, 'message'), once(thread, 'exit')];
    await store.init('w', new Float32Array(1000));
    await store.setOptimizer(subtracting);
    await store.barrier();
    for (let k = 0; k < repeats; k++) await store.push('w', new Float32Array(1000).fill(2));
    await store.barrier();
    const out = new Float32Array(1000);
    await store.pull('w', out);
    expect([[...new Set(out)], ...((await pulled) as unknown[])]).toEqual([[-5 * repeats], [-5 * repeats]]);
    expect(await ended).toEqual([0]);
    await store.close();
    expect(await job.served()).toEqual([0]);
  });

  cases.add('test_simple_app', 'a hundred requests to every worker, each answered', async () => {
    const workers = 3;
    const requests = 100;
    await using job = await KVJob.start({ workers, servers: 1, env });
    const stores = await job.stores('dist_sync');
    const handled = await Promise.all(
      stores.map(async (kv) => {
        let taken = 0;
        const others = ranksOf(workers).slice(1);
        if (kv.rank > 0) {
          for (; taken < requests; taken++) {
            const [value] = await kv.receiveBlob(0, 'request');
            await kv.sendBlob(0, { kind: 'gradient', name: 'answer', values: Float32Array.of(-Number(value)) });
          }
          return taken;
        }
        for (let k = 0; k < requests; k++)
          for (const other of others) await kv.sendBlob(other, { kind: 'feature', name: 'request', values: Float32Array.of(k + other) });
        for (; taken < requests; taken++)
          for (const other of others) expect([...(await kv.receiveBlob(other, 'answer'))]).toEqual([-taken - other]);
        return taken;
      }),
    );
    expect(handled).toEqual(Array(workers).fill(requests));
  });

  cases.complete();
});
