/** A worker of the comparison on a store of this project: BENCH_STORE is `dist_sync` or `collective`. Values are tensors of the
 *  store, pushed and pulled in place. */
import { create } from '../../src/kvstore/stores/create.ts';
import type { KVStoreType } from '../../src/kvstore/calls/types.ts';
import { measure } from './workload.ts';

const kv = await create(process.env.BENCH_STORE as KVStoreType);
await measure({
  rank: kv.rank,
  workers: kv.numWorkers,
  barrier: () => kv.barrier(),
  async prepare({ name, keys: count, bytes }) {
    const keys = Array.from({ length: count }, (_, k) => `${name}/${k}`);
    const tensors = keys.map(() => kv.tensor('float32', [bytes / 4]));
    await kv.init(keys, tensors);
    const data = tensors.map((tensor) => tensor.data);
    return { values: data, outs: data, pushPull: async () => await kv.pushPull(keys, tensors) };
  },
});
await kv.barrier();
await kv.close();
