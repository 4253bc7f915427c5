import { expect, it } from 'vitest';
import { systemClock } from '../../base/clock.ts';
import { ShoalError } from '../../base/errors.ts';
import { DeviceValues } from '../execute/device-values.ts';
import { Session } from '../execute/session.ts';
import { placeholder } from '../ops/array.ts';
import { neg } from '../ops/math.ts';
import type { RpcLink } from '../rpc/rpc.ts';
import { GraphBuilder } from '../structure/builder.ts';
import { encodeMessage } from '../wire/messages.ts';
import { joinPieces } from '../rpc/rpc.ts';
import { ClusterBackend } from './cluster-backend.ts';
import { TaskTrace } from './task-trace.ts';
import { Method, type WorkerService } from './worker-service.ts';

it('what one task cannot run stays registered with no other', async () => {
  const [good, bad] = ['/job:good/task:0', '/job:bad/task:0'];
  const called: number[] = [];
  let refuse: (() => void) | undefined;
  const linkTo = (task: string): Promise<RpcLink> =>
    Promise.resolve({
      lost: new Promise<void>(() => undefined),
      call: (method) => {
        if (task === good) called.push(method);
        const answer = joinPieces(encodeMessage({}));
        if (task === good) return Promise.resolve(answer);
        return new Promise((_, reject) => (refuse = () => reject(new ShoalError('unsupported', 'no kernel for Neg'))));
      },
      close: async () => undefined,
    } satisfies Partial<RpcLink> as unknown as RpcLink);
  const backend = new ClusterBackend({
    clock: systemClock,
    service: { task: '/job:own/task:0' } as WorkerService,
    linkTo,
    nextStepId: () => 1,
    nextHandle: () => 'handle',
    interOpParallelism: 1,
    trace: new TaskTrace(),
    devices: new DeviceValues(),
    keep: (value) => value,
    onClose: () => undefined,
    job: new AbortController().signal,
  });
  const g = new GraphBuilder();
  const x = placeholder(g, 'float32', [1], { name: 'x', device: `${good}/device:CPU:0` });
  const there = neg(g, neg(g, x, { name: 'y', device: `${good}/device:CPU:0` }), { name: 'z', device: `${bad}/device:CPU:0` });
  const session = new Session(g.finish(), { devices: [good, bad].map((task) => `${task}/device:CPU:0`) }, backend);
  const run = session.run([[x, { dtype: 'float32', shape: [1], data: Float32Array.of(1) }]], [there]);
  await expect.poll(() => called.length > 0 && refuse !== undefined).toBe(true);
  refuse?.();
  await expect(run).rejects.toMatchObject({ code: 'unsupported' });
  await expect.poll(() => called).toEqual([Method.register, Method.deregister]);
  session.close();
});
