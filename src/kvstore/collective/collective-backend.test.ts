import { describe, expect, it } from 'vitest';
import { temporaryFolder } from '../../base/testing/temporary-folder.ts';
import { UnhurriedClock } from '../../base/testing/unhurried-clock.ts';
import { startRanks } from '../../group/testing/in-process-world.ts';
import { createKernels } from '../../memory/kernels/create-kernels.ts';
import { loadNative } from '../../memory/native.ts';
import { createParameterKernels } from '../../memory/parameter-kernels/create-parameter-kernels.ts';
import { CheckedStore } from '../calls/checked-store.ts';
import { CollectiveBackend, type CollectiveBackendOptions } from './collective-backend.ts';
import { kvstoreChecks } from '../conformance.ts';

const clock = new UnhurriedClock();
const native = loadNative({ enabled: true });

const open = async (options: CollectiveBackendOptions): Promise<CheckedStore> => new CheckedStore(await CollectiveBackend.open(options));

/** Runs the body on every worker of a world of its own. */
async function onWorkers(n: number, body: (kv: CheckedStore, folder: string) => Promise<void>): Promise<void> {
  const folder = temporaryFolder('collective');
  await using world = await startRanks(n);
  await world.each(async (group) => {
    await using kv = await open({
      group,
      kernels: createKernels({ native }),
      parameterKernels: createParameterKernels({ native }),
      clock,
      timeoutMs: 60_000,
    });
    await body(kv, folder);
  });
}

const checks = kvstoreChecks.filter(({ types }) => types.includes('collective'));

describe.each([1, 2, 3])('a collective store of %i workers', (n) => {
  it.each(checks)('$name', ({ run }) => onWorkers(n, run));
});

describe('a collective store', () => {
  it('two stores on one group do not disturb each other', async () => {
    await using world = await startRanks(2);
    await world.each(async (group) => {
      const options = {
        group,
        kernels: createKernels(),
        parameterKernels: createParameterKernels(),
        clock,
        timeoutMs: 60_000,
      };
      const [a, b] = [await open(options), await open(options)];
      await Promise.all([a.init('w', Float32Array.of(1)), b.init('w', Float32Array.of(2))]);
      const [x, y] = [Float32Array.of(1), Float32Array.of(10)];
      await Promise.all([a.pushPull('w', x), b.pushPull('w', y), group.allReduce(new Float32Array(8))]);
      expect([x[0], y[0]]).toEqual([2, 20]);
      await a.close();
      await b.pushPull('w', y);
      expect(y[0]).toBe(40);
      await b.close();
    });
  });

  it('workers that push different keys of one shape all fail', () =>
    onWorkers(2, async (kv) => {
      await kv.init(['a', 'b'], [new Float32Array(4), new Float32Array(4)]);
      const pushed = kv.push(kv.rank === 0 ? 'a' : 'b', new Float32Array(4));
      await expect(Promise.resolve(pushed)).rejects.toMatchObject({ code: 'mismatch' });
    }));

  it('an optimiser that the others have not heard of fails the push everywhere', () =>
    onWorkers(2, async (kv) => {
      await kv.init('a', new Float32Array(4));
      if (kv.rank === 0) await kv.setOptimizer({ name: 'sgd', learningRate: 1 });
      await expect(Promise.resolve(kv.push('a', new Float32Array(4)))).rejects.toMatchObject({
        code: 'mismatch',
        message: expect.stringContaining('before the barrier that announces what worker 0 has set') as string,
      });
    }));

  it('an awaited barrier has all pushes before it', () =>
    onWorkers(1, async (kv) => {
      await kv.init('a', new Float32Array(1));
      kv.push('a', Float32Array.of(1));
      await kv.barrier();
      expect(await kv.info('a')).toMatchObject({ ahead: 0, version: 1 });
    }));

  it('parameters without elements, compressed or not, stay out of the way of others', () =>
    onWorkers(2, async (kv) => {
      const keys = ['empty', 'one', 'none'];
      const values = (): Float32Array[] => [new Float32Array(), Float32Array.of(1), new Float32Array()];
      await kv.init(keys, values());
      for (const compressed of [false, true]) {
        if (compressed) kv.setGradientCompression({ type: '2bit', threshold: 1 });
        const outs = values();
        await kv.pushPull(keys, outs);
        expect(outs[1][0]).toBe(2);
      }
      expect((await kv.info('none')).version).toBe(2);
    }));

  it('rows of unequal number, none from some', () =>
    onWorkers(3, async (kv) => {
      await kv.init('rows', new Float32Array(20), { shape: [10, 2] });
      const indices = Uint32Array.from(kv.rank === 1 ? [] : kv.rank === 0 ? [1, 2, 9] : [2]);
      await kv.rowSparsePush('rows', { indices, values: new Float32Array(indices.length * 2).fill(kv.rank + 1) });
      const out = new Float32Array(20);
      await kv.pull('rows', out);
      expect([...out]).toEqual([0, 0, 1, 1, 4, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1]);
    }));
});
