/** Several workers in one process: threads that share a client. */
import { once } from 'node:events';
import { pathToFileURL } from 'node:url';
import { Worker } from 'node:worker_threads';
import { expect, test } from 'vitest';
import { createShared } from '../../src/kvstore/stores/create.ts';
import { builtEntry } from '../../src/base/packages/package-root.ts';
import { KVJob } from '../support/kv-job.ts';

/** The program of every worker, the first one here and the others in threads: sums of three pushes, then an asynchronous error. */
const program = `
  const { workerData, parentPort } = require('node:worker_threads');
  const { index, ticket, environment } = workerData;
  import(index).then(async ({ create }) => {
    const kv = await create('dist_sync', { ticket, environment });
    await kv.init('w', new Float64Array(1000));
    for (let round = 1; round <= 3; round++) {
      const x = new Float64Array(1000).fill(10 ** kv.rank);
      kv.pushPull('w', x).waitSync();
      parentPort.postMessage({ rank: kv.rank, round, sum: x[999] });
    }
    await kv.close();
  });`;

test('their gradients are summed before they leave, and each gets the result', async () => {
  const perProcess = 3;
  await using job = await KVJob.start({ workers: 1, servers: 2 });
  const environment = job.environment('worker', 0);
  const { store, tickets } = await createShared('dist_sync', { workers: perProcess, environment });
  expect([store.rank, store.numWorkers, tickets.length]).toEqual([0, 3, 2]);
  const results: unknown[] = [];
  const index = pathToFileURL(builtEntry('kvstore/index.js')).href;
  const threads = tickets.map((ticket) => {
    const thread = new Worker(program, { eval: true, workerData: { index, ticket, environment }, transferList: [ticket.port] });
    thread.on('message', (result) => results.push(result));
    return thread;
  });
  await store.init('w', new Float64Array(1000));
  for (let round = 1; round <= 3; round++) {
    const x = new Float64Array(1000).fill(1);
    await store.pushPull('w', x);
    // Without optimiser the sum of a round replaces the value.
    expect(new Set(x)).toEqual(new Set([111]));
  }
  await Promise.all(threads.map((thread) => once(thread, 'exit')));
  expect(results).toHaveLength(6);
  for (const result of results) expect(result).toMatchObject({ sum: 111 });
  await store.close();
  expect(await job.served()).toEqual([0, 0]);
});
