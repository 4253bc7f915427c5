/** Tensors that others receive: given once, and again to who lost them with its connection. */
import { describe, expect, it } from 'vitest';
import type { ShoalError } from '../../base/errors.ts';
import { StepTable } from '../../rendezvous/table/step-table.ts';
import type { Value } from '../structure/value.ts';
import { scalarOf } from '../testing/kernels.ts';
import { ServedTensors } from './served-tensors.ts';
import { TaskTrace } from './task-trace.ts';

const key = '/job:ps/task:0/device:CPU:0;0000000000000007;/job:worker/task:0/device:CPU:0;x;0:0';

function served() {
  const steps = new StepTable<Value>();
  const tensors = new ServedTensors({ device: '/job:ps/task:0', incarnation: 7n, steps, trace: new TaskTrace() });
  const take = (caller: string, connection: number, stepId = 1) => {
    const told: unknown[] = [];
    const cancel = tensors.take({ caller, connection }, stepId, key, {
      receive: (value) => told.push(value === undefined ? 'dead' : (value.data as Float32Array)[0]),
      fail: (cause: ShoalError) => told.push(cause.code),
    });
    return { told, cancel };
  };
  return { steps, tensors, take };
}

describe('a tensor that was given', () => {
  it.each([
    ['alive', scalarOf(5), 5],
    ['dead', undefined, 'dead'],
  ])('is given again to the same caller on its next connection, and to nobody else (%s)', (_, value, expected) => {
    const { steps, tensors, take } = served();
    steps.begin(1).send(key, value);
    expect(take('a', 1).told).toEqual([expected]);
    expect(take('a', 1).told).toEqual(['usage']);
    expect(take('b', 2).told).toEqual(['usage']);
    expect(take('a', 2).told).toEqual([expected]);
    // What may be lost again.
    expect(take('a', 2).told).toEqual(['usage']);
    expect(take('a', 3).told).toEqual([expected]);
    steps.end(1);
    tensors.endStep(1);
    expect(take('a', 4).told).toEqual(['aborted']);
  });

  it('that was not sent yet is waited for anew', () => {
    const { steps, take } = served();
    const step = steps.begin(1);
    const first = take('a', 1);
    first.cancel();
    const second = take('a', 2);
    step.send(key, scalarOf(3));
    expect([first.told, second.told]).toEqual([[], [3]]);
  });

  it('cannot be read: that is said of it', () => {
    const { steps, take } = served();
    steps.begin(1).send(key, { dtype: 'float32', shape: [] });
    expect(take('a', 1).told).toEqual(['unsupported']);
  });
});
