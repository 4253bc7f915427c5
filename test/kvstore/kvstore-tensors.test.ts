/** Stores and tensors of a process group: a released tensor is refused, and its memory is not given to another one while a result
 *  is to go there. */
import { expect, it } from 'vitest';
import { initProcessGroup } from '../../src/group/init.ts';
import { create } from '../../src/kvstore/stores/create.ts';
import type { KVStore, Value } from '../../src/kvstore/calls/types.ts';
import { KVJob } from '../support/kv-job.ts';

function expectRefusals(kv: KVStore, released: Value): void {
  const rowIds = Uint32Array.of(0, 1);
  for (const call of [
    () => kv.push('w', released),
    () => kv.pull('w', released),
    () => kv.pull('w', [[new Float32Array(64), released]]),
    () => kv.pushPull('w', released),
    () => kv.pushPull('w', new Float32Array(64), released),
    () => kv.rowSparsePush('w', { indices: rowIds, values: released }),
    () => kv.rowSparsePull('w', released, { rowIds }),
  ])
    expect(call).toThrow(expect.objectContaining({ code: 'usage', message: expect.stringMatching(/released/) }));
}

it('a local store refuses released tensors', async () => {
  await using group = await initProcessGroup();
  await using kv = await create('local');
  await kv.init('w', new Float32Array(64), { shape: [2, 32] });
  const x = group.tensor('float32', [2, 32]);
  group.release(x);
  expectRefusals(kv, x);
  await expect(kv.init('v', x)).rejects.toMatchObject({ code: 'usage' });
});

it('a store with servers refuses released tensors, and keeps the memory of results that are to come', async () => {
  await using group = await initProcessGroup();
  await using job = await KVJob.start({ workers: 1, servers: 1 });
  const [kv] = await job.stores('dist_sync');
  await kv.init('w', new Float32Array(64).fill(3), { shape: [2, 32] });
  const calls = [
    (out: Value) => kv.pull('w', out),
    (out: Value) => kv.pull('w', [[new Float32Array(64), out]]),
    (out: Value) => kv.pushPull('w', new Float32Array(64), out),
    (out: Value) => kv.pushPull('w', out),
    (out: Value) => kv.rowSparsePull('w', out, { rowIds: Uint32Array.of(0, 1) }),
  ];
  for (const call of calls) {
    const x = group.tensor('float32', [2, 32]);
    const work = call(x);
    group.release(x);
    const others = Array.from({ length: 3 }, () => group.tensor('float32', [2, 32]));
    for (const { data } of others) data.fill(7);
    await work;
    expect(others.every(({ data }) => data.every((each) => each === 7))).toBe(true);
    expectRefusals(kv, x);
    // When the result has come, the memory is another tensor's.
    const next = group.tensor('float32', [2, 32]);
    expect(next.data.byteOffset).toBe(x.data.byteOffset);
    for (const other of [...others, next]) group.release(other);
  }
});
