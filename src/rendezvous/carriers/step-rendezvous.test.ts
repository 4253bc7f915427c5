import { expect, it } from 'vitest';
import { ShoalError } from '../../base/errors.ts';
import { dense } from './conformance.ts';
import { WorkerCore } from './worker-core.ts';

it('a fused receive that cannot read one of its tensors gives the others back', async () => {
  const core = new WorkerCore({ rank: 0, device: '/job:worker/task:0/device:CPU:0', incarnation: 1n });
  const step = core.beginStep(1);
  const [x, y] = ['x', 'y'].map((name) => core.key(name, core.self, core.self));
  let released = 0;
  step.send(x, { ...dense([1, 2]), release: () => void released++ });
  const read = (): Promise<void> => Promise.reject(new ShoalError('system', 'the device is lost'));
  step.send(y, { dtype: 'float32', shape: [1], bytes: 4, read, release: () => void released++ });
  await expect(step.recvFused([x, y])).rejects.toMatchObject({ code: 'system', message: expect.stringContaining('slot 1 of 2') as string });
  await expect.poll(() => released).toBe(2);
});
