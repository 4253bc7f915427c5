/** The contrived example of ByteScheduler's documents: three layers whose tensors take 3, 6 and 3 units each way. */
import { expect, it } from 'vitest';
import { runLayeredStep } from './testing/layered-step.ts';

const step = { costs: [3, 6, 3], computeCost: 2 };

it('takes 26 units in the order in which gradients become ready', () => {
  const fifo = { ...step, partition: 100, credit: 100, byPriority: false };
  expect(runLayeredStep(fifo)).toEqual({ end: 26, pushed: [2, 1, 0] });
});

it('takes 18 units in parts, by priority', () => {
  const scheduled = { ...step, partition: 1, credit: 1, byPriority: true };
  expect(runLayeredStep(scheduled)).toEqual({ end: 18, pushed: [2, 2, 1, 1, 0, 0, 0, 1, 1, 1, 1, 2] });
});

it('needs both: parts alone, and priorities alone, gain less', () => {
  expect(runLayeredStep({ ...step, partition: 1, credit: 1, byPriority: false }).end).toBeGreaterThan(18);
  expect(runLayeredStep({ ...step, partition: 100, credit: 100, byPriority: true }).end).toBeGreaterThan(18);
});
