import { describe, expect, it } from 'vitest';
import { create } from './create.ts';
import type { KVStoreType } from '../calls/types.ts';

describe('create', () => {
  it.each(['local', 'collective'] as const)('%s needs no servers, and no launcher for a world of one', async (type) => {
    await using kv = await create(type, { environment: {} });
    expect(kv).toMatchObject({ type, role: 'worker', rank: 0, numWorkers: 1, numServers: 0 });
    await kv.init('w', Float32Array.of(0, 0));
    await kv.setOptimizer({ name: 'sgd', learningRate: 0.5 });
    const value = kv.tensor('float32', [2]);
    value.data.set([2, 4]);
    await kv.pushPull('w', value);
    expect([...value.data]).toEqual([-1, -2]);
  });

  it('names the types there are', async () => {
    await expect(create('dist' as KVStoreType, { environment: {} })).rejects.toMatchObject({
      code: 'usage',
      message: expect.stringMatching(/'dist'.*local, collective, dist_sync or dist_async/) as string,
    });
  });
});
