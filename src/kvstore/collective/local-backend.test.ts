import { describe, expect, it } from 'vitest';
import { temporaryFolder } from '../../base/testing/temporary-folder.ts';
import { VirtualClock } from '../../base/clock.ts';
import { createKernels } from '../../memory/kernels/create-kernels.ts';
import { loadNative } from '../../memory/native.ts';
import { createParameterKernels } from '../../memory/parameter-kernels/create-parameter-kernels.ts';
import { createRegionAllocator } from '../../memory/regions/allocator.ts';
import { kvstoreChecks } from '../conformance.ts';
import { CheckedStore } from '../calls/checked-store.ts';
import { LocalBackend } from './local-backend.ts';

function newStore(clock = new VirtualClock()): CheckedStore {
  const native = loadNative({ enabled: true });
  const backend = new LocalBackend({
    kernels: createKernels({ native }),
    parameterKernels: createParameterKernels({ native }),
    allocator: createRegionAllocator({ native }),
    clock,
    timeoutMs: 1000,
  });
  return new CheckedStore(backend);
}

async function inFolder(body: (folder: string) => Promise<void>): Promise<void> {
  const folder = temporaryFolder('local');
  await body(folder);
}

describe('a local store', () => {
  it.each(kvstoreChecks.filter(({ types }) => types.includes('local')))('$name', ({ run }) =>
    inFolder((folder) => run(newStore(), folder)),
  );

  it('works are done when their call returns', async () => {
    const kv = newStore();
    await kv.init('w', Float32Array.of(1, 2));
    const work = kv.push('w', Float32Array.of(3, 4));
    expect(work.done).toBe(true);
    work.waitSync();
  });

  it('goes on where another process stopped, from the folder alone', () =>
    inFolder(async (folder) => {
      const kv = newStore();
      await kv.init(['a', '__proto__', '7'], [Float32Array.of(1), Float64Array.of(2), Int32Array.of(3)]);
      await kv.setOptimizer({ name: 'momentum', learningRate: 0.5 });
      await kv.push(['a', '__proto__'], [Float32Array.of(1), Float64Array.of(1)]);
      await kv.saveState(folder);
      const next = newStore();
      await next.loadState(folder);
      for (const each of [kv, next]) await each.push(['a', '__proto__'], [Float32Array.of(2), Float64Array.of(2)]);
      for (const [key, make] of [
        ['a', Float32Array],
        ['__proto__', Float64Array],
        ['7', Int32Array],
      ] as const) {
        const outs = [new make(1), new make(1)];
        await kv.pull(key, outs[0]);
        await next.pull(key, outs[1]);
        expect(outs[1]).toEqual(outs[0]);
        expect(await next.info(key)).toEqual(await kv.info(key));
      }
    }));

  it('says when there is nothing to load, or something else', () =>
    inFolder(async (folder) => {
      const kv = newStore();
      await expect(kv.loadState(folder)).rejects.toMatchObject({ code: 'usage', message: expect.stringContaining(folder) as string });
      const { SnapshotFolder } = await import('../../checkpoint/snapshot-folder.ts');
      await new SnapshotFolder(folder).save({ tensors: new Map(), metadata: { format: 'pt' } });
      await kv.init('w', Float32Array.of(1));
      await expect(kv.loadState(folder)).rejects.toMatchObject({ code: 'protocol', message: expect.stringMatching(/layout/) as string });
      const out = new Float32Array(1);
      await kv.pull('w', out);
      expect(out[0]).toBe(1);
    }));

  it('receiveBlob gives up in time, and when the store is closed', async () => {
    const clock = new VirtualClock();
    const kv = newStore(clock);
    const late = kv.receiveBlob(0, 'x', { timeoutMs: 50 });
    const never = kv.receiveBlob(0, 'y');
    clock.advance(51);
    await expect(late).rejects.toMatchObject({ code: 'timeout' });
    await kv.close();
    await expect(never).rejects.toMatchObject({ code: 'closed' });
  });

  it('a new optimiser starts anew', async () => {
    const kv = newStore();
    await kv.init('w', Float32Array.of(0));
    await kv.setOptimizer({ name: 'momentum', learningRate: 1, momentum: 0.5 });
    await kv.push('w', Float32Array.of(1));
    await kv.setOptimizer({ name: 'momentum', learningRate: 1, momentum: 0.5 });
    const out = Float32Array.of(1);
    await kv.pushPull('w', out);
    expect(out[0]).toBe(-2);
  });
});
